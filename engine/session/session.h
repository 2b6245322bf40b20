/// Decodes lanes in lockstep on one prompt, and keeps the log of commands. Used by one thread: the engine's,
/// or that of a command-line command. (model hash, prompt, seed, lanes, commands) reproduces a session bit
/// for bit on one backend and build.
#pragma once

#include "engine/backend/backend.h"
#include "engine/run/command.h"
#include "engine/run/counterfactual.h"
#include "engine/run/progress_part.h"
#include "engine/run/ranks.h"
#include "engine/run/run_spec.h"
#include "engine/trace/record.h"
#include "engine/trace/row_sink.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

class Session {
  public:
    /// Tokenizes the prompt. Throws Error(wrong_use) for an empty or over-long prompt, or without lanes.
    /// checkpoint_bytes: budget for copies of the state, which make rewinding fast; 0: a rewind replays from
    /// the prompt.
    Session(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec, RowSink* sink = nullptr,
            std::size_t checkpoint_bytes = 0);
    ~Session();

    /// Processes the prompt and returns its record (row n_prompt - 1). Call it once, first. progress: see
    /// Backend::prefill.
    std::shared_ptr<const StepTrace> prefill(const ProgressReport& progress = {});

    /// Applies a command between tokens and logs it. The next record shows what it evicts. Throws
    /// Error(wrong_use), and then nothing has changed.
    ///
    /// Rewind restores the state right after a row exactly: the rows that follow equal those of a run that
    /// never went further. It is not logged; the rows that it cuts off become a branch. GoToBranch returns to
    /// the row where a branch begins. step() then replays the branch with its commands while catching_up().
    /// Records of the rows that were cut come again, and the sink is notified. If GoToBranch is cancelled
    /// during the branch's first commands, the switch stands, and these commands wait for step().
    ///
    /// A command that replays rows (other KV heads, a shadow from the start, a new lane, a rewind) calls
    /// `progress` (0..1; may be empty) before every row. Returning false throws Error(cancelled), and nothing
    /// has changed.
    void apply(const Command& command, const ProgressReport& progress = {});
    /// Returns whether the session is on the way to the end of a branch. step() then applies the branch's
    /// commands; other commands are refused, except a rewind, which leaves the branch.
    bool catching_up() const;

    /// Feeds one token to every lane and returns its record, or nullptr if finished(). progress: as in
    /// apply(), for commands of a branch that replay rows. Returning false leaves these commands to the next
    /// call, which begins with them; if they come before the row, the result is nullptr.
    std::shared_ptr<const StepTrace> step(const ProgressReport& progress = {});

    /// Returns whether all lanes ended or n_generate tokens were fed. Positions beyond the model's trained
    /// context are decoded, unless the model learned its position embeddings.
    bool finished() const;
    /// Returns the reason in one sentence; empty if not finished.
    std::string finish_reason() const;

    /// Replays the lane in a temporary copy with the same evictions, except those of n_tokens tokens from
    /// position on. The session does not change. The result's kv_heads had evicted at least one of them.
    ///
    /// row: the answer is for the text after this row, at least n_prompt - 1; -1: the newest. progress: as in
    /// apply(). Throws Error(wrong_use) if there is no such lane or token, or if every KV head still holds
    /// the tokens. Throws Error(unsupported) if the lane has hidden tokens or moved keys to other positions,
    /// which the copy cannot repeat.
    Counterfactual counterfactual(int index, int position, const ProgressReport& progress = {}, int row = -1,
                                  int n_tokens = 1);

    /// Ranks what a lane stores after the newest row by other formulas. The session does not change. Throws
    /// Error(wrong_use) if there is no such lane or KV head.
    Ranks ranks(const RanksRequest& asked) const;

    /// Makes the answers that the lanes give by themselves one token longer, in copies that the run does not
    /// see: see OwnAnswers. Returns false once all are complete. progress: cancels the prompt, which lanes
    /// with new settings process again; then throws Error(cancelled), and the next call begins it again.
    /// Needs RunSpec::answer_end.
    bool extend_answers(const ProgressReport& progress = {});
    /// Makes the answer of a lane that with these settings; nullopt: with its own ones. The lane stays as it
    /// is, and so does the log. A command ends it. Throws Error(wrong_use) if there is no such lane, or if it
    /// cannot have these settings.
    void try_settings(int index, std::optional<LaneSpec> spec);
    /// Returns LaneAnswer::turn of the answers. When it changes, there are new ones to extend.
    int answers_turn() const;
    /// Returns how often answers to a turn have begun: each time answers() may have none that are complete.
    int n_turns_begun() const;
    /// Returns whether the next extend_answers() processes the prompt, which takes longer than a token.
    bool answers_need_prompt() const;
    /// Returns the answers that have begun, in the order of the lanes.
    std::vector<LaneAnswer> answers() const;
    /// Returns whether the text after the prompt, or after the last turn, holds the end of the answer: of
    /// lane 0 in a run that follows it, otherwise of all lanes. False while a turn is read, without a stop
    /// text, and in texts of more than 512 tokens.
    bool answered() const;

    /// Returns LaneInfo::id of each lane, in order.
    std::vector<int> lane_ids() const;
    int next_row() const;
    /// Return the allocated bytes: of K, V and scores of all lanes, shadows included; of the states kept for
    /// rewinding.
    std::int64_t cache_bytes() const;
    std::int64_t checkpoint_bytes() const;
    const RunInfo& run() const;
    /// Returns the commands of the shown branch.
    const std::vector<LoggedCommand>& log() const;
    /// Return the shown branch's number, and the other branches.
    int branch() const;
    std::vector<Branch> other_branches() const;
    /// Returns the shown branch as a run with its commands; replaying it gives the same bits.
    RunSpec run_spec() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Runs a RunSpec with its commands at their rows up to and including `last_row` (or the run's end), and
/// passes every record to `each`. After a rewind among the commands, rows count from the rewound row again.
/// If the run ends before a command's row, the commands up to the next rewind or branch are skipped. Throws
/// Error(wrong_use) if a command's row is already past. prompt: progress of the prompt alone; see
/// Session::prefill.
void replay(std::shared_ptr<const Model> model, Backend& backend, const RunSpec& spec, int last_row,
            RowSink* sink, const std::function<void(std::shared_ptr<const StepTrace>)>& each,
            const ProgressReport& prompt = {});

}  // namespace keyhole
