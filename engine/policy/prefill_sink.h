/// Prompt rows as prefill computes them, tile by tile, for recorders and exports. Called on worker threads;
/// knows rows only.
#pragma once

#include "engine/policy/row.h"

namespace keyhole {

/// A tile of prompt rows of one query head. The values are valid during the call only.
struct PrefillTile {
    int lane = -1;  ///< -1: the same for all lanes (attention and logits with one-shot prefill)
    int layer = 0;
    int head = 0;  ///< query head; for scores the index of the KV head in its layer
    int first_row = 0;
    int n_rows = 0;
    int n_columns = 0;              ///< row i is valid up to and including column i
    const float* values = nullptr;  ///< [n_rows, n_columns]
};

/// Receives prompt rows. Worker threads call it, never two at once for the same (lane, layer, head).
class PrefillSink {
  public:
    virtual ~PrefillSink() = default;
    virtual RowRequest requested() const = 0;
    virtual void attention(const PrefillTile&) {}
    virtual void logits(const PrefillTile&) {}
    virtual void noise(const PrefillTile&) {}
    virtual void scores(const PrefillTile&) {}
};

}  // namespace keyhole
