/// How far a sweep or an attribution is: one bar for all of its models and tasks, and the line that a signal
/// leaves. Main thread; knows no questions.
#pragma once

#include "app/base/termination.h"
#include "app/cli/progress.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace keyhole {

/// What one model of a sweep has to answer. Work is counted in answers x tokens of their contexts.
struct SweepNeed {
    std::int64_t n_answers = 0, n_missing = 0;
    double work = 0, missing_work = 0;
};

class SweepProgress {
  public:
    /// command: its name, for the bar.
    SweepProgress(std::string command, std::filesystem::path answers);

    /// Begins a model. n_later: models that follow it; each is taken to need as much as this one in all.
    void begin_model(const SweepNeed& need, std::size_t n_later);
    void set_part(std::string part) { progress_.set_part(std::move(part)); }
    /// Counts answers that are in the file now.
    void add(std::int64_t n_answers, double work);

  private:
    void say();

    std::filesystem::path answers_;
    std::int64_t n_kept_ = 0, n_all_ = 0, n_before_ = 0;
    double done_ = 0;
    Progress progress_;
    KeptNote kept_;
};

}  // namespace keyhole
