/// Prompt rows as prefill makes them, tile by tile: the side door for recorders and exports. Values are valid during the call.
#pragma once

#include "engine/policy/row.h"

namespace keyhole {

/// A tile of prompt rows of one query head as prefill makes them, for recorders and exports. Values are valid during the call.
struct PrefillTile {
    int lane = -1;  ///< -1: the same for all lanes (attention and logits are, with one-shot prefill)
    int layer = 0;
    int head = 0;  ///< query head; for scores the KV head's index in its layer
    int first_row = 0;
    int n_rows = 0;
    int n_columns = 0;              ///< row i is valid up to and including column i
    const float* values = nullptr;  ///< [n_rows, n_columns]
};

/// Receives prompt rows. Called from worker threads, never twice at once for the same (lane, layer, head).
class PrefillSink {
  public:
    virtual ~PrefillSink() = default;
    virtual RowWants wants() const = 0;
    virtual void attention(const PrefillTile&) {}
    virtual void logits(const PrefillTile&) {}
    virtual void noise(const PrefillTile&) {}
    virtual void scores(const PrefillTile&) {}
};

}  // namespace keyhole
