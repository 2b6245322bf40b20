// The CPU engine against the double-precision reference: next-token logits, attention rows, scores and kept
// sets, head by head.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/sharing_cases.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>

namespace reference::test_engine_reference {
namespace {

void compare(const TinyShape& shape, std::span<const Case> cases, int n_prompt, int n_decode,
             std::uint64_t seed) {
    const TinyModel model(shape);
    const std::vector<int> tokens = random_tokens(n_prompt + n_decode, seed);
    const std::span<const int> all(tokens);
    expect_agreement(compare_with_reference(keyhole::load_model(model.folder()), load_weights(model.folder()),
                                            cases, all.first(keyhole::to_index(n_prompt)),
                                            all.subspan(keyhole::to_index(n_prompt))));
}

struct PresetParam {
    int n_prompt, n_kv_heads;
    std::uint64_t seed;
};

class EngineReferencePresets : public ::testing::TestWithParam<PresetParam> {};

TEST_P(EngineReferencePresets, EveryRowAgrees) {
    const int n_decode = 20;
    std::vector<Case> cases;
    for (const char* preset : {"full", "window", "sink", "key", "h2o", "tova", "keyformer", "a2sf"})
        for (int budget : {1, 4, 16, 1000})
            if (std::string(preset) != "full" || budget == 1)
                cases.push_back(preset_case(preset, budget, n_decode));
    TinyShape shape;
    shape.n_kv_heads = GetParam().n_kv_heads;
    shape.seed = GetParam().seed;
    compare(shape, cases, GetParam().n_prompt, n_decode, GetParam().seed + 100);
}

std::vector<PresetParam> preset_params() {
    std::vector<PresetParam> params;
    for (int n_prompt : {1, 2, 7, 33, 130})
        for (int n_kv_heads : {4, 2, 1})
            params.push_back({n_prompt, n_kv_heads, static_cast<std::uint64_t>(n_kv_heads)});
    params.push_back({33, 2, 11});
    params.push_back({33, 4, 12});
    return params;
}

std::string name_of(const ::testing::TestParamInfo<PresetParam>& test) {
    return fmt::format("Prompt{}Kv{}Seed{}", test.param.n_prompt, test.param.n_kv_heads, test.param.seed);
}

INSTANTIATE_TEST_SUITE_P(Grid, EngineReferencePresets, ::testing::ValuesIn(preset_params()), name_of);

Case changed(Case c, const std::string& keys, const std::function<void(Policy&)>& change) {
    c.spec += "," + keys;
    change(c.policy);
    return c;
}

std::vector<Case> points_between_presets(int n_decode) {
    const Case h2o = preset_case("h2o", 8, n_decode), keyformer = preset_case("keyformer", 10, n_decode);
    const Case a2sf = preset_case("a2sf", 8, n_decode), tova = preset_case("tova", 8, n_decode);
    const Case sink = preset_case("sink", 8, n_decode);
    const auto stepwise = [](Policy& p) { p.stepwise = true; };
    Case percent = keyformer;  // percent of a prompt of 41
    percent.spec = "keyformer:budget=40%";
    percent.policy.budget = 16;
    percent.policy.recent = 4;
    return {
        percent,
        changed(h2o, "scope=layer", [](Policy& p) { p.unit = Unit::layer; }),
        changed(h2o, "scope=shared", [](Policy& p) { p.unit = Unit::shared; }),
        changed(h2o, "pool=max", [](Policy& p) { p.pool = PoolOver::max; }),
        changed(h2o, "pool=sum", [](Policy& p) { p.pool = PoolOver::sum; }),
        changed(h2o, "scope=layer,pool=max", [](Policy& p) { p.unit = Unit::layer, p.pool = PoolOver::max; }),
        changed(h2o, "scope=shared,pool=sum",
                [](Policy& p) { p.unit = Unit::shared, p.pool = PoolOver::sum; }),
        changed(h2o, "every=3", [](Policy& p) { p.every = 3; }),
        changed(h2o, "every=50", [](Policy& p) { p.every = 50; }),
        changed(h2o, "damping=0.5", [](Policy& p) { p.damping = 0.5; }),
        changed(h2o, "sinks=2,recent=3", [](Policy& p) { p.sinks = 2, p.recent = 3; }),
        changed(h2o, "prefill=stepwise", stepwise),
        changed(h2o, "damping=0.5,prefill=stepwise", [](Policy& p) { p.damping = 0.5, p.stepwise = true; }),
        changed(h2o, "every=4,prefill=stepwise", [](Policy& p) { p.every = 4, p.stepwise = true; }),
        changed(tova, "prefill=stepwise", stepwise),
        changed(sink, "positions=cache", [](Policy& p) { p.places = Places::cache; }),
        changed(sink, "positions=compressed", [](Policy& p) { p.places = Places::compressed; }),
        changed(h2o, "positions=cache", [](Policy& p) { p.places = Places::cache; }),
        changed(tova, "positions=compressed", [](Policy& p) { p.places = Places::compressed; }),
        changed(tova, "positions=cache,prefill=stepwise",
                [](Policy& p) { p.places = Places::cache, p.stepwise = true; }),
        changed(a2sf, "positions=compressed,prefill=stepwise",
                [](Policy& p) { p.places = Places::compressed, p.stepwise = true; }),
        changed(tova, "scope=head", [](Policy& p) { p.unit = Unit::head; }),
        changed(tova, "sinks=1", [](Policy& p) { p.sinks = 1; }),
        changed(tova, "scope=shared", [](Policy& p) { p.unit = Unit::shared; }),
        changed(a2sf, "alpha=0.7", [](Policy& p) { p.alpha = 0.7; }),
        changed(a2sf, "alpha=0.9,prefill=stepwise", [](Policy& p) { p.alpha = 0.9, p.stepwise = true; }),
        changed(keyformer, "draw=row", [](Policy& p) { p.noise_per_row = true; }),
        changed(keyformer, "noise=gaussian", [](Policy& p) { p.noise = Noise::gaussian; }),
        changed(keyformer, "noise=constant", [](Policy& p) { p.noise = Noise::constant; }),
        changed(keyformer, "noise=none,tau=3",
                [](Policy& p) { p.noise = Noise::none, p.tau_begin = p.tau_end = 3; }),
        changed(keyformer, "seed=99", [](Policy& p) { p.seed = 99; }),
        changed(keyformer, "seed=98765432109", [](Policy& p) { p.seed = 98765432109; }),
        changed(keyformer, "gain=0.3", [](Policy& p) { p.gain = 0.3; }),
        changed(keyformer, "scope=shared", [](Policy& p) { p.unit = Unit::shared; }),
        changed(keyformer, "tau=1..3@cosine",
                [](Policy& p) { p.tau_end = 3, p.tau_shape = TauShape::cosine; }),
        changed(keyformer, "horizon=7", [](Policy& p) { p.horizon = 7; }),
        changed(keyformer, "alpha=0.5,prefill=stepwise", [](Policy& p) { p.alpha = 0.5, p.stepwise = true; }),
        changed(keyformer, "damping=0.25,draw=row,noise=gaussian",
                [](Policy& p) { p.damping = 0.25, p.noise_per_row = true, p.noise = Noise::gaussian; }),
    };
}

TEST(EngineReference, PointsBetweenThePresetsAgree) {
    const std::vector<Case> cases = points_between_presets(24);
    for (int n_kv_heads : {4, 2}) {
        TinyShape shape;
        shape.n_kv_heads = n_kv_heads;
        shape.seed = 21;
        compare(shape, cases, 41, 24, 5);
    }
}

TEST(EngineReference, EveryStoredTypeAgrees) {
    const std::vector<Case> cases = {preset_case("full", 0, 10), preset_case("h2o", 8, 10)};
    for (StoredAs dtype : {StoredAs::f32, StoredAs::f16, StoredAs::bf16})
        for (bool tied : {false, true}) {
            TinyShape shape;
            shape.dtype = dtype;
            shape.tied = tied;
            compare(shape, cases, 33, 10, 6);
        }
}

// Vector widths, tails and tiles: extents that no power of two divides, and heads wider than a register.
TEST(EngineReference, OddShapesAgree) {
    const std::vector<Case> cases = {preset_case("full", 0, 10), preset_case("keyformer", 9, 10)};
    for (StoredAs dtype : {StoredAs::f32, StoredAs::bf16}) {
        compare({.n_layers = 1, .n_heads = 3, .n_kv_heads = 1, .head_dim = 10, .d_ff = 37, .dtype = dtype},
                cases, 19, 10, 7);
        compare({.n_layers = 3, .n_heads = 2, .n_kv_heads = 2, .head_dim = 80, .d_ff = 170, .dtype = dtype},
                cases, 70, 10, 8);
        compare({.n_layers = 1, .n_heads = 6, .n_kv_heads = 3, .head_dim = 2, .d_ff = 1, .dtype = dtype},
                cases, 65, 10, 9);
    }
}

TEST(EngineReference, RotationBaseComesFromTheConfig) {
    const std::vector<Case> cases = {preset_case("full", 0, 4)};
    compare({.rope_theta = 500.0}, cases, 60, 4, 10);
}

// Prompt rows as the prefill sink receives them, against full causal attention.
class CollectPrompt : public keyhole::PrefillSink {
  public:
    explicit CollectPrompt(int n) : n_(n) {}
    keyhole::RowRequest requested() const override { return {true, true, true, true}; }
    void attention(const keyhole::PrefillTile& t) override { take("attention", t); }
    void logits(const keyhole::PrefillTile& t) override { take("logits", t); }
    void noise(const keyhole::PrefillTile& t) override { take("noise", t); }
    void scores(const keyhole::PrefillTile& t) override { take("scores", t); }

