/// The positions that a KV head stores, as bits, and what is measured on them: overlap of two lanes, recent share, lifetime.
/// Values and pure functions; any thread; knows nothing of the rest.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

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
    /// Stored positions >= first.
    int count_from(int first) const;
    /// Positions that both hold.
    int count_common(const KeptSet& other) const;

  private:
    std::vector<std::uint64_t> words_;  // bit p % 64 of word p / 64
    int count_ = 0;
};

/// |A and B| / |A or B|; 1 where both are empty.
double jaccard(const KeptSet& a, const KeptSet& b);

/// |{p in S: p > row - k}| / |S| (TOVA finds 73 to 76 %), 0 for an empty set. Means are taken over rows
/// with row + 1 > k: before, everything is recent.
double recent_share(const KeptSet& stored, int row, int k);

/// Rows after which a token was still stored (TOVA, figure 9): evicted_at - position; to the end of the text, last_row + 1 - position,
/// for a token that was never evicted (evicted_at < 0). 0: it left after its own row.
int lifetime(int position, int evicted_at, int last_row);

}  // namespace keyhole
