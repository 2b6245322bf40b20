/// The shadow of a lane: all K and V of its tokens, kept beside its cache, and the comparison of its rows
/// with full attention. It never changes what the lane computes. Engine thread; several threads may work
/// on different heads at once.
#pragma once

#include "engine/backend/backend.h"
#include "engine/base/index.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {
struct AttentionRule;
}

namespace keyhole {

/// K and V of every position of a text; nothing is ever removed. Keys are rotated at their original position.
class ShadowStore {
  public:
    ShadowStore(int n_kv_heads, int head_dim);

    /// Reserves room for n_positions positions, so that appending allocates nothing.
    void reserve(int n_positions);
    /// Appends the next n positions of a KV head. keys, values [n, head_dim].
    void append(int g, const float* keys, const float* values, int n);

    int count(int g) const;
    const float* keys(int g) const { return keys_[to_index(g)].data(); }      ///< [count, head_dim]
    const float* values(int g) const { return values_[to_index(g)].data(); }  ///< [count, head_dim]
    std::int64_t bytes() const;

  private:
    int head_dim_;
    std::vector<std::vector<float>> keys_, values_;  // [n_kv_heads][position, head_dim]
};

/// One query head's row of a lane, by slot: what the row attended to.
struct SeenRow {
    std::span<const std::int32_t> positions;  ///< [n]
    std::span<const float> probabilities;     ///< [n], 0 where hidden
    std::span<const std::uint8_t> hidden;     ///< [n], or empty: the row saw all
    const float* output;                      ///< [head_dim] before the output projection
    const float* sink = nullptr;              ///< the logit of the head's learned sink, or null
};

/// Scratch memory of one worker thread.
struct ShadowScratch {
    std::vector<float> query, full, seen, output, logits;
    std::vector<std::int32_t> attended, ideal, places;
    const float* own_key =
        nullptr;  ///< [head_dim] of the row's own token, where it is not the stored one; else null
};

/// Sizes out.shadow (and its values) for a row of a lane with a shadow; empties it when store is null.
void begin_shadow(const KvLayout& layout, const ShadowStore* store, int row, bool wants_row, RowOutput& out);

/// Computes full attention of scratch.query (rotated at the row's original position) over all tokens of KV
/// head g that the model's rule lets it see, including the row's own. Compares the seen row with it, with an
/// ideal set of k tokens. What a learned sink takes is neither retained nor lost: masses are shares of what
/// the tokens get. Writes entry `head` of out.shadow, and of out.values.shadow where that has room.
/// Equations: engine/analysis/measure_table.h.
void measure_row(const ShadowStore& store, int g, int head, int k, const AttentionRule& rule,
                 const SeenRow& seen, ShadowScratch& scratch, RowOutput& out);

}  // namespace keyhole
