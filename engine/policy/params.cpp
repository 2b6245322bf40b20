#include "engine/policy/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace keyhole {
namespace {

constexpr int kDefaultHorizon = 256;

bool is_whole(double value) {
    return std::isfinite(value) && value == std::floor(value);
}

/// Below kUnlimited, so that a huge number in a spec is not taken for "no limit".
int int_from_tokens(double tokens) {
    return static_cast<int>(std::clamp(tokens, 0.0, static_cast<double>(ResolvedPolicy::kUnlimited - 1)));
}

void check_amount(const char* name, const Amount& amount, std::vector<std::string>& faults) {
    if (amount.unit == Amount::Unit::all || amount.unit == Amount::Unit::rest) return;
    if (!std::isfinite(amount.value) || amount.value < 0) {
        faults.push_back(fmt::format("{} must not be negative", name));
    } else if (amount.unit == Amount::Unit::tokens && !is_whole(amount.value)) {
        faults.push_back(fmt::format("{} in tokens must be a whole number", name));
    }
}

void check_tau(const TauSchedule& tau, std::vector<std::string>& faults) {
    const auto is_temperature = [](double value) { return std::isfinite(value) && value > 0; };
    if (tau.shape != TauSchedule::Shape::points) {
        if (!is_temperature(tau.begin) || !is_temperature(tau.end)) faults.push_back("tau must be above 0");
        return;
    }
    if (tau.points.empty()) faults.push_back("a tau schedule by points needs at least one point");
    double last_t = -1;
    for (const auto& [t, value] : tau.points) {
        if (!is_temperature(value)) {
            faults.push_back("tau must be above 0");
            return;
        }
        if (!std::isfinite(t) || t < 0 || t <= last_t) {
            faults.push_back("the steps of a tau schedule must ascend from 0 or later");
            return;
        }
        last_t = t;
    }
}

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

PolicyParams preset_params(Preset preset) {
    PolicyParams params;
    params.preset = preset;
    switch (preset) {
        case Preset::full:
            params.budget = {Amount::Unit::all, 0};
            break;
        case Preset::window:
            params.recent = {Amount::Unit::rest, 0};
            break;
        case Preset::sink:
            params.sinks = 4;
            params.recent = {Amount::Unit::rest, 0};
            break;
        case Preset::key:
            break;  // accumulated attention alone: the struct's own defaults
        case Preset::h2o:
            params.recent = {Amount::Unit::percent, 50};
            break;
        case Preset::tova:
            params.alpha = 0;
            params.scope = Scope::layer;
            break;
        case Preset::keyformer:
            params.recent = {Amount::Unit::percent, 30};
            params.tau.shape = TauSchedule::Shape::linear;
            params.tau.end = 2;
            params.noise = NoiseKind::gumbel;
            break;
        case Preset::a2sf:
            params.alpha = 0.2;
            break;
    }
    return params;
}

std::vector<std::string> validate(const PolicyParams& params) {
    std::vector<std::string> faults;
    if (params.preset == Preset::full && params.budget.unit != Amount::Unit::all) {
        faults.push_back("full keeps every token; take another preset to set a budget");
    }
    if (params.budget.unit == Amount::Unit::rest) faults.push_back("budget cannot be 'rest'");
    if (params.recent.unit == Amount::Unit::all) faults.push_back("recent cannot be 'all'; say 'rest'");
    check_amount("budget", params.budget, faults);
    check_amount("recent", params.recent, faults);
    if (params.sinks < 0) faults.push_back("sinks must not be negative");
    if (!(params.alpha >= 0 && params.alpha <= 1)) faults.push_back("alpha must be from 0 to 1");
    check_tau(params.tau, faults);
    if (params.horizon < 0) faults.push_back("horizon must not be negative");
    if (!std::isfinite(params.gain)) faults.push_back("gain must be a finite number");
    if (params.every < 1) faults.push_back("every must be 1 or more");
    if (!(std::isfinite(params.damping) && params.damping >= 0)) {
        faults.push_back("damping must not be negative");
    }
    return faults;
}

ResolvedPolicy resolve(const PolicyParams& params, int n_prompt, int n_generate) {
    ResolvedPolicy policy;
    policy.alpha = static_cast<float>(params.alpha);
    policy.gain = static_cast<float>(params.gain);
    policy.damping = static_cast<float>(params.damping);
    policy.noise = params.noise;
    policy.draw = params.draw;
    policy.scope = params.scope;
    policy.pool = params.pool;
    policy.prefill = params.prefill;
    policy.score_dtype = params.score_dtype;
    policy.every = std::max(params.every, 1);
    policy.horizon = params.horizon > 0 ? params.horizon : n_generate > 0 ? n_generate : kDefaultHorizon;
    policy.n_prompt = n_prompt;
    policy.seed = params.seed;
    policy.tau = params.tau;

    policy.sinks = std::max(params.sinks, 0);
    if (params.budget.unit == Amount::Unit::all) {  // nothing leaves, so shares of the budget mean nothing
        policy.recent = params.recent.unit == Amount::Unit::tokens ? int_from_tokens(params.recent.value) : 0;
        return policy;
    }
    // Multiply before dividing: 29 % of 100 is 29, while int(0.29 * 100) is 28 (policies: rounding).
    policy.budget = params.budget.unit == Amount::Unit::percent
                        ? int_from_tokens(n_prompt * params.budget.value / 100)
                        : int_from_tokens(params.budget.value);
    policy.budget = std::max(policy.budget, 1);
    policy.sinks = std::min(policy.sinks, policy.budget);
    const int room = policy.budget - policy.sinks;
    switch (params.recent.unit) {
        case Amount::Unit::tokens:
            policy.recent = int_from_tokens(params.recent.value);
            break;
        case Amount::Unit::percent:
            policy.recent = int_from_tokens(policy.budget * params.recent.value / 100);
            break;
        case Amount::Unit::all:
        case Amount::Unit::rest:
            policy.recent = room;
            break;
    }
    policy.recent = std::min(policy.recent, room);
    return policy;
}

bool ResolvedPolicy::tempers() const {
    // A constant shifts all logits alike, and softmax does not see shifts.
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
    const double share = std::min(t / horizon, 1.0);
    switch (tau.shape) {
        case TauSchedule::Shape::constant:
            break;
        case TauSchedule::Shape::linear:
            return static_cast<float>(tau.begin + share * (tau.end - tau.begin));
        case TauSchedule::Shape::cosine:
            return static_cast<float>(tau.begin +
                                      (1 - std::cos(std::numbers::pi * share)) / 2 * (tau.end - tau.begin));
        case TauSchedule::Shape::points:
            return static_cast<float>(tau_of_points(tau.points, t));
    }
    return static_cast<float>(tau.begin);
}

bool ResolvedPolicy::evicts_after(int row) const {
    if (!evicts()) return false;
    const int t = row - n_prompt + 1;  // 0 for the last prompt row, which closes a block
    if (t < 0 && prefill == PrefillMode::oneshot) return false;
    return t % every == 0;
}

}  // namespace keyhole
