// The CPU engine on every feature of a model description, against the double-precision reference: lanes of
// several policies, prompts and single steps, keys at moved positions, and the shadow.
#include "engine/base/index.h"
#include "tests/reference/any_model.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/model_parts.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reference::test_engine_description {
namespace {

using keyhole::PositionKind;

Case moved(Case c, const char* keys, Places places) {
    c.spec += keys;
    c.policy.places = places;
    return c;
}

class EngineDescription : public ::testing::TestWithParam<ModelPart> {};

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

// Full attention on a lane's own queries: the rows equal the reference's, whatever the lane itself sees.
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
        const LaneRow expected = lane.feed(tokens[keyhole::to_index(row)]);
        if (row < kPrompt) continue;
        const keyhole::RowOutput& out = rows[0][keyhole::to_index(row - kPrompt + 1)];
        for (int head = 0; head < weights.n_layers * weights.n_heads; ++head) {
            const auto l = keyhole::to_index(head / weights.n_heads),
                       h = keyhole::to_index(head % weights.n_heads);
            for (int p = 0; p <= row; ++p)
                ASSERT_NEAR(out.values.shadow[keyhole::to_index(head * (row + 1) + p)],
                            expected.model.full[l][h][keyhole::to_index(p)], 1e-4)
                    << "row " << row << " head " << head << " position " << p;
            ASSERT_NEAR(out.shadow.output_similarity[keyhole::to_index(head)],
                        expected.model.output_similarity[l][h], 1e-4);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Parts, EngineDescription, ::testing::ValuesIn(kModelParts),
                         [](const ::testing::TestParamInfo<ModelPart>& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(CpuParts, EngineDescription, ::testing::ValuesIn(kCpuParts),
                         [](const ::testing::TestParamInfo<ModelPart>& test) { return test.param.name; });

}  // namespace
}  // namespace reference::test_engine_description
