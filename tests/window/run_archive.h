/// What the engine of a window has recorded, kept beside the window: every run, every answer, and the
/// settings that these belong to. Tests compare the screen with it. It reads the engine's recorder and
/// status, never the window's state. Window thread.
#pragma once

#include "engine/live/engine.h"
#include "engine/trace/run_history.h"

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace keyhole::testing {

class RunArchive {
  public:
    /// An answer as the engine published it, with the settings that its lane then had.
    struct Answer {
        LaneSpec spec;
        LaneAnswer answer;
        bool operator==(const Answer&) const = default;
    };

    /// Takes what has come since the last call. Call it before and after every frame.
    void take(Engine& engine);
    /// Returns a run as it was recorded last; null: nothing of it was recorded.
    const RunHistory* run(std::uint64_t id) const;
    /// Returns all answers of the engine, the newest last.
    const std::deque<Answer>& answers() const { return answers_; }
    const EngineStatus& status() const { return status_; }

  private:
    std::map<std::uint64_t, RunHistory> runs_;
    std::deque<Answer> answers_;
    EngineStatus status_;
    std::uint64_t version_ = 0;
};

/// A run that was made once more by a session of its own, on one thread and without a window.
struct AloneRun {
    RunHistory history;
    std::vector<int> lane_ids;
    std::vector<LaneAnswer> answers;
    /// Returns the answer of the n-th lane; null: it has none.
    const LaneAnswer* answer(int lane) const;
};

/// Runs a specification with its commands up to and including a row. answers: the lanes answer too.
AloneRun run_alone(const std::string& model_path, const RunSpec& spec, int last_row, bool answers);

/// Returns why a lane's records differ between two runs; empty if they are equal.
std::string difference_of(const StepTrace& shown, const StepTrace& alone);

}  // namespace keyhole::testing