    using Key = std::tuple<std::string, int, int, int>;  // what, lane, layer, head
    std::map<Key, std::vector<double>> rows;             // [n, n], NaN where no value came

  private:
    void take(const char* what, const keyhole::PrefillTile& t) {
        const std::lock_guard lock(mutex_);
        std::vector<double>& out = rows[{what, t.lane, t.layer, t.head}];
        out.resize(keyhole::to_index(n_ * n_), std::nan(""));
        for (int r = 0; r < t.n_rows; ++r)
            for (int c = 0; c <= t.first_row + r; ++c) {
                ASSERT_LT(c, t.n_columns);
                double& cell = out[keyhole::to_index((t.first_row + r) * n_ + c)];
                EXPECT_TRUE(std::isnan(cell)) << what << " came twice";
                cell = t.values[r * t.n_columns + c];
            }
    }
    int n_;
    std::mutex mutex_;
};

void expect_prompt_rows(const CollectPrompt& got, const std::string& what, int lane, int layer, int head,
                        int row, const Vector& expected) {
    const auto found = got.rows.find({what, lane, layer, head});
    ASSERT_NE(found, got.rows.end()) << what << " of lane " << lane << " did not come";
    const auto n = static_cast<std::size_t>(std::sqrt(static_cast<double>(found->second.size())) + 0.5);
    for (std::size_t p = 0; p < expected.size(); ++p) {
        const double value = found->second[keyhole::to_index(row) * n + p];
        ASSERT_NEAR(value, expected[p], kTolerance * std::max(1.0, std::abs(expected[p])))
            << what << " (layer " << layer << ", head " << head << ", row " << row << ", column " << p << ")";
    }
}

TEST(EngineReference, PromptRowsGivenToTheSinkAgree) {
    for (int n : {1, 33, 150}) {
        const TinyModel tiny({.seed = 31});
        const auto model = keyhole::load_model(tiny.folder());
        const Weights weights = load_weights(tiny.folder());
        const std::vector<int> prompt = random_tokens(n, 77);
        std::string notice;
        const auto backend = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
        const Case h2o = preset_case("h2o", 8, 10), keyformer = preset_case("keyformer", 8, 10);
        const std::vector<Case> cases = {
            h2o, keyformer, preset_case("a2sf", 8, 10),
            changed(h2o, "scope=shared", [](Policy& p) { p.unit = Unit::shared; }),
            changed(keyformer, "scope=shared,pool=max",
                    [](Policy& p) { p.unit = Unit::shared, p.pool = PoolOver::max; })};
        std::vector<std::unique_ptr<keyhole::KvCache>> caches;
        std::vector<keyhole::ResolvedPolicy> policies;
        std::vector<keyhole::RowOutput> out(cases.size());
        for (const Case& c : cases) {
            policies.push_back(keyhole::resolve(keyhole::parse_lane_spec(c.spec).policy, n, 10));
            caches.push_back(backend->make_cache(policies.back()));
        }
        std::vector<keyhole::LanePrefill> lanes;
        for (std::size_t i = 0; i < cases.size(); ++i) lanes.push_back({caches[i].get(), {}, &out[i]});
        CollectPrompt sink(n);
        backend->prefill(prompt, lanes, &sink, {});
        for (std::size_t i = 0; i < cases.size(); ++i) {
            Lane lane(weights, cases[i].policy, n);
            for (int row = 0; row < n; ++row) {
                const LaneRow expected = lane.feed(prompt[keyhole::to_index(row)]);
                for (int l = 0; l < weights.n_layers; ++l) {
                    const auto layer = keyhole::to_index(l);
                    for (int h = 0; h < weights.n_heads; ++h) {
                        const auto head = keyhole::to_index(h);
                        expect_prompt_rows(sink, "attention", -1, l, h, row,
                                           expected.model.attention[layer][head]);
                        expect_prompt_rows(sink, "logits", -1, l, h, row, expected.model.logits[layer][head]);
                        if (cases[i].policy.noise != Noise::none)
                            expect_prompt_rows(sink, "noise", static_cast<int>(i), l, h, row,
                                               expected.noise[layer][head]);
                    }
                    for (int g = 0; g < weights.n_kv_heads; ++g)
                        expect_prompt_rows(sink, "scores", static_cast<int>(i), l, g, row,
                                           expected.scores[layer][keyhole::to_index(g)]);
                    if (HasFatalFailure()) return;
                }
            }
        }
    }
}

// KEYHOLE_REAL_MODEL names a folder of tinyllamas/stories260K. Its greedy continuation of bos is known from
// another program.
class EngineRealModel : public ::testing::Test {
  protected:
    void SetUp() override {
        const char* folder = std::getenv("KEYHOLE_REAL_MODEL");
        if (folder == nullptr) GTEST_SKIP() << "KEYHOLE_REAL_MODEL is not set";
        model_ = keyhole::load_model(folder);
        weights_ = load_weights(folder);
    }
    const std::vector<int> ids_ = {1,   403, 407, 261, 378, 432, 383, 286, 261, 376, 298,
                                   315, 421, 395, 317, 426, 338, 401, 396, 267, 337, 410,
                                   408, 419, 292, 411, 322, 265, 282, 295, 433, 426};
    std::shared_ptr<const keyhole::Model> model_;
    Weights weights_;
};

TEST_F(EngineRealModel, GreedyIdsAreThePublishedOnes) {
    const std::vector<std::string> specs = {"full"};
    const std::span<const int> ids(ids_);
    const LaneRows rows = run_engine(model_, specs, ids.first(1), ids.subspan(1, ids.size() - 2));
    for (std::size_t t = 0; t < rows[0].size(); ++t) {
        const std::vector<float>& logits = rows[0][t].next_logits;
        EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), ids_[t + 1]) << t;
    }
    const std::string text = model_->tokenizer().decode(ids_);
    EXPECT_EQ(text.substr(text.find('O')),
              "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.");
}

TEST_F(EngineRealModel, RowsAgree) {
    std::vector<Case> cases;
    for (const char* preset : {"full", "window", "sink", "h2o", "tova", "keyformer", "a2sf"})
        for (int budget : {4, 12})
            if (std::string(preset) != "full" || budget == 4)
                cases.push_back(preset_case(preset, budget, 16));
    const std::span<const int> ids(ids_);
    expect_agreement(compare_with_reference(model_, weights_, cases, ids.first(16), ids.subspan(16)));
}

}  // namespace
}  // namespace reference::test_engine_reference
