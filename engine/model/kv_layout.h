/// The KV head that every query head reads: MHA, GQA, MQA and cross-layer (MLKV) sharing in one table.
/// Const after building; any thread. Knows base only.
#pragma once

#include "engine/base/index.h"

#include <span>
#include <vector>

namespace keyhole {

/// A query head: layer l, head h in the layer.
struct HeadRef {
    int layer = 0;
    int head = 0;
    bool operator==(const HeadRef&) const = default;
};

/// Returns the layers that own KV heads when n_kv_layers of n_layers do: int(i * (n_layers / n_kv_layers))
/// for i = 0, 1, ... A layer without KV heads borrows from the nearest owner below (policies, section 2.11,
/// from the released code of MLKV; the paper's equation (17) when n_kv_layers divides n_layers). Throws
/// Error(unsupported) unless 1 <= n_kv_layers <= n_layers.
std::vector<int> kv_owner_layers(int n_layers, int n_kv_layers);

/// One stored K and V stream. KV heads are numbered over the whole model, in order of their owner layers.
struct KvHead {
    int owner_layer = 0;
    int index = 0;                 ///< within its owner layer
    std::vector<HeadRef> readers;  ///< ascending by layer, then head
    bool operator==(const KvHead&) const = default;
};

class KvLayout {
  public:
    /// Every layer owns n_kv_heads; query head h reads KV head floor(h / (n_heads / n_kv_heads)) of its
    /// layer. Throws Error(unsupported) unless n_kv_heads divides n_heads.
    static KvLayout grouped(int n_layers, int n_heads, int n_kv_heads);
    /// As grouped(), but only n_kv_layers layers own KV heads, n_kv_heads each (MLKV): see kv_owner_layers().
    static KvLayout shared(int n_layers, int n_heads, int n_kv_layers, int n_kv_heads);

    bool operator==(const KvLayout&) const = default;

    int n_layers() const { return n_layers_; }
    int n_heads() const { return n_heads_; }
    int n_kv_heads() const { return static_cast<int>(kv_heads_.size()); }  ///< in the whole model
    /// Returns the global index of the KV head that (layer, query head) reads.
    int kv_head_from_head(int layer, int head) const { return table_[to_index(layer * n_heads_ + head)]; }
    const KvHead& kv_head(int g) const { return kv_heads_[to_index(g)]; }
    /// Returns the layer that owns the KV heads that a layer reads: itself or one below.
    int owner_of_layer(int layer) const { return kv_head(kv_head_from_head(layer, 0)).owner_layer; }
    /// The layer owns the KV heads with global indices [first_of_layer(layer), first_of_layer(layer + 1)).
    int first_of_layer(int layer) const { return first_of_layer_[to_index(layer)]; }
    bool owns(int layer) const { return first_of_layer(layer) < first_of_layer(layer + 1); }
    /// The layer reads the KV heads with global indices [first_read(layer), last_read(layer)): its own or
    /// its owner's.
    int first_read(int layer) const { return first_of_layer(owner_of_layer(layer)); }
    int last_read(int layer) const { return first_of_layer(owner_of_layer(layer) + 1); }
    /// Returns the last layer that reads a KV head: the row does not need it after that layer's attention.
    int last_reader(int g) const { return kv_head(g).readers.back().layer; }

  private:
    int n_layers_ = 0;
    int n_heads_ = 0;
    std::vector<int> table_;           // [layer, head]
    std::vector<int> first_of_layer_;  // [layers + 1]
    std::vector<KvHead> kv_heads_;
};

}  // namespace keyhole
