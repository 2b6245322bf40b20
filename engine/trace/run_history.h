/// A reader's own view of a run, folded from records: tokens, the evicted_at table of each lane, and rows by
/// position. Changed by one thread (window, export, replay); between updates several may read, as drawing figures does.
#pragma once

#include "engine/base/view.h"
#include "engine/trace/recorder.h"

#include <optional>
#include <span>
#include <vector>

namespace keyhole {

class RunHistory {
  public:
    /// Takes the records of a snapshot; a record of another run starts over, as do records of which the run
    /// was rewound. Cheap when only a few rows were added.
    void update(const StepList& steps);

    /// Changes when it starts over: what a reader made of earlier rows may no longer hold. No two histories that began share one.
    std::uint64_t generation() const { return generation_; }

    bool empty() const { return steps_.empty(); }
    const RunInfo& run() const { return *steps_.front()->run; }
    const StepList& steps() const { return steps_; }
    int n_prompt() const { return run().n_prompt(); }
    int last_row() const { return steps_.back()->row; }
    int n_positions() const { return last_row() + 1; }
    /// The record of a row in [n_prompt - 1, last_row()].
    const StepTrace& at_row(int row) const;

    /// Lanes in order of appearance, removed ones included.
    struct Lane {
        int id = 0;
        int first_row = 0;                       ///< first record that has it
        int last_row = 0;                        ///< last row that it processed
        bool ended = false;                      ///< its text ended, or it failed
        int forked_from = -1;                    ///< index of the lane that it was copied from, past included
        int forked_at = -1;                      ///< row after which it was copied
        bool replayed = false;                   ///< see LaneInfo::replayed
        std::vector<int> tokens;                 ///< [position] consumed, prompt included
        std::shared_ptr<const KvLayout> layout;  ///< see LaneInfo::layout
        std::vector<std::int32_t> evicted_at;    ///< [n_kv_heads, capacity]
    };
    std::span<const Lane> lanes() const { return lanes_; }
    /// Which KV heads a lane (index) has. Lanes may differ: compare them by (layer, query head).
    const KvLayout& layout(int lane) const {
        const auto& own = lanes_[static_cast<std::size_t>(lane)].layout;
        return own != nullptr ? *own : run().layout;
    }
    /// The lanes have the same KV heads.
    bool same_layout(int a, int b) const {
        return lanes_[static_cast<std::size_t>(a)].layout == lanes_[static_cast<std::size_t>(b)].layout ||
               layout(a) == layout(b);
    }
    /// Index into lanes() from a lane's id.
    std::optional<int> lane_from_id(int id) const;
    const LaneRecord* lane_record(int row, int lane) const;

    /// evicted_at[g][p] of a lane (index), positions up to n_positions(): the row whose processing evicted
    /// it, -1 never.
    std::int32_t evicted_at(int lane, int kv_head, int position) const;
    /// Row stride of Lane::evicted_at.
    int capacity() const { return capacity_; }
    bool stored(int lane, int kv_head, int position, int row) const;
    bool attended(int lane, int kv_head, int position, int row) const;
    /// Stored when the row came but not seen by it. Of a row without a record, as those of the prompt before its last: by the model's
    /// own window.
    bool hidden(int lane, int kv_head, int position, int row) const;
    std::vector<std::int32_t> attended_positions(int lane, int kv_head, int row) const;
    /// Attended and hidden ones: the order of RowBlock.
    std::vector<std::int32_t> held_positions(int lane, int kv_head, int row) const;
    /// The same into memory that is there already: for all heads of a row.
    void held_positions(int lane, int kv_head, int row, std::vector<std::int32_t>& out) const;
    /// After the row, as the record of the row says.
    bool pinned(int lane, int kv_head, int position, int row) const;

    /// Attention row of a head by position, out [>= row + 1], 0 where not attended. False when the row block
    /// was thinned out.
    bool attention_row(int lane, int row, int layer, int head, std::span<float> out) const;
    /// Pooled scores by position, NaN where not attended.
    bool score_row(int lane, int row, int kv_head, std::span<float> out) const;

  private:
    StepList steps_;
    std::vector<Lane> lanes_;
    int capacity_ = 0;
    std::uint64_t run_id_ = 0;
    std::uint64_t generation_ = 0;

    bool held(int lane, int kv_head, int position, int row) const;
    void add_lane(const LaneInfo& info, int row);
    template <class Set>
    void scatter(int lane, int kv_head, int row, std::int64_t begin, std::int64_t end, Set set) const;
    void start_over();
    void reserve(int n_positions);
    void fold(const StepTrace& step);
};

}  // namespace keyhole
