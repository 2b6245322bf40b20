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
    std::vector<int> prompt_tokens;  ///< not empty: what is processed, in place of the tokens of `prompt`
    std::vector<LaneSpec> lanes;     ///< lane 0 is the reference
    Sampling sampling;
    std::uint64_t seed = 1;
    bool follow = false;  ///< all lanes are fed lane 0's token; else each its own
    std::vector<int>
        forced;  ///< fed to every lane after the prompt whatever they choose; then they go on as said above
    bool ignore_eos = false;
    int n_generate = 0;                   ///< tokens to generate, the horizon of tau; 0: open end
    RowWants wants;                       ///< what sink and records get; attention and scores are recorded
    int n_top = 10;                       ///< most likely next tokens in each record
    std::vector<LoggedCommand> commands;  ///< applied at their rows by replay(); ascending
};

/// What a lane would say next had a token never left it.
struct Counterfactual {
    int lane_id = 0;
    int position = 0, n_tokens = 1;  ///< the first one, and how many from it on
    int row = 0;                     ///< after which
    std::vector<int> kv_heads;       ///< that had lost it: there it stays
    std::vector<TopToken> with;      ///< most likely next tokens with it back, best first
    double kl = 0;                   ///< KL(as it is || with it back), nats
    float log_prob_as_is = 0;        ///< of with.front() as it is
};

class Session {
  public:
    /// Tokenizes the prompt. Throws Error(wrong_use): empty or over-long prompt, no lanes. checkpoint_bytes: for copies of the
    /// state on the way, which make rewinding quick; 0: a rewind runs from the prompt.
    Session(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec, RowSink* sink = nullptr,
            std::size_t checkpoint_bytes = 0);
    ~Session();

    /// Processes the prompt; returns its record (row n_prompt - 1). Call once, first. progress as in
    /// Backend::prefill.
    std::shared_ptr<const StepTrace> prefill(const std::function<bool(double)>& progress = {});

    /// Applies a command between tokens and logs it; what it evicts shows in the next record. Throws
    /// Error(wrong_use) and leaves all as it was.
    ///
    /// Rewind brings back the state right after a row, exactly: what follows equals a run that never went further. It is no part
    /// of the log; what it cuts off becomes a branch. GoToBranch goes back to where that branch parted, and step() then lives it
    /// again with its commands while catching_up(). Records of the rows that were cut come again; a sink hears of it. Stopped at
    /// the commands that come first on that way, it is done all the same, and they wait for step().
    ///
    /// What lives rows again (other KV heads, a shadow from the start, a lane that joins, a rewind) calls `progress` (0..1; may be
    /// empty) before every row of it; returning false throws Error(cancelled), and all is as it was.
    void apply(const Command& command, const std::function<bool(double)>& progress = {});
    /// On the way to the end of a branch: step() applies its commands, others are refused but for a rewind, which leaves the way.
    bool catching_up() const;

    /// Feeds one token to every lane; nullptr when finished(). progress as in apply(), for commands of a branch that live rows again:
    /// returning false leaves them for the next call, which begins with them; where it does so before the row, nullptr.
    std::shared_ptr<const StepTrace> step(const std::function<bool(double)>& progress = {});

    /// All lanes ended, or n_generate tokens were fed. Positions beyond the model's trained context are
    /// decoded.
    bool finished() const;
    /// Why, one sentence; empty while it goes on.
    std::string finish_reason() const;

    /// The lane lived again in a throw-away copy that evicts, row by row, exactly what the lane evicted, but for these n_tokens from
    /// position on. Nothing of the
    /// session changes. kv_heads of the result: where one of them was gone. Throws Error(wrong_use): no such lane or token, or they are
    /// held everywhere; Error(unsupported): the lane hides tokens or turns keys to other positions, which a copy cannot do alike. progress
    /// as in apply(). row: after which it is asked, n_prompt - 1 at least; -1: the newest.
    Counterfactual with_token_restored(int index, int position,
                                       const std::function<bool(double)>& progress = {}, int row = -1,
                                       int n_tokens = 1);

    int next_row() const;
    /// K, V and scores of all lanes, shadows included, as allocated; and of the states kept for rewinding.
    std::int64_t cache_bytes() const;
    std::int64_t checkpoint_bytes() const;
    const RunInfo& run() const;
    /// Commands of the shown branch.
    const std::vector<LoggedCommand>& log() const;
    /// The shown branch's number, and the branches beside it.
    int branch() const;
    std::vector<Branch> other_branches() const;
    /// The shown branch as it went, commands included: replaying it gives the same bits.
    RunSpec run_spec() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Runs a whole RunSpec with its commands at their rows up to and including row `last_row` (or its end),
/// handing every record to `each`. The commands may rewind: those after it are stamped from its row on. Where the run ends
/// before a command's row, what comes next is the first rewind or branch after it. Throws Error(wrong_use) when a command's
/// row is past.
void replay(std::shared_ptr<const Model> model, Backend& backend, const RunSpec& spec, int last_row,
            RowSink* sink, const std::function<void(std::shared_ptr<const StepTrace>)>& each);

/// What each lane's KV heads are. Throws Error(wrong_use) where the model cannot be shared so.
std::vector<KvLayout> layouts_of(const Model& model, const std::vector<LaneSpec>& lanes);

/// The RunSpec that a record's run was started with; `commands` in text form.
RunSpec run_spec_of(const RunInfo& run, std::span<const RunCommand> commands);

}  // namespace keyhole
