#include "engine/trace/recorder.h"

#include "engine/base/error.h"
#include "engine/trace/row_bytes.h"

#include <algorithm>

namespace keyhole {

namespace {

std::size_t scalar_bytes(const StepTrace& step) {
    std::size_t sum = sizeof(StepTrace);
    for (const LaneRecord& lane : step.lanes)
        sum += sizeof(LaneRecord) + lane.top.size() * sizeof(lane.top[0]) +
               lane.evictions.size() * sizeof(lane.evictions[0]) +
               (lane.prompt_rows ? lane.prompt_rows->attention.size() * sizeof(std::uint16_t) : 0);
    return sum + (step.prompt_rows ? step.prompt_rows->attention.size() * sizeof(std::uint16_t) : 0);
}

}  // namespace

void Recorder::push(std::shared_ptr<const StepTrace> step) {
    KH_ASSERT(step && step->run);
    StepList dropped;  // declared before the lock: row blocks are freed after it is released
    const std::lock_guard lock(mutex_);
    if (!steps_.empty() && steps_.back()->run->id != step->run->id) {
        dropped.swap(steps_);
        row_bytes_ = dense_bytes_ = scalar_bytes_ = 0;
        stride_ = 1;
    }
    if (!steps_.empty() && steps_.back()->row >= step->row) {
        // The same row of the same branch: its record was changed after the fact, as by a lane's new name.
        KH_ASSERT(steps_.back()->branch != step->branch || steps_.back()->row == step->row,
                  "row {} of branch {} after {}", step->row, step->branch, steps_.back()->row);
        cut(step->row - 1, dropped);
    }
    if (steps_.empty()) dense_from_ = step->row;
    const std::size_t bytes = row_bytes(*step);
    scalar_bytes_ += scalar_bytes(*step);
    steps_.push_back(std::move(step));
    row_bytes_ += bytes;
    dense_bytes_ += bytes;
    thin(dropped);
    version_.fetch_add(1, std::memory_order_release);
}

void Recorder::rewind(int row) {
    StepList dropped;
    const std::lock_guard lock(mutex_);
    cut(row, dropped);
    version_.fetch_add(1, std::memory_order_release);
}

/// Drops the rows after this one.
void Recorder::cut(int row, StepList& dropped) {
    while (!steps_.empty() && steps_.back()->row > row) {
        const std::size_t bytes = row_bytes(*steps_.back());
        row_bytes_ -= bytes;
        scalar_bytes_ -= scalar_bytes(*steps_.back());
        if (steps_.back()->row >= dense_from_) dense_bytes_ -= bytes;
        dropped.push_back(std::move(steps_.back()));
        steps_.pop_back();
    }
    dense_from_ = std::min(dense_from_, row + 1);
}

void Recorder::clear() {
    StepList dropped;
    const std::lock_guard lock(mutex_);
    dropped.swap(steps_);
    row_bytes_ = dense_bytes_ = scalar_bytes_ = 0;
    stride_ = 1;
    dense_from_ = 0;
    version_.fetch_add(1, std::memory_order_release);
}

Recorder::Snapshot Recorder::snapshot() const {
    const std::lock_guard lock(mutex_);
    return {version_.load(std::memory_order_relaxed),
            steps_,
            row_bytes_,
            budget_,
            scalar_bytes_,
            stride_,
            dense_from_};
}

/// Half of the budget goes to dense rows, the other half to thinned ones: over the budget the oldest dense
/// row joins the thinned rows, and when these hold more than their half the stride doubles. The newest row
/// always stays.
void Recorder::thin(StepList& dropped) {
    const auto drop = [&](std::shared_ptr<const StepTrace>& step, std::size_t bytes) {
        if (bytes == 0) return;
        dropped.push_back(step);
        step = without_rows(*step);
        row_bytes_ -= bytes;
    };
    const auto first_dense = [&] {
        return std::lower_bound(steps_.begin(), steps_.end(), dense_from_,
                                [](const auto& s, int row) { return s->row < row; });
    };
    while (row_bytes_ > budget_) {
        const auto dense = first_dense();
        if (dense_bytes_ > budget_ / 2 && dense + 1 < steps_.end()) {
            const std::size_t bytes = row_bytes(**dense);
            dense_bytes_ -= bytes;
            dense_from_ = (*dense)->row + 1;
            if ((*dense)->row % stride_ != 0) drop(*dense, bytes);
        } else if (row_bytes_ > dense_bytes_) {
            stride_ *= 2;
            for (auto it = steps_.begin(); it != dense; ++it)
                if ((*it)->row % stride_ != 0) drop(*it, row_bytes(**it));
        } else {
            break;
        }
    }
}

}  // namespace keyhole
