/// Makes lanes and computes their rows on the backend, and changes a single lane between rows. Knows neither
/// branches nor records. Used on the session's thread, by the session only.
#pragma once

#include "engine/run/progress_part.h"
#include "engine/session/run_context.h"
#include "engine/session/session_state.h"

#include <span>

namespace keyhole {

class LaneRunner {
  public:
    /// requested: values of the rows that the lanes keep in `out`, for records and the sink.
    LaneRunner(const RunContext& context, RowRequest requested) : context_(context), requested_(requested) {}
    /// Returns a runner for rows that no record shows.
    LaneRunner without_values() const { return {context_, RowRequest{}}; }
    const RunContext& context() const { return context_; }

    /// Returns the state at the start, before the prompt.
    SessionState first_state() const;
    /// Returns a lane with an empty cache. identity: its id and parentage.
    Lane new_lane(const LaneInfo& identity, const LaneSpec& spec) const;
    /// Returns the description of a lane. shared: the lane's model.
    std::shared_ptr<const LaneInfo> lane_info(const LaneInfo& identity, const LaneSpec& spec,
                                              const Model& shared) const;

    /// Processes the prompt: one-shot lanes together for each model, stepwise lanes row by row. Returns the
    /// rows of the session's own model; those of other models are with their lanes. to_sink: the sink
    /// receives the prompt's values too; then `lanes` are all of the session.
    std::shared_ptr<const PromptRows> prefill(std::span<Lane> lanes, const Sampling& sampling,
                                              const ProgressPart& progress, bool to_sink) const;
    /// Feeds each lane its `token`.
    void feed(std::span<Lane* const> lanes, int at_row) const;
    /// Feeds the next row of every active lane.
    void feed_row(SessionState& state) const;
    /// Returns the tokens of the prompt and those that the lane consumed after it.
    std::vector<int> text_of(const Lane& lane) const;
    /// Computes the next-token distribution of the row just processed and the lane's own choice, which the
    /// lane's text may restrict (token_rules.h).
    void read_logits(Lane& lane, const Sampling& sampling, int at_row) const;
    /// The same once for every row: the lane fails where the row's numbers are not finite (lane_fault.h).
    void read_row(Lane& lane, const Sampling& sampling, int row) const;

    /// Applies a command that concerns one lane only. The command is known to be valid. Cancelling `progress`
    /// throws Error(cancelled), and the lane has not changed.
    void apply(Lane& lane, const Command& command, int at_row, const ProgressPart& progress = {}) const;

  private:
    /// Gives a lane whose policy ranks by `future` the attention of the text that begins with its own tokens,
    /// `token` (-1: none) and what it has still to read, unless it knows it.
    void look_ahead(Lane& lane, const LaneSpec& spec, const ResolvedPolicy& policy, int token,
                    const ProgressPart& progress) const;

    struct Group;  // lanes of one model, processed together

    const RunContext& context_;
    RowRequest requested_;

    std::shared_ptr<const PromptRows> prefill_group(std::span<Lane> lanes, const Group& group,
                                                    const ProgressPart& progress, bool to_sink,
                                                    bool are_all) const;
    void prefill_stepwise(std::span<Lane> lanes, const std::vector<std::size_t>& which,
                          const ProgressPart& progress, bool to_sink) const;
};

/// Returns the KV heads of a token's place, ascending, each once.
std::vector<int> kv_heads_at(const KvLayout& layout, const TokenPlace& at);

}  // namespace keyhole
