/// Passes records from the engine to readers: the engine pushes them, the window and exports take snapshots.
/// Thread-safe. Locks are held only while pointers are copied. Knows nothing of its readers.
#pragma once

#include "engine/trace/record.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace keyhole {

using StepList = std::vector<std::shared_ptr<const StepTrace>>;

/// A bounded history. Scalars are kept for the whole run, the shadow's means over heads included. Row blocks
/// and shadows by head stay within a byte budget: the newest rows are all kept, older ones are thinned by
/// doubling the stride.
class Recorder {
  public:
    /// Default budget for row blocks and shadows.
    static constexpr std::size_t kRowBudgetBytes = std::size_t{256} << 20;
    /// Budget of a run that exists only to be exported: its files then show more rows.
    static constexpr std::size_t kExportBudgetBytes = std::size_t{512} << 20;
    explicit Recorder(std::size_t row_budget_bytes = kRowBudgetBytes) : budget_(row_budget_bytes) {}

    /// Appends a record. A record of another run clears the history first. A record of a row that is already
    /// there (the run was rewound) removes that row and all later ones. Rows ascend within a branch.
    void push(std::shared_ptr<const StepTrace> step);
    /// Drops the rows after this one, because the run was rewound.
    void rewind(int row);
    void clear();

    /// Changes with every push, rewind and clear. A reader takes a snapshot only when it has changed.
    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

    struct Snapshot {
        std::uint64_t version = 0;
        StepList steps;             ///< ascending rows of one run
        std::size_t row_bytes = 0;  ///< in row blocks and shadows
        std::size_t budget_bytes = 0;
        std::size_t scalar_bytes = 0;  ///< estimate for all else: tokens, choices, measures, evictions
        int stride = 1;                ///< rows before dense_from are kept if row % stride == 0
        int dense_from = 0;            ///< from this row on every row block is kept
    };
    Snapshot snapshot() const;

  private:
    void cut(int row, StepList& dropped);
    void thin(StepList& dropped);

    const std::size_t budget_;
    std::atomic<std::uint64_t> version_{0};
    mutable std::mutex mutex_;
    StepList steps_;
    std::size_t row_bytes_ = 0;
    std::size_t scalar_bytes_ = 0;
    std::size_t dense_bytes_ = 0;  // in rows from dense_from_ on
    int stride_ = 1;
    int dense_from_ = 0;
};

}  // namespace keyhole
