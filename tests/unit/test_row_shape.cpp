// Sparsity and mass of attention rows, by hand.
#include "engine/analysis/row_shape.h"

#include <gtest/gtest.h>

#include <vector>

namespace keyhole::test_row_shape {
namespace {

TEST(RowShape, CountsWhatIsNextToNothing) {
    const std::vector<float> row{0.5f, 0, 0.25f, 0.01f, 0.24f};
    EXPECT_DOUBLE_EQ(sparse_share(row, 0), 0.2);
    EXPECT_DOUBLE_EQ(sparse_share(row, 0.019), 0.2);  // 0.01 is two per cent of the largest
    EXPECT_DOUBLE_EQ(sparse_share(row, 0.021), 0.4);
    EXPECT_DOUBLE_EQ(sparse_share(row, 1), 1);
    EXPECT_DOUBLE_EQ(sparse_share(std::vector<float>{1}, 0), 0);
}

TEST(RowShape, MassIsHeldByTheLargestFirst) {
    const std::vector<float> row{0.125f, 0.5f, 0.125f, 0.25f};
    std::vector<double> curve(5, 0);
    add_mass_curve(row, curve);
    EXPECT_EQ(curve, (std::vector<double>{0, 0.5, 0.75, 0.875, 1}));
    std::vector<double> between(9, 0);
    add_mass_curve(row, between);
    EXPECT_DOUBLE_EQ(between[1], 0.25);  // half of the largest
    add_mass_curve(row, between);
    EXPECT_DOUBLE_EQ(between[8], 2);  // adds
    add_mass_curve(std::vector<float>{0, 0}, curve);
    EXPECT_DOUBLE_EQ(curve[4], 1);
    // A uniform row is a straight line.
    std::vector<double> line(11, 0);
    add_mass_curve(std::vector<float>(7, 1.0f / 7), line);
    for (std::size_t i = 0; i < line.size(); ++i) EXPECT_NEAR(line[i], 0.1 * static_cast<double>(i), 1e-6);
}

}  // namespace
}  // namespace keyhole::test_row_shape
