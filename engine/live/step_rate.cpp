#include "engine/live/step_rate.h"

#include <algorithm>

namespace keyhole {

namespace {

constexpr int kFewestSteps = 8;  // fewer tell no speed

}  // namespace

void StepRate::begin() {
    due_ = begin_ = Clock::now();
    steps_ = run_steps_ = 0;
}

void StepRate::count() {
    ++steps_;
    ++run_steps_;
    Clock::duration period{};
    if (limited())
        period = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / steps_per_s_));
    due_ = std::max(due_ + period, Clock::now());
}

std::optional<double> StepRate::each_second() {
    const double passed = seconds();
    if (passed < 1) return std::nullopt;
    const double rate = steps_ / passed;
    steps_ = 0;
    begin_ = Clock::now();
    return rate;
}

std::optional<double> StepRate::at_end() const {
    if (run_steps_ < kFewestSteps) return 0.0;
    if (steps_ < kFewestSteps) return std::nullopt;
    return steps_ / std::max(seconds(), 1e-6);
}

}  // namespace keyhole
