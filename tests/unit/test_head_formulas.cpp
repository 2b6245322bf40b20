// Formulas that single heads have by an override: kept sets against the reference in double, over ranges of
// heads and random formulas, changes, forks and rewinds; what a lane needs for them; what is refused.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/policy/option_help.h"
#include "engine/session/session.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/both_runs.h"
#include "tests/reference/compared_text.h"
#include "tests/reference/different_tokens.h"
#include "tests/reference/session_run.h"
#include "tests/reference/sharing_cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace reference::test_head_formulas {
namespace {

using keyhole::to_index;

constexpr int kPrompt = 24, kDecode = 16;

/// A formula as a lane writes it, and what it gives, computed here.
struct Twin {
    std::string text;
    Formula value;
};

/// Makes random formulas. Their parts are positive and never subtracted, so that float is near double.
class RandomTwins {
  public:
    explicit RandomTwins(unsigned seed) : random_(seed) {}

    Twin choose() {
        Twin inner = expression(2, false);
        return below(3) == 0 ? of_each("-({})", inner, [](double x) { return -x; }) : inner;
    }
    Twin score() {
        const double part = 0.1 * (1 + below(10));
        const Twin row = expression(1, true);
        const Twin before = token(fmt::format("{}*s", part), [part](const Seen& t) { return part * t.s; });
        return below(2) == 0
                   ? both("{}+{}", before, row, [](double a, double b) { return a + b; })
                   : both("max({},{})", before, row, [](double a, double b) { return std::max(a, b); });
    }
    Twin protect() {
        switch (below(4)) {
            case 0:
                return token("position<2", [](const Seen& t) { return t.position < 2; });
            case 1:
                return token("age<2 or position==3",
                             [](const Seen& t) { return t.age < 2 || t.position == 3; });
            case 2:
                return token("slot==1 or slot==4", [](const Seen& t) { return t.slot == 1 || t.slot == 4; });
            default:
                return token("kvhead==layer and prompt and position>=21", [](const Seen& t) {
                    return t.kv_head == t.layer && t.position < t.n && t.position >= 21;
                });
        }
    }
    int below(int n) { return static_cast<int>(random_() % to_index(n)); }

  private:
    std::mt19937 random_;

    static Twin token(const std::string& text, const std::function<double(const Seen&)>& of) {
        return {text, [of](const std::vector<Seen>& tokens) {
                    Vector out;
                    for (const Seen& t : tokens) out.push_back(of(t));
                    return out;
                }};
    }
    static Twin of_each(const char* form, const Twin& x, const std::function<double(double)>& of) {
        return {fmt::format(fmt::runtime(form), x.text), [x, of](const std::vector<Seen>& tokens) {
                    Vector out = x.value(tokens);
                    for (double& value : out) value = of(value);
                    return out;
                }};
    }
    static Twin both(const char* form, const Twin& x, const Twin& y,
                     const std::function<double(double, double)>& of) {
        return {fmt::format(fmt::runtime(form), x.text, y.text), [x, y, of](const std::vector<Seen>& tokens) {
                    Vector out = x.value(tokens);
                    const Vector other = y.value(tokens);
                    for (std::size_t i = 0; i < out.size(); ++i) out[i] = of(out[i], other[i]);
                    return out;
                }};
    }
    /// Of the competing tokens.
    static Twin mean_of(const Twin& x) {
        return {fmt::format("mean({})", x.text), [x](const std::vector<Seen>& tokens) {
                    const Vector values = x.value(tokens);
                    double sum = 0, n = 0;
                    for (std::size_t i = 0; i < tokens.size(); ++i)
                        if (tokens[i].competes) sum += values[i], ++n;
                    return Vector(tokens.size(), sum / n);
                }};
    }
    static Twin largest_of(const Twin& x) {
        return {fmt::format("largest({})", x.text), [x](const std::vector<Seen>& tokens) {
                    const Vector values = x.value(tokens);
                    double most = -INFINITY;
                    for (std::size_t i = 0; i < tokens.size(); ++i)
                        if (tokens[i].competes) most = std::max(most, values[i]);
                    return Vector(tokens.size(), most);
                }};
    }

