/// The positions that a KV head stores, as a bit set, and measures on it: overlap of two lanes, recent
/// share, lifetime. Values and pure functions; any thread; knows nothing of the other folders.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Tokens of a page of a paged cache (vLLM's default).
inline constexpr int kPageTokens = 16;

/// A set of positions >= 0.
class KeptSet {
  public:
    KeptSet() = default;
    explicit KeptSet(std::span<const std::int32_t> positions) {
        for (std::int32_t p : positions) insert(p);
    }
    void insert(int position);
    void erase(int position);
    bool contains(int position) const;
    int size() const { return count_; }
    /// Returns the number of positions >= first.
    int count_from(int first) const;
    /// Returns the number of positions that both sets contain.
    int count_common(const KeptSet& other) const;
    /// Returns the number of pages, kPageTokens neighbours each, of which any of the sets has a position.
    static int count_pages(std::span<const KeptSet> sets);

  private:
    std::vector<std::uint64_t> words_;  // bit p % 64 of word p / 64
    int count_ = 0;
};

/// Returns |A and B| / |A or B|, of two sets or from both counts; 1 where both sets are empty.
double jaccard(const KeptSet& a, const KeptSet& b);
double jaccard(int n_common, int n_either);

/// Returns |{p in S: p > row - k}| / |S| (TOVA finds 73 to 76 %), 0 for an empty set. Take means over rows
/// with row + 1 > k: before them every position is recent.
double recent_share(const KeptSet& stored, int row, int k);

/// Returns the number of rows after which a token was still stored (TOVA, figure 9): evicted_at - position.
/// For a token that was never evicted (evicted_at < 0): last_row + 1 - position. 0 means that the token's
/// own row evicted it.
int lifetime(int position, int evicted_at, int last_row);

}  // namespace keyhole
