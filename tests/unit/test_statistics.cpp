// Intervals against published values and hand calculation.
#include "engine/eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace keyhole::test_statistics {
namespace {

TEST(Statistics, WilsonGivesThePublishedIntervals) {
    // Newcombe (1998), Statistics in Medicine 17, table I, method 3.
    struct Case {
        int k, n;
        double low, high;
    };
    for (const Case& c : {Case{81, 263, 0.2553, 0.3662}, Case{15, 148, 0.0624, 0.1605},
                          Case{0, 20, 0.0000, 0.1611}, Case{1, 29, 0.0061, 0.1718}}) {
        const Interval interval = wilson_interval(c.k, c.n);
        EXPECT_NEAR(interval.low, c.low, 6e-5) << c.k << "/" << c.n;
        EXPECT_NEAR(interval.high, c.high, 6e-5) << c.k << "/" << c.n;
        const Interval mirrored = wilson_interval(c.n - c.k, c.n);
        EXPECT_NEAR(mirrored.low, 1 - interval.high, 1e-12);
        EXPECT_NEAR(mirrored.high, 1 - interval.low, 1e-12);
    }
    EXPECT_TRUE(std::isnan(wilson_interval(0, 0).low));
}

TEST(Statistics, PairedDifferenceIsBonettAndPrices) {
    // By hand: p1 = 7/52, p2 = 3/52, d = -4/52, half = 1.96 * sqrt((10/52 - (4/52)^2) / 52) = 0.11734.
    const Estimate e = paired_difference(6, 2, 50);
    EXPECT_NEAR(e.value, -0.08, 1e-12);
    EXPECT_NEAR(e.interval.low, -0.19427, 1e-4);
    EXPECT_NEAR(e.interval.high, 0.04042, 1e-4);
    const Estimate swapped = paired_difference(2, 6, 50);
    EXPECT_DOUBLE_EQ(swapped.interval.low, -e.interval.high);
    const Estimate same = paired_difference(0, 0, 500);
    EXPECT_EQ(same.value, 0);
    EXPECT_GT(same.interval.high, 0);  // five hundred equal answers do not prove equality
    EXPECT_LT(same.interval.high, 0.01);
    EXPECT_LE(paired_difference(0, 3, 3).interval.high, 1);
}

// Of values that are whole they are the intervals of counts; between these they are no wider.
TEST(Statistics, MeansOfSharesAndOfDifferencesAreThoseOfCounts) {
    const std::vector<double> shares{1, 0, 0, 1, 1, 0, 0}, differences{1, 0, -1, 0, 0, 1, 0, 1};
    const Estimate share = mean_of_shares(shares);
    EXPECT_DOUBLE_EQ(share.value, 3.0 / 7);
    EXPECT_DOUBLE_EQ(share.interval.low, wilson_interval(3, 7).low);
    EXPECT_DOUBLE_EQ(share.interval.high, wilson_interval(3, 7).high);
    const Estimate difference = mean_of_differences(differences), counted = paired_difference(1, 3, 8);
    EXPECT_DOUBLE_EQ(difference.value, counted.value);
    EXPECT_DOUBLE_EQ(difference.interval.low, counted.interval.low);
    EXPECT_DOUBLE_EQ(difference.interval.high, counted.interval.high);
    // All alike, or one alone: neither NaN nor of no width, and within what is possible.
    for (const std::vector<double>& alike : {std::vector<double>{0}, {0, 0, 0}, {1, 1}, {1.0 / 3, 1.0 / 3}}) {
        const Estimate mean = mean_of_shares(alike), gain = mean_of_differences(alike);
        EXPECT_GT(mean.interval.high, mean.interval.low);
        EXPECT_GE(mean.interval.low, 0);
        EXPECT_LE(mean.interval.high, 1);
        EXPECT_GT(gain.interval.high, gain.interval.low);
        EXPECT_GE(gain.interval.low, -1);
        EXPECT_LE(gain.interval.high, 1);
    }
}

TEST(Statistics, MeansHaveStudentsInterval) {
    for (const auto& [df, t] : std::vector<std::pair<int, double>>{{1, 12.7062},
                                                                   {4, 2.7764},
                                                                   {10, 2.2281},
                                                                   {11, 2.2010},
                                                                   {20, 2.0860},
                                                                   {30, 2.0423},
                                                                   {120, 1.9799}})
        EXPECT_NEAR(student_t(df), t, 2e-4) << df;
    const std::vector<double> values{1, 2, 3, 4};
    const Estimate e = mean_estimate(values);
    EXPECT_DOUBLE_EQ(e.value, 2.5);
    EXPECT_NEAR(e.interval.high, 2.5 + 3.1824 * std::sqrt(5.0 / 3 / 4), 1e-6);
    EXPECT_NEAR(e.interval.low + e.interval.high, 5, 1e-12);
    const std::vector<double> one{7};
    EXPECT_EQ(mean_estimate(one).value, 7);
    EXPECT_TRUE(std::isnan(mean_estimate(one).interval.low));
}

}  // namespace
}  // namespace keyhole::test_statistics
