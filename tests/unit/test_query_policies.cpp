// Policies that follow from queries before their rotation, Expected Attention and TriAttention: against the
// reference in double, in random selections, and the specification's worked examples.
#include "engine/backend/common/choice.h"
#include "engine/backend/common/query_statistics.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/policy/selection.h"
#include "engine/session/run_context.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/compared_text.h"
#include "tests/reference/different_tokens.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/sanitizer.h"
#include "tests/reference/tiny_model.h"
#include "tests/reference/tiny_shape.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

namespace reference::test_query_policies {
namespace {

using keyhole::to_index;

constexpr int kPrompt = 24, kDecode = 8;

/// Returns the presets with the options that act on them.
std::vector<Case> cases_of(int budget) {
    std::vector<Case> cases;
    const auto add = [&](const std::string& preset, const std::string& keys, auto change) {
        Case c = preset_case(preset, budget, kDecode);
        c.spec += keys;
        change(c.policy);
        cases.push_back(c);
    };
    const auto once = [](Policy& p) {
        p.phase = Phase::prompt;
        p.buffer = 0;
    };
    // The reference rotates each query to each place: most cases look less far ahead than 512.
    add("expected", ",ahead=40", [](Policy& p) { p.ahead = 40; });
    add("expected", ",alloc=uniform", [](Policy& p) { p.shares = Shares::none; });
    add("expected", ",alloc=uniform,sinks=1,ahead=7,recent=2", [&](Policy& p) {
        p.shares = Shares::none;
        p.sinks = 1;
        p.ahead = 7;
        p.recent = std::min(2, budget - 1);
    });
    add("expected", ",alloc=global,pool=max,sinks=0,ahead=9", [](Policy& p) {
        p.ahead = 9;
        p.shares = Shares::model;
        p.pool = PoolOver::max;
        p.sinks = 0;
    });
    add("expected", ",alloc=uniform,scope=layer,ahead=20", [](Policy& p) {
        p.ahead = 20;
        p.shares = Shares::none;
        p.unit = Unit::layer;
    });
    add("tri", ",evict=prompt,buffer=0", once);
    add("tri", ",evict=prompt,buffer=0,pool=max,sinks=2,recent=1", [&](Policy& p) {
        once(p);
        p.pool = PoolOver::max;
        p.sinks = std::min(2, budget);
        p.recent = std::min(1, budget - p.sinks);
    });
    add("tri", ",evict=prompt,buffer=0,scope=shared", [&](Policy& p) {
        once(p);
        p.unit = Unit::shared;
    });
    add("expected", ",alloc=uniform,evict=always,ahead=20", [](Policy& p) {
        p.ahead = 20;
        p.shares = Shares::none;
        p.phase = Phase::always;
    });
    add("expected", ",alloc=uniform,evict=always,prefill=stepwise,every=3,ahead=20", [](Policy& p) {
        p.ahead = 20;
        p.shares = Shares::none;
        p.phase = Phase::always;
        p.stepwise = true;
        p.every = 3;
    });
    add("tri", ",buffer=3", [](Policy& p) { p.buffer = 3; });
    add("tri", ",buffer=2,evict=always,scope=layer,pool=sum", [](Policy& p) {
        p.buffer = 2;
        p.phase = Phase::always;
        p.unit = Unit::layer;
        p.pool = PoolOver::sum;
    });
    const auto in_columns = [](Policy& p) {
        p.unit = Unit::column;
        p.pool = PoolOver::max;
    };
    add("tri", ",buffer=3,scope=column,pool=max", [&](Policy& p) {
        in_columns(p);
        p.buffer = 3;
    });
    add("tri", ",evict=prompt,buffer=0,scope=column,pool=max", [&](Policy& p) {
        in_columns(p);
        once(p);
    });
    add("expected", ",alloc=uniform,scope=column,pool=max,ahead=20", [&](Policy& p) {
        in_columns(p);
        p.ahead = 20;
        p.shares = Shares::none;
    });
    for (const char* preset : {"h2o", "knorm", "tova"}) add(preset, ",scope=column,pool=max", in_columns);
    add("h2o", ",scope=column,prefill=stepwise", [](Policy& p) {
        p.unit = Unit::column;
        p.stepwise = true;
    });
    add("snapkv", ",scope=column,pool=max,window=5,recent=2,evict=always", [&](Policy& p) {
        in_columns(p);
        p.window = 5;
        p.recent = 2;
        p.phase = Phase::always;
    });
    if (budget >= 9)
        add("tri", ",buffer=2,protect=2..5", [](Policy& p) {
            p.buffer = 2;
            p.protect_from = 2;
            p.protect_to = 5;
        });
    return cases;
}

TEST(QueryPolicies, AgreeWithTheReference) {
    for (const auto& [n_kv_heads, n_kv_layers] : {std::pair{2, 0}, std::pair{4, 0}, std::pair{1, 1}}) {
        SCOPED_TRACE(fmt::format("{} KV heads in {} layers", n_kv_heads, n_kv_layers));
        if (n_kv_heads != 4 && under_a_sanitizer()) continue;  // the same code, and it takes long
        TinyShape shape;
        shape.n_kv_heads = n_kv_heads;
        shape.n_kv_layers = n_kv_layers;
        const ComparedText text(shape, kPrompt, kDecode, 60u + static_cast<unsigned>(n_kv_heads));
        std::vector<Case> cases;
        for (const int budget : n_kv_heads == 2 ? std::vector{6, 11} : std::vector{9})
            for (const Case& c : cases_of(budget))
                if (c.policy.unit != Unit::column || n_kv_layers == 0) cases.push_back(c);
        text.expect_on_both(cases, n_kv_heads == 2 ? 30 : n_kv_layers == 0 ? 14 : 9);
    }
}

// --- random selections -----------------------------------------------------------------------------------

int n_selections() {
    const char* wanted = std::getenv("KEYHOLE_SELECTIONS");
    return wanted != nullptr ? std::atoi(wanted) : 400;
}

/// A model whose rotation turns neighbouring channels, not all of them, and magnifies.
std::shared_ptr<const keyhole::Model> odd_model(int n_kv_heads) {
    keyhole::ModelShape shape = tiny_shape(258);
    shape.config.n_kv_heads = n_kv_heads;
    shape.config.rotary.interleaved = true;
    shape.config.rotary.dims = 12;
    shape.config.rotary.inverse_frequency.resize(6);
    shape.config.rotary.magnitude = 1.25f;
    return keyhole::make_seeded_model(shape, keyhole::DType::f32);
}

Vector turn_by(const keyhole::Rotary& rotary, const Vector& x, double place) {
    Vector y = x;
    for (std::size_t f = 0; f < rotary.inverse_frequency.size(); ++f) {
        const double angle = place * rotary.inverse_frequency[f], size = double{rotary.magnitude};
        y[2 * f] = size * (x[2 * f] * std::cos(angle) - x[2 * f + 1] * std::sin(angle));
        y[2 * f + 1] = size * (x[2 * f] * std::sin(angle) + x[2 * f + 1] * std::cos(angle));
    }
    return y;
}

/// Keys, values and queries of a unit, and a policy that selects from them.
struct Selection {
    std::shared_ptr<const keyhole::Model> model;
    keyhole::ResolvedPolicy policy;
    std::string spec;
    keyhole::Unit unit;
    int row = 0;
    std::vector<int> positions;                     ///< that each KV head stores
    std::vector<std::vector<Vector>> keys, values;  ///< [KV head][token], keys before the rotation
    std::vector<std::vector<Vector>> queries;       ///< [reader][row], before the rotation

