// What a resolved policy says of a row: plain numbers, without the names and ranges of options (params.cpp).
#include "engine/policy/params.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace keyhole {
namespace {

double tau_of_points(const std::vector<std::pair<double, double>>& points, double t) {
    if (points.empty()) return 1;
    if (t <= points.front().first) return points.front().second;
    for (std::size_t i = 1; i < points.size(); ++i) {
        const auto& [t1, tau1] = points[i];
        if (t > t1) continue;
        const auto& [t0, tau0] = points[i - 1];
        return tau0 + (t - t0) / (t1 - t0) * (tau1 - tau0);
    }
    return points.back().second;
}

}  // namespace

bool ResolvedPolicy::tempers() const {
    // A constant shifts all logits by the same amount, which softmax ignores.
    const bool is_noisy = (noise == NoiseKind::gumbel || noise == NoiseKind::gaussian) && gain != 0;
    if (is_noisy) return true;
    switch (tau.shape) {
        case TauSchedule::Shape::constant:
            return tau.begin != 1;
        case TauSchedule::Shape::linear:
        case TauSchedule::Shape::cosine:
            return tau.begin != 1 || tau.end != 1;
        case TauSchedule::Shape::points:
            return std::any_of(tau.points.begin(), tau.points.end(),
                               [](const auto& point) { return point.second != 1; });
    }
    return true;
}

float ResolvedPolicy::tau_at(int row) const {
    const double t = std::max(row - n_prompt + 1, 0);
    const double share = tau_runs_on ? t / horizon : std::min(t / horizon, 1.0);
    double value = tau.begin;
    switch (tau.shape) {
        case TauSchedule::Shape::constant:
            break;
        case TauSchedule::Shape::linear:
            value = tau.begin + share * (tau.end - tau.begin);
            break;
        case TauSchedule::Shape::cosine:
            // Beyond the horizon the cosine would swing back: it has nowhere to run on to.
            value = tau.begin +
                    (1 - std::cos(std::numbers::pi * std::min(share, 1.0))) / 2 * (tau.end - tau.begin);
            break;
        case TauSchedule::Shape::points:
            value = tau_of_points(tau.points, t);
            break;
    }
    constexpr double kLowest = 1e-30;  // also for a falling schedule that runs on and would pass 0
    return static_cast<float>(std::max(value, kLowest));
}

bool ResolvedPolicy::evicts_after(int row) const {
    if (!evicts() || !evicts_in_phase(row)) return false;
    const int t = row - n_prompt + 1;  // 0 for the last prompt row, which closes a block
    if (t < 0 && prefill == PrefillMode::oneshot) return false;
    return t % every == 0;
}

bool ResolvedPolicy::hides(int row, int position) const {
    if (dilation > 0) {
        const int back = row - position;
        return back % (dilation + 1) != 0 || back / (dilation + 1) >= budget;
    }
    if (gap == Gap::hidden) return row >= n_prompt && row > budget && position == row - recent;
    return false;
}

int ResolvedPolicy::attended_when_full() const {
    if (!evicts()) return read;
    if (dilation > 0 || gap == Gap::hidden) return budget;
    return std::min(stored + 1, read);
}

}  // namespace keyhole
