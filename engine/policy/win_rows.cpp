#include "engine/policy/win_rows.h"

#include "engine/base/index.h"

#include <utility>

namespace keyhole {

std::vector<int> window_parts(const ResolvedPolicy& policy, int window) {
    if (policy.fair.empty()) return {window};
    const int n = static_cast<int>(policy.fair.size());
    std::vector<int> parts;
    for (int s = 0; s < n; ++s) parts.push_back(std::max(window / n + (s < window % n ? 1 : 0), 1));
    return parts;
}

std::vector<WinRows> win_rows(const ResolvedPolicy& policy, int row) {
    if (policy.fair.empty()) return {{0, NamedSpan::kOpen, std::max(row - policy.window + 1, 0), row}};
    const std::vector<int> parts = window_parts(policy, policy.window);
    std::vector<WinRows> out;
    for (std::size_t s = 0; s < policy.fair.size(); ++s) {
        const bool is_last = s + 1 == policy.fair.size();
        const std::int32_t begin = policy.fair[s].first,
                           end = is_last ? NamedSpan::kOpen : policy.fair[s + 1].first;
        const int last = std::min(row, end - 1);
        out.push_back({begin, end, std::max(last - parts[s] + 1, begin), last});
    }
    return out;
}

void add_win_rows(const ResolvedPolicy& policy, int n, std::vector<int>& rows) {
    if (!policy.any_names(Quantity::win)) return;
    for (const WinRows& own : win_rows(policy, n - 1))
        for (int row = own.first; row <= own.last; ++row) rows.push_back(row);
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
}

std::int32_t begin_of_span(const ResolvedPolicy& policy, int row) {
    std::int32_t begin = 0;
    for (const NamedSpan& span : policy.fair)
        if (span.first <= row) begin = span.first;
    return begin;
}

void KeptRows::change(const ResolvedPolicy& from, const ResolvedPolicy& to, int window, int last_row) {
    if (from.ranks_as_rkv_code != to.ranks_as_rkv_code || window == 0) return begin(to, last_row + 1);
    const std::vector<WinRows> had = win_rows(from, last_row);
    std::vector<int> first;
    for (const WinRows& own : win_rows(to, last_row)) {
        std::size_t s = had.size() - 1;  // the span that the newest row of the new one was in
        while (s > 0 && had[s].begin > own.last) --s;
        // A row was kept for tokens from the beginning of its span on.
        const bool is_kept = had[s].begin <= own.begin;
        first.push_back(is_kept ? std::max(first_[s], had[s].last - window + 1) : last_row + 1);
    }
    first_ = std::move(first);
}

std::vector<WinRows> KeptRows::at(const ResolvedPolicy& policy, int row) const {
    std::vector<WinRows> rows = win_rows(policy, row);
    for (std::size_t s = 0; s < rows.size(); ++s)
        rows[s].first = std::max(rows[s].first, first_[std::min(s, first_.size() - 1)]);
    return rows;
}

bool KeptRows::any(const ResolvedPolicy& policy, int row) const {
    const std::vector<WinRows> rows = at(policy, row);
    return std::any_of(rows.begin(), rows.end(), [](const WinRows& own) { return own.n() > 0; });
}

}  // namespace keyhole