    Selection(std::mt19937& random, const std::string& preset, std::shared_ptr<const keyhole::Model> of)
        : model(std::move(of)) {
        const auto below = [&](int n) { return static_cast<int>(random() % to_index(n)); };
        const auto one_of = [&](const std::vector<std::string>& texts) {
            return texts[to_index(below(static_cast<int>(texts.size())))];
        };
        row = 20 + below(60);
        spec = fmt::format("{}:budget={},evict=always,buffer=0,alloc=uniform,scope={},pool={}{}{}", preset,
                           1 + below(14), one_of({"head", "head", "layer"}), one_of({"mean", "sum", "max"}),
                           one_of({"", ",sinks=0", ",sinks=2,recent=3", ",recent=40%"}),
                           one_of({"", "", ",protect=(age<6 or position<2)"}));
        if (preset == "expected") spec += fmt::format(",ahead={}", 1 + below(40));
        policy = keyhole::resolve(keyhole::parse_lane_spec(spec).policy, row + 1, 20);
        const std::vector<keyhole::Unit> units = keyhole::units_of(model->layout(), policy.scope);
        unit = units[to_index(below(static_cast<int>(units.size())))];
        std::set<int> stored = {row};
        while (static_cast<int>(stored.size()) < 15) stored.insert(below(row + 1));
        positions.assign(stored.begin(), stored.end());
        std::normal_distribution<double> normal;
        const auto vector = [&](double shift) {
            Vector x;
            // As floats, so that both sides begin with the same numbers.
            for (int c = 0; c < model->config().head_dim; ++c)
                x.push_back(double{static_cast<float>(normal(random) + (c % 3 == 0 ? shift : 0))});
            return x;
        };
        for (int g = unit.first; g < unit.last; ++g) {
            keys.emplace_back();
            values.emplace_back();
            for (std::size_t i = 0; i < positions.size(); ++i) {
                keys.back().push_back(vector(0.5));
                values.back().push_back(vector(0));
            }
            for (std::size_t r = 0; r < model->layout().kv_head(g).readers.size(); ++r) {
                queries.emplace_back();
                for (int i = 0; i < 20; ++i) queries.back().push_back(vector(0.8));
            }
        }
    }

