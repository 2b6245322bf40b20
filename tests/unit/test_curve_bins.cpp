// Curves with more values than room.
#include "engine/analysis/curve_bins.h"
#include "engine/analysis/no_value.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keyhole::test_curve_bins {
namespace {

TEST(CurveBins, ArePowersOfTwo) {
    EXPECT_EQ(values_a_bin(0, 10), 1u);
    EXPECT_EQ(values_a_bin(10, 10), 1u);
    EXPECT_EQ(values_a_bin(11, 10), 2u);
    EXPECT_EQ(values_a_bin(41, 10), 8u);
}

TEST(CurveBins, AreMeansOfWhatIsKnown) {
    const std::vector<float> values = {1, 3, kNoValue, 5, kNoValue, kNoValue, 7};
    const std::vector<float> means = means_of_bins(values, 2, false, 0);
    ASSERT_EQ(means.size(), 4u);
    EXPECT_FLOAT_EQ(means[0], 2);
    EXPECT_FLOAT_EQ(means[1], 5);
    EXPECT_TRUE(std::isnan(means[2]));
    EXPECT_FLOAT_EQ(means[3], 7);
}

TEST(CurveBins, AreGeometricOnALogarithmicAxis) {
    const std::vector<float> means = means_of_bins(std::vector<float>{0.01f, 1, 0, 0.1f}, 2, true, 1e-5);
    ASSERT_EQ(means.size(), 2u);
    EXPECT_NEAR(means[0], 0.1, 1e-6);
    EXPECT_NEAR(means[1], 1e-3, 1e-8) << "zero counts as the axis' end";
}

}  // namespace
}  // namespace keyhole::test_curve_bins
