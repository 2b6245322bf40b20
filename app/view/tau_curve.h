/// Edits a tau schedule as a curve with points that can be dragged. Pure functions that keep the rules of
/// the lane spec: rows ascend from 0, and tau is above 0. Any thread; knows only policies.
#pragma once

#include "engine/policy/params.h"

namespace keyhole {

inline constexpr double kLowestTau = 0.05;

/// Returns the schedule in another shape, through the same values as far as possible. Points start as the
/// straight line between the two ends.
TauSchedule with_shape(TauSchedule tau, TauSchedule::Shape shape, int horizon);

/// Moves a point. Ends of linear and cosine move only in value (0: begin, 1: end); points also in t, between
/// their neighbours.
void move_tau_point(TauSchedule& tau, int index, double t, double value);
/// Adds a point and returns its index; -1 if another point has its row.
int add_tau_point(TauSchedule& tau, double t, double value);
/// Removes a point, but never the last one.
void remove_tau_point(TauSchedule& tau, int index);

/// Returns the handles of the curve as (t, tau): one for constant, the two ends for linear and cosine, else
/// the points.
std::vector<std::pair<double, double>> tau_handles(const TauSchedule& tau, int horizon);

}  // namespace keyhole
