#include "app/view/tau_curve.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

double rounded_tau(double value) {
    return std::max(kLowestTau, std::round(value * 100) / 100);
}

/// Sets begin and end from the points, as the lane spec requires.
void tie_ends(TauSchedule& tau) {
    tau.begin = tau.points.front().second;
    tau.end = tau.points.back().second;
}

}  // namespace

TauSchedule with_shape(TauSchedule tau, TauSchedule::Shape shape, int horizon) {
    using Shape = TauSchedule::Shape;
    if (tau.shape == shape) return tau;
    tau.shape = shape;
    switch (shape) {
        case Shape::constant:
            tau.end = tau.begin;
            tau.points.clear();
            break;
        case Shape::linear:
        case Shape::cosine:
            tau.points.clear();
            break;
        case Shape::points:
            tau.points = {{0, tau.begin}, {std::max(horizon, 1), tau.end}};
            break;
    }
    return tau;
}

void move_tau_point(TauSchedule& tau, int index, double t, double value) {
    value = rounded_tau(value);
    if (tau.shape != TauSchedule::Shape::points) {
        if (index == 0 || tau.shape == TauSchedule::Shape::constant) tau.begin = value;
        if (index == 1 || tau.shape == TauSchedule::Shape::constant) tau.end = value;
        return;
    }
    const std::size_t i = to_index(index), n = tau.points.size();
    const double low = i == 0 ? 0 : tau.points[i - 1].first + 1;
    const double high = i + 1 < n ? tau.points[i + 1].first - 1 : 1e6;
    tau.points[i] = {std::clamp(std::round(t), low, std::max(low, high)), value};
    tie_ends(tau);
}

int add_tau_point(TauSchedule& tau, double t, double value) {
    t = std::max(0.0, std::round(t));
    const auto at = std::lower_bound(tau.points.begin(), tau.points.end(), t,
                                     [](const auto& point, double row) { return point.first < row; });
    if (at != tau.points.end() && at->first == t) return -1;
    const auto added = tau.points.insert(at, {t, rounded_tau(value)});
    tie_ends(tau);
    return static_cast<int>(added - tau.points.begin());
}

void remove_tau_point(TauSchedule& tau, int index) {
    if (tau.points.size() < 2) return;
    tau.points.erase(tau.points.begin() + index);
    tie_ends(tau);
}

std::vector<std::pair<double, double>> tau_handles(const TauSchedule& tau, int horizon) {
    switch (tau.shape) {
        case TauSchedule::Shape::constant:
            return {{0, tau.begin}};
        case TauSchedule::Shape::linear:
        case TauSchedule::Shape::cosine:
            return {{0, tau.begin}, {std::max(horizon, 1), tau.end}};
        case TauSchedule::Shape::points:
            break;
    }
    return tau.points;
}

}  // namespace keyhole
