#include "engine/backend/memory_need.h"

#include "engine/model/kv_default.h"

#include <algorithm>

namespace keyhole {
namespace {

constexpr std::int64_t kFloat = 4;

/// Returns the largest n in [0, most] for which fits(n) is true; fits must be true up to some n and false
/// beyond.
template <class Fits>
std::int64_t largest(std::int64_t most, Fits fits) {
    std::int64_t low = 0, high = most;
    while (low < high) {
        const std::int64_t middle = low + (high - low + 1) / 2;
        if (fits(middle)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

}  // namespace

std::int64_t weight_bytes(const Model& model) {
    std::int64_t sum = 0;
    visit_weights(model.weights(), [&](const Weight& w) { sum += stored_bytes(w); });
    return sum;
}

bool has_quantised_weights(const Model& model) {
    bool any = false;
    visit_weights(model.weights(), [&](const Weight& w) { any = any || is_quantised(w.dtype); });
    return any;
}

MemoryNeed memory_need(const Model& model, std::int64_t context, int batch, int n_threads) {
    const ModelConfig& c = model.config();
    MemoryNeed need;
    need.weights = weight_bytes(model);
    const KvLayout& layout = model.layout();
    const std::int64_t row_bytes = kv_row_bytes(kv_type_for(KvType::automatic, model), c.head_dim);
    std::int64_t slot_bytes = 0, widest_layer = 0;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const auto n_readers = static_cast<std::int64_t>(layout.kv_head(g).readers.size());
        // K, V; position, order; one running score per reader.
        slot_bytes += 2 * row_bytes + (2 + n_readers) * kFloat;
    }
    constexpr std::int64_t kRoom = 64;  // a cache has room for this many decoded tokens before it grows
    need.cache = batch * (context + kRoom) * slot_bytes;
    for (int l = 0; l < c.n_layers; ++l)
        widest_layer =
            std::max<std::int64_t>(widest_layer, layout.first_of_layer(l + 1) - layout.first_of_layer(l));

    // Sizes as in Prefill: rows of all tokens, a block of the hidden layer, a tile of rows per thread, the
    // layer's K and V.
    const std::int64_t d_q = std::int64_t{c.n_heads} * c.head_dim, d_kv = widest_layer * c.head_dim;
    constexpr std::int64_t kHiddenRows = 512, kTileRows = 64;
    need.scratch = context * (3 * std::int64_t{c.d_model} + 2 * d_q + 4 * d_kv + c.n_heads) * kFloat;
    need.scratch += 2 * std::min(context, kHiddenRows) * std::max(c.d_ff, c.d_expert) * kFloat;
    if (c.n_experts > 0)  // the router's logits, and the rows of one expert
        need.scratch += (context * c.n_experts + 2 * std::min(context, kHiddenRows) * c.d_model) * kFloat;
    if (has_quantised_weights(model))  // inputs of products in integers, 192 bytes for 32 numbers
        need.scratch += 6 * std::max(context * std::max<std::int64_t>(c.d_model, d_q),
                                     std::min(context, kHiddenRows) * std::max(c.d_ff, c.d_expert));
    need.scratch += n_threads * 2 * kTileRows * context * kFloat;
    need.scratch += batch * (std::int64_t{c.n_vocab} + 4 * c.d_model + 2 * c.d_ff) * kFloat;
    return need;
}

std::int64_t longest_context(const Model& model, int batch, int n_threads, std::int64_t n_bytes) {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    return largest(kMost, [&](std::int64_t n) {
        return n == 0 || memory_need(model, n, batch, n_threads).total() <= n_bytes;
    });
}

int largest_batch(const Model& model, std::int64_t context, int n_threads, std::int64_t n_bytes) {
    constexpr std::int64_t kMost = 1 << 20;
    return static_cast<int>(largest(kMost, [&](std::int64_t n) {
        return n == 0 || memory_need(model, context, static_cast<int>(n), n_threads).total() <= n_bytes;
    }));
}

}  // namespace keyhole
