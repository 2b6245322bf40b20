#include "engine/analysis/compare.h"

#include "engine/analysis/no_value.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/figure/reduce.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Returns a - b. A value that a lane did not see counts as 0; NaN if neither saw it, kNotFinite if a value
/// is not finite.
float minus(float a, float b) {
    const bool seen_by_a = !std::isnan(a) && a != kHiddenValue,
               seen_by_b = !std::isnan(b) && b != kHiddenValue;
    if (!seen_by_a && !seen_by_b) return kNoValue;
    if ((seen_by_a && !std::isfinite(a)) || (seen_by_b && !std::isfinite(b))) return kNotFinite;
    return (seen_by_a ? a : 0) - (seen_by_b ? b : 0);
}

bool knows(const RunHistory& history, int lane, int row) {
    const RunHistory::Lane& known = history.lanes()[to_index(lane_of_row(history, lane, row))];
    return row <= known.last_row;
}

}  // namespace

bool difference_values(const RunHistory& history, int a, int b, int row, int layer, int head, HeatMode mode,
                       std::span<float> out) {
    const auto kv_head = [&](int lane) { return history.layout(lane).kv_head_from_head(layer, head); };
    if (mode == HeatMode::mask) {
        if (!knows(history, a, row) || !knows(history, b, row)) return false;
        const int by_a = lane_of_row(history, a, row), by_b = lane_of_row(history, b, row);
        for (int p = 0; p <= row; ++p) {
            const bool in_a = history.stored(by_a, kv_head(by_a), p, row),
                       in_b = history.stored(by_b, kv_head(by_b), p, row);
            out[to_index(p)] = in_a ? (in_b ? 0.0f : 1.0f) : (in_b ? -1.0f : kNoValue);
        }
        return true;
    }
    std::vector<float> of_a(to_index(row) + 1), of_b(of_a.size());
    const auto read = [&](int lane, std::span<float> values) {
        return picture_values(history, lane, row, layer, head, mode, values);
    };
    if (!read(a, of_a) || !read(b, of_b)) return false;
    for (std::size_t p = 0; p < of_a.size(); ++p) out[p] = minus(of_a[p], of_b[p]);
    return true;
}

const KvLayout& finer_layout(const RunHistory& history, int a, int b) {
    const KvLayout &of_a = history.layout(a), &of_b = history.layout(b);
    return of_b.n_kv_heads() > of_a.n_kv_heads() ? of_b : of_a;
}

HeldBy held_by(const RunHistory& history, int a, int b, int kv_head, int row) {
    HeldBy count;
    const HeadRef reader = finer_layout(history, a, b).kv_head(kv_head).readers.front();
    const int by_a = lane_of_row(history, a, row), by_b = lane_of_row(history, b, row);
    const int g_a = history.layout(by_a).kv_head_from_head(reader.layer, reader.head),
              g_b = history.layout(by_b).kv_head_from_head(reader.layer, reader.head);
    for (int p = 0; p <= row; ++p) {
        const bool in_a = history.stored(by_a, g_a, p, row), in_b = history.stored(by_b, g_b, p, row);
        ++(in_a ? (in_b ? count.both : count.only_a) : (in_b ? count.only_b : count.neither));
    }
    return count;
}

int own_choice(const RunHistory& history, int lane, int position) {
    if (position < history.n_prompt() || position - 1 > history.last_row()) return -1;
    const LaneRecord* record = history.lane_record(position - 1, lane_of_row(history, lane, position - 1));
    return record == nullptr ? -1 : record->predicted;
}

int choice_passed_over(const RunHistory& history, int lane, int position) {
    const int own = own_choice(history, lane, position);
    const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
    return own < 0 || to_index(position) >= tokens.size() || tokens[to_index(position)] == own ? -1 : own;
}

std::optional<int> first_other_token(const RunHistory& history, int a, int b) {
    const auto& of_a = history.lanes()[to_index(a)].tokens;
    const auto& of_b = history.lanes()[to_index(b)].tokens;
    const std::size_t n = std::min(of_a.size(), of_b.size());
    const auto parted =
        std::mismatch(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(n), of_b.begin());
    if (parted.first == of_a.begin() + static_cast<std::ptrdiff_t>(n)) return std::nullopt;
    return static_cast<int>(parted.first - of_a.begin());
}

std::vector<float> agreement_so_far(const RunHistory& history, int a, int b) {
    std::vector<float> share;
    int n = 0, n_same = 0;
    for (const auto& step : history.steps()) {
        const int of_a = own_choice(history, a, step->row + 1), of_b = own_choice(history, b, step->row + 1);
        const bool known = of_a >= 0 && of_b >= 0;
        if (known) ++n, n_same += of_a == of_b ? 1 : 0;
        share.push_back(known ? static_cast<float>(n_same) / static_cast<float>(n) : kNoValue);
    }
    return share;
}

std::optional<int> first_divergence(const RunHistory& history, int a, int b) {
    for (int p = history.n_prompt(); p <= history.last_row() + 1; ++p) {
        const int of_a = own_choice(history, a, p), of_b = own_choice(history, b, p);
        if (of_a >= 0 && of_b >= 0 && of_a != of_b) return p;
    }
    return std::nullopt;
}

}  // namespace keyhole