    Vector turned(const Vector& x, double place) const { return turn_by(model->config().rotary, x, place); }
    std::size_t n_readers() const { return queries.size() / keys.size(); }

    Vector joined(const std::vector<Vector>& of) const {
        Vector out = of.front();
        for (std::size_t h = 1; h < of.size(); ++h)
            for (std::size_t i = 0; i < out.size(); ++i)
                out[i] = policy.pool == keyhole::Pool::max ? std::max(out[i], of[h][i]) : out[i] + of[h][i];
        for (double& x : out)
            if (policy.pool == keyhole::Pool::mean) x /= static_cast<double>(of.size());
        return out;
    }

    std::vector<bool> competing() const {
        std::vector<bool> out;
        const bool protects = spec.find("protect") != std::string::npos;
        for (std::size_t i = 0; i < positions.size(); ++i) {
            const int p = positions[i];
            const bool is_recent = i + to_index(policy.recent) >= positions.size();
            out.push_back(p >= policy.sinks && !is_recent && !(protects && (row - p < 6 || p < 2)));
        }
        return out;
    }

    /// What the preset ranks, in double.
    Vector ranks(bool is_tri) const {
        std::vector<Vector> of_head, lengths;
        const TurnTo turn = [&](const Vector& x, double place) { return turned(x, place); };
        for (std::size_t g = 0; g < keys.size(); ++g) {
            std::vector<Vector> of_reader;
            for (std::size_t r = 0; r < n_readers(); ++r) {
                const std::vector<Vector>& own = queries[g * n_readers() + r];
                if (is_tri) {
                    std::vector<double> offsets;
                    for (int i = 0; i < 17; ++i) offsets.push_back(std::pow(2.0, i));
                    std::vector<std::pair<std::size_t, std::size_t>> pairs;
                    for (std::size_t f = 0; f < 6; ++f) pairs.emplace_back(2 * f, 2 * f + 1);
                    of_reader.push_back(deviations(
                        tri_values(own, keys[g], positions, turn, row + 1, offsets, pairs), competing()));
                    continue;
                }
                std::vector<Vector> rotated;
                std::size_t first = 0;
                while (first < positions.size() && positions[first] < policy.sinks) ++first;
                for (std::size_t i = first; i < positions.size(); ++i)
                    rotated.push_back(turned(keys[g][i], positions[i]));
                Vector shares = expected_shares(own, rotated, turn, row + 1, policy.ahead,
                                                1 / std::sqrt(double(model->config().head_dim)));
                shares.insert(shares.begin(), first, 0.0);
                of_reader.push_back(shares);
            }
            of_head.push_back(joined(of_reader));
            lengths.emplace_back();
            for (const Vector& value : values[g]) lengths.back().push_back(length_of(value));
        }
        Vector out = joined(of_head);
        for (std::size_t i = 0; i < out.size() && !is_tri; ++i) out[i] = (out[i] + 0.01) * joined(lengths)[i];
        return out;
    }

