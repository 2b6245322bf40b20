/// The rows of attention that `win` is the mean of. Pure values; any thread; knows no cache.
#pragma once

#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"
#include "engine/policy/params.h"
#include "engine/policy/spans.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Rows [first, last] see the tokens at positions [begin, end).
struct WinRows {
    std::int32_t begin = 0, end = NamedSpan::kOpen;
    int first = 0, last = -1;
    int n() const { return std::max(last - first + 1, 0); }
};

/// Divides a window over fair spans: equal parts, of which the first take what does not divide; at least one
/// row each. One part, the whole, without fair spans.
std::vector<int> window_parts(const ResolvedPolicy& policy, int window);

/// Returns the newest `window` rows up to `row`. Of fair spans each has its part of them, the newest of its
/// own rows: those of its tokens. What follows the last span belongs to it.
std::vector<WinRows> win_rows(const ResolvedPolicy& policy, int row);

/// Returns the means over rows of n tokens, [n]; NaN where there is no row of a token's span. row_of(r):
/// what it has of the tokens, [n]; those younger than the row count 0.
template <class RowOf>
std::vector<float> means_of_rows(std::span<const WinRows> rows, const std::int32_t* positions, int n,
                                 RowOf row_of) {
    std::vector<float> means(to_index(n), 0);
    for (const WinRows& own : rows) {
        const auto for_own = [&](auto change) {
            for (int i = 0; i < n; ++i)
                if (positions[i] >= own.begin && positions[i] < own.end) change(i);
        };
        for (int row = own.first; row <= own.last; ++row) {
            const float* of_row = row_of(row);
            for_own([&](int i) {
                float& mean = means[to_index(i)];
                mean = add(mean, positions[i] <= row ? of_row[i] : 0.0f);
            });
        }
        for_own([&](int i) { means[to_index(i)] /= static_cast<float>(own.n()); });
    }
    return means;
}

/// Returns the first position of the fair span whose row this is; 0 without fair spans.
std::int32_t begin_of_span(const ResolvedPolicy& policy, int row);

/// Adds the rows that `win` is the mean of after a prompt of n tokens to an ascending list.
void add_win_rows(const ResolvedPolicy& policy, int n, std::vector<int>& rows);

/// Which of these rows a cache has kept.
class KeptRows {
  public:
    /// Rows from `row` on are kept.
    void begin(const ResolvedPolicy& policy, int row) { first_.assign(n_spans(policy), row); }
    /// Forgets what the new policy does not need or cannot use: a new fair span uses rows of an old one that
    /// begins with it or before. window: rows kept so far; last_row: the last one so far.
    void change(const ResolvedPolicy& from, const ResolvedPolicy& to, int window, int last_row);
    /// Returns the kept ones of win_rows().
    std::vector<WinRows> at(const ResolvedPolicy& policy, int row) const;
    /// Returns whether there is any.
    bool any(const ResolvedPolicy& policy, int row) const;

  private:
    static std::size_t n_spans(const ResolvedPolicy& policy) {
        return std::max<std::size_t>(policy.fair.size(), 1);
    }
    std::vector<int> first_ = {0};  // by fair span
};

}  // namespace keyhole
