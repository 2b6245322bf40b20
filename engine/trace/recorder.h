/// The one way up: the engine pushes records, window and exports read snapshots. Thread-safe; locks are held
/// only for copying pointers.
#pragma once

#include "engine/trace/record.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace keyhole {

using StepList = std::vector<std::shared_ptr<const StepTrace>>;

/// Bounded history: scalars for the whole run, means over a shadow's heads included; row blocks and the shadow by head under a byte
/// budget, the newest dense, older ones thinned by doubling stride.
class Recorder {
  public:
    /// Bytes of row blocks and shadows that a run keeps unless told otherwise.
    static constexpr std::size_t kRowBudgetBytes = std::size_t{256} << 20;
    /// For a run that is made to be exported, and gone afterwards: files show more of it.
    static constexpr std::size_t kExportBudgetBytes = std::size_t{512} << 20;
    explicit Recorder(std::size_t row_budget_bytes = kRowBudgetBytes) : budget_(row_budget_bytes) {}

    /// A record of another run than the last one's clears the history first; one of a row that is there
    /// already (the run was rewound) cuts off that row and the later ones. Rows ascend within a branch.
    void push(std::shared_ptr<const StepTrace> step);
    /// The run was rewound: drops the rows after this one.
    void rewind(int row);
    void clear();

    /// Changes with every push and clear: a reader copies only when it moved.
    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

    struct Snapshot {
        std::uint64_t version = 0;
        StepList steps;             ///< ascending rows of one run
        std::size_t row_bytes = 0;  ///< held in row blocks and shadows
        std::size_t budget_bytes = 0;
        std::size_t scalar_bytes = 0;  ///< of everything else: tokens, choices, measures, evictions; about
        int stride = 1;                ///< rows before dense_from are kept where row % stride == 0
        int dense_from = 0;            ///< first row from which every row block is kept
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
    std::size_t dense_bytes_ = 0;  // of rows from dense_from_ on
    int stride_ = 1;
    int dense_from_ = 0;
};

}  // namespace keyhole
