#include "engine/base/measure.h"

#include <gtest/gtest.h>

namespace keyhole {
namespace {

TEST(Measure, MedianOfOddAndEvenCounts) {
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
    EXPECT_EQ(median({7}), 7);
}

TEST(Measure, OwnWorkIsNotCountedToOthers) {
    const CpuTimes before = CpuTimes::now();
    volatile double sink = 0;
    CpuTimes after = before;
    while (after.own - before.own < 5) {  // some jiffies of our own
        for (int i = 0; i < 1000000; ++i) sink = sink + 1;
        after = CpuTimes::now();
    }
    const double share = share_of_others(before, after);
    EXPECT_GE(share, 0);
    EXPECT_LT(share, 1) << "we were busy too";
    EXPECT_EQ(share_of_others(before, before), 0);
    EXPECT_DOUBLE_EQ(share_of_others({100, 10}, {200, 35}), 0.75);
}

}  // namespace
}  // namespace keyhole
