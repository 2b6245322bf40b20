/// What full attention would have seen: all K and V of a lane's own tokens beside its cache, and its rows measured against full
/// ones. Nothing here touches what the lane itself computes. Engine thread; different heads by different threads at once.
#pragma once

#include "engine/backend/backend.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {
struct AttentionRule;
}

namespace keyhole {

/// K and V of every position of a text, nothing ever removed. Keys are rotated at their original position.
class ShadowStore {
  public:
    ShadowStore(int n_kv_heads, int head_dim);

    /// Room for so many positions, so that appending allocates nothing.
    void reserve(int n_positions);
    /// keys, values [n, head_dim]: the next n positions of a KV head.
    void append(int g, const float* keys, const float* values, int n);

    int count(int g) const;
    const float* keys(int g) const {
        return keys_[static_cast<std::size_t>(g)].data();
    }  ///< [count, head_dim]
    const float* values(int g) const {
        return values_[static_cast<std::size_t>(g)].data();
    }  ///< [count, head_dim]
    std::int64_t bytes() const;

  private:
    int head_dim_;
    std::vector<std::vector<float>> keys_, values_;  // [n_kv_heads][position, head_dim]
};

/// One query head's row of a lane, by slot.
struct SeenRow {
    std::span<const std::int32_t> positions;  ///< [n]
    std::span<const float> probabilities;     ///< [n], 0 where hidden
    std::span<const std::uint8_t> hidden;     ///< [n], or empty: it saw all
    const float* output;                      ///< [head_dim] before the output projection
};

/// Scratch of one worker.
struct ShadowScratch {
    std::vector<float> query, full, seen, output;
    std::vector<std::int32_t> attended, ideal, places;
    const float* own_key =
        nullptr;  ///< [head_dim] of the row's own token, where it is not the stored one; else null
};

/// Sizes of what a row of a lane with a shadow brings; empties it without one.
void begin_shadow(const KvLayout& layout, const ShadowStore* store, int row, bool wants_row, RowOutput& out);

/// Full attention of scratch.query (rotated at the row's original position) over all of KV head g's tokens that the model's rule lets
/// it see, the row's own included;
/// measures the seen row against it with an ideal set of k and writes entry `head` of out.shadow, and of out.values.shadow where that
/// has room. Equations: metrics/measures.h.
void measure_row(const ShadowStore& store, int g, int head, int k, const AttentionRule& rule,
                 const SeenRow& seen, ShadowScratch& scratch, RowOutput& out);

}  // namespace keyhole
