// Learned sinks: what one takes of a row, what policies then sum, and what counts as kept. All numbers by
// hand.
#include "engine/backend/common/kernels.h"
#include "engine/backend/common/shadow.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cpu/score.h"
#include "engine/backend/cpu/select.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/any_model.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace keyhole::test_learned_sink {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

TEST(LearnedSink, TakesItsPartOfTheSoftmax) {
    const float x[] = {std::log(1.0f), std::log(2.0f), kHidden};
    float p[3];
    softmax(x, 3, p);
    EXPECT_NEAR(share_with_sink(x, 3, std::log(5.0f), p), 5.0 / 8, 1e-6);
    EXPECT_NEAR(p[0], 1.0 / 8, 1e-6);
    EXPECT_NEAR(p[1], 2.0 / 8, 1e-6);
    EXPECT_EQ(p[2], 0.0f);
}

TEST(LearnedSink, ExtremeLogitsStayFinite) {
    const float x[] = {1000.0f, -1000.0f}, none[] = {kHidden, kHidden};
    float p[2];
    softmax(x, 2, p);
    EXPECT_EQ(share_with_sink(x, 2, 3000.0f, p), 1.0f);
    EXPECT_EQ(p[0], 0.0f);
    softmax(x, 2, p);
    EXPECT_EQ(share_with_sink(x, 2, -3000.0f, p), 0.0f);
    EXPECT_EQ(p[0], 1.0f);
    softmax(none, 2, p);  // a row that sees no token attends to the sink alone
    EXPECT_EQ(share_with_sink(none, 2, 0.0f, p), 1.0f);
    EXPECT_EQ(p[0] + p[1], 0.0f);
}

/// Feeds rows of logits to one head whose sink's logit is log 4, and returns the scores by position.
std::vector<float> scores_after(const std::string& spec, const std::vector<std::vector<float>>& rows) {
    const KvLayout layout = KvLayout::shared(1, 1, 1, 1);
    cpu::CpuKvCache cache(layout, 1);
    cache.set_policy(resolve(parse_lane_spec(spec).policy, 1, 8));
    cache.reserve({8});
    cpu::RowScratch scratch;
    const float sink = std::log(4.0f);
    for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
        cache.append(0, row);
        scratch.grow(row + 1);
        for (int slot = 0; slot <= row; ++slot)
            scratch.logits[to_index(slot)] = std::log(rows[to_index(row)][to_index(slot)]);
        cpu::score_row(cache, {0, 0}, row, scratch, 0, &sink);
    }
    const int accumulator = accumulator_of(cache.policy());
    const float* score = cache.score(accumulator, 0);
    return {score, score + rows.size()};
}

// Rows see tokens of weights 4; 2, 2; 1, 2, 1, and the sink has 4: it takes half of each row. H2O adds up
// what the tokens get, TOVA takes the last row's. Neither has an entry for the sink.
TEST(LearnedSink, PoliciesSumWhatTheTokensGet) {
    const std::vector<std::vector<float>> rows = {{4}, {2, 2}, {1, 2, 1}};
    const std::vector<float> h2o = scores_after("h2o:budget=5", rows);
    EXPECT_NEAR(h2o[0], 4.0 / 8 + 2.0 / 8 + 1.0 / 8, 1e-6);
    EXPECT_NEAR(h2o[1], 2.0 / 8 + 2.0 / 8, 1e-6);
    EXPECT_NEAR(h2o[2], 1.0 / 8, 1e-6);
    const std::vector<float> tova = scores_after("tova:budget=5", rows);
    EXPECT_NEAR(tova[0], 1.0 / 8, 1e-6);
    EXPECT_NEAR(tova[1], 2.0 / 8, 1e-6);
    EXPECT_NEAR(tova[2], 1.0 / 8, 1e-6);
}

// Keyformer's tempered softmax divides the sink's logit by tau as well: at tau 2 weights become their roots.
TEST(LearnedSink, FormulasSeeWhatItTook) {
    const std::vector<std::vector<float>> rows = {{1}, {2, 1}};
    const std::vector<float> now = scores_after("key:budget=8,score=(sinkmass)", rows);
    for (const float s : now) EXPECT_NEAR(s, 4.0 / 7, 1e-6);
    const std::vector<float> sums = scores_after("key:budget=8,score=(s+sinkmass)", rows);
    EXPECT_NEAR(sums[0], 4.0 / 5 + 4.0 / 7, 1e-6);
    EXPECT_NEAR(sums[1], 4.0 / 7, 1e-6);
}

TEST(LearnedSink, TakesPartInATemperedSoftmax) {
    const std::vector<float> scores = scores_after("keyformer:budget=5,noise=none,tau=2", {{4}, {1, 9}});
    EXPECT_NEAR(scores[0], 2.0 / 4 + 1.0 / 6, 1e-6);
    EXPECT_NEAR(scores[1], 3.0 / 6, 1e-6);
}

// Three tokens get 1, 2 and 1 of 8, the sink 4. Of what tokens get, two of them keep 3 quarters.
TEST(LearnedSink, IsNeitherKeptNorLost) {
    constexpr int kDim = 8;
    ShadowStore store(1, kDim);
    const float weights[] = {1, 2, 1};
    for (const float weight : weights) {
        float key[kDim] = {std::log(weight)}, value[kDim] = {weight, 1};
        store.append(0, key, value, 1);
    }
    ShadowScratch scratch;
    scratch.query = {1, 0, 0, 0, 0, 0, 0, 0};
    const std::int32_t positions[] = {1, 2};
    const float seen[] = {2.0f / 7, 1.0f / 7}, output[kDim] = {5.0f / 7, 3.0f / 7}, sink = std::log(4.0f);
    RowOutput out;
    begin_shadow(KvLayout::shared(1, 1, 1, 1), &store, 2, true, out);
    measure_row(store, 0, 0, 1, AttentionRule{}, {positions, seen, {}, output, &sink}, scratch, out);
    EXPECT_NEAR(out.shadow.retained_mass[0], 3.0 / 4, 1e-6);
    EXPECT_NEAR(out.values.shadow[1], 2.0 / 8, 1e-6);
}

// A lane that has evicted nothing keeps all, although its rows add up to less than 1.
TEST(LearnedSink, AFullCacheLosesNothing) {
    reference::AnyShape shape = reference::any_shape();
    shape.config.has_sinks = true;
    const auto model = reference::any_model(shape);
    const std::vector<int> tokens = reference::random_tokens(12, 3);
    const std::span<const int> all(tokens);
    const std::vector<std::string> specs = {"full:shadow=on"};
    const auto rows = reference::run_engine(model, specs, all.first(6), all.subspan(6));
    const RowOutput& last = rows[0].back();
    for (const float mass : last.shadow.retained_mass) EXPECT_NEAR(mass, 1.0, 1e-6);
    double sum = 0;
    for (const float p : last.values.attention) sum += static_cast<double>(p);
    EXPECT_LT(sum, 0.99 * model->config().n_layers * model->config().n_heads);
}

}  // namespace
}  // namespace keyhole::test_learned_sink
