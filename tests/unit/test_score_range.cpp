// A score below its threshold is drawn below it, whatever the policy's scale: A2SF's scores decay by decades
// per row.
#include "engine/analysis/score_range.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace keyhole::test_score_range {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

TEST(ScoreRange, ThresholdAndItsCrossingAreAlwaysThere) {
    const std::vector<float> threshold = {kNone, 20, 1e-3f, 7e-8f}, score = {kNone, 30, 2e-5f, 2.4e-11f},
                             other = {1, 0.5f, 0.2f, 0.1f};
    const ScoreRange range = score_range(threshold, {score, other});
    for (std::size_t i = 1; i < threshold.size(); ++i) {
        EXPECT_GT(range.part(threshold[i]), 0) << i;
        EXPECT_LE(range.part(threshold[i]), 1) << i;
        EXPECT_EQ(score[i] < threshold[i], range.part(score[i]) < range.part(threshold[i])) << i;
    }
    EXPECT_FLOAT_EQ(range.part(30), 1);
    EXPECT_EQ(range.part(0), 0);  // never attended to
    EXPECT_TRUE(std::isnan(range.part(kNone)));
}

TEST(ScoreRange, ScoresDoNotStretchItFarBelowTheThreshold) {
    const std::vector<float> threshold = {1, 2}, score = {1e-30f, 3};
    EXPECT_FLOAT_EQ(score_range(threshold, {score}).low, 1e-3f);
    EXPECT_FLOAT_EQ(score_range({}, {score}).low, 3e-12f);
}

TEST(ScoreRange, OneValueOrNoneHasAnAxis) {
    const std::vector<float> one = {0.5f}, none = {kNone, 0, -1};
    for (const ScoreRange& range :
         {score_range(one, {}), score_range({}, {one}), score_range(one, {one}), score_range(none, {none})}) {
        EXPECT_GT(range.low, 0);
        EXPECT_LT(range.low, range.high);
    }
    EXPECT_GT(score_range(one, {}).part(0.5f), 0);
    const std::vector<float> tiny = {1e-38f, std::numeric_limits<float>::denorm_min()};
    EXPECT_LT(score_range(tiny, {tiny}).low, score_range(tiny, {tiny}).high);
}

}  // namespace
}  // namespace keyhole::test_score_range
