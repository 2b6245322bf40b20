/// The points of a tau schedule as a curve that can be dragged: pure changes that keep what the lane spec asks for (rows ascend from 0,
/// tau above 0). Any thread; knows policy only.
#pragma once

#include "engine/policy/params.h"

namespace keyhole {

inline constexpr double kLowestTau = 0.05;

/// The schedule in another shape, through the same values as far as the shape can: points begin as the straight line of the two ends.
TauSchedule with_shape(TauSchedule tau, TauSchedule::Shape shape, int horizon);

/// Ends of linear and cosine are moved in value alone (0: begin, 1: end); of points also in t, between the neighbours.
void move_tau_point(TauSchedule& tau, int index, double t, double value);
/// Adds a point, where none has its row; returns its index, -1 when the row is taken.
int add_tau_point(TauSchedule& tau, double t, double value);
/// The last point stays.
void remove_tau_point(TauSchedule& tau, int index);

/// Handles of the curve as (t, tau): one for constant, two ends for linear and cosine, else the points.
std::vector<std::pair<double, double>> tau_handles(const TauSchedule& tau, int horizon);

}  // namespace keyhole