    /// What the engine ranks; protected tokens go to `pinned`.
    std::vector<float> ranked(std::vector<std::int32_t>& pinned) const {
        const int d = model->config().head_dim;
        std::vector<keyhole::ChoiceHead> heads;
        std::vector<keyhole::QueryMoments> moments;
        const std::vector<std::int32_t> stored(positions.begin(), positions.end());
        for (std::size_t g = 0; g < keys.size(); ++g) {
            keyhole::ChoiceHead& head = heads.emplace_back(keyhole::ChoiceHead{stored});
            for (std::size_t i = 0; i < positions.size(); ++i)
                for (int c = 0; c < d; ++c) {
                    head.keys.push_back(static_cast<float>(turned(keys[g][i], positions[i])[to_index(c)]));
                    head.values.push_back(static_cast<float>(values[g][i][to_index(c)]));
                }
        }
        for (const std::vector<Vector>& of_reader : queries) {
            std::vector<std::vector<float>> rows;
            std::vector<const float*> begins;
            for (const Vector& query : of_reader) rows.emplace_back(query.begin(), query.end());
            for (const std::vector<float>& of_row : rows) begins.push_back(of_row.data());
            moments.push_back(keyhole::query_moments(begins, d, &model->config().rotary));
        }
        std::vector<float> pooled(positions.size());
        (void)keyhole::choose_on_host({model->layout(),
                                       unit,
                                       policy,
                                       row,
                                       d,
                                       nullptr,
                                       heads,
                                       stored,
                                       {},
                                       nullptr,
                                       model.get(),
                                       moments},
                                      pooled, pinned);
        return pooled;
    }
};

/// Returns what is wrong with the tokens that stay, by rule G7 of the specification; empty: nothing.
std::string wrong_with(const Selection& of, const Vector& ranks, const std::vector<int>& victims) {
    const std::vector<bool> competes = of.competing();
    const int n = static_cast<int>(of.positions.size());
    const auto n_free = static_cast<int>(std::count(competes.begin(), competes.end(), true));
    if (n - n_free > of.policy.budget) return {};  // protected tokens leave: Select tests that
    if (n - static_cast<int>(victims.size()) != of.policy.budget) return "keeps too many or too few";
    double best_gone = -std::numeric_limits<double>::infinity(), worst_kept = -best_gone;
    for (int i = 0; i < n; ++i) {
        const bool left = std::binary_search(victims.begin(), victims.end(), i);
        if (left && !competes[to_index(i)]) return fmt::format("protected token {} left", i);
        if (left) best_gone = std::max(best_gone, ranks[to_index(i)]);
        if (!left && competes[to_index(i)]) worst_kept = std::min(worst_kept, ranks[to_index(i)]);
    }
    return best_gone > worst_kept + 2e-5 * std::max(1.0, std::abs(best_gone)) ? "a worse token stays" : "";
}

class QuerySelections : public ::testing::TestWithParam<const char*> {};

TEST_P(QuerySelections, AreRight) {
    const std::string preset = GetParam();
    std::mt19937 random(3);
    const std::vector<std::shared_ptr<const keyhole::Model>> models = {odd_model(1), odd_model(2),
                                                                       odd_model(4)};
    for (int i = 0; i < n_selections(); ++i) {
        const Selection of(random, preset, models[random() % 3]);
        const Vector ranks = of.ranks(preset == "tri");
        std::vector<std::int32_t> pinned;
        const std::vector<float> ranked = of.ranked(pinned);
        for (std::size_t p = 0; p < ranks.size(); ++p)
            ASSERT_NEAR(ranked[p], ranks[p], 2e-5 * std::max(1.0, std::abs(ranks[p])))
                << of.spec << ", token " << p;
        std::vector<int> victims;
        const std::vector<std::int32_t> stored(of.positions.begin(), of.positions.end());
        (void)keyhole::select_victims(stored, ranked, pinned, of.policy, of.row, victims);
        ASSERT_EQ(wrong_with(of, ranks, victims), "") << of.spec;
    }
}

INSTANTIATE_TEST_SUITE_P(All, QuerySelections, ::testing::Values("expected", "tri"),
                         [](const auto& of) { return std::string(of.param); });

// --- worked examples: field, sections 9 and 15 -------------------------------------------------------------

/// The eight tokens of the specification's example; one head of two channels that turn by pi / 2.
struct Example {
    keyhole::Rotary rotary;
    std::vector<std::int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7};
    std::vector<float> keys;
    std::vector<float> queries = {1, 1, 3, -1, 1, 1, 3, -1};  // before the rotation

