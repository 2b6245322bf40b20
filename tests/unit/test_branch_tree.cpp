// The tree of branches, by hand.
#include "engine/base/error.h"
#include "engine/run/branch_tree.h"

#include <gtest/gtest.h>

namespace keyhole::test_branch_tree {
namespace {

LoggedCommand at(int row, int lane = 1) {
    return {row, EvictToken{{lane, 0, -1, -1}}};
}

void decode(BranchTree& tree, int from, int to) {
    for (int row = from; row <= to; ++row) tree.row_done(row);
}

TEST(BranchTree, RewindCutsATailAndGoesOnUnderANewNumber) {
    BranchTree tree(9);  // the prompt ends with row 9
    decode(tree, 10, 20);
    tree.log(at(20));
    decode(tree, 21, 30);
    EXPECT_EQ(tree.shown(), 0);
    EXPECT_TRUE(tree.others().empty());

    ASSERT_TRUE(tree.rewind(20));  // before the command stamped 20
    EXPECT_EQ(tree.shown(), 2);
    EXPECT_TRUE(tree.line().empty());
    const std::vector<Branch> others = tree.others();
    ASSERT_EQ(others.size(), 1u);
    EXPECT_EQ(others[0], (Branch{1, 0, 20, 30, {{20, "evict 1 0"}}}));
    EXPECT_EQ(tree.branch_of(20), 0);
    EXPECT_EQ(tree.branch_of(21), 2);
}

TEST(BranchTree, NothingToCutChangesNothing) {
    BranchTree tree(9);
    EXPECT_FALSE(tree.rewind(9));
    decode(tree, 10, 12);
    EXPECT_FALSE(tree.rewind(12));
    EXPECT_TRUE(tree.rewind(10));
    EXPECT_FALSE(tree.rewind(10));
    EXPECT_EQ(tree.shown(), 2);
    EXPECT_EQ(tree.others().size(), 1u);
}

TEST(BranchTree, ACommandTakenBackIsABranchOfNoRows) {
    BranchTree tree(9);
    decode(tree, 10, 12);
    tree.log(at(12));
    ASSERT_TRUE(tree.rewind(12));
    EXPECT_EQ(tree.others().at(0), (Branch{1, 0, 12, 12, {{12, "evict 1 0"}}}));
    EXPECT_TRUE(tree.line().empty());
}

TEST(BranchTree, WhatWasNeverUsedLeavesNoBranch) {
    BranchTree tree(9);
    decode(tree, 10, 20);
    tree.rewind(15);  // 1 is the tail; 2 shown, empty
    tree.rewind(12);  // splits 0 again: 3 is the tail 13-15, followed by 1
    EXPECT_EQ(tree.shown(), 4);
    std::vector<int> ids, parents;
    for (const Branch& branch : tree.others()) ids.push_back(branch.id), parents.push_back(branch.parent);
    EXPECT_EQ(ids, (std::vector<int>{1, 3}));
    EXPECT_EQ(parents, (std::vector<int>{3, 0}));
}

TEST(BranchTree, TheWayToABranchBeginsWhereTheyDiverge) {
    BranchTree tree(9);
    decode(tree, 10, 20);
    tree.log(at(20, 3));
    decode(tree, 21, 25);
    tree.rewind(15);
    tree.log(at(15, 4));
    decode(tree, 16, 18);
    const BranchTree::Way way = tree.way_to(1);
    EXPECT_EQ(way.from_row, 15);
    EXPECT_EQ(way.last_row, 25);
    EXPECT_EQ(way.commands, (std::vector<LoggedCommand>{at(20, 3)}));
    tree.go_to(1);
    EXPECT_EQ(tree.shown(), 1);
    EXPECT_EQ(tree.line(), (std::vector<LoggedCommand>{at(20, 3)}));
    EXPECT_EQ(tree.others().at(0), (Branch{2, 0, 15, 18, {{15, "evict 4 0"}}}));
    // It grows at its end; the other one still exists.
    decode(tree, 26, 27);
    EXPECT_EQ(tree.branch_of(27), 1);
    tree.go_to(2);
    EXPECT_EQ(tree.others().at(0).last_row, 27);
}

TEST(BranchTree, AnEndWithOthersBehindItIsNotGrown) {
    BranchTree tree(9);
    decode(tree, 10, 20);
    tree.rewind(15);  // 1: 16-20, 2 shown
    decode(tree, 16, 17);
    tree.go_to(1);
    tree.rewind(18);  // 3: 19-20 cut off from 1, 4 shown
    decode(tree, 19, 19);
    tree.go_to(2);
    tree.go_to(1);  // ends at 18, where 3 and 4 begin
    EXPECT_EQ(tree.shown(), 5);
    EXPECT_EQ(tree.branch_of(18), 1);
    EXPECT_EQ(tree.branch_of(19), 5);
}

TEST(BranchTree, UnknownAndShownBranchesAreRefused) {
    BranchTree tree(9);
    EXPECT_THROW(tree.way_to(0), Error);
    EXPECT_THROW(tree.way_to(7), Error);
    decode(tree, 10, 20);
    tree.rewind(15);
    EXPECT_THROW(tree.way_to(2), Error);
    EXPECT_NO_THROW(tree.way_to(1));
}

}  // namespace
}  // namespace keyhole::test_branch_tree
