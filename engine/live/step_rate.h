/// When the next step of a run is due, and how many steps a second it makes. Used on the engine's thread.
#pragma once

#include <chrono>
#include <optional>

namespace keyhole {

class StepRate {
  public:
    using Clock = std::chrono::steady_clock;

    /// Sets the most steps a second; 0: no limit. The next step is due now.
    void limit(double steps_per_s) {
        steps_per_s_ = steps_per_s;
        due_ = Clock::now();
    }
    bool limited() const { return steps_per_s_ > 0; }

    /// Begins to count the steps of a run that begins or goes on. The next step is due now.
    void begin();

    /// Makes the next step due now.
    void hurry() { due_ = Clock::now(); }

    Clock::time_point due() const { return due_; }
    bool is_due() const { return !limited() || Clock::now() >= due_; }

    /// Counts a step and says when the next is due: a period after this one was, or now if that has passed.
    void count();

    /// Returns the steps a second once a second has passed since the last answer, and begins to count anew.
    std::optional<double> each_second();

    /// Returns the steps a second of a run that ends: 0 for one that is too short to tell, nothing where the
    /// last answer of each_second() is the better one.
    std::optional<double> at_end() const;

  private:
    double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

    double steps_per_s_ = 0;
    Clock::time_point due_, begin_;
    int steps_ = 0;      // since begin_
    int run_steps_ = 0;  // since begin()
};

}  // namespace keyhole