    Example() {
        rotary.dims = 2;
        rotary.inverse_frequency = {std::numbers::pi / 2};
        const float units[8][2] = {{1, 0},      {0, 1},       {.6f, .8f},   {.8f, .6f},
                                   {-.6f, .8f}, {.28f, .96f}, {.96f, .28f}, {-.8f, .6f}};
        const float lengths[8] = {5, 2, 1, 10, 4, 3, 7, 6};
        for (int i = 0; i < 8; ++i)
            for (int c = 0; c < 2; ++c) keys.push_back(lengths[i] * units[i][c]);
    }
    keyhole::QueryMoments moments() const {
        std::vector<const float*> rows;
        for (std::size_t i = 0; i < queries.size(); i += 2) rows.push_back(queries.data() + i);
        return keyhole::query_moments(rows, 2, &rotary);
    }
    keyhole::RankedKeys ranked() const { return {positions, keys, 2, &rotary}; }
};

std::set<int> best_of(const std::vector<float>& values, std::size_t n) {
    std::vector<int> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return values[to_index(a)] > values[to_index(b)]; });
    return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n)};
}

TEST(FieldExamples, ExpectedAttentionKnowsMeanAndSpread) {
    const Example of;
    keyhole::QueryMoments moments = of.moments();
    EXPECT_EQ(moments.mean, (std::vector<double>{2, 0}));
    EXPECT_EQ(moments.covariance, (std::vector<double>{1, -1, -1, 1}));
    const double scale = 1 / std::sqrt(2.0);
    const keyhole::TurnedKeys keys = keyhole::turned_keys(of.ranked(), 7, keyhole::expected_offsets(2));
    const auto expected = [&](const keyhole::QueryMoments& queries, int sinks) {
        return keyhole::expected_attention(keys, queries, sinks, scale);
    };
    const std::vector<float> shares = expected(moments, 0);
    const std::vector<double> x = {9.79, 1.41, 1.08, 25.90, 2.01, 2.81, 17.43, 4.91};
    for (std::size_t p = 0; p < x.size(); ++p)
        EXPECT_NEAR(std::log(double{shares[p]} / double{shares[3]}), x[p] - x[3], 0.011) << p;
    EXPECT_EQ(best_of(shares, 4), (std::set<int>{0, 3, 6, 7}));
    const std::vector<float> later = expected(moments, 4);
    EXPECT_EQ(later[3], 0) << "the first tokens are protected and have no share";
    EXPECT_NEAR(std::accumulate(later.begin(), later.end(), 0.0), 1, 1e-6);
    std::fill(moments.covariance.begin(), moments.covariance.end(), 0);
    EXPECT_EQ(best_of(expected(moments, 0), 4), (std::set<int>{0, 3, 5, 6})) << "without the covariance";
    moments.n = 0;
    EXPECT_TRUE(std::isnan(expected(moments, 0)[2])) << "no query is known";
}

TEST(FieldExamples, TriAttentionTurnsTheMeanQuery) {
    Example of;  // whose keys are those before the rotation here
    for (std::size_t p = 0; p < 8; ++p)
        for (std::size_t turn = 0; turn < p % 4; ++turn)
            std::tie(of.keys[2 * p], of.keys[2 * p + 1]) = std::pair(-of.keys[2 * p + 1], of.keys[2 * p]);
    const keyhole::QueryMoments moments = of.moments();
    EXPECT_NEAR(moments.lengths[0], 2.288, 1e-3);
    const std::vector<std::uint8_t> all(8, 1);
    const std::vector<float> z =
        keyhole::tri_scores(keyhole::turned_keys(of.ranked(), 7, keyhole::tri_offsets(2)), moments, all);
    const std::vector<double> score = {-3.559, 2.576, .088, -11.118, 6.753, 4.585, 6.778, 2.929};
    const Vector expected = deviations(score, std::vector<bool>(8, true));
    for (std::size_t p = 0; p < score.size(); ++p) EXPECT_NEAR(z[p], expected[p], 3e-4) << p;
    EXPECT_EQ(best_of(z, 4), (std::set<int>{4, 5, 6, 7}));
}

// --- refusals, copies --------------------------------------------------------------------------------------

TEST(QueryPolicies, NeedKeysThatTurn) {
    keyhole::ModelShape shape = tiny_shape(258);
    shape.config.positions = keyhole::PositionKind::alibi;
    shape.config.rotary = {};
    const auto model = keyhole::make_seeded_model(shape, keyhole::DType::f32);
    std::string notice;
    const auto backend = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    keyhole::RunSpec spec;
    spec.prompt = "abcdefgh";
    for (const char* lane : {"expected:budget=4", "tri:budget=4", "key:budget=4,protect=(tri>0)"}) {
        spec.lanes = {keyhole::parse_lane_spec(lane)};
        try {
            const keyhole::RunContext context(model, *backend, spec, nullptr);
            ADD_FAILURE() << lane;
        } catch (const keyhole::Error& error) {
            EXPECT_NE(std::string(error.what()).find("has no rotary positions"), std::string::npos)
                << error.what();
        }
    }
}

