#include "engine/model/kv_layout.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace keyhole {

std::vector<int> kv_owner_layers(int n_layers, int n_kv_layers) {
    if (n_kv_layers < 1 || n_kv_layers > n_layers)
        fail(ErrorCode::unsupported, "{} of {} layers cannot own the KV heads; name 1 to {}", n_kv_layers,
             n_layers, n_layers);
    std::vector<int> owners;
    // In floating point, as the released code does.
    const double stride = static_cast<double>(n_layers) / n_kv_layers;
    for (int i = 0; i < n_kv_layers; ++i) owners.push_back(static_cast<int>(i * stride));
    return owners;
}

KvLayout KvLayout::grouped(int n_layers, int n_heads, int n_kv_heads) {
    return shared(n_layers, n_heads, n_layers, n_kv_heads);
}

KvLayout KvLayout::shared(int n_layers, int n_heads, int n_kv_layers, int n_kv_heads) {
    if (n_layers < 1 || n_heads < 1 || n_kv_heads < 1 || n_heads % n_kv_heads != 0)
        fail(ErrorCode::unsupported,
             "{} query heads cannot share {} KV heads evenly in {} layers; the number of query heads must be "
             "a multiple",
             n_heads, n_kv_heads, n_layers);
    const std::vector<int> owners = kv_owner_layers(n_layers, n_kv_layers);
    KvLayout layout;
    layout.n_layers_ = n_layers;
    layout.n_heads_ = n_heads;
    const int group = n_heads / n_kv_heads;
    std::size_t owner = 0;
    for (int l = 0; l < n_layers; ++l) {
        layout.first_of_layer_.push_back(layout.n_kv_heads());
        if (owner < owners.size() && owners[owner] == l) {
            for (int index = 0; index < n_kv_heads; ++index) layout.kv_heads_.push_back({l, index, {}});
            ++owner;
        }
        const int first = layout.n_kv_heads() - n_kv_heads;  // of the nearest owner at or below l
        for (int h = 0; h < n_heads; ++h) {
            const int g = first + h / group;
            layout.kv_heads_[to_index(g)].readers.push_back({l, h});
            layout.table_.push_back(g);
        }
    }
    layout.first_of_layer_.push_back(layout.n_kv_heads());
    return layout;
}

}  // namespace keyhole
