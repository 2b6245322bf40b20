/// What the K and V of a text would take under each scheme of sharing them, at a chosen context and batch. Pure arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keyhole {

struct MemoryRequest {
    int context = 4096;       ///< tokens of a sequence
    int batch = 1;            ///< sequences
    int bytes_per_value = 2;  ///< 2: half precision
    bool operator==(const MemoryRequest&) const = default;
};

struct MemoryScheme {
    std::string name;
    int n_kv_heads = 0;             ///< of all layers
    std::int64_t full_bytes = 0;    ///< every token
    std::int64_t budget_bytes = 0;  ///< at most `stored` tokens a KV head
};

/// MHA, GQA by two and four, MQA, MLKV over two layers and the model's own; by falling bytes. stored: tokens a KV head keeps under the
/// focused policy.
///
///     bytes = 2 (K and V) * KV heads of all layers * head_dim * tokens * batch * bytes of a value
std::vector<MemoryScheme> memory_schemes(int n_layers, int n_heads, int head_dim, int own_kv_heads,
                                         const MemoryRequest& request, std::int64_t stored);

}  // namespace keyhole
