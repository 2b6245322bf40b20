#include "engine/model/kv_layout.h"

#include "engine/base/error.h"

namespace keyhole {

KvLayout KvLayout::grouped(int n_layers, int n_heads, int n_kv_heads) {
    if (n_layers < 1 || n_heads < 1 || n_kv_heads < 1 || n_heads % n_kv_heads != 0)
        fail(ErrorCode::unsupported,
             "{} query heads cannot share {} KV heads evenly in {} layers; the number of query heads must be "
             "a multiple",
             n_heads, n_kv_heads, n_layers);
    KvLayout layout;
    layout.n_layers_ = n_layers;
    layout.n_heads_ = n_heads;
    const int group = n_heads / n_kv_heads;
    for (int l = 0; l < n_layers; ++l) {
        layout.first_of_layer_.push_back(l * n_kv_heads);
        for (int index = 0; index < n_kv_heads; ++index) {
            KvHead& kv = layout.kv_heads_.emplace_back();
            kv.owner_layer = l;
            kv.index = index;
            for (int h = index * group; h < (index + 1) * group; ++h) {
                kv.readers.push_back({l, h});
                layout.table_.push_back(l * n_kv_heads + index);
            }
        }
    }
    layout.first_of_layer_.push_back(n_layers * n_kv_heads);
    return layout;
}

}  // namespace keyhole