// A copy goes on as the lane itself does: it has the queries too.
void expect_copies_go_on_alike(keyhole::Backend& backend, const keyhole::ModelConfig& config) {
    const std::vector<int> tokens = different_tokens(40, 4);
    for (const char* text : {"expected:budget=9,alloc=uniform,evict=always", "tri:budget=9,buffer=2"}) {
        const auto policy = keyhole::resolve(keyhole::parse_lane_spec(text).policy, 20, 20);
        auto cache = backend.make_cache(policy);
        keyhole::RowOutput out, other;
        const keyhole::LanePrefill lane{cache.get(), {}, &out};
        backend.prefill(std::span(tokens).first(20), std::span(&lane, 1), nullptr, {});
        std::unique_ptr<keyhole::KvCache> copy;
        for (int row = 20; row < 40; ++row) {
            if (row == 26) copy = cache->clone();
            std::vector<keyhole::LaneStep> steps = {{cache.get(), tokens[to_index(row)], row, {}, &out}};
            if (copy) steps.push_back({copy.get(), tokens[to_index(row)], row, {}, &other});
            backend.step(steps);
            if (!copy) continue;
            ASSERT_EQ(out.evictions, other.evictions) << text << ", row " << row;
            ASSERT_EQ(out.next_logits, other.next_logits) << text << ", row " << row;
        }
        EXPECT_EQ(cache->use().allocated_bytes, copy->use().allocated_bytes);
        const auto plain = backend.make_cache(keyhole::resolve(
            keyhole::parse_lane_spec("key:budget=9,choose=(-knorm),buffer=2").policy, 20, 20));
        EXPECT_GE(cache->use().allocated_bytes - plain->use().allocated_bytes,
                  256 * config.n_layers * config.n_heads * config.head_dim * 4)
            << "the kept queries count";
    }
}

TEST(QueryPolicies, CopiesGoOnAlike) {
    const TinyModel tiny({});
    const auto model = keyhole::load_model(tiny.folder());
    std::string notice;
    expect_copies_go_on_alike(*keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, &notice),
                              model->config());
    expect_copies_go_on_alike(*cuda_backend(model), model->config());
}

/// Returns the model with a norm of queries whose gains differ.
std::shared_ptr<const keyhole::Model> with_query_norm(const std::shared_ptr<const keyhole::Model>& of) {
    struct Storage {
        std::shared_ptr<const keyhole::Model> of;
        std::vector<float> gains;
    };
    auto storage = std::make_shared<Storage>(Storage{of, {}});
    const int d = of->config().head_dim;
    for (int c = 0; c < d; ++c) storage->gains.push_back(0.5f + 0.5f * static_cast<float>(c % 4));
    keyhole::ModelWeights weights = of->weights();
    for (keyhole::LayerWeights& layer : weights.layers)
        layer.q_norm = {keyhole::DType::f32, storage->gains.data(), d, 1};
    return std::make_shared<const keyhole::Model>(of->path(), of->config(), weights, of->shared_tokenizer(),
                                                  of->hash(), storage);
}

// Beyond 256 rows the oldest queries make room; a changed lane begins with the rows after the change, and
// queries have a norm of their own where the model has one.
TEST(QueryPolicies, FollowTheCpuThroughLongTextsChangesAndForks) {
    const TinyModel tiny({});
    Pair pair(with_query_norm(keyhole::load_model(tiny.folder())), 270);
    pair.start({"tri:budget=20,buffer=2", "expected:budget=18,evict=always,ahead=9",
                "expected:budget=17,alloc=uniform,evict=always,every=16,ahead=9",
                "tri:budget=19,scope=layer,buffer=1,kv=mqa", "h2o:budget=16"});
    pair.step(3);
    pair.fork(0);
    pair.apply(1, "tri:budget=16,buffer=1,sinks=2");
    pair.apply(4, "expected:budget=12,evict=always,ahead=9,alloc=uniform");
    pair.step(4);
    pair.apply(0, "expected:budget=15,evict=prompt,ahead=9");
    pair.apply(3, "h2o:budget=12");
    pair.pin(1, 0, pair.lanes[1].cpu->stored_positions(0)[3]);
    pair.step(4);
    pair.apply(3, "tri:budget=10,buffer=0");
    pair.step(4);
}

}  // namespace
}  // namespace reference::test_query_policies
