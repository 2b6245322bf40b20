/// Evaluates the formulas of a policy for one unit, on the host: what a selection ranks, and which tokens
/// cannot leave. Pure functions; any thread; knows no cache. CUDA twin: backend/cuda/kernels/choice.h.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/policy/future.h"
#include "engine/policy/params.h"
#include "engine/policy/selection.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Returns whether a formula of the policy needs stored keys, or stored values.
inline bool reads_keys(const ResolvedPolicy& policy) {
    return policy.names(Quantity::knorm) || policy.names(Quantity::keydiff);
}
inline bool reads_values(const ResolvedPolicy& policy) {
    return policy.names(Quantity::vnorm);
}

/// What a KV head of the unit stores, in text order, rounded as it is stored.
struct ChoiceHead {
    std::vector<std::int32_t> positions{};
    std::vector<float> keys{};    ///< [n, head_dim]; empty where no formula reads keys
    std::vector<float> values{};  ///< the same
};

/// What the formulas see of a unit, beside its pooled scores.
struct ChoiceUnit {
    const KvLayout& layout;
    Unit unit;
    const ResolvedPolicy& policy;  ///< the unit's
    int row = 0;
    int head_dim = 0;
    const FutureTable* future = nullptr;
    std::span<const ChoiceHead> heads{};        ///< of the unit's KV heads
    std::span<const std::int32_t> positions{};  ///< the union of what they store, ascending
};

/// Replaces the pooled scores by what the selection ranks, and adds the protected tokens to `pinned`
/// (positions, ascending). A quantity of a token is pooled over the unit's KV heads that store it.
void choose_on_host(const ChoiceUnit& of, std::span<float> pooled, std::vector<std::int32_t>& pinned);

}  // namespace keyhole
