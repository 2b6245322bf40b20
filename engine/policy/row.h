/// The inputs and results of one row (the processing of one token) of one lane. Plain values, passed
/// between backend, session and exports; any thread. Of the other folders it knows base alone.
#pragma once

#include "engine/base/uninitialised_vector.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace keyhole {

/// One entry that left the cache of a KV head.
struct Eviction {
    std::int32_t kv_head = 0;   ///< global index of the KV head
    std::int32_t position = 0;  ///< position of the evicted token
    std::int32_t row = 0;       ///< row that evicted it; that row still attended to it
    bool operator==(const Eviction&) const = default;
};

/// Where a row's attention and scores are written.
enum class RowForm {
    floats,  ///< in RowValues
    packed,  ///< in RowOutput::block; RowValues may lack them, their positions and the thresholds
    both,
};

/// The parts of a row that the caller requests.
struct RowRequest {
    bool attention = false;
    bool logits = false;  ///< attention logits
    bool noise = false;
    bool scores = false;
    bool shadow = false;  ///< full rows of lanes that run a shadow
    RowForm form = RowForm::floats;
    bool inputs = false;  ///< queries, keys and values of the row's token
};

/// The values of one row of one lane, ragged. The attended tokens of KV head g are entries [offset[g],
/// offset[g + 1]) of `positions`, ascending. The values of a query head follow the same order, from
/// head_offset[layer * n_heads + head].
struct RowValues {
    std::vector<std::int32_t> offset;       ///< [n_kv_heads + 1]
    std::vector<std::int32_t> positions;    ///< [offset.back()]
    std::vector<std::int64_t> head_offset;  ///< [n_layers * n_heads + 1]
    std::vector<float> attention;           ///< [head_offset.back()] probabilities, or empty
    std::vector<float> logits;              ///< same: q.k / sqrt(head_dim), before temperature; or empty
    std::vector<float> noise;               ///< same, or empty
    std::vector<float> scores;  ///< [offset.back()] pooled, after the row, before its eviction; or empty
    /// [offset.back()] 1: stored but hidden from this row (ResolvedPolicy::hides): its probability is 0,
    /// its logit NaN. Empty when the row saw all stored tokens.
    std::vector<std::uint8_t> hidden;
    /// [n_layers * n_heads, row + 1] full attention on the lane's own queries, or empty
    std::vector<float> shadow;
    /// [n_kv_heads] lowest score that stayed among the competing tokens; NaN where nothing competed
    std::vector<float> threshold;
};

/// The values of one lane at one row, packed as records hold them, in the ragged order of RowValues. The
/// attended positions are not stored. They are all p <= row with evicted_at[g][p] < 0 or >= row
/// (RunHistory::held_positions), hidden ones included.
struct RowBlock {
    std::vector<std::int32_t> offset;              ///< [n_kv_heads + 1]
    std::vector<std::int64_t> head_offset;         ///< [n_layers * n_heads + 1]
    UninitialisedVector<std::uint16_t> attention;  ///< fp16
    UninitialisedVector<float> scores;             ///< [offset.back()] pooled
    std::vector<float> threshold;                  ///< [n_kv_heads]
    std::size_t bytes() const {
        return offset.size() * sizeof(offset[0]) + head_offset.size() * sizeof(head_offset[0]) +
               attention.size() * sizeof(attention[0]) + scores.size() * sizeof(scores[0]) +
               threshold.size() * sizeof(threshold[0]);
    }
};

/// What attention is computed from: of the row's own token, in float, as the model made it. Empty where not
/// wanted. Layers that borrow KV heads have none of their own.
struct RowInputs {
    std::vector<float> q, raw_q;  ///< [n_layers * n_heads, head_dim] after and before the rotation
    std::vector<float> k, raw_k;  ///< [n_kv_heads, head_dim] the same
    std::vector<float> v;         ///< [n_kv_heads, head_dim]
};

/// Measures of a row against full attention on the lane's own queries, per (layer, query head), [n_layers *
/// n_heads] each; empty without a shadow. Equations: engine/analysis/measure_table.h.
struct ShadowRow {
    std::vector<float> retained_mass;      ///< full-row probability on the attended set; the rest is lost
    std::vector<float> cosine_ideal;       ///< between the lane's row and the row that keeps the best k
    std::vector<float> cosine_full;        ///< between the lane's row and the full row
    std::vector<float> output_similarity;  ///< cosine of the attention outputs, before the output projection
};

/// Means of one row over layers and query heads, for records; NaN: not computed. Equations:
/// engine/analysis/measure_table.h.
struct RowMeasures {
    static constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    float retained_mass = kNone;  ///< this and the next three: means of ShadowRow
    float cosine_ideal = kNone;
    float cosine_full = kNone;
    float output_similarity = kNone;
    float sink_share = kNone;    ///< only when the row's attention was requested
    float learned_sink = kNone;  ///< the same, and only of models with learned sinks
};

/// The results of one row. A backend fills it; the caller owns and reuses it.
struct RowOutput {
    std::vector<float> next_logits;  ///< [n_vocab]
    RowValues values;
    RowInputs inputs;
    /// Attention and scores as RowRequest::form asks; null where neither is wanted. Complete once
    /// Backend::finish_rows() has returned.
    std::shared_ptr<const RowBlock> block;
    /// [n_layers * n_heads, kSinkTokens] the probabilities of the text's first tokens, 0 where not stored.
    /// Only where attention is packed and not in `values`; for mean_measures().
    std::vector<float> sink_attention;
    std::vector<Eviction> evictions;  ///< evictions of this row, ascending (kv_head, position)
    ShadowRow shadow;
    /// [n_layers, n_experts_used] the experts that the row's token ran, best first; kNoExpert in a layer
    /// without experts. Empty: the model has none.
    std::vector<std::uint16_t> experts;
    static constexpr std::uint16_t kNoExpert = 0xffff;

    void drop_values() {
        values = {};
        inputs = {};
        block = nullptr;
        sink_attention.clear();
    }
};

/// Sizes of a lane's cache, in tokens and bytes of K and V.
struct CacheUse {
    std::int64_t stored_tokens = 0;  ///< summed over KV heads
    std::int64_t stored_bytes = 0;
    std::int64_t allocated_bytes = 0;  ///< memory that the system has given, scores included
    std::int64_t shadow_bytes = 0;     ///< K and V kept for measures only, counted in neither of the above
};

}  // namespace keyhole
