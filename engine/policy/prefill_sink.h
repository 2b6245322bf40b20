/// Prompt rows as prefill computes them, tile by tile, for recorders and exports. Called on worker threads;
/// knows rows only.
#pragma once

#include "engine/model/model.h"
#include "engine/policy/row.h"

#include <cstdint>

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

/// Which vector of RowInputs.
enum class InputKind { q, raw_q, k, raw_k, v };

/// Vectors of all prompt rows of one query head, or of one KV head of a layer that owns it. The values are
/// valid during the call only.
struct InputTile {
    int lane = -1;  ///< as in PrefillTile
    InputKind kind = InputKind::q;
    int layer = 0;
    int head = 0;  ///< query head, or the index of the KV head in its layer
    int n_rows = 0, head_dim = 0;
    const float* values = nullptr;  ///< of row i: [head_dim] from i * stride on
    std::int64_t stride = 0;
    const Rotary* rotary = nullptr;  ///< of the layer; null: it rotates nothing
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
    virtual void inputs(const InputTile&) {}  ///< on the engine's thread
};

}  // namespace keyhole
