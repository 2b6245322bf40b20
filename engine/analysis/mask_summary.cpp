#include "engine/analysis/mask_summary.h"

#include "engine/base/index.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace keyhole {

void MaskSummary::update(const RunHistory& history, int lane, int side, int factor) {
    const RunHistory::Lane& shown = history.lanes()[to_index(lane)];
    if (generation_ != history.generation() || lane_ != shown.id || side_ != side || factor_ != factor ||
        n_heads_ != history.layout(lane).n_kv_heads())
        return start_over(history, lane, side, factor);
    const int first = last_row_ + 1;
    for (int row = first; row <= history.last_row(); ++row)
        if (!add_row(history, lane, row)) return start_over(history, lane, side, factor);
    if (first > last_row_) return;
    // A token that a new row reports may have been evicted after the row before.
    reduce(std::max(first - 1, 0) / factor_, last_row_ / factor_);
}

/// Counts from the table, one column of blocks after another. A token evicted at row e is missing from row e
/// + 1 on.
void MaskSummary::start_over(const RunHistory& history, int lane, int side, int factor) {
    const RunHistory::Lane& shown = history.lanes()[to_index(lane)];
    side_ = side;
    factor_ = factor;
    n_heads_ = history.layout(lane).n_kv_heads();
    generation_ = history.generation();
    lane_ = shown.id;
    last_row_ = history.last_row();
    levels_.clear();
    for (int s = side_; s > 0; s /= 2) levels_.emplace_back(to_index(n_heads_) * to_index(s) * to_index(s));
    gone_.assign(to_index(n_heads_) * to_index(side_), 0);
    std::vector<std::int32_t>& blocks = levels_.front();
    const int n_rows = last_row_ + 1, n_blocks = (n_rows + factor_ - 1) / factor_;
    const auto rows_of = [&](int y) { return std::min(n_rows - y * factor_, factor_); };
    std::vector<std::int32_t> begins(to_index(n_blocks) +
                                     1);  // tokens that are missing from this block of rows on
    for (int g = 0; g < n_heads_; ++g) {
        const std::int32_t* left = shown.evicted_at.data() + to_index(g) * to_index(history.capacity());
        for (int x = 0; x < n_blocks; ++x) {
            std::fill(begins.begin(), begins.end(), 0);
            for (int p = x * factor_; p < std::min((x + 1) * factor_, n_rows); ++p) {
                const int e = left[p];
                if (e < 0 || e > last_row_) continue;
                const int y = e / factor_;
                blocks[at(g, x, y)] += 2 * (y * factor_ + rows_of(y) - (e + 1));
                blocks[at(g, x, y)] |= 1;
                ++begins[to_index(y) + 1];
            }
            std::int32_t gone = 0;
            for (int y = 0; y < n_blocks; ++y) {
                gone += begins[to_index(y)];
                blocks[at(g, x, y)] += 2 * gone * rows_of(y);
            }
            gone_[to_index(g * side_ + x)] = gone + begins.back();
        }
    }
    reduce(0, side_ - 1);
    changes_ = {true, 0, -1};
}

/// Adds a row. Returns false if an eviction belongs to a row that was already added.
bool MaskSummary::add_row(const RunHistory& history, int lane, int row) {
    const LaneRecord* record = history.lane_record(row, lane);
    const std::span<const Eviction> left =
        record == nullptr ? std::span<const Eviction>() : std::span<const Eviction>(record->evictions);
    std::vector<std::int32_t>& blocks = levels_.front();
    const auto leaves = [&](const Eviction& e) {
        blocks[at(e.kv_head, e.position / factor_, e.row / factor_)] |= 1;
        ++gone_[to_index(e.kv_head * side_ + e.position / factor_)];
    };
    for (const Eviction& e : left) {
        if (e.row < row - 1) return false;
        if (e.row < row) leaves(e);  // by a command, after the row before
    }
    const int y = row / factor_;
    for (int g = 0; g < n_heads_; ++g) {
        const std::int32_t* gone = &gone_[to_index(g * side_)];
        std::int32_t* to = &blocks[at(g, 0, y)];
        for (int x = 0; x <= y; ++x) to[x] += 2 * gone[x];
    }
    for (const Eviction& e : left)
        if (e.row == row) leaves(e);
    last_row_ = row;
    return true;
}

/// Updates the levels above rows [first, last] of level 0.
void MaskSummary::reduce(int first, int last) {
    constexpr std::int64_t kMostCells = std::numeric_limits<std::int32_t>::max() / 2;
    if (!changes_.all) {
        const bool none = changes_.last < changes_.first;
        changes_.first = none ? first : std::min(changes_.first, first);
        changes_.last = none ? last : std::max(changes_.last, last);
    }
    for (std::size_t j = 1; j < levels_.size(); ++j) {
        first /= 2;
        last /= 2;
        const auto n = to_index(side_ >> j);
        for (std::size_t g = 0; g < to_index(n_heads_); ++g)
            for (auto y = to_index(first); y <= to_index(last); ++y) {
                const std::int32_t* upper = &levels_[j - 1][(g * 2 * n + 2 * y) * 2 * n];
                const std::int32_t* lower = upper + 2 * n;
                std::int32_t* to = &levels_[j][(g * n + y) * n];
                for (std::size_t x = 0; x < n; ++x) {
                    const std::int32_t of[] = {upper[2 * x], upper[2 * x + 1], lower[2 * x],
                                               lower[2 * x + 1]};
                    // The sum over a long text exceeds 31 bits.
                    const std::int64_t sum = std::int64_t{of[0] / 2} + of[1] / 2 + of[2] / 2 + of[3] / 2;
                    to[x] = 2 * static_cast<std::int32_t>(std::min<std::int64_t>(sum, kMostCells)) |
                            ((of[0] | of[1] | of[2] | of[3]) & 1);
                }
            }
    }
}

MaskSummary::Changes MaskSummary::take_changes() {
    return std::exchange(changes_, Changes());
}

}  // namespace keyhole
