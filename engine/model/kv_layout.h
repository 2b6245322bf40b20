/// Which KV head every query head reads: MHA, GQA, MQA and cross-layer (MLKV) sharing in one table. Const
/// after building; any thread.
#pragma once

#include <span>
#include <vector>

namespace keyhole {

/// A query head: layer l, head h in the layer.
struct HeadRef {
    int layer = 0;
    int head = 0;
    bool operator==(const HeadRef&) const = default;
};

/// The layers that own KV heads where n_kv_layers of n_layers do: 0 and int(i * (n_layers / n_kv_layers)). A layer that owns none
/// borrows from the nearest owner below (policies, section 2.11, from the released code of MLKV; the paper's equation (17) where
/// n_kv_layers divides n_layers). Throws Error(unsupported) unless 1 <= n_kv_layers <= n_layers.
std::vector<int> kv_owner_layers(int n_layers, int n_kv_layers);

/// One stored K and V stream. Numbered over the whole model, owner layer first.
struct KvHead {
    int owner_layer = 0;
    int index = 0;                 ///< within its owner layer
    std::vector<HeadRef> readers;  ///< ascending by layer, then head
    bool operator==(const KvHead&) const = default;
};

class KvLayout {
  public:
    /// Every layer owns n_kv_heads; query head h reads floor(h / (n_heads / n_kv_heads)). Throws
    /// Error(unsupported) unless it divides.
    static KvLayout grouped(int n_layers, int n_heads, int n_kv_heads);
    /// As grouped(), but only n_kv_layers layers own KV heads, n_kv_heads each (MLKV): see kv_owner_layers().
    static KvLayout shared(int n_layers, int n_heads, int n_kv_layers, int n_kv_heads);

    bool operator==(const KvLayout&) const = default;

    int n_layers() const { return n_layers_; }
    int n_heads() const { return n_heads_; }
    int n_kv_heads() const { return static_cast<int>(kv_heads_.size()); }  ///< of the whole model
    /// Global KV head that (layer, query head) reads.
    int kv_head_from_head(int layer, int head) const {
        return table_[static_cast<std::size_t>(layer * n_heads_ + head)];
    }
    const KvHead& kv_head(int g) const { return kv_heads_[static_cast<std::size_t>(g)]; }
    /// The layer whose KV heads a layer reads: itself or one below.
    int owner_of_layer(int layer) const { return kv_head(kv_head_from_head(layer, 0)).owner_layer; }
    /// Global indices [first, last) of the KV heads that the layer owns.
    int first_of_layer(int layer) const { return first_of_layer_[static_cast<std::size_t>(layer)]; }
    bool owns(int layer) const { return first_of_layer(layer) < first_of_layer(layer + 1); }
    /// Global indices of the KV heads that the layer reads: its own or its owner's.
    int first_read(int layer) const { return first_of_layer(owner_of_layer(layer)); }
    int last_read(int layer) const { return first_of_layer(owner_of_layer(layer) + 1); }
    /// The last layer that reads a KV head: after its attention the row has no further use for it.
    int last_reader(int g) const { return kv_head(g).readers.back().layer; }

  private:
    int n_layers_ = 0;
    int n_heads_ = 0;
    std::vector<int> table_;           // [layer, head]
    std::vector<int> first_of_layer_;  // [layers + 1]
    std::vector<KvHead> kv_heads_;
};

}  // namespace keyhole
