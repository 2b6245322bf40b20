#include "app/view/tau_curve.h"

#include "engine/policy/lane_spec.h"

#include <gtest/gtest.h>

namespace keyhole::test_tau_curve {
namespace {

using Shape = TauSchedule::Shape;

/// Expects a dragged curve to stay valid: the lane spec writes and reads it unchanged.
void expect_round_trip(const TauSchedule& tau) {
    PolicyParams params = preset_params(Preset::keyformer);
    params.tau = tau;
    EXPECT_TRUE(validate(params).empty());
    EXPECT_EQ(parse_lane_spec(format_lane_spec({params})).policy.tau, tau);
}

TEST(TauCurve, ShapesKeepTheEnds) {
    const TauSchedule linear{Shape::linear, 1, 2, {}};
    const TauSchedule points = with_shape(linear, Shape::points, 100);
    EXPECT_EQ(points.points, (std::vector<std::pair<double, double>>{{0, 1}, {100, 2}}));
    expect_round_trip(points);
    EXPECT_EQ(with_shape(points, Shape::cosine, 100), (TauSchedule{Shape::cosine, 1, 2, {}}));
    const TauSchedule constant = with_shape(points, Shape::constant, 100);
    EXPECT_EQ(constant, (TauSchedule{Shape::constant, 1, 1, {}}));
    expect_round_trip(constant);
}

TEST(TauCurve, PointsStayInOrderAndAboveZero) {
    TauSchedule tau = with_shape({Shape::linear, 1, 2, {}}, Shape::points, 100);
    EXPECT_EQ(add_tau_point(tau, 40.4, 1.503), 1);
    EXPECT_EQ(tau.points[1], (std::pair<double, double>{40, 1.5}));
    EXPECT_EQ(add_tau_point(tau, 40, 3), -1);
    move_tau_point(tau, 1, 500, -3);  // beyond its neighbour and below zero
    EXPECT_EQ(tau.points[1], (std::pair<double, double>{99, kLowestTau}));
    move_tau_point(tau, 0, -5, 1.25);
    EXPECT_EQ(tau.points[0], (std::pair<double, double>{0, 1.25}));
    EXPECT_EQ(tau.begin, 1.25);
    expect_round_trip(tau);
    remove_tau_point(tau, 2);
    EXPECT_EQ(tau.end, kLowestTau);
    remove_tau_point(tau, 0);
    remove_tau_point(tau, 0);  // the last point stays
    EXPECT_EQ(tau.points.size(), 1u);
    expect_round_trip(tau);
}

TEST(TauCurve, EndsOfAScheduleMoveInValueAlone) {
    TauSchedule tau{Shape::linear, 1, 2, {}};
    EXPECT_EQ(tau_handles(tau, 50), (std::vector<std::pair<double, double>>{{0, 1}, {50, 2}}));
    move_tau_point(tau, 1, 7, 2.505);
    EXPECT_EQ(tau, (TauSchedule{Shape::linear, 1, 2.51, {}}));
    TauSchedule constant{Shape::constant, 1, 1, {}};
    move_tau_point(constant, 0, 0, 1.5);
    expect_round_trip(constant);
}

}  // namespace
}  // namespace keyhole::test_tau_curve
