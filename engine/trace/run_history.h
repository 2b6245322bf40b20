/// A reader's view of a run, built from records: tokens, the evicted_at table of each lane, and rows by
/// position. One thread changes it (window, export or replay). Between updates several threads may read it,
/// as when figures are drawn.
#pragma once

#include "engine/base/index.h"
#include "engine/base/view.h"
#include "engine/trace/recorder.h"

#include <optional>
#include <span>
#include <vector>

namespace keyhole {

/// Returns the look of a new lane: the lowest that none has had, while there are some; else the lowest that
/// none of those present has. had: by all lanes so far.
int next_look(std::span<const int> had, std::span<const int> present);

class RunHistory {
  public:
    /// Takes the records of a snapshot. Starts over if they belong to another run, or if the run was rewound
    /// past rows that it holds. Cheap when only a few rows were added.
    void update(const StepList& steps);

    /// Changes when the history starts over: data derived from earlier rows may then be wrong. No two
    /// non-empty histories share a value.
    std::uint64_t generation() const { return generation_; }

    bool empty() const { return steps_.empty(); }
    const RunInfo& run() const { return *steps_.front()->run; }
    const StepList& steps() const { return steps_; }
    int n_prompt() const { return run().n_prompt(); }
    int last_row() const { return steps_.back()->row; }
    int n_positions() const { return last_row() + 1; }
    /// Returns the record of a row in [n_prompt - 1, last_row()].
    const StepTrace& at_row(int row) const;

    /// Lanes in order of appearance, including removed ones.
    struct Lane {
        int id = 0;
        int first_row = 0;      ///< of its first record
        int last_row = 0;       ///< last row that it processed
        bool ended = false;     ///< it reached the end of its text, or failed
        int forked_from = -1;   ///< index of the lane that it was copied from, with its history
        int forked_at = -1;     ///< row after which it was copied
        bool replayed = false;  ///< see LaneInfo::replayed
        /// Chooses its colour and dashes: see lane_look(). It stays while the lane lasts, wherever it stands.
        int look = 0;
        std::vector<int> tokens;                 ///< [position] consumed, prompt included
        std::shared_ptr<const KvLayout> layout;  ///< see LaneInfo::layout
        std::vector<std::int32_t> evicted_at;    ///< [n_kv_heads, capacity]
    };
    std::span<const Lane> lanes() const { return lanes_; }
    /// Returns the KV heads of a lane (index). Lanes may differ: compare them by (layer, query head).
    const KvLayout& layout(int lane) const {
        const auto& own = lanes_[to_index(lane)].layout;
        return own != nullptr ? *own : run().layout;
    }
    /// Returns whether two lanes (indices) have the same KV heads.
    bool same_layout(int a, int b) const {
        return lanes_[to_index(a)].layout == lanes_[to_index(b)].layout || layout(a) == layout(b);
    }
    /// Converts a lane's id to an index into lanes().
    std::optional<int> lane_from_id(int id) const;
    const LaneRecord* lane_record(int row, int lane) const;

    /// Returns evicted_at[g][p] of a lane (index) for positions up to n_positions(): the row whose processing
    /// evicted the position, or -1 if it was never evicted.
    std::int32_t evicted_at(int lane, int kv_head, int position) const;
    /// Row stride of Lane::evicted_at, in positions.
    int capacity() const { return capacity_; }
    bool stored(int lane, int kv_head, int position, int row) const;
    bool attended(int lane, int kv_head, int position, int row) const;
    /// Returns whether a position was stored but not visible to the row. For a row without a record (prompt
    /// rows before the last) the model's own window decides.
    bool hidden(int lane, int kv_head, int position, int row) const;
    std::vector<std::int32_t> attended_positions(int lane, int kv_head, int row) const;
    /// Returns the attended and hidden positions, in the order of RowBlock.
    std::vector<std::int32_t> held_positions(int lane, int kv_head, int row) const;
    /// The same, into memory that the caller reuses for all heads of a row.
    void held_positions(int lane, int kv_head, int row, std::vector<std::int32_t>& out) const;
    /// Returns whether a position is pinned after the row, by the row's record.
    bool pinned(int lane, int kv_head, int position, int row) const;

    /// Writes the attention row of a head by position, 0 where not attended. out: at least row + 1 values.
    /// Returns false if the row block was thinned out.
    bool attention_row(int lane, int row, int layer, int head, std::span<float> out) const;
    /// Writes pooled scores by position, NaN where not attended. Returns like attention_row().
    bool score_row(int lane, int row, int kv_head, std::span<float> out) const;

  private:
    StepList steps_;
    std::vector<Lane> lanes_;
    int capacity_ = 0;
    std::uint64_t run_id_ = 0;
    std::uint64_t generation_ = 0;

    int look_of_new(const LaneInfo& info, const StepTrace& step, std::size_t place) const;
    bool held(int lane, int kv_head, int position, int row) const;
    void add_lane(const LaneInfo& info, int row);
    template <class Set>
    void scatter(int lane, int kv_head, int row, std::int64_t begin, std::int64_t end, Set set) const;
    void start_over();
    void reserve(int n_positions);
    void fold(const StepTrace& step);
};

}  // namespace keyhole
