// The policies that are formulas against the reference in double: random, oracle, KNorm and KeyDiff, and what
// protect, buffer and evict do, on both backends, over shared KV heads, changes, forks and rewinds.
#include "engine/backend/common/choice.h"
#include "engine/backend/cpu/cache.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/policy/option_help.h"
#include "engine/policy/selection.h"
#include "engine/session/run_context.h"
#include "engine/session/session.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/compared_text.h"
#include "tests/reference/different_tokens.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

namespace reference::test_field_policies {
namespace {

using keyhole::to_index;

constexpr int kPrompt = 24, kDecode = 16;

/// Returns the preset with each option that acts on selections.
std::vector<Case> cases_of(const std::string& preset, int budget, int n_prompt, const Lane::Future& future) {
    std::vector<Case> cases;
    const auto add = [&](const std::string& keys, auto change) {
        Case c = preset_case(preset, budget, kDecode);
        c.spec += keys;
        if (preset == "keydiff" && keys.find("every=128") == std::string::npos) {
            c.spec += keys.find("every=") == std::string::npos ? ",every=1" : "";
            c.policy.every = 1;
        }
        if (preset == "keydiff" && keys.find("prefill") == std::string::npos) {
            c.spec += ",prefill=oneshot";
            c.policy.stepwise = false;
        }
        const auto has = [&](const char* key) { return keys.find(key) != std::string::npos; };
        if (preset == "snapkv" || preset == "rkv") {  // made for longer texts
            c.spec += ",window=5";
            c.policy.window = 5;
            if (!has("recent=")) c.spec += ",recent=2";
            c.policy.recent = std::min(2, budget);
            if (!has("evict=")) c.spec += ",evict=always";
            c.policy.phase = Phase::always;
            if (!has("buffer=")) c.spec += ",buffer=0";
            c.policy.buffer = 0;
        }
        c.future = preset == "oracle" ? future : Lane::Future{};
        change(c.policy);
        cases.push_back(c);
    };
    add("", [](Policy&) {});
    if (budget > 100) return cases;  // nothing is evicted
    add(",recent=2,sinks=1", [&](Policy& p) {
        p.sinks = std::min(1, p.budget);
        p.recent = std::min(2, p.budget - p.sinks);
    });
    add(",scope=layer", [](Policy& p) { p.unit = Unit::layer; });
    add(",scope=layer,pool=max", [](Policy& p) {
        p.unit = Unit::layer;
        p.pool = PoolOver::max;
    });
    // One set over all layers is made where something is evicted; before, scores are by head.
    if (budget < n_prompt)
        add(",scope=shared,pool=sum", [](Policy& p) {
            p.unit = Unit::shared;
            p.pool = PoolOver::sum;
        });
    add(",every=3", [](Policy& p) { p.every = 3; });
    add(",buffer=3", [](Policy& p) { p.buffer = 3; });
    add(",every=2,buffer=4", [](Policy& p) {
        p.every = 2;
        p.buffer = 4;
    });
    add(",evict=prompt", [](Policy& p) { p.phase = Phase::prompt; });
    add(",evict=decode", [](Policy& p) { p.phase = Phase::decode; });
    if (budget >= 6)
        add(",protect=2..5", [](Policy& p) {
            p.protect_from = 2;
            p.protect_to = 5;
        });
    add(",seed=77", [](Policy& p) { p.seed = 77; });
    if (preset != "oracle") {
        add(",prefill=stepwise,every=1", [](Policy& p) { p.stepwise = true; });
        add(",prefill=stepwise,every=5", [](Policy& p) {
            p.stepwise = true;
            p.every = 5;
        });
    }
    if (preset == "rkv") {
        add(",mix=1,kernel=none", [](Policy& p) {
            p.mix = 1;
            p.kernel = 0;
        });
        add(",mix=0", [](Policy& p) { p.mix = 0; });
    }
    if (preset == "snapkv")
        add(",kernel=max:3,evict=prompt", [](Policy& p) {
            p.kernel = 3;
            p.kernel_max = true;
            p.phase = Phase::prompt;
        });
    if (preset == "keydiff")
        add(",prefill=stepwise,every=128", [](Policy& p) {
            p.stepwise = true;
            p.every = 128;
        });
    return cases;
}

struct Param {
    const char* preset;
    int n_kv_heads, n_kv_layers, n_prompt;
};

class FieldPolicies : public ::testing::TestWithParam<Param> {};

TEST_P(FieldPolicies, AgreeWithTheReferenceOnBothBackends) {
    const Param& param = GetParam();
    TinyShape shape;
    shape.n_kv_heads = param.n_kv_heads;
    shape.n_kv_layers = param.n_kv_layers;
    const ComparedText text(shape, param.n_prompt, kDecode, 40u + static_cast<unsigned>(param.n_kv_heads));
    const Lane::Future future = future_of(text.weights, {text.tokens().begin(), text.tokens().end()});
    std::vector<Case> cases;
    // Two keys are equally far from their mean, so a KeyDiff of one token only has ties.
    for (const int budget : {std::string(param.preset) == "keydiff" ? 3 : 1, 7, 1000})
        for (const Case& c : cases_of(param.preset, budget, param.n_prompt, future)) cases.push_back(c);
    text.expect_on_both(cases, 100);
}

INSTANTIATE_TEST_SUITE_P(All, FieldPolicies,
                         ::testing::Values(Param{"random", 2, 0, kPrompt}, Param{"oracle", 2, 0, kPrompt},
                                           Param{"knorm", 2, 0, kPrompt}, Param{"keydiff", 2, 0, kPrompt},
                                           Param{"snapkv", 2, 0, kPrompt}, Param{"rkv", 2, 0, kPrompt},
                                           Param{"snapkv", 1, 1, 3}, Param{"rkv", 4, 0, 3},
                                           Param{"random", 1, 1, 3}, Param{"oracle", 1, 1, kPrompt},
                                           Param{"knorm", 4, 0, 3}, Param{"keydiff", 1, 1, 3}),
                         [](const auto& of) {
                             return fmt::format("{}{}kv{}", of.param.preset, of.param.n_kv_heads,
                                                of.param.n_prompt);
                         });

// Tokens leave for what they rank, whatever the budget, and the budget is a limit on the rest.
TEST(FieldPolicies, ThresholdsAgreeWithTheReference) {
    const ComparedText text({}, kPrompt, kDecode, 61);
    std::vector<Case> cases;
    const auto add = [&](const char* preset, double threshold, int budget, const std::string& keys,
                         const auto& change) {
        Case c = preset_case(preset, budget == 0 ? 1000 : budget, kDecode);
        c.spec = fmt::format("{}:budget={},recent=2,threshold={}{}", preset,
                             budget == 0 ? "all" : std::to_string(budget), threshold, keys);
        c.policy.recent = 2;
        c.policy.threshold = threshold;
        change(c.policy);
        cases.push_back(c);
    };
    for (const auto& [preset, threshold] : {std::pair{"h2o", 0.5}, {"tova", 0.03}, {"random", 0.2}})
        for (const int budget : {0, 12}) {
            add(preset, threshold, budget, "", [](Policy&) {});
            add(preset, threshold, budget, ",sinks=1,every=2", [](Policy& p) {
                p.sinks = 1;
                p.every = 2;
            });
            add(preset, threshold, budget, ",buffer=4,scope=layer", [](Policy& p) {
                p.buffer = 4;
                p.unit = Unit::layer;
            });
            add(preset, threshold, budget, ",prefill=stepwise", [](Policy& p) { p.stepwise = true; });
            add(preset, threshold, budget, ",evict=decode", [](Policy& p) { p.phase = Phase::decode; });
        }
    text.expect_on_both(cases, 100);
}

// The field's example of section 17: what ranks exactly the threshold stays.
TEST(FieldPolicies, AThresholdKeepsWhatReachesIt) {
    const auto victims_of = [](const std::string& spec) {
        const std::vector<std::int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7};
        const std::vector<float> means = {0.40f, 0.05f, 0.05f, 0.15f, 0.05f, 0.10f, 0, 0};
        std::vector<int> victims;
        const auto policy = keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 8, 4);
        (void)keyhole::select_victims(positions, means, {}, policy, 7, victims);
        return victims;
    };
    EXPECT_EQ(victims_of("key:budget=all,recent=2,threshold=0.1"), (std::vector{1, 2, 4}));
    EXPECT_EQ(victims_of("key:budget=3,recent=2,threshold=0.1"), (std::vector{1, 2, 3, 4, 5})) << "then k";
    EXPECT_EQ(victims_of("key:budget=3,recent=2,buffer=9,threshold=0.1"), (std::vector{1, 2, 4}))
        << "not yet";
    EXPECT_EQ(victims_of("key:budget=all,recent=2,sinks=4,threshold=0.1"), (std::vector{4}));
    EXPECT_EQ(victims_of("key:budget=all,recent=2,threshold=9"), (std::vector{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(victims_of("full:threshold=9"), std::vector<int>{});
    EXPECT_EQ(keyhole::parse_lane_spec("key:threshold=0"), keyhole::parse_lane_spec("key")) << "0: none";
    EXPECT_EQ(keyhole::accounting_text(keyhole::resolve(
                  keyhole::parse_lane_spec("key:budget=all,recent=2,threshold=0.1").policy, 8, 4)),
              "keeps what ranks 0.1 or more, and 2 tokens that do not compete");
}

// R-KV as its code ranks: no spec beside the dialect says it, so the reference does.
TEST(FieldPolicies, RkvReleasedAgreesWithTheReference) {
    for (const int n_kv_heads : {2, 1, 4}) {
        SCOPED_TRACE(n_kv_heads);
        TinyShape shape;
        shape.n_kv_heads = n_kv_heads;
        const ComparedText text(shape, kPrompt, kDecode, 90u + static_cast<unsigned>(n_kv_heads));
        std::vector<Case> cases;
        for (const int budget : {5, 9, 14}) {
            Case c = preset_case("rkv", budget, kDecode);
            c.spec += ",dialect=released,window=5,recent=3,kernel=max:3,buffer=2";
            c.policy.as_rkv_code = true;
            c.policy.mix = 0.07;
            c.policy.buffer = 2;
            c.policy.window = 5;
            c.policy.recent = 3;
            c.policy.kernel = 3;
            cases.push_back(c);
        }
        text.expect_on_both(cases, 3);
    }
}

// SnapKV's own code repeats keys and values for each query head and keeps one set a query head: a model with
// its KV heads split does that.
TEST(FieldPolicies, SnapkvReleasedHasASetForEachQueryHead) {
    TinyShape shape;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    const std::vector<int> tokens = different_tokens(kPrompt + 2, 33);
    const std::span<const int> all(tokens);
    const std::vector<std::string> specs = {"full", "snapkv:budget=9,window=4,recent=4,kernel=max:3,kv=mha",
                                            "snapkv:budget=9,window=4,recent=4,kernel=max:3"};
    const LaneRows rows = run_engine(model, specs, all.first(kPrompt), all.subspan(kPrompt));
    // The maps of the prompt's last four rows, one row at a time.
    std::vector<LaneRows> last;
    for (int n = kPrompt - 3; n <= kPrompt; ++n)
        last.push_back(run_engine(model, std::vector<std::string>{"full"}, all.first(to_index(n)), {}));
    const int n_heads = model->config().n_heads, n_layers = model->config().n_layers;
    int n_apart = 0;
    for (int head = 0; head < n_layers * n_heads; ++head) {
        std::vector<double> mean(kPrompt - 4, 0.0);
        for (std::size_t i = 0; i < last.size(); ++i) {
            const keyhole::RowOutput& row = last[i][0][0];
            const auto at = row.values.head_offset[to_index(head)];
            for (std::size_t p = 0; p < mean.size(); ++p)
                mean[p] += double{row.values.attention.at(to_index(at) + p)} / 4;
        }
        std::vector<double> smooth = mean;
        for (std::size_t p = 0; p < mean.size(); ++p) {
            if (p > 0) smooth[p] = std::max(smooth[p], mean[p - 1]);
            if (p + 1 < mean.size()) smooth[p] = std::max(smooth[p], mean[p + 1]);
        }
        std::vector<int> tokens_of(mean.size());
        std::iota(tokens_of.begin(), tokens_of.end(), 0);
        std::sort(tokens_of.begin(), tokens_of.end(), [&](int a, int b) {
            const auto key = [&](int p) { return std::tuple(smooth[to_index(p)], mean[to_index(p)], p); };
            return key(a) > key(b);
        });
        std::set<int> expected(tokens_of.begin(), tokens_of.begin() + 5);
        for (int p = kPrompt - 4; p < kPrompt; ++p) expected.insert(p);
        EXPECT_EQ(stored_positions(rows[1][0], head), expected) << "query head " << head;
        n_apart += stored_positions(rows[2][0], head / (n_heads / shape.n_kv_heads)) != expected ? 1 : 0;
    }
    EXPECT_GT(n_apart, 0) << "a set a query head differs from one a KV head";
}

// Budgets that layers and heads share, once after the prompt.
TEST(FieldAllocation, AgreesWithTheReferenceOnBothBackends) {
    for (const auto& [n_kv_heads, n_kv_layers, n_prompt] :
         {std::tuple{2, 0, kPrompt}, std::tuple{4, 0, kPrompt}, std::tuple{1, 1, kPrompt},
          std::tuple{4, 0, 3}}) {
        TinyShape shape;
        shape.n_kv_heads = n_kv_heads;
        shape.n_kv_layers = n_kv_layers;
        SCOPED_TRACE(fmt::format("{} KV heads", n_kv_heads));
        const ComparedText text(shape, n_prompt, kDecode, 70u + static_cast<unsigned>(n_kv_heads));
        std::vector<Case> cases;
        const auto add = [&](const std::string& preset, int budget, const std::string& keys, auto change) {
            Case c = preset_case(preset, budget, kDecode);
            c.spec += ",window=5,recent=2" + keys;
            c.policy.window = 5;
            c.policy.recent = std::min(2, budget);
            change(c.policy);
            cases.push_back(c);
        };
        const bool has_all = n_kv_heads == 2;
        for (const int budget : has_all ? std::vector{4, 9, 1000} : std::vector{9}) {
            add("adakv", budget, "", [](Policy&) {});
            add("adakv", budget, ",floor=0%", [](Policy& p) { p.floor = 0; });
            add("adakv", budget, ",floor=50%,kernel=none", [](Policy& p) {
                p.floor = 0.5;
                p.kernel = 0;
            });
            add("adakv", budget, ",alloc=global,kernel=avg:3", [](Policy& p) {
                p.shares = Shares::model;
                p.kernel = 3;
                p.kernel_max = false;
            });
            add("adakv", budget, ",pyramid=4,pool=max", [](Policy& p) {
                p.beta = 4;
                p.pool = PoolOver::max;
            });
            add("adakv", budget, ",alloc=global,pyramid=3,sinks=1", [](Policy& p) {
                p.shares = Shares::model;
                p.beta = 3;
                p.sinks = 1;
            });
            add("pyramidkv", budget, "", [](Policy&) {});
            add("pyramidkv", budget, ",pyramid=2,scope=layer", [](Policy& p) {
                p.beta = 2;
                p.unit = Unit::layer;
            });
            add("pyramidkv", budget, ",pyramid=3,evict=always,buffer=2", [](Policy& p) {
                p.beta = 3;
                p.phase = Phase::always;
                p.buffer = 2;
            });
            // While decoding: the heads' counts differ, and a selection shares what they store.
            add("adakv", budget, ",evict=always", [](Policy& p) { p.phase = Phase::always; });
            add("adakv", budget, ",evict=always,alloc=global,buffer=3,kernel=none", [](Policy& p) {
                p.phase = Phase::always;
                p.shares = Shares::model;
                p.buffer = 3;
                p.kernel = 0;
            });
            add("adakv", budget, ",evict=decode,every=3,floor=60%", [](Policy& p) {
                p.phase = Phase::decode;
                p.every = 3;
                p.floor = 0.6;
            });
            add("adakv", budget, ",evict=always,prefill=stepwise,sinks=1", [](Policy& p) {
                p.phase = Phase::always;
                p.stepwise = true;
                p.sinks = 1;
            });
            add("knorm", budget, ",alloc=adaptive,evict=prompt", [](Policy& p) {
                p.shares = Shares::layer;
                p.phase = Phase::prompt;
            });
        }
        const int n_least = has_all ? 18 : n_prompt > 3 ? 8 : 2;
        text.expect_on_both(cases, n_least);
    }
}

// A head with a budget beyond the prompt has its part of what all share, whether or not ranks are recorded.
TEST(FieldAllocation, HeadsThatAloneWouldKeepAllAreRankedToo) {
    const TinyModel tiny({});
    const auto model = keyhole::load_model(tiny.folder());
    const std::vector<int> tokens = different_tokens(12, 8);
    const auto cuda = cuda_backend(model);
    for (const char* spec :
         {"adakv:budget=9,alloc=global,pyramid=3,window=5,recent=2", "kvzip:budget=5,sinks=1,budget@L0=30",
          "adakv:budget=5,window=3,recent=2,budget@L1.G0=40,floor=0%",
          "knorm:budget=5,alloc=global,budget@L1=12", "expected:budget=5,sinks=1,ahead=9,budget@L0.G1=20"}) {
        std::string notice;
        const auto cpu = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
        std::vector<std::vector<keyhole::Eviction>> evictions;
        for (keyhole::Backend* backend : {cpu.get(), cuda.get()})
            for (const bool is_recorded : {true, false}) {
                keyhole::RunSpec run;
                run.prompt_tokens = tokens;
                run.lanes = {keyhole::parse_lane_spec(spec)};
                run.n_generate = 1;
                run.ignore_eos = true;
                run.requested.scores = is_recorded;
                keyhole::Session session(model, *backend, run);
                evictions.push_back(session.prefill()->lanes[0].evictions);
            }
        EXPECT_FALSE(evictions[0].empty()) << spec;
        for (std::size_t i = 1; i < evictions.size(); ++i) EXPECT_EQ(evictions[i], evictions[0]) << spec << i;
    }
}

// Of heads that share, one evicts with the others, also where its share is its own budget.
TEST(FieldAllocation, AHeadKeepsItsShareThoughItsBufferIsNotFull) {
    const TinyModel tiny({});
    const auto model = keyhole::load_model(tiny.folder());
    const std::vector<int> tokens = different_tokens(12, 8);
    const auto cuda = cuda_backend(model);
    const std::vector<std::string> specs = {
        "adakv:budget=9,floor=100%,window=3,recent=2,buffer=5,budget@L0.G0=4"};
    for (const LaneRows& rows :
         {run_engine(model, specs, tokens, {}), run_backend(*cuda, model, specs, tokens, {})}) {
        std::vector<int> n_gone(4, 0);
        for (const keyhole::Eviction& e : rows[0][0].evictions) ++n_gone[to_index(e.kv_head)];
        EXPECT_EQ(n_gone, (std::vector<int>{8, 3, 0, 0})) << "nothing is due in the second layer";
    }
}

// A formula gives the sets of the preset that it describes.
TEST(FieldIdentities, FormulasEqualTheirPresets) {
    TinyShape shape;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    const std::vector<int> tokens = different_tokens(kPrompt + kDecode, 5);
    const std::span<const int> all(tokens);
    const std::vector<std::pair<std::string, std::string>> pairs = {
        {"window:budget=8", "key:budget=8,choose=(position)"},
        {"sink:budget=8", "key:budget=8,choose=(position),protect=(position<4)"},
        {"sink:budget=8", "key:budget=8,choose=(position),protect=0..3"},
        {"h2o:budget=8", "h2o:budget=8,choose=(s+0)"},
        {"h2o:budget=8", "key:budget=8,protect=(slot>=count-4)"},
        {"tova:budget=8", "tova:budget=8,choose=(2*s)"},
        {"a2sf:budget=8", "a2sf:budget=8,choose=(s)"},
        {"key:budget=8", "key:budget=8,choose=(rank(s))"},
        {"keyformer:budget=8", "keyformer:budget=8,choose=(s/1)"},
        {"random:budget=8", "key:budget=8,choose=(u)"},
        {"knorm:budget=8", "key:budget=8,choose=(-knorm)"},
        {"keydiff:budget=8", "key:budget=8,choose=(-keydiff),prefill=stepwise,every=128"},
        {"random:budget=8,recent=2", "random:budget=8,protect=(slot>=count-2)"},
        // A maximum over query heads and a factor that they share may change places.
        {"key:budget=8,pool=max,score=(p),choose=(s*knorm)", "key:budget=8,pool=max,score=(p*knorm)"},
        {"key:budget=8,pool=max,score=(p),choose=(s*vnorm),kv_dtype=bf16",
         "key:budget=8,pool=max,score=(p*vnorm),kv_dtype=bf16"},
        {"key:budget=8,pool=max,score=(p),choose=(s*knorm),kv_dtype=f16,prefill=stepwise",
         "key:budget=8,pool=max,score=(p*knorm),kv_dtype=f16,prefill=stepwise"},
        {"key:budget=8,pool=max,score=(p),choose=(s*wvnorm)", "key:budget=8,pool=max,score=(p*wvnorm)"},
        {"key:budget=8,pool=max,score=(p),choose=(s*wvnorm),kv_dtype=bf16",
         "key:budget=8,pool=max,score=(p*wvnorm),kv_dtype=bf16"},
        {"key:budget=8,pool=max,score=(p),choose=(s*wvnorm),kv_dtype=f16,prefill=stepwise,every=3",
         "key:budget=8,pool=max,score=(p*wvnorm),kv_dtype=f16,prefill=stepwise,every=3"},
        {"snapkv:budget=8,window=3,recent=3,evict=always",
         "key:budget=8,choose=(smooth(win,avg,5)),window=3,recent=3"},
        {"snapkv:budget=8,recent=3", "key:budget=8,choose=(smooth(win)),recent=3,kernel=avg:5,evict=prompt"},
        {"rkv:budget=8,recent=2,buffer=4",
         "key:budget=8,choose=(0.1*smooth(win,max,7)-0.9*redundancy),window=8,recent=2,buffer=4"},
        {"rkv:budget=8,recent=2,buffer=4,mix=1,window=32,kernel=avg:5",
         "snapkv:budget=8,recent=2,buffer=4,evict=always"},
        {"adakv:budget=8,recent=3,floor=100%", "snapkv:budget=8,recent=3,kernel=max:7"},
        {"pyramidkv:budget=8,recent=3,pyramid=1", "snapkv:budget=8,window=8,recent=3,kernel=max:7"},
        {"h2o:budget=8", "key:budget=8,score=(s+p),recent=50%"},
        {"tova:budget=8", "key:budget=8,score=(p),scope=layer"},
        {"a2sf:budget=8", "key:budget=8,score=(0.2*s+p)"},
        {"a2sf:budget=8,alpha=0.5", "key:budget=8,alpha=0.5,score=(alpha*s+p)"},
        {"keyformer:budget=8", "key:budget=8,score=(s+ptau),noise=gumbel,tau=1..2,recent=30%"},
        {"window:budget=8", "key:budget=8,score=(position)"},
        {"sink:budget=8", "key:budget=8,score=(position),protect=(position<4)"},
        {"h2o:budget=8,prefill=stepwise", "key:budget=8,score=(s+p),recent=50%,prefill=stepwise"},
        {"key:budget=8,choose=(s/(age+1))", "key:budget=8,score=(s+p),choose=(s/(age+1))"},
        {"chunk:budget=8,window=3,recent=3,unit=1", "snapkv:budget=8,window=3,recent=3,scope=layer"},
        {"chunk:budget=8,window=3,recent=3", "snapkv:budget=8,window=3,recent=3,unit=20,scope=layer"},
        {"lagkv:budget=9,window=3,every=2", "key:budget=9,choose=(lag),window=3,every=2,sinks=4"},
        {"caote:budget=8", "tova:budget=8,choose=(caote),scope=head"},
        {"critical:budget=8,window=3,recent=3",
         "snapkv:budget=8,window=3,recent=3,choose=(first(50%, smooth(win), (smooth(win)+1e-4)*wvnorm))"},
        {"h2o:budget=8,score_dtype=bf16", "key:budget=8,score=(s+p),recent=50%,score_dtype=bf16"},
    };
    std::vector<std::string> specs;
    for (const auto& [preset, formula] : pairs) {
        specs.push_back(preset);
        specs.push_back(formula);
    }
    const auto cuda = cuda_backend(model);
    for (const LaneRows& rows : {run_engine(model, specs, all.first(kPrompt), all.subspan(kPrompt)),
                                 run_backend(*cuda, model, specs, all.first(kPrompt), all.subspan(kPrompt))})
        for (std::size_t i = 0; i < pairs.size(); ++i)
            for (std::size_t t = 0; t < rows[2 * i].size(); ++t) {
                ASSERT_EQ(rows[2 * i][t].evictions, rows[2 * i + 1][t].evictions) << pairs[i].second << t;
                ASSERT_EQ(rows[2 * i][t].next_logits, rows[2 * i + 1][t].next_logits) << pairs[i].second << t;
            }
}

TEST(FieldBackends, AgreeThroughChangesForksAndHands) {
    for (const int n_kv : {1, 2, 4}) {
        SCOPED_TRACE(n_kv);
        TinyShape shape;
        shape.n_kv_heads = n_kv;
        Pair pair(shape);
        pair.tolerance = 2e-3;  // of 16-bit keys and values
        // A part of u parts keys of equal tokens, whose lengths are equal but for rounding.
        pair.start({"random:budget=12",
                    "key:budget=10,scope=layer,choose=(-knorm-0.1*u)",
                    "keydiff:budget=9,every=3",
                    "key:budget=12,choose=(smooth(s,avg,5)*vnorm)",
                    "h2o:budget=12,protect=3..6,buffer=4",
                    "random:budget=14,kv_dtype=f16,evict=decode",
                    "key:budget=11,kv_dtype=bf16,kv=mqa,choose=(-knorm-0.1*u)",
                    "snapkv:budget=11,window=5,recent=2,evict=always",
                    "rkv:budget=10,window=4,recent=2,buffer=3,kv_dtype=f16",
                    "key:budget=10,score=(max(s, p)+slot/1000+head/100),scope=layer",
                    "key:budget=10,score=(0.9*s+p*vnorm-knorm/100)",
                    "adakv:budget=12,window=5,recent=2",
                    "adakv:budget=11,window=5,recent=2,evict=always",
                    "knorm:budget=10,alloc=global,buffer=2,evict=always,choose=(-knorm-0.1*u)",
                    "caote:budget=9,recent=2",
                    "caote:budget=10,scope=layer,alpha=1,kv_dtype=f16",
                    "lagkv:budget=12,window=3,every=1,sinks=1,kv_dtype=bf16",
                    "chunk:budget=12,unit=3,window=5,recent=2,evict=always",
                    "h2o:budget=12,unit=4,every=2",
                    "critical:budget=11,window=5,recent=2,evict=always",
                    "duo:budget=8,sinks=2,heads=(all 1x / 1x 0.5x)",
                    "key:budget=10,score=(0.9*s+p*wvnorm)",
                    "key:budget=11,score=(max(0.9*s, p*wvnorm/knorm)),kv=mqa,kv_dtype=bf16,buffer=2",
                    "h2o:budget=12,spans=(fair a@0..5 b@6..)",
                    "knorm:budget=11,spans=(fair a@0..5 b@6..12 c@13..),choose=(-knorm-0.1*u),scope=layer",
                    "rkv:budget=11,window=5,recent=2,buffer=2,dialect=released",
                    "rkv:budget=9,window=3,recent=1,buffer=0,dialect=released,kv=mqa,kv_dtype=bf16"});
        pair.step(4);
        pair.apply(0, "key:budget=9,choose=(-vnorm-0.1*u)");
        pair.apply(1, "random:budget=8,scope=shared,buffer=3");
        pair.apply(2, "keydiff:budget=7,scope=layer,every=1,sinks=2");
        pair.fork(3);
        pair.fork(25);
        pair.step(3);
        pair.evict(3, 0, pair.lanes[3].cpu->stored_positions(0).front());
        pair.pin(4, 0, pair.lanes[4].cpu->stored_positions(0)[1]);
        pair.step(5);
        pair.apply(4, "key:budget=6,choose=(-keydiff)");
        pair.apply(6, "key:budget=9,score=(s+p*wvnorm),kv_dtype=f16,kv=mqa");
        pair.apply(8, "tova:budget=9,spans=(fair a@0..3 b@4..)");
        pair.apply(21, "key:budget=9,score=(0.5*s+p*wvnorm),choose=(s+wvnorm/9),kv_dtype=f16");
        pair.apply(7, "rkv:budget=9,window=3,recent=1,buffer=2,scope=layer");
        pair.apply(8, "snapkv:budget=8,window=7,recent=2,evict=always,kernel=max:3");
        pair.apply(9, "key:budget=9,score=(0.5*s+ptau*logit),tau=2");
        pair.apply(25, "rkv:budget=8,window=5,recent=2,buffer=1");  // of the same window: logits are no rows
        pair.apply(26, "rkv:budget=7,window=6,recent=2,buffer=1,dialect=released,kv=mqa,kv_dtype=bf16");
        pair.evict(27, 1, pair.lanes[27].cpu->stored_positions(1).front());
        pair.apply(10, "pyramidkv:budget=9,window=3,recent=2,pyramid=4,evict=always");
        pair.fork(7);
        pair.step(3);
        pair.apply(9, "rkv:budget=7,window=4,recent=2,buffer=0");
        pair.apply(3, "rkv:budget=8,window=4,recent=2,buffer=1,dialect=released");
        pair.apply(7, "h2o:budget=8");
        pair.apply(8, "tova:budget=8,score=(max(s, p))");
        pair.apply(0, "h2o:budget=20");
        pair.step(4);
    }
}

/// Where the stored type changes with the budget, tokens are ranked by their keys in the new type.
TEST(FieldBackends, AgreeWhereTheTypeChangesWithTheBudget) {
    TinyShape shape;
    shape.n_kv_heads = 4;
    Pair pair(shape);
    pair.tolerance = 0.1;  // of keys and values in bf16
    pair.start(std::vector<std::string>(8, "key:budget=30,kv_dtype=f32,evict=always,choose=(-knorm-0.01*u)"));
    pair.step(2);
    for (std::size_t lane = 0; lane < 8; ++lane)
        pair.apply(lane, fmt::format("key:budget={},kv_dtype=bf16,evict=always,choose=(-knorm-0.01*u)",
                                     4 + 2 * lane));
}

/// A lane whose formula protects more tokens than its budget holds, from some row on.
struct OverBudget {
    std::string spec;
    int budget, every = 1, buffer = 0;
};

/// Returns whether `protect` of the lanes below holds for a position.
bool stays_beyond_the_budget(int position) {
    return position >= 24 && std::abs(position - 35) > 2 && position < 48;
}

// What is protected stays, whatever the budget is, and nothing else beside it once an eviction is due.
TEST(FieldBackends, KeepWhatIsProtectedBeyondTheBudget) {
    constexpr int kFirst = 30;
    const std::string protect = ",protect=(position>=24 and abs(position-35)>2 and position<48)";
    const std::vector<OverBudget> cases = {
        {"key:budget=6,choose=(-knorm-0.1*u)", 6},
        {"h2o:budget=6,every=3", 6, 3},
        {"tova:budget=6,buffer=4", 6, 1, 4},
        {"key:budget=6,scope=layer,every=2,buffer=3,recent=2,sinks=1", 6, 2, 3},
        {"a2sf:budget=6,scope=shared,recent=3", 6},
        {"adakv:budget=6,window=5,recent=0,evict=always", 6},
        {"knorm:budget=6,recent=0,alloc=global,evict=always,every=2,choose=(-knorm-0.1*u)", 6, 2},
        {"chunk:budget=6,unit=4,window=5,recent=2,evict=always", 6},
        {"snapkv:budget=6,window=5,recent=2,evict=always,buffer=2", 6, 1, 2},
        {"expected:budget=6,buffer=2,evict=always,alloc=uniform,ahead=9", 6, 1, 2},
        {"rkv:budget=6,window=4,recent=1,buffer=3", 6, 1, 3},
        {"key:budget=6,threshold=1e9,choose=(-knorm)", 6}};
    for (const int n_kv : {1, 4}) {
        SCOPED_TRACE(n_kv);
        TinyShape shape;
        shape.n_kv_heads = n_kv;
        Pair pair(shape, kFirst);
        std::vector<std::string> specs;
        for (const OverBudget& c : cases) specs.push_back(c.spec + protect);
        pair.start(specs);
        std::vector<OverBudget> lanes = cases;
        std::vector<std::set<int>> stored(lanes.size());
        for (std::set<int>& of_lane : stored)
            for (int p = 24; p < kFirst; ++p) of_lane.insert(p);
        const auto shrink = [&](std::size_t lane) {
            std::erase_if(stored[lane], [](int p) { return !stays_beyond_the_budget(p); });
        };
        int n_beyond = 0, row = kFirst;
        std::set<std::int64_t> cpu_sizes, cuda_sizes;  // of the first lane
        const auto step_to = [&](int end) {
            for (; row < end; ++row) {
                pair.step();
                cpu_sizes.insert(pair.lanes[0].cpu->use().allocated_bytes);
                cuda_sizes.insert(pair.lanes[0].cuda->use().allocated_bytes);
                for (std::size_t i = 0; i < lanes.size(); ++i) {
                    const OverBudget& c = lanes[i];
                    stored[i].insert(row);
                    const bool due = (row + 1 - kFirst) % c.every == 0 &&
                                     std::ssize(stored[i]) >= c.budget + std::max(c.buffer, 1);
                    if (due) shrink(i);
                    n_beyond += std::ssize(stored[i]) > c.budget + c.buffer + c.every ? 1 : 0;
                    for (int g = 0; g < pair.lanes[i].model->layout().n_kv_heads(); ++g)
                        for (const keyhole::KvCache* cache :
                             {pair.lanes[i].cpu.get(), pair.lanes[i].cuda.get()}) {
                            const std::vector<std::int32_t> kept = cache->stored_positions(g);
                            ASSERT_EQ(std::set<int>(kept.begin(), kept.end()), stored[i])
                                << c.spec << ", row " << row << ", KV head " << g;
                        }
                }
                if (::testing::Test::HasFatalFailure()) return;
            }
        };
        step_to(40);
        if (::testing::Test::HasFatalFailure()) return;
        for (const std::size_t lane : {0u, 3u, 8u}) {
            pair.fork(lane);
            lanes.push_back(lanes[lane]);
            stored.push_back(stored[lane]);
        }
        pair.apply(0, "h2o:budget=4" + protect);  // less than half of what it protects
        lanes[0] = {"h2o:budget=4", 4};
        shrink(0);
        pair.apply(1, "tova:budget=5,scope=layer,buffer=2" + protect);
        lanes[1] = {"tova:budget=5,scope=layer,buffer=2", 5, 1, 2};
        shrink(1);
        step_to(56);
        if (::testing::Test::HasFatalFailure()) return;
        EXPECT_GT(n_beyond, 100);
        EXPECT_LE(cpu_sizes.size(), 8u) << "a cache does not move for each token";
        EXPECT_LE(cuda_sizes.size(), 8u);
    }
}

// --- the run ahead -----------------------------------------------------------------------------------------

// CriticalKV: the sum of |W_o v| over the output's channels, the mean over the query heads of the KV head.
double reach_of(const Weights& weights, int kv_head, const float* value) {
    const int d = weights.head_dim, group = weights.n_heads / weights.n_kv_heads,
              first = kv_head % weights.n_kv_heads * group;
    const auto& o = weights.layers[to_index(kv_head / weights.n_kv_heads)].o;
    double sum = 0;
    for (int h = first; h < first + group; ++h)
        for (int r = 0; r < weights.d_model; ++r) {
            double dot = 0;
            for (int c = 0; c < d; ++c) dot += o.values[to_index(r * o.cols + h * d + c)] * double{value[c]};
            sum += std::abs(dot) / group;
        }
    return sum;
}

TEST(FieldChoice, ReachIsWhatAValueDoesToTheOutput) {
    const TinyModel tiny({});
    const auto model = keyhole::load_model(tiny.folder());
    const Weights weights = load_weights(tiny.folder());
    const int n = 9, d = weights.head_dim;
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    const keyhole::ResolvedPolicy policy =
        keyhole::resolve(keyhole::parse_lane_spec("key:budget=4,choose=(wvnorm)").policy, n, 4);
    for (int g = 0; g < model->layout().n_kv_heads(); ++g) {
        std::vector<keyhole::ChoiceHead> heads(1);
        heads[0].positions = keyhole::prompt_positions(n);
        for (int i = 0; i < n * d; ++i) heads[0].values.push_back(normal(random));
        std::vector<float> ranked(to_index(n));
        std::vector<std::int32_t> pinned;
        const keyhole::ChoiceUnit unit{model->layout(),    {g, g + 1}, policy,  n - 1,      d, nullptr, heads,
                                       heads[0].positions, {},         nullptr, model.get()};
        (void)keyhole::choose_on_host(unit, ranked, pinned);
        for (int i = 0; i < n; ++i) {
            const double sum = reach_of(weights, g, heads[0].values.data() + i * d);
            EXPECT_NEAR(ranked[to_index(i)], sum, 1e-5 * sum) << g << ' ' << i;
        }
    }
}

// A row names it at every step, so it is kept with the token: through evictions, copies and other types.
TEST(FieldChoice, ReachIsKeptWithTheTokensWhereAScoreNamesIt) {
    const TinyModel tiny({});
    const auto model = keyhole::load_model(tiny.folder());
    const Weights weights = load_weights(tiny.folder());
    const int d = weights.head_dim;
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    keyhole::cpu::CpuKvCache cache(model);
    const auto set = [&](const char* spec) {
        cache.set_policy(keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 9, 4));
    };
    const auto append = [&](int first, int last) {
        for (int g = 0; g < model->layout().n_kv_heads(); ++g) {
            std::vector<float> key(to_index(d)), value(to_index(d));
            for (int p = first; p < last; ++p) {
                for (float& x : key) x = normal(random);
                for (float& x : value) x = normal(random);
                cache.write(g, cache.append(g, p), key.data(), value.data());
            }
            cache.measure_reach(g);
        }
    };
    const auto expect = [&](const keyhole::cpu::CpuKvCache& of) {
        for (int g = 0; g < model->layout().n_kv_heads(); ++g) {
            const float* kept = of.lengths(keyhole::Quantity::wvnorm, g);
            ASSERT_NE(kept, nullptr);
            for (int slot = 0; slot < of.count(g); ++slot) {
                std::vector<float> value(to_index(d));
                widen_kv(of.values(g).from_row(slot), 1, value.data());
                const double sum = reach_of(weights, g, value.data());
                EXPECT_NEAR(kept[slot], sum, 1e-5 * sum) << g << ' ' << slot;
            }
        }
    };
    set("key:choose=(wvnorm),kv_dtype=f32");
    cache.reserve(12);
    append(0, 9);
    EXPECT_EQ(cache.lengths(keyhole::Quantity::wvnorm, 0), nullptr) << "a selection computes it";
    set("key:score=(s+p*wvnorm),kv_dtype=f32");
    expect(cache);
    cache.evict(1, std::vector<int>{0, 3, 6});
    append(9, 12);
    expect(cache);
    expect(static_cast<const keyhole::cpu::CpuKvCache&>(*cache.clone()));
    set("key:score=(s+p*wvnorm),kv_dtype=bf16");
    expect(cache);
}

class Oracle : public ::testing::Test {
  protected:
    Oracle() : tiny_({}), model_(keyhole::load_model(tiny_.folder())) {
        std::string notice;
        backend_ = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    }
    keyhole::RunSpec spec(const std::vector<std::string>& lanes, bool follow) const {
        keyhole::RunSpec spec;
        spec.prompt_tokens = random_tokens(kPrompt, 3);
        for (const std::string& lane : lanes) spec.lanes.push_back(keyhole::parse_lane_spec(lane));
        spec.follow = follow;
        spec.n_generate = kDecode;
        spec.ignore_eos = true;
        return spec;
    }
    std::string refusal(const keyhole::RunSpec& spec) const {
        try {
            keyhole::Session(model_, *backend_, spec);
        } catch (const keyhole::Error& error) {
            return error.what();
        }
        return {};
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::unique_ptr<keyhole::Backend> backend_;
};

/// Returns the evictions of a lane, row by row.
std::vector<std::vector<keyhole::Eviction>> evictions_of(keyhole::Session& session, std::size_t lane,
                                                         int n_rows, std::vector<int>* tokens = nullptr) {
    std::vector<std::vector<keyhole::Eviction>> rows;
    for (int i = 0; i < n_rows; ++i) {
        const auto step = session.step();
        if (step == nullptr) break;
        rows.push_back(step->lanes[lane].evictions);
        if (tokens != nullptr) tokens->push_back(step->lanes[0].token);
    }
    return rows;
}

TEST_F(Oracle, KeepsWhatTheFollowedTextAttendsTo) {
    keyhole::Session session(model_, *backend_, spec({"full", "oracle:budget=8"}, true));
    const auto first = session.prefill();
    std::vector<int> tokens = random_tokens(kPrompt, 3);
    const auto rows = evictions_of(session, 1, kDecode, &tokens);
    // The reference reads the same text and keeps what its own future says.
    const Weights weights = load_weights(tiny_.folder());
    Case c = preset_case("oracle", 8, kDecode);
    c.future = future_of(weights, tokens);
    Lane lane(weights, c.policy, kPrompt);
    lane.set_future(c.future);
    for (std::size_t row = 0; row < tokens.size(); ++row) {
        const LaneRow expected = lane.feed(tokens[row]);
        if (row + 1 < kPrompt) continue;
        const auto& got = row + 1 == kPrompt ? first->lanes[1].evictions : rows[row - kPrompt];
        std::vector<Gone> gone;
        for (const keyhole::Eviction& e : got) gone.push_back({e.kv_head / 2, e.kv_head % 2, e.position});
        if (expected.margin < kNearTie) break;
        ASSERT_EQ(gone, expected.evictions) << row << ", margin " << expected.margin;
    }
}

TEST_F(Oracle, NoPolicyKeepsMoreOfTheFutureAfterThePrompt) {
    const std::vector<std::string> lanes = {"full",
                                            "oracle:budget=8",
                                            "h2o:budget=8",
                                            "tova:budget=8",
                                            "random:budget=8",
                                            "knorm:budget=8",
                                            "window:budget=8",
                                            "keydiff:budget=8,prefill=oneshot,every=1"};
    keyhole::Session session(model_, *backend_, spec(lanes, true));
    const auto first = session.prefill();
    std::vector<int> tokens = random_tokens(kPrompt, 3);
    (void)evictions_of(session, 1, kDecode, &tokens);
    const Weights weights = load_weights(tiny_.folder());
    const Lane::Future future = future_of(weights, tokens);
    for (int l = 0; l < 2; ++l)
        for (int g = 0; g < 2; ++g) {
            std::vector<double> kept;
            for (std::size_t n = 1; n < lanes.size(); ++n) {
                double sum = 0;
                for (int p = 0; p < kPrompt; ++p) {
                    const keyhole::Eviction gone{l * 2 + g, p, kPrompt - 1};
                    const auto& all = first->lanes[n].evictions;
                    if (std::find(all.begin(), all.end(), gone) == all.end())
                        sum += future(l, g, kPrompt - 1, p);
                }
                kept.push_back(sum);
            }
            for (std::size_t n = 1; n < kept.size(); ++n)
                EXPECT_GE(kept[0] + 1e-5, kept[n]) << lanes[n + 1] << l << g;
        }
}

TEST_F(Oracle, ReadsAGivenContinuation) {
    keyhole::RunSpec given = spec({"oracle:budget=8", "h2o:budget=8"}, false);
    given.forced = random_tokens(kDecode, 9);
    keyhole::Session session(model_, *backend_, given);
    session.prefill();
    const auto rows = evictions_of(session, 0, kDecode);
    ASSERT_EQ(rows.size(), to_index(kDecode));
    keyhole::RunSpec other = given;
    other.forced = random_tokens(kDecode, 10);
    keyhole::Session second(model_, *backend_, other);
    second.prefill();
    EXPECT_NE(evictions_of(second, 0, kDecode), rows) << "another future, other evictions";
}

TEST_F(Oracle, IsRefusedByNameWhereNoTextIsKnown) {
    EXPECT_NE(refusal(spec({"full", "oracle:budget=8"}, false)).find("each lane writes its own"),
              std::string::npos);
    EXPECT_NE(refusal(spec({"h2o:budget=8", "oracle:budget=8"}, true)).find("lane 0 evicts"),
              std::string::npos);
    EXPECT_EQ(refusal(spec({"full", "oracle:budget=8"}, true)), "");
    EXPECT_EQ(refusal(spec({"full", "oracle:budget=all"}, false)), "");
    keyhole::RunSpec half = spec({"full", "oracle:budget=8"}, false);
    half.forced = random_tokens(kDecode / 2, 9);
    EXPECT_NE(refusal(half), "") << "the second half is each lane's own";
    keyhole::Session session(model_, *backend_, spec({"full", "oracle:budget=8"}, true));
    session.prefill();
    EXPECT_THROW(session.apply(keyhole::SetFollow{false}), keyhole::Error);
    EXPECT_THROW(session.apply(keyhole::SetLane{0, keyhole::parse_lane_spec("h2o:budget=8")}),
                 keyhole::Error);
    session.step();
}

TEST_F(Oracle, LooksAheadAgainWhereTheTextTurns) {
    const keyhole::RunSpec run = spec({"full", "h2o:budget=8", "oracle:budget=8"}, true);
    keyhole::Session session(model_, *backend_, run, nullptr, std::size_t{1} << 24);
    session.prefill();
    const auto before = evictions_of(session, 2, 4);
    session.apply(keyhole::ForceTokens{{'x', 'y', 'z'}, false});
    const auto turned = evictions_of(session, 2, 6);
    // A rewind gives the same rows again, and the same turn the same rows after it.
    session.apply(keyhole::Rewind{kPrompt + 1});
    EXPECT_EQ(evictions_of(session, 2, 2), std::vector(before.begin() + 2, before.end()));
    session.apply(keyhole::ForceTokens{{'x', 'y', 'z'}, false});
    EXPECT_EQ(evictions_of(session, 2, 6), turned);
    // A lane that becomes an oracle in mid-run evicts as one that joins.
    keyhole::Session late(model_, *backend_, run);
    late.prefill();
    (void)evictions_of(late, 1, 3);
    late.apply(keyhole::SetLane{1, keyhole::parse_lane_spec("oracle:budget=8")});
    EXPECT_FALSE(evictions_of(late, 1, 3).empty());
}

// KVzip: the most attention that a token gets while the prompt is repeated behind itself.
TEST_F(Oracle, ASecondPassSaysWhatIsRepeated) {
    const keyhole::RunSpec run = spec({"kvzip:budget=8,sinks=0"}, false);
    const keyhole::RunContext context(model_, *backend_, run, nullptr);
    const Weights weights = load_weights(tiny_.folder());
    const int group = weights.n_heads / weights.n_kv_heads;
    for (const int part : {kPrompt, 10}) {
        const auto table = keyhole::LookAhead().repeats(context, run.lanes.front(), {}, part);
        ASSERT_EQ(table->n_columns, kPrompt);
        for (int first = 0; first < kPrompt; first += part) {
            const int last = std::min(first + part, kPrompt);
            std::vector<int> tokens = run.prompt_tokens;
            const std::string ask = first == 0 ? "\n\nRepeat the text above, word for word:\n"
                                               : "\n\nRepeat the text above, word for word, from here on:\n";
            for (const int token : model_->tokenizer().encode(ask, false)) tokens.push_back(token);
            for (int p = std::max(first - 8, 0); p < last; ++p)
                tokens.push_back(run.prompt_tokens[to_index(p)]);
            Sequence sequence(weights);
            PositionSets all = empty_sets(weights);
            std::map<std::tuple<int, int, int>, double> most;
            for (const int token : tokens) {
                const Row row = sequence.feed(token, all, Places::original, true, -1);
                for (int l = 0; l < weights.n_layers; ++l) {
                    for (int g = 0; g < weights.n_kv_heads; ++g)
                        all[to_index(l)][to_index(g)].insert(row.row);
                    for (int h = 0; h < weights.n_heads && row.row >= kPrompt; ++h) {
                        const Vector& p = row.attention[to_index(l)][to_index(h)];
                        double seen = 0;
                        for (int i = 0; i <= row.row; ++i)
                            if (i < 4 || (i >= first && i < last) || i >= kPrompt) seen += p[to_index(i)];
                        for (int i = first; i < last; ++i) {
                            double& value = most[{l, h / group, i}];
                            value = std::max(value, p[to_index(i)] / seen);
                        }
                    }
                }
            }
            for (const auto& [at, value] : most) {
                const auto& [l, g, p] = at;
                ASSERT_NEAR(table->at(l * weights.n_kv_heads + g, p), value, 2e-4) << l << g << p << part;
            }
        }
        EXPECT_EQ(table->at(0, kPrompt), std::numeric_limits<float>::infinity()) << "nothing against it";
    }
}

// A pass ahead takes as long as the prompt, and longer: it shows how far it is, and can be stopped.
TEST_F(Oracle, APassAheadShowsItsProgressAndStops) {
    for (const char* lane : {"oracle:budget=8", "kvzip:budget=8"}) {
        std::vector<double> done;
        keyhole::Session whole(model_, *backend_, spec({"full", lane}, true));
        whole.prefill([&](double share) {
            done.push_back(share);
            return true;
        });
        EXPECT_TRUE(std::ranges::is_sorted(done)) << lane;
        const auto n_ahead = std::ranges::count_if(done, [](double share) { return share < 0.5; });
        EXPECT_GT(n_ahead, 2) << lane << ": half of the work is ahead";
        EXPECT_GT(std::ssize(done) - n_ahead, 2) << lane;

        // Stopped at any time, nothing is computed afterwards.
        for (const double until : {0.0, 0.3, 0.45}) {
            double last = -1;
            keyhole::Session stopped(model_, *backend_, spec({"full", lane}, true));
            const auto stop = [&](double share) {
                last = share;
                return share < until;
            };
            error_of([&] { stopped.prefill(stop); }, keyhole::ErrorCode::cancelled);
            EXPECT_GE(last, until) << lane;
            EXPECT_LT(last, 0.5) << lane << ": it stopped before the prompt";
        }

        // A lane that becomes one in mid-run stays what it was.
        keyhole::Session late(model_, *backend_, spec({"full", "h2o:budget=8"}, true));
        late.prefill();
        late.step();
        const keyhole::SetLane change{1, keyhole::parse_lane_spec(lane)};
        error_of([&] { late.apply(change, [](double) { return false; }); }, keyhole::ErrorCode::cancelled);
        EXPECT_EQ(late.step()->lanes[1].info->spec, "h2o:budget=8") << lane;
    }
}

TEST_F(Oracle, LanesThatEvictDifferentlyShareAPass) {
    const keyhole::RunContext context(model_, *backend_, spec({"full"}, true), nullptr);
    keyhole::LookAhead ahead;
    const auto parsed = keyhole::parse_lane_spec;
    const auto repeats = [&](const char* lane) { return ahead.repeats(context, parsed(lane)).get(); };
    const auto* const table = repeats("kvzip:budget=8");
    for (const char* same : {"kvzip:budget=12,buffer=4,every=2,recent=3", "kvzip:budget=8,alloc=uniform",
                             "kvzip:budget=8,budget@L0=4", "name=kvzip:budget=8,evict=decode"})
        EXPECT_EQ(repeats(same), table) << same;
    EXPECT_NE(repeats("kvzip:budget=8,kv=mqa"), table) << "other keys";
    EXPECT_NE(repeats("kvzip:budget=8,kv_dtype=q8"), table) << "other numbers";
    const auto future = [&](const char* lane) { return ahead.table(context, parsed(lane), {}).get(); };
    const auto* const rows = future("oracle:budget=8");
    EXPECT_EQ(future("oracle:budget=12,buffer=128,evict=decode"), rows);
    EXPECT_NE(future("oracle:budget=8,kv=mqa"), rows);
}

// One choice over all heads of all layers: as many tokens as the budgets together, and the best of them.
TEST_F(Oracle, KvzipKeepsTheBestOfAllHeads) {
    const keyhole::RunSpec run =
        spec({"full", "kvzip:budget=8,sinks=0", "kvzip:budget=8,alloc=uniform"}, false);
    const keyhole::RunContext context(model_, *backend_, run, nullptr);
    const auto table = keyhole::LookAhead().repeats(context, run.lanes[1], {}, keyhole::kRepeated);
    const auto cuda = cuda_backend(model_);
    for (keyhole::Backend* backend : {backend_.get(), cuda.get()}) {
        keyhole::Session session(model_, *backend, run);
        const auto first = session.prefill();
        const auto& gone = first->lanes[1].evictions;
        EXPECT_EQ(gone.size(), to_index(4 * (kPrompt - 8)));
        std::set<std::pair<int, int>> left;
        float best_gone = 0, worst_kept = 1;
        for (const keyhole::Eviction& e : gone) left.emplace(e.kv_head, e.position);
        for (int g = 0; g < 4; ++g)
            for (int p = 0; p < kPrompt; ++p) {
                float& bound = left.contains({g, p}) ? best_gone : worst_kept;
                bound = left.contains({g, p}) ? std::max(bound, table->at(g, p))
                                              : std::min(bound, table->at(g, p));
            }
        EXPECT_LE(best_gone, worst_kept + 1e-5f);
        EXPECT_EQ(first->lanes[2].evictions.size(), gone.size()) << "as many a head";
        EXPECT_TRUE(evictions_of(session, 1, 3)[2].empty()) << "once after the prompt";
    }
}

TEST_F(Oracle, TokensThatAreProtectedMustFitTheBudget) {
    EXPECT_NE(refusal(spec({"random:budget=8,protect=prompt"}, false))
                  .find("protect=prompt holds 24 tokens, and the budget is 8"),
              std::string::npos);
    EXPECT_NE(refusal(spec({"h2o:budget=26,recent=4,protect=prompt"}, false))
                  .find("holds 24 tokens and recent 4 more, and the budget is 26"),
              std::string::npos);
    EXPECT_NE(refusal(spec({"key:budget=8,protect=5..19"}, false)).find("holds 15 tokens"),
              std::string::npos);
    EXPECT_EQ(refusal(spec({"random:budget=28,recent=4,protect=prompt"}, false)), "");
    EXPECT_NE(refusal(spec({"random:budget=8,protect=system"}, false)).find("this prompt is none"),
              std::string::npos);
    EXPECT_NE(refusal(spec({"random:budget=8,spans=fair"}, false)).find("this prompt is none"),
              std::string::npos);
    EXPECT_NE(refusal(spec({"random:budget=8,spans=(fair a@0..3 b@4..9)"}, false))
                  .find("has 24 tokens, and the last one ends at 9; leave its end open: b@4.."),
              std::string::npos);
    EXPECT_EQ(refusal(spec({"random:budget=8,spans=(fair a@0..3 b@4..23)"}, false)), "");
}

}  // namespace
}  // namespace reference::test_field_policies
