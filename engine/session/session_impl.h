/// The inside of Session, on the session's thread, shared by its source files: lanes and replay
/// (session_lanes.cpp), records and rows (session.cpp), commands (session_commands.cpp), questions
/// (session_probe.cpp).
#pragma once

#include "engine/base/error.h"
#include "engine/model/weight_files.h"
#include "engine/session/branch_tree.h"
#include "engine/session/checkpoints.h"
#include "engine/session/session.h"

#include <deque>
#include <map>

namespace keyhole {

struct Session::Impl : SessionState {
    std::shared_ptr<const Model> model;
    WeightFiles weight_files;  // of the model
    Backend& backend;
    RunSpec start;  // as requested at the start
    RowSink* sink;
    std::shared_ptr<RunInfo> run;
    BranchTree tree{0};
    std::shared_ptr<const std::vector<Branch>> others;  // in the form for records; null: none
    std::vector<LoggedCommand> log;                     // commands of the shown branch
    Checkpoints checkpoints;
    bool quiet = false;                   // replayed rows are not recorded
    std::deque<LoggedCommand> scheduled;  // commands of the branch being caught up with
    int caught_up_at = -1;
    // Callback of the current command or question; empty: it cannot be cancelled.
    std::function<bool(double)> progress;
    double part_from = 0, part_share = 1;  // the part of the whole that is being replayed now

    Impl(std::shared_ptr<const Model> m, Backend& b, RunSpec s, RowSink* k, std::size_t checkpoint_bytes)
        : model(std::move(m)),
          weight_files(*model),
          backend(b),
          start(std::move(s)),
          sink(k),
          checkpoints(checkpoint_bytes, model.get()) {}

    int n_prompt() const { return run->n_prompt(); }
    RowWants wants() const { return quiet ? RowWants{} : start.wants; }

    /// Reports replay progress, 0..1 of the current part. Returns false to cancel.
    bool report_progress(double done) const { return !progress || progress(part_from + part_share * done); }
    void report_or_cancel(double done) const {
        if (!report_progress(done)) fail(ErrorCode::cancelled, "stopped");
    }
    template <class Work>
    auto with_progress(const std::function<bool(double)>& report, const std::string& what, Work work);

    // Lanes and rows (session_lanes.cpp).
    SessionState first_state();
    std::shared_ptr<const LaneInfo> lane_info(const LaneInfo& identity, const LaneSpec& spec,
                                              const Model& shared) const;
    Lane new_lane(const LaneInfo& identity, const LaneSpec& spec) const;
    void read_logits(Lane& lane, int at_row) const;
    std::shared_ptr<const PromptRows> prefill(std::size_t first_lane,
                                              const std::function<bool(double)>& part_done, bool to_sink);
    void feed(const std::vector<std::size_t>& which, int at_row,
              const std::function<int(const Lane&)>& token_of);
    void feed_row();
    void discard_outputs();
    void prefill_again(std::size_t first_lane, double share);
    void replay(const std::vector<int>& tokens, const std::vector<LoggedCommand>& commands,
                const std::function<void(LaneSpec&)>& change);
    void apply_to_lane(Lane& lane, const Command& command, int at_row) const;
    static std::vector<int> kv_heads_at(const KvLayout& layout, const TokenPlace& at);

    // Questions (session_probe.cpp).
    Counterfactual with_token_restored(int index, int position, int n_tokens, int at_row);
    std::vector<float> replay_in_copy(const Lane& asked, int at_row,
                                      const std::map<int, std::vector<Eviction>>& gone);

    // Records (session.cpp).
    std::shared_ptr<const RowBlock> row_block(const RowValues& values) const;
    StepTrace bare_step(int at_row) const;
    std::shared_ptr<const StepTrace> record(float ms, std::shared_ptr<const PromptRows> prompt_rows);

    // Commands (session_commands.cpp).
    Lane& lane_at(int index);
    std::string fault_of(const LaneSpec& spec) const;
    void check(const LaneSpec& spec) const;
    void perform(const Command& command);
    void set_lane(const SetLane& command);
    void add_lane(const AddLane& command);
    void fork_lane(const ForkLane& command);
    bool lacks(const Lane& lane, const LaneSpec& spec) const;
    Lane shared_anew(const Lane& from, const LaneSpec& spec);
    Lane replayed_lane(const Lane& from, const LaneSpec& spec);
    void force(const std::vector<int>& tokens, bool instead);
    void touch_token(const TokenPlace& at, const Command& command);
    /// Returns whether commands of the branch being caught up with wait at the current row, which happens
    /// only after a cancellation.
    bool command_waits() const { return !scheduled.empty() && scheduled.front().row == row; }
    bool apply_scheduled(const std::function<bool(double)>& report);
    bool apply_waiting();
    void restore(int to_row, const std::vector<LoggedCommand>& commands);
    void rewind(const Rewind& command);
    void go_to_branch(const GoToBranch& command);
    void branches_changed();
};

/// Runs work() with `report` as the progress callback. what: begins the sentence that reports a cancellation.
template <class Work>
auto Session::Impl::with_progress(const std::function<bool(double)>& report, const std::string& what,
                                  Work work) {
    struct Guard {
        Impl& impl;
        ~Guard() {
            impl.progress = nullptr;
            impl.part_from = 0;
            impl.part_share = 1;
        }
    } const guard{*this};
    progress = report;
    try {
        return work();
    } catch (const Error& error) {
        if (error.code() != ErrorCode::cancelled) throw;
        fail(ErrorCode::cancelled, "{} was stopped half-way; nothing has changed", what);
    }
}

}  // namespace keyhole
