#include "app/view/heat_view.h"
#include "app/view/view_state.h"

#include <gtest/gtest.h>

#include <random>

namespace keyhole::test_heat_view {
namespace {

TEST(HeatView, ZoomKeepsTheCellUnderThePoint) {
    std::mt19937 random(5);
    std::uniform_real_distribution<double> place(0, 900), factor(0.3, 3);
    HeatView view;
    view.fit(777, 431, 901, 640);
    for (int i = 0; i < 200; ++i) {
        const CanvasPoint point{place(random), place(random)};
        const CanvasPoint before = view.cell_at(point);
        view.zoom_at(point, factor(random));
        const CanvasPoint after = view.cell_at(point);
        EXPECT_NEAR(after.x, before.x, 1e-6);
        EXPECT_NEAR(after.y, before.y, 1e-6);
        EXPECT_LE(view.cell_width, HeatView::kMaxCell * (1 + 1e-9));
        EXPECT_GE(view.cell_height, HeatView::kMinCell * (1 - 1e-9));
    }
    EXPECT_FALSE(view.fitted);
}

TEST(HeatView, HitTestIsTheInverseOfThePlace) {
    std::mt19937 random(6);
    std::uniform_real_distribution<double> any(-500, 1500);
    HeatView view;
    view.fit(100, 50, 800, 600);
    view.zoom_at({123, 456}, 2.5);
    view.pan(-37, 12);
    for (int i = 0; i < 100; ++i) {
        const CanvasPoint point{any(random), any(random)};
        const CanvasPoint back = view.pixel_of(view.cell_at(point));
        EXPECT_NEAR(back.x, point.x, 1e-6);
        EXPECT_NEAR(back.y, point.y, 1e-6);
    }
}

TEST(HeatView, FitsTheRowsFromOneOn) {
    HeatView view;
    view.fit(390, 390, 700, 400, 370);
    EXPECT_NEAR(view.pixel_of({0, 370}).y, 0, 1e-9);
    EXPECT_NEAR(view.pixel_of({390, 390}).y, 400, 1e-9);
    EXPECT_NEAR(view.pixel_of({390, 390}).x, 700, 1e-9);
    EXPECT_TRUE(view.fitted);
}

TEST(HeatView, PanMovesByPixels) {
    HeatView view;
    view.fit(100, 100, 500, 500);
    const CanvasPoint before = view.pixel_of({10, 20});
    view.pan(30, -7);
    EXPECT_NEAR(view.pixel_of({10, 20}).x, before.x + 30, 1e-9);
    EXPECT_NEAR(view.pixel_of({10, 20}).y, before.y - 7, 1e-9);
}

TEST(HeatView, LevelSkipsNoCell) {
    HeatView view;
    for (double cell = 0.004; cell < 3; cell *= 1.037) {
        view.cell_width = cell;
        view.cell_height = cell * 1.7;
        // A block is at least a pixel wide and no coarser than needed.
        EXPECT_GE(cell * (1 << view.level()), 1 - 1e-6) << cell;
        const double finer = view.level() > 0 ? cell * (1 << (view.level() - 1)) : 0;
        EXPECT_LT(finer, 1) << cell;
    }
}

TEST(ViewState, PicksCollectAndStayWithinBounds) {
    ViewState view;
    view.pick_cell({9, 3}, false);
    view.pick_cell({9, 5}, true);
    EXPECT_EQ(view.curve_positions, (std::vector<int>{3, 5}));
    view.move_pick(-100, 50, 20);
    EXPECT_EQ(view.pick, (Pick{0, 0}));  // a key is never later than its query
    for (int p = 0; p < 20; ++p) view.pick_cell({30, p}, true);
    EXPECT_EQ(view.curve_positions.size(), ViewState::kMaxCurves);
    view.fit_to(2, 3, 4, 10, 17);
    EXPECT_FALSE(view.pick.has_value());
    for (int p : view.curve_positions) EXPECT_LE(p, 17);
}

TEST(ViewState, TimeFollowsTheNewestUntilMoved) {
    ViewState view;
    view.fit_to(1, 1, 1, 10, 30);
    EXPECT_EQ(view.row, 30);
    view.move_row(-5, 10, 30);
    EXPECT_FALSE(view.follows_newest);
    view.fit_to(1, 1, 1, 10, 40);
    EXPECT_EQ(view.row, 25);
    view.move_row(100, 10, 40);
    EXPECT_TRUE(view.follows_newest);
    view.move_row(-1000, 10, 40);
    EXPECT_EQ(view.row, 10);
}

}  // namespace
}  // namespace keyhole::test_heat_view
