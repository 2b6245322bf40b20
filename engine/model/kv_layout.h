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

/// One stored K and V stream. Numbered over the whole model, owner layer first.
struct KvHead {
    int owner_layer = 0;
    int index = 0;                 ///< within its owner layer
    std::vector<HeadRef> readers;  ///< ascending by layer, then head
};

class KvLayout {
  public:
    /// Every layer owns n_kv_heads; query head h reads floor(h / (n_heads / n_kv_heads)). Throws
    /// Error(unsupported) unless it divides.
    static KvLayout grouped(int n_layers, int n_heads, int n_kv_heads);

    int n_layers() const { return n_layers_; }
    int n_heads() const { return n_heads_; }
    int n_kv_heads() const { return static_cast<int>(kv_heads_.size()); }  ///< of the whole model
    /// Global KV head that (layer, query head) reads.
    int kv_head_from_head(int layer, int head) const {
        return table_[static_cast<std::size_t>(layer * n_heads_ + head)];
    }
    const KvHead& kv_head(int g) const { return kv_heads_[static_cast<std::size_t>(g)]; }
    /// Global indices [first, last) of the KV heads that the layer owns.
    int first_of_layer(int layer) const { return first_of_layer_[static_cast<std::size_t>(layer)]; }

  private:
    int n_layers_ = 0;
    int n_heads_ = 0;
    std::vector<int> table_;           // [layer, head]
    std::vector<int> first_of_layer_;  // [layers + 1]
    std::vector<KvHead> kv_heads_;
};

}  // namespace keyhole
