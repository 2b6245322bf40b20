#include "app/view/memory_plan.h"

#include <algorithm>

namespace keyhole {

std::vector<MemoryScheme> memory_schemes(int n_layers, int n_heads, int head_dim, int own_kv_heads,
                                         const MemoryRequest& request, std::int64_t stored) {
    std::vector<MemoryScheme> schemes;
    const auto add = [&](std::string name, int kv_heads) {
        const std::int64_t per_token =
            std::int64_t{2} * kv_heads * head_dim * request.bytes_per_value * request.batch;
        schemes.push_back({std::move(name), kv_heads, per_token * request.context,
                           per_token * std::min<std::int64_t>(request.context, stored)});
    };
    add("MHA: a KV head for each head", n_layers * n_heads);
    for (const int group : {2, 4})
        if (n_heads % group == 0 && group < n_heads)
            add(group == 2 ? "GQA: 2 heads share" : "GQA: 4 heads share", n_layers * (n_heads / group));
    if (n_heads > 1) add("MQA: one a layer", n_layers);
    if (n_layers > 1) add("MLKV: one for 2 layers", (n_layers + 1) / 2);
    add("this model", own_kv_heads);
    std::stable_sort(schemes.begin(), schemes.end(), [](const MemoryScheme& a, const MemoryScheme& b) {
        return a.full_bytes > b.full_bytes;
    });
    return schemes;
}

}  // namespace keyhole
