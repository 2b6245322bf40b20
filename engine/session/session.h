/// Lanes in lockstep on one prompt, and the log of commands. One thread (the engine's, or a command of the
/// command line). (model hash, prompt, seed, lanes, commands) reproduces a session bit for bit on one backend
/// and build.
#pragma once

#include "engine/backend/backend.h"
#include "engine/session/command.h"
#include "engine/trace/record.h"
#include "engine/trace/row_sink.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// How a run starts. With `commands` it is the whole run: see replay().
struct RunSpec {
    std::string prompt;
    std::vector<LaneSpec> lanes;  ///< lane 0 is the reference
    Sampling sampling;
    std::uint64_t seed = 1;
    bool follow = false;  ///< all lanes are fed lane 0's token; else each its own
    bool ignore_eos = false;
    int n_generate = 0;                   ///< tokens to generate, the horizon of tau; 0: open end
    RowWants wants;                       ///< what sink and records get; attention and scores are recorded
    int n_top = 10;                       ///< most likely next tokens in each record
    std::vector<LoggedCommand> commands;  ///< applied at their rows by replay(); ascending
};

class Session {
  public:
    /// Tokenizes the prompt. Throws Error(wrong_use): empty or over-long prompt, no lanes.
    Session(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec, RowSink* sink = nullptr);
    ~Session();

    /// Processes the prompt; returns its record (row n_prompt - 1). Call once, first. progress as in
    /// Backend::prefill.
    std::shared_ptr<const StepTrace> prefill(const std::function<bool(double)>& progress = {});

    /// Applies a command between tokens and logs it; what it evicts shows in the next record. Throws
    /// Error(wrong_use) and leaves all as it was.
    void apply(const Command& command);

    /// Feeds one token to every lane; nullptr when finished().
    std::shared_ptr<const StepTrace> step();

    /// All lanes ended, or n_generate tokens were fed. Positions beyond the model's trained context are
    /// decoded.
    bool finished() const;
    /// Why, one sentence; empty while it goes on.
    std::string finish_reason() const;

    int next_row() const;
    const RunInfo& run() const;
    const std::vector<LoggedCommand>& log() const;
    /// The run as it went, commands included: replaying it gives the same bits.
    RunSpec run_spec() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Runs a whole RunSpec with its commands at their rows up to and including row `last_row` (or its end),
/// handing every record to `each`.
void replay(std::shared_ptr<const Model> model, Backend& backend, const RunSpec& spec, int last_row,
            RowSink* sink, const std::function<void(std::shared_ptr<const StepTrace>)>& each);

}  // namespace keyhole
