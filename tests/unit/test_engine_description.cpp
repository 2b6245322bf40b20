// The CPU engine on every part of a model's description, against the double-precision reference: lanes of several policies,
// prompts and single steps, keys moved to other places, and the shadow.
#include "tests/reference/any_model.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace reference {
namespace {

using keyhole::Activation;
using keyhole::ModelConfig;
using keyhole::NormKind;
using keyhole::PositionKind;

struct Part {
    const char* name;
    std::function<void(AnyShape&)> change;
};

std::ostream& operator<<(std::ostream& out, const Part& part) {
    return out << part.name;
}

Case moved(Case c, const char* keys, Places places) {
    c.spec += keys;
    c.policy.places = places;
    return c;
}

class EngineDescription : public testing::TestWithParam<Part> {};

TEST_P(EngineDescription, EveryRowAgrees) {
    constexpr int kPrompt = 37, kDecode = 14;
    AnyShape shape = any_shape();
    GetParam().change(shape);
    const auto model = any_model(shape);
    const Weights weights = weights_of(*model);
    Case stepwise = preset_case("tova", 9, kDecode);
    stepwise.spec += ",prefill=stepwise";
    stepwise.policy.stepwise = true;
    std::vector<Case> cases = {preset_case("full", 0, kDecode), preset_case("h2o", 12, kDecode),
                               preset_case("keyformer", 10, kDecode), stepwise};
    if (model->config().positions != PositionKind::learned) {
        cases.push_back(moved(preset_case("sink", 12, kDecode), ",positions=cache", Places::cache));
        cases.push_back(moved(preset_case("h2o", 9, kDecode), ",positions=compressed", Places::compressed));
        cases.push_back(moved(stepwise, ",positions=cache", Places::cache));
    }
    const std::vector<int> tokens = random_tokens(kPrompt + kDecode, 3);
    const std::span<const int> all(tokens);
    const Agreement a =
        compare_with_reference(model, weights, cases, all.first(kPrompt), all.subspan(kPrompt));
    EXPECT_LT(a.next_logits, 1.0) << a.worst;
    EXPECT_LT(a.attention, 1.0) << a.worst;
    EXPECT_LT(a.logits, 1.0) << a.worst;
    EXPECT_LT(a.scores, 1.0) << a.worst;
    EXPECT_LE(a.n_near_ties, 1);
}

// Full attention on a lane's own queries: the same rows as the reference's, whatever the lane itself sees.
TEST_P(EngineDescription, TheShadowIsFullAttention) {
    constexpr int kPrompt = 21, kDecode = 6;
    AnyShape shape = any_shape();
    GetParam().change(shape);
    const auto model = any_model(shape);
    const Weights weights = weights_of(*model);
    const std::vector<int> tokens = random_tokens(kPrompt + kDecode, 4);
    const std::span<const int> all(tokens);
    const Case c = preset_case("window", 6, kDecode);
    const std::vector<std::string> specs = {c.spec + ",shadow=on"};
    const LaneRows rows = run_engine(model, specs, all.first(kPrompt), all.subspan(kPrompt));
    Lane lane(weights, c.policy, kPrompt);
    for (int row = 0; row < kPrompt + kDecode; ++row) {
        const LaneRow expected = lane.feed(tokens[static_cast<std::size_t>(row)]);
        if (row < kPrompt) continue;
        const keyhole::RowOutput& out = rows[0][static_cast<std::size_t>(row - kPrompt + 1)];
        for (int head = 0; head < weights.n_layers * weights.n_heads; ++head) {
            const auto l = static_cast<std::size_t>(head / weights.n_heads),
                       h = static_cast<std::size_t>(head % weights.n_heads);
            for (int p = 0; p <= row; ++p)
                ASSERT_NEAR(out.values.shadow[static_cast<std::size_t>(head * (row + 1) + p)],
                            expected.model.full[l][h][static_cast<std::size_t>(p)], 1e-4)
                    << "row " << row << " head " << head << " position " << p;
            ASSERT_NEAR(out.shadow.output_similarity[static_cast<std::size_t>(head)],
                        expected.model.output_similarity[l][h], 1e-4);
        }
    }
}

const Part kParts[] = {
    {"llama", [](AnyShape&) {}},
    {"layer_norm", [](AnyShape& s) { s.config.norm = NormKind::layer, s.config.norm_eps = 0.05f; }},
    {"layer_norm_with_biases", [](AnyShape& s) { s.config.norm = NormKind::layer, s.biases = true; }},
    {"biases", [](AnyShape& s) { s.biases = true; }},
    {"gelu", [](AnyShape& s) { s.config.activation = Activation::gelu, s.gate = false, s.biases = true; }},
    {"gelu_gated", [](AnyShape& s) { s.config.activation = Activation::gelu; }},
    {"gelu_tanh", [](AnyShape& s) { s.config.activation = Activation::gelu_tanh, s.gate = false; }},
    {"relu", [](AnyShape& s) { s.config.activation = Activation::relu, s.gate = false; }},
    {"silu_without_gate", [](AnyShape& s) { s.gate = false; }},
    {"rotary_partial", [](AnyShape& s) { s.config.rotary.dims = 4; }},
    {"rotary_of_two", [](AnyShape& s) { s.config.rotary.dims = 2, s.config.head_dim = 10; }},
    {"rotary_interleaved", [](AnyShape& s) { s.config.rotary.interleaved = true; }},
    {"rotary_interleaved_partial",
     [](AnyShape& s) { s.config.rotary.interleaved = true, s.config.rotary.dims = 6; }},
    {"rotary_wide",
     [](AnyShape& s) { s.config.head_dim = 40, s.config.rotary.dims = 36, s.config.n_heads = 2; }},
    {"rotary_frequencies",
     [](AnyShape& s) {
         s.config.rotary.inverse_frequency = {0.9, 0.31, 0.002, 0.05};
     }},
    {"rotary_magnitude", [](AnyShape& s) { s.config.rotary.magnitude = 1.3f; }},
    {"rotary_magnitude_partial",
     [](AnyShape& s) { s.config.rotary.magnitude = 0.8f, s.config.rotary.dims = 4; }},
    {"alibi", [](AnyShape& s) { s.config.positions = PositionKind::alibi; }},
    {"alibi_slopes",
     [](AnyShape& s) {
         s.config.positions = PositionKind::alibi;
         s.config.n_heads = 6;
         s.config.alibi_slopes = {0.7f, 0.1f, 0.03f, 1.5f, 0.0f, 0.4f};
     }},
    {"learned", [](AnyShape& s) { s.config.positions = PositionKind::learned; }},
    {"learned_with_offset",
     [](AnyShape& s) { s.config.positions = PositionKind::learned, s.config.position_offset = 2; }},
    {"learned_to_the_end",
     [](AnyShape& s) {
         s.config.positions = PositionKind::learned;
         s.config.n_ctx = 51;
     }},
    {"parallel",
     [](AnyShape& s) { s.config.parallel = true, s.config.norm = NormKind::layer, s.biases = true; }},
    {"parallel_shared", [](AnyShape& s) { s.config.parallel = s.config.shared_norm = true; }},
    {"post_norm",
     [](AnyShape& s) { s.config.post_norm = true, s.config.norm = NormKind::layer, s.final_norm = false; }},
    {"qk_norm", [](AnyShape& s) { s.qk_norm = true; }},
    {"clipped", [](AnyShape& s) { s.config.clip_qkv = 0.8f; }},
    {"attention_scale", [](AnyShape& s) { s.config.attention_scale = 0.21f; }},
    {"projections", [](AnyShape& s) { s.d_embed = 20; }},
    {"output_bias", [](AnyShape& s) { s.output_bias = true; }},
    {"head_dim_apart", [](AnyShape& s) { s.config.d_model = 20; }},
    {"window",
     [](AnyShape& s) {
         s.config.window = {9, 9};
     }},
    {"window_in_one_layer",
     [](AnyShape& s) {
         s.config.window = {0, 5};
     }},
    {"window_of_one",
     [](AnyShape& s) {
         s.config.window = {1, 1};
     }},
    {"window_beyond_the_text",
     [](AnyShape& s) {
         s.config.window = {100, 45};
     }},
    {"window_with_alibi",
     [](AnyShape& s) {
         s.config.positions = PositionKind::alibi, s.config.window = {7, 12};
     }},
};

INSTANTIATE_TEST_SUITE_P(Parts, EngineDescription, testing::ValuesIn(kParts),
                         [](const testing::TestParamInfo<Part>& test) { return test.param.name; });

}  // namespace
}  // namespace reference
