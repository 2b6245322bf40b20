#include "engine/figure/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace keyhole::test_reduce {
namespace {

// The slow reference: level j of cell (x, y) is the maximum over the cells that it covers.
float covered_max(const Plane& plane, int x, int y, int span) {
    float best = NAN;
    for (int v = y * span; v < (y + 1) * span && v < plane.height; ++v)
        for (int u = x * span; u < (x + 1) * span && u < plane.width; ++u)
            if (std::isnan(best) || plane.at(u, v) > best) best = plane.at(u, v);
    return best;
}

Plane noise(int width, int height, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Plane plane(width, height);
    for (float& v : plane.values) v = normal(random);
    return plane;
}

TEST(Reduce, PyramidOfOddSizesIsTheMaximumOfWhatACellCovers) {
    for (auto [width, height] : {std::pair{1, 1}, {2, 1}, {5, 3}, {7, 8}, {33, 17}, {64, 1}}) {
        const Plane plane = noise(width, height, 3);
        const auto levels = make_pyramid(plane, Reduction::max);
        EXPECT_EQ(levels.front(), plane);
        EXPECT_EQ(levels.back().width, 1);
        EXPECT_EQ(levels.back().height, 1);
        for (std::size_t j = 0; j < levels.size(); ++j) {
            const int span = 1 << j;
            ASSERT_EQ(levels[j].width, (width + span - 1) / span);
            ASSERT_EQ(levels[j].height, (height + span - 1) / span);
            for (int y = 0; y < levels[j].height; ++y)
                for (int x = 0; x < levels[j].width; ++x)
                    EXPECT_EQ(levels[j].at(x, y), covered_max(plane, x, y, span));
        }
    }
}

TEST(Reduce, OneHotCellInEveryCornerNeverVanishes) {
    for (int width : {1, 2, 3, 5, 31, 33})
        for (int height : {1, 4, 7, 17})
            for (int corner = 0; corner < 4; ++corner) {
                Plane plane(width, height, 0.25f);
                const int x = corner % 2 ? width - 1 : 0, y = corner / 2 ? height - 1 : 0;
                plane.at(x, y) = 9;
                const auto levels = make_pyramid(plane, Reduction::max);
                for (std::size_t j = 0; j < levels.size(); ++j) EXPECT_EQ(levels[j].at(x >> j, y >> j), 9);
                for (int factor : {2, 3, 5})
                    EXPECT_EQ(reduce_by(plane, factor, Reduction::max).at(x / factor, y / factor), 9);
            }
}

TEST(Reduce, MagnitudeKeepsTheSign) {
    Plane plane(3, 1);
    plane.values = {1, -5, 2};
    EXPECT_EQ(reduce_by(plane, 3, Reduction::magnitude).at(0, 0), -5);
    EXPECT_EQ(reduce_by(plane, 3, Reduction::max).at(0, 0), 2);
    plane.values = {-2, 2, NAN};
    EXPECT_EQ(reduce_by(plane, 3, Reduction::magnitude).at(0, 0), 2);
}

TEST(Reduce, NanIsNoValue) {
    Plane plane(2, 2, NAN);
    EXPECT_TRUE(std::isnan(reduce_by_two(plane, Reduction::max).at(0, 0)));
    plane.at(1, 1) = -3;
    EXPECT_EQ(reduce_by_two(plane, Reduction::max).at(0, 0), -3);
    EXPECT_EQ(reduce_by_two(plane, Reduction::magnitude).at(0, 0), -3);
}

TEST(Reduce, UpdatedPyramidEqualsANewOne) {
    Plane plane = noise(37, 29, 5);
    auto levels = make_pyramid(plane, Reduction::max);
    std::mt19937 random(6);
    for (auto [first, n] : {std::pair{0, 1}, {28, 1}, {3, 4}, {7, 9}, {0, 29}}) {
        for (int y = first; y < first + n; ++y)
            for (int x = 0; x < 37; ++x) levels[0].at(x, y) = static_cast<float>(random() % 1000) / 100 - 8;
        update_pyramid(levels, first, n, Reduction::max);
        EXPECT_EQ(levels, make_pyramid(levels[0], Reduction::max));
    }
}

TEST(Reduce, MaskCellsCountNoFutureCells) {
    using enum CellState;
    const std::vector<CellState> states{kept,    evicted,   future,  //
                                        kept,    last_seen, kept,    //
                                        evicted, evicted,   evicted};
    const auto cells = reduce_mask(states, 3, 3, 2);
    ASSERT_EQ(cells.size(), 4u);
    EXPECT_FLOAT_EQ(cells[0].kept_fraction, 0.75f);
    EXPECT_TRUE(cells[0].any_evicted);
    EXPECT_TRUE(cells[0].any_last_seen);
    EXPECT_FLOAT_EQ(cells[1].kept_fraction, 1);
    EXPECT_FALSE(cells[1].any_evicted);
    EXPECT_FALSE(cells[1].future);
    EXPECT_FLOAT_EQ(cells[2].kept_fraction, 0);
    EXPECT_TRUE(cells[3].any_evicted);
    EXPECT_TRUE(reduce_mask({future, future}, 2, 1, 2)[0].future);
    const auto gaps = reduce_mask({kept, CellState::hidden, CellState::hidden, evicted}, 2, 2, 2);
    EXPECT_FLOAT_EQ(gaps[0].kept_fraction, 0.25f) << "a hidden token is not attended";
    EXPECT_TRUE(gaps[0].any_hidden);
}

}  // namespace
}  // namespace keyhole::test_reduce
