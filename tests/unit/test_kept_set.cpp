// Sets of stored positions: overlap, share of recent positions, lifetime.
#include "engine/policy/kept_set.h"

#include <gtest/gtest.h>

namespace keyhole::test_kept_set {
namespace {

KeptSet set_of(std::vector<std::int32_t> positions) {
    return KeptSet(positions);
}

TEST(KeptSet, CountsAcrossWords) {
    KeptSet set = set_of({0, 63, 64, 130});
    set.insert(64);
    EXPECT_EQ(set.size(), 4);
    EXPECT_EQ(set.count_from(0), 4);
    EXPECT_EQ(set.count_from(1), 3);
    EXPECT_EQ(set.count_from(64), 2);
    EXPECT_EQ(set.count_from(65), 1);
    EXPECT_EQ(set.count_from(1000), 0);
    EXPECT_EQ(set.count_common(set_of({63, 65, 130, 700})), 2);
    set.erase(63);
    set.erase(62);
    set.erase(5000);
    EXPECT_EQ(set.size(), 3);
    EXPECT_FALSE(set.contains(63));
    EXPECT_TRUE(set.contains(130));
}

TEST(KeptSet, JaccardIsCommonOverAll) {
    EXPECT_DOUBLE_EQ(jaccard(set_of({0, 1, 5, 9}), set_of({1, 9, 10})), 2.0 / 5.0);
    EXPECT_EQ(jaccard(set_of({1, 2}), set_of({1, 2})), 1.0);
    EXPECT_EQ(jaccard(set_of({1, 2}), set_of({70})), 0.0);
    EXPECT_EQ(jaccard(set_of({}), set_of({})), 1.0);
    EXPECT_EQ(jaccard(set_of({}), set_of({3})), 0.0);
}

TEST(KeptSet, RecentShareCountsTheNewestK) {
    // After row 9 the newest 4 are 6, 7, 8, 9.
    EXPECT_DOUBLE_EQ(recent_share(set_of({0, 5, 6, 9}), 9, 4), 0.5);
    EXPECT_EQ(recent_share(set_of({6, 7, 8, 9}), 9, 4), 1.0);
    EXPECT_EQ(recent_share(set_of({0, 1}), 3, 0x7fffffff), 1.0);
    EXPECT_EQ(recent_share(set_of({}), 9, 4), 0.0);
}

TEST(KeptSet, LifetimeEndsWithEvictionOrText) {
    EXPECT_EQ(lifetime(3, 10, 40), 7);
    EXPECT_EQ(lifetime(3, 3, 40), 0) << "left after its own row";
    EXPECT_EQ(lifetime(3, -1, 40), 38) << "rows 3 to 40";
}

TEST(KeptSet, CountsPagesOfSixteenNeighbours) {
    const auto pages = [](std::vector<KeptSet> sets) { return KeptSet::count_pages(sets); };
    EXPECT_EQ(pages({}), 0);
    EXPECT_EQ(pages({set_of({})}), 0);
    EXPECT_EQ(pages({set_of({0, 15})}), 1);
    EXPECT_EQ(pages({set_of({15, 16})}), 2);
    EXPECT_EQ(pages({set_of({0, 47, 48, 63, 64, 200})}), 5);
    KeptSet set = set_of({3, 70});
    set.erase(70);
    EXPECT_EQ(pages({set}), 1);
    EXPECT_EQ(pages({set, set_of({5, 300}), set_of({})}), 2) << "a page that several sets have counts once";
}

}  // namespace
}  // namespace keyhole::test_kept_set