    /// of_row: of `score`, and of a selection otherwise.
    Twin leaf(bool of_row) {
        switch (below(of_row ? 5 : 6)) {
            case 0:
                return of_row ? token("p", [](const Seen& t) { return t.p; })
                              : token("s", [](const Seen& t) { return t.s; });
            case 1:
                return token("knorm", [](const Seen& t) { return t.knorm; });
            case 2:
                return token("vnorm", [](const Seen& t) { return t.vnorm; });
            case 3:
                return of_row ? token("p*(age+1)", [](const Seen& t) { return t.p * (t.age + 1); })
                              : token("s/(age+1)", [](const Seen& t) { return t.s / (t.age + 1); });
            case 4:
                return of_row ? token("p*(head+1+layer)",
                                      [](const Seen& t) { return t.p * (t.head + 1 + t.layer); })
                              : token("s*(kvhead+slot/count)", [](const Seen& t) {
                                    return t.s * (t.kv_head + double(t.slot) / t.count);
                                });
            default:
                return token("u", [](const Seen& t) { return t.u; });
        }
    }
    Twin expression(int depth, bool of_row) {
        if (depth == 0) return leaf(of_row);
        const Twin x = expression(depth - 1, of_row), y = expression(depth - 1, of_row);
        switch (below(of_row ? 4 : 6)) {
            case 0:
                return both("({}+{})", x, y, [](double a, double b) { return a + b; });
            case 1:
                return both("({}*{})", x, y, [](double a, double b) { return a * b; });
            case 2:
                return both("max({},{})", x, y, [](double a, double b) { return std::max(a, b); });
            case 3:
                return both("sqrt({}*{})", x, x, [](double a, double b) { return std::sqrt(a * b); });
            case 4:
                return both("({}+{})", x, mean_of(y), [](double a, double b) { return a + b; });
            default:
                return both("({}*{})", x, largest_of(y), [](double a, double b) { return a * b; });
        }
    }
};

/// Gives ranges of heads random formulas: in the spec, and to the reference. The later range counts.
void add_formulas(RandomTwins& twins, const Weights& weights, Case& c) {
    const int group = weights.n_heads / weights.n_kv_heads;
    for (int i = 0, n = 1 + twins.below(4); i < n; ++i) {
        const int field = twins.below(3), l0 = twins.below(weights.n_layers),
                  l1 = l0 + twins.below(weights.n_layers - l0);
        int g0 = twins.below(weights.n_kv_heads), g1 = g0 + twins.below(weights.n_kv_heads - g0);
        std::string heads = twins.below(2) == 0 ? fmt::format(".G{}-{}", g0, g1)
                                                : fmt::format(".H{}-{}", g0 * group, (g1 + 1) * group - 1);
        if (c.policy.unit != Unit::head) heads = "", g0 = 0, g1 = weights.n_kv_heads - 1;
        const std::string range = fmt::format("@L{}-{}{}", l0, l1, heads);
        const std::string key = std::array{"score", "choose", "protect"}[to_index(field)] + range;
        if (c.spec.find(key + "=") != std::string::npos) continue;
        const Twin twin = field == 0 ? twins.score() : field == 1 ? twins.choose() : twins.protect();
        c.spec += fmt::format(",{}=({})", key, twin.text);
        for (int l = l0; l <= l1; ++l)
            for (int g = g0; g <= g1; ++g) {
                HeadFormulas& own = c.policy.formulas[{l, g}];
                (field == 0 ? own.score : field == 1 ? own.choose : own.protect) = twin.value;
            }
    }
}

struct Base {
    const char* preset;
    const char* keys;
    void (*change)(Policy&);
};
constexpr Base kBases[] = {
    {"h2o", ",recent=2", [](Policy& p) { p.recent = 2; }},
    {"h2o", ",recent=1,sinks=1,pool=max",
     [](Policy& p) {
         p.recent = p.sinks = 1;
         p.pool = PoolOver::max;
     }},
    {"tova", "", [](Policy&) {}},
    {"tova", ",pool=sum,every=3",
     [](Policy& p) {
         p.pool = PoolOver::sum;
         p.every = 3;
     }},
    {"a2sf", ",buffer=2,scope=layer",
     [](Policy& p) {
         p.buffer = 2;
         p.unit = Unit::layer;
     }},
    {"knorm", ",prefill=stepwise", [](Policy& p) { p.stepwise = true; }},
    {"random", ",evict=decode", [](Policy& p) { p.phase = Phase::decode; }},
    {"h2o", ",recent=2,scope=layer,prefill=stepwise",
     [](Policy& p) {
         p.recent = 2;
         p.unit = Unit::layer;
         p.stepwise = true;
     }},
};

std::vector<Case> random_cases(RandomTwins& twins, const Weights& weights, int n_rounds) {
    std::vector<Case> cases;
    for (int round = 0; round < n_rounds; ++round)
        for (const Base& base : kBases) {
            Case c = preset_case(base.preset, 8 + twins.below(5), kDecode);
            c.spec += base.keys;
            base.change(c.policy);
            add_formulas(twins, weights, c);
            cases.push_back(c);
        }
    return cases;
}

TEST(HeadFormulas, KeepWhatTheReferenceKeeps) {
    for (const int n_kv_heads : {2, 4, 1}) {
        SCOPED_TRACE(n_kv_heads);
        TinyShape shape;
        shape.n_layers = 3;
        shape.n_kv_heads = n_kv_heads;
        const ComparedText text(shape, kPrompt, kDecode, 110u + static_cast<unsigned>(n_kv_heads));
        RandomTwins twins(static_cast<unsigned>(n_kv_heads));
        text.expect_on_both(random_cases(twins, text.weights, 8), 400);
    }
}

TEST(HeadFormulas, FollowChangesForksAndRewinds) {
    TinyShape shape;
    shape.n_layers = 3;
    const ComparedText text(shape, kPrompt, kDecode, 121);
    std::string notice;
    const auto cpu = keyhole::make_backend(text.model, {keyhole::BackendChoice::cpu, 2, 0}, &notice),
               cuda = cuda_backend(text.model);
    int n_gone = 0;
    for (unsigned seed = 1; seed <= 8; ++seed) {
        keyhole::Backend& backend = seed % 2 == 0 ? *cuda : *cpu;
        SCOPED_TRACE(fmt::format("{} on {}", seed, backend.name()));
        RandomTwins twins(seed);
        // Scores accumulate as sums in all of them, so that a formula that begins finds those.
        const auto fresh = [&](int budget) {
            Case c = preset_case("h2o", budget, kDecode);
            c.spec += ",recent=2";
            c.policy.recent = 2;
            add_formulas(twins, text.weights, c);
            return c;
        };
        const Case plain = preset_case("h2o", 10, kDecode);
        BothRuns runs(text, backend, {fresh(14), fresh(12), plain});
        runs.step(2);
        runs.change(0, fresh(12));
        runs.change(2, fresh(10));
        runs.step(2);
        runs.fork(1);
        runs.change(1, plain);
        runs.change(0, fresh(11));
        runs.step(3);
        runs.rewind(kPrompt + 2);
        runs.step(1);
        runs.change(2, plain);
        runs.change(1, fresh(11));
        runs.step(2);
        runs.change(2, fresh(9));
        runs.change(1, fresh(9));
        runs.step(kDecode - 7);
        n_gone += runs.n_gone;
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(n_gone, 800);
}

/// A model whose layer 0 sees tokens alone: what leaves there does not depend on the layers above.
class OfOneLayer : public ::testing::Test {
  protected:
    OfOneLayer() : tiny_(TinyShape{}), model_(keyhole::load_model(tiny_.folder())) {}

    std::vector<keyhole::Eviction> below(std::span<const keyhole::Eviction> all) const {
        std::vector<keyhole::Eviction> found;
        for (const keyhole::Eviction& e : all)
            if (e.kv_head < model_->layout().first_of_layer(1)) found.push_back(e);
        return found;
    }
    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
};

// What one head's formula names is known there, as where all name it.
TEST_F(OfOneLayer, AFormulaHasAllThatItNames) {
    std::vector<std::string> keys;
    for (const char* formula :
         {"smooth(win)", "mix*win-(1-mix)*redundancy", "-keydiff", "lag+u/100", "caote", "wvnorm*s",
          "(expected+0.01)*vnorm", "tri", "first(50%, smooth(win), wvnorm)", "in(rules) ? 1 : s"})
        keys.push_back(fmt::format("choose@L0=({})", formula));
    for (const char* formula :
         {"max(s, p*wvnorm)", "0.5*s+p*knorm", "s+ptau", "position", "vnorm*(sinkmass+1)"})
        keys.push_back(fmt::format("score@L0=({})", formula));
    keys.push_back("protect@L0=(in(rules) or slot==count-3)");
    keys.push_back("score@L0=(s+p*wvnorm),choose@L0=(s*wvnorm),protect@L0=2..4");
    const std::vector<int> tokens = different_tokens(kPrompt + kDecode, 15);
    const std::span<const int> all(tokens);
    for (const char* base : {"key:budget=9", "key:budget=9,prefill=stepwise", "h2o:budget=9,recent=1",
                             "key:budget=9,tau=2,kv_dtype=bf16"}) {
        // Each kind in a prompt of its own: lanes of one prompt share what it keeps of rows.
        std::vector<std::string> by_head, by_lane;
        for (const std::string& own : keys) {
            by_head.push_back(fmt::format("{},window=4,spans=(rules@3..5 rest@6..),{}", base, own));
            by_lane.push_back(by_head.back());
            for (std::size_t at; (at = by_lane.back().find("@L0")) != std::string::npos;)
                by_lane.back().erase(at, 3);
        }
        const LaneRows rows = run_engine(model_, by_head, all.first(kPrompt), all.subspan(kPrompt)),
                       others = run_engine(model_, by_lane, all.first(kPrompt), all.subspan(kPrompt));
        int n_apart = 0;
        for (std::size_t i = 0; i < by_head.size(); ++i)
            for (std::size_t t = 0; t < rows[i].size(); ++t) {
                EXPECT_EQ(below(rows[i][t].evictions), below(others[i][t].evictions)) << by_head[i] << t;
                n_apart += rows[i][t].evictions != others[i][t].evictions;
            }
        EXPECT_GT(n_apart, 90) << base << ": the other layer has the lane's own";
    }
}

TEST_F(OfOneLayer, WhatLooksAheadLooksForOneHeadToo) {
    for (const char* formula : {"future", "repeat"}) {
        keyhole::RunSpec spec = run_spec(random_text(20, 3),
                                         {"full", fmt::format("key:budget=8,choose@L0=({})", formula),
                                          fmt::format("key:budget=8,choose=({})", formula)},
                                         12);
        spec.follow = true;
        const SessionRun run = run_session(model_, spec);
        int n = 0;
        for (const auto& step : run.steps) {
            EXPECT_EQ(below(step->lanes[1].evictions), below(step->lanes[2].evictions)) << formula;
            n += static_cast<int>(below(step->lanes[1].evictions).size());
        }
        EXPECT_GT(n, 10) << formula;
    }
    keyhole::RunSpec alone = run_spec(random_text(20, 3), {"full", "key:budget=8,choose@L0=(future)"}, 12);
    const std::string fault =
        error_of([&] { (void)run_session(model_, alone); }, keyhole::ErrorCode::wrong_use);
    EXPECT_NE(fault.find("future"), std::string::npos) << fault;
}

// --- refusals ----------------------------------------------------------------------------------------------

std::string fault_of(const std::string& spec, const keyhole::HeadGrid& grid) {
    try {
        const auto faults = keyhole::check_overrides(keyhole::parse_lane_spec(spec).policy, grid);
        return faults.empty() ? "" : faults.front();
    } catch (const keyhole::Error& error) {
        return error.what();
    }
}

TEST(HeadFormulas, AreRefusedInOneLine) {
    const keyhole::HeadGrid grid{2, 4, {0, 0, 1, 1, 2, 2, 3, 3}};
    const std::vector<std::pair<std::string, std::string>> refused = {
        {"key:choose@L0=(knrm)", "knrm"},
        {"key:choose@L0=(p)", "a row's value"},
        {"key:score@L0=(win)", "known only at a selection"},
        {"key:protect@L0=(s+1)", "truth"},
        {"key:choose@L0=(in(rules)?1:s)", "rules"},
        {"key:choose@L0=()", "no value"},
        {"key:choose@L2=(u)", "layer 2"},
        {"key:choose@L0.G2=(u)", "G2"},
        {"key:choose@L0=(u),choose@L0=(s)", "twice"},
        {"key:choose@L0.H1=(u)", "read the same KV head"},
        {"key:score@L0.H0=(s+p)", "read the same KV head"},
        {"key:protect@L0.H3=2..3", "read the same KV head"},
        {"key:scope=layer,choose@L0.G1=(u)", "one set a layer"},
        {"key:scope=shared,choose@L0=(u)", "one set for the model"},
        {"key:scope=column,choose@L0=(u)", "layers apart"},
        {"key:choose=(u),score@L0=(-knorm)", "layer 0, head 0: score names nothing of a row"},
        {"key:score=(-knorm),choose@L1.G1=(u)", "layer 1, head 2: score names nothing of a row"},
        {"h2o:dialect=released,choose@L0=(u)", "dialect=paper"},
        {"key:prefill=stepwise,choose@L0=(future)", "prefill=oneshot"},
        {"key:spans@L0=(a@0..3)", "only budget, "},
    };
    for (const auto& [spec, words] : refused) {
        const std::string fault = fault_of(spec, grid);
        EXPECT_NE(fault.find(words), std::string::npos) << spec << ": " << fault;
        EXPECT_EQ(fault.find('\n'), std::string::npos) << spec;
    }
    for (const char* fine :
         {"key:choose@L0.G1=(u),score@L0.H2-3=(s+p),protect@L1=2..3",
          "key:choose@L0=(in(rules)?1:s),spans=(rules@0..3)", "key:scope=layer,choose@L0=(u)",
          "key:scope=column,choose@G1=(u)", "key:choose=(u),choose@L0=s,score@L0=(-knorm)",
          "key:scope=shared,choose@L0-1=(u)", "full:choose@L0=(u)"})
        EXPECT_EQ(fault_of(fine, grid), "") << fine;
}

TEST(HeadFormulas, TokensThatAHeadProtectsMustFitItsBudget) {
    const TinyModel tiny(TinyShape{});
    const auto model = keyhole::load_model(tiny.folder());
    const auto run = [&](const std::string& lane) {
        (void)run_session(model, run_spec(random_text(20, 3), {lane}, 3));
    };
    const auto fault = [&](const std::string& lane) {
        return error_of([&] { run(lane); }, keyhole::ErrorCode::wrong_use);
    };
    EXPECT_NE(fault("key:budget=6,protect@L1=2..9").find("protect=2..9 holds 8 tokens, and the budget is 6"),
              std::string::npos);
    EXPECT_NE(fault("key:budget=6,protect@L1=(position<9)").find("more than the budget"), std::string::npos);
    EXPECT_NE(fault("key:budget=9,protect@L1=system").find("protect=system"), std::string::npos);
    run("key:budget=6,protect@L1=2..9,budget@L1=12");
    run("key:budget=6,protect=2..9,protect@L1=none,budget@L0=12");
    run("key:budget=6,protect@L1=2..4");
}

// What only one head's formula names is no idle option.
TEST(HeadFormulas, MakeOptionsActThatTheyName) {
    const auto reason = [](const std::string& spec, const char* option) {
        return keyhole::no_effect_reason(keyhole::parse_lane_spec(spec).policy, option);
    };
    EXPECT_NE(reason("key:budget=9", "window"), "");
    EXPECT_EQ(reason("key:budget=9,choose@L0=(win)", "window"), "");
    EXPECT_EQ(reason("key:budget=9,choose@L0=(mix*s)", "mix"), "");
    EXPECT_EQ(reason("knorm:budget=9,choose@L0=s", "score"), "");
    EXPECT_NE(reason("knorm:budget=9", "alpha"), "");
    EXPECT_EQ(reason("knorm:budget=9,choose@L0=(s*knorm)", "alpha"), "");
}

}  // namespace
}  // namespace reference::test_head_formulas
