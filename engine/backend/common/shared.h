/// Decisions that the CPU and the CUDA backend share: the capacity of a cache, the sizes of a row's values,
/// which running scores a prompt needs and how they are pooled. Pure functions; any thread. Knows no kernel.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/common/accumulators.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace keyhole {

/// Returns the policy of the unit that a KV head belongs to: all heads of a unit have the same
/// (check_overrides).
inline const ResolvedPolicy& unit_policy(const KvLayout& layout, const ResolvedPolicy& policy, int kv_head) {
    const HeadRef& reader = layout.kv_head(kv_head).readers.front();
    return policy.at(reader.layer, reader.head);
}

/// Returns whether a cache keeps the same tokens under both policies: they differ in nothing but the shadow,
/// which only measures. Setting such a policy evicts nothing.
inline bool keeps_alike(ResolvedPolicy a, const ResolvedPolicy& b) {
    a.shadow = b.shadow;
    return a == b;
}

/// Returns for how many coming rows an unlimited cache has room before it grows: what the session will
/// generate, which is the horizon unless the lane names its own. Clamped, since a cache grows by half of its
/// capacity anyway.
inline int rows_of_room(const ResolvedPolicy& policy) {
    return std::clamp(policy.horizon, 64, 4096);
}

/// Returns the slots that every KV head needs when it stores n_stored[g] tokens of a text of n_columns: its
/// budget plus the rows until the next eviction. With nothing to evict, or where the released code only
/// masks, it adds room to continue.
std::vector<int> wanted_capacity(const KvLayout& layout, const ResolvedPolicy& policy,
                                 std::span<const int> n_stored, int n_columns);

/// Returns the new capacity of every KV head when the next row does not fit; empty where there is room. A
/// head that evicts grows no further than it will ever need; where the released code only masks, room grows
/// with the text. Cache: policy(), layout(), count(g), capacity(g).
template <class Cache>
std::vector<int> room_for_row(const Cache& cache, int row) {
    const int n_kv_heads = cache.layout().n_kv_heads();
    const auto needed = [&](int g) {
        return unit_policy(cache.layout(), cache.policy(), g).keeps_memory ? row + 1 : cache.count(g) + 1;
    };
    std::vector<int> capacity;
    bool is_short = false;
    for (int g = 0; g < n_kv_heads && !is_short; ++g) is_short = needed(g) > cache.capacity(g);
    if (!is_short) return capacity;
    for (int g = 0; g < n_kv_heads; ++g) {
        const ResolvedPolicy& policy = unit_policy(cache.layout(), cache.policy(), g);
        const int had = cache.capacity(g);
        int room = needed(g) > had ? needed(g) + had / 2 : had;
        // Beyond what the budget stores, tokens that are protected or pinned make the cache grow.
        if (needed(g) > had && !policy.grows() && needed(g) <= policy.most_stored())
            room = std::min(room, policy.most_stored());
        capacity.push_back(room);
    }
    return capacity;
}

/// How a query head of the model sees keys:
///     logit = capped(scale * q.k) + slope * (place of the key - place of the query)
///     capped(x) = cap tanh(x / cap), or x where cap is 0
/// It sees the newest `window` tokens; 0 means all. A head with a sink divides its attention among these
/// tokens and the sink: the probabilities of the tokens add up to less than 1.
struct AttentionRule {
    float scale = 1;
    float slope = 0;  ///< ALiBi
    int window = 0;
    float cap = 0;
    bool hides(int row, int position) const { return window > 0 && position <= row - window; }
};
AttentionRule attention_rule(const ModelConfig& config, int layer, int head);

/// The rotary of a layer; null where it does not rotate.
const Rotary* rotary_of(const ModelConfig& config, int layer);

/// True when some layer hides stored tokens from a row at that position.
bool model_hides(const ModelConfig& config, int row);

/// Sets the offsets and sizes of a row that attends to n_attended[g] tokens of KV head g. Thresholds become
/// NaN. `hidden` becomes 0 where the policy or the model hides any token, and is empty otherwise. Evictions
/// become empty, and the block of an earlier row is dropped.
void size_row(const KvLayout& layout, std::span<const int> n_attended, const ResolvedPolicy& policy,
              const RowRequest& requested, bool hides, RowOutput& out);
/// Makes room for the row's inputs where they are wanted, else none.
void size_inputs(const KvLayout& layout, int head_dim, const RowRequest& requested, RowOutput& out);
/// Writes the offsets alone: RowValues::offset and head_offset.
void row_offsets(const KvLayout& layout, std::span<const int> n_attended, std::vector<std::int32_t>& offset,
                 std::vector<std::int64_t>& head_offset);

/// Makes the row's block from its floats where `requested` asks for one, on the backend's threads.
void pack_row(Backend& backend, const RowRequest& requested, RowOutput& out);

/// Folds the next query head's scores into the pooled ones; `first` starts a new pool.
void pool_more(Pool pool, bool first, const float* score, std::int64_t n, float* pooled);
/// Divides the pooled scores by n_readers where the pool is a mean.
void finish_pool(Pool pool, int n_readers, std::int64_t n, float* pooled);

/// A score of one query head that accumulates over the prompt. Lanes with equal settings share one.
struct ScoreStream {
    float alpha = 1;
    bool tempered = false;
    ScoreType dtype = ScoreType::fp32;
    // For the tempered softmax:
    float tau = 1, gain = 1;
    NoiseKind noise = NoiseKind::none;
    NoiseDraw draw = NoiseDraw::token;
    std::uint64_t seed = 0;
    FormulaRef score{};          ///< folds it; none: as the others say
    int budget = 0, window = 0;  ///< what the formula may name, beside alpha, tau and gain
    float mix = 0;
    KvType kv_dtype = KvType::automatic;  ///< of the keys and values whose lengths it names
    bool operator==(const ScoreStream&) const = default;
};

/// The streams that the lanes of one prompt need.
struct StreamPlan {
    StreamPlan(const KvLayout& layout, std::span<const LanePrefill> lanes);

    /// Returns the stream of a lane's accumulator for a query head; -1 when it does not run.
    int of(std::size_t lane, int layer, int head, int accumulator) const {
        return of_lane[lane][to_index(layer * n_heads + head)][to_index(accumulator)];
    }
    /// Returns the stream by which the head selects.
    int own(const LanePrefill& prefill, std::size_t lane, int layer, int head) const {
        return of(lane, layer, head, accumulator_of(prefill.cache->policy().at(layer, head)));
    }

    int n_heads = 0;
    int n_streams = 0;  ///< of the head that needs the most
    std::vector<std::vector<ScoreStream>>
        streams;  ///< [n_layers * n_heads]: what the lanes need of that head
    std::vector<std::vector<std::array<int, kAccumulators>>>
        of_lane;  ///< [lane][n_layers * n_heads][accumulator]
};

}  // namespace keyhole
