#include "engine/backend/cuda/missing_part.h"

#include <initializer_list>

namespace keyhole::cuda {
namespace {

// Each function below names every member of a struct, or every value of an enumeration, so one that is added
// does not compile here. Name it where it stands in the struct; where the step on the device does not compute
// it, return what it is. Nothing else keeps CUDA from leaving it out in silence.

std::string missing_of(NormKind norm) {
    switch (norm) {
        case NormKind::rms:
        case NormKind::layer:
            return {};
    }
    return {};
}

std::string missing_of(Activation activation) {
    switch (activation) {
        case Activation::silu:
        case Activation::gelu:
        case Activation::gelu_tanh:
        case Activation::relu:
            return {};
        case Activation::clamped_swiglu:
            return "a clamped activation";
    }
    return {};
}

std::string missing_of(PositionKind positions) {
    switch (positions) {
        case PositionKind::rotary:
        case PositionKind::alibi:
        case PositionKind::learned:
            return {};
    }
    return {};
}

std::string missing_of(const Rotary& rotary) {
    const auto& [dims, interleaved, inverse_frequency, magnitude, switch_length, long_inverse_frequency,
                 dynamic_factor, base] = rotary;
    const bool changes = switch_length != 0 || dynamic_factor != 0 || !long_inverse_frequency.empty();
    return changes ? "rotary frequencies that change with the text's length" : "";
}

std::string missing_of(const ModelConfig& config) {
    const auto& [family, n_layers, n_heads, n_kv_heads, n_kv_layers, borrows_unrotated, merged, head_dim,
                 d_model, d_ff, n_vocab, n_ctx, norm, norm_eps, activation, parallel, shared_norm, post_norm,
                 positions, rotary, position_offset, alibi_slopes, attention_scale, clip_qkv, window,
                 local_rotary, unrotated, norm_offset, embedding_scale, residual_scale, logit_scale,
                 logit_cap, attention_cap, n_experts, n_experts_used, d_expert, experts_sum_to_one, has_sinks,
                 rope_theta, tied, bos, eos] = config;
    // n_experts_used, d_expert and experts_sum_to_one are of experts.
    if (n_experts > 0) return "experts";
    if (has_sinks) return "learned attention sinks";
    if (attention_cap > 0 || logit_cap > 0) return "soft caps of logits";
    if (local_rotary.dims > 0) return "two rotary bases";
    if (!unrotated.empty()) return "layers without rotation";
    if (norm_offset != 0 || embedding_scale != 1 || residual_scale != 1 || logit_scale != 1)
        return "scaled embeddings, branches or norms";
    for (const std::string& part :
         {missing_of(norm), missing_of(activation), missing_of(positions), missing_of(rotary)})
        if (!part.empty()) return part;
    return {};
}

std::string missing_of(const LayerWeights& layer, int head_dim) {
    const auto& [attention_norm, attention_norm_bias, q, q_bias, k, v, k_bias, v_bias, q_norm, k_norm, sinks,
                 o, o_bias, attention_out_norm, mlp_out_norm, mlp_norm, mlp_norm_bias, gate, up, gate_bias,
                 up_bias, down, down_bias, router, router_bias, experts] = layer;
    if (!experts.empty() || router.data != nullptr || router_bias.data != nullptr) return "experts";
    if (sinks.data != nullptr) return "learned attention sinks";
    if (attention_norm.data == nullptr || attention_out_norm.data != nullptr || mlp_out_norm.data != nullptr)
        return "norms after a branch";
    if (q_norm.rows > head_dim || k_norm.rows > head_dim) return "a norm of all queries together";
    return {};
}

std::string missing_of(const ModelWeights& weights, int head_dim) {
    const auto& [embedding, embedding_norm, embedding_norm_bias, position_embedding, project_in, layers,
                 final_norm, final_norm_bias, project_out, output, output_bias] = weights;
    if (embedding_norm.data != nullptr || embedding_norm_bias.data != nullptr)
        return "a norm of the embedding";
    for (const LayerWeights& layer : layers)
        if (const std::string part = missing_of(layer, head_dim); !part.empty()) return part;
    return {};
}

}  // namespace

std::string missing_part(const Model& model) {
    const std::string of_config = missing_of(model.config());
    return of_config.empty() ? missing_of(model.weights(), model.config().head_dim) : of_config;
}

}  // namespace keyhole::cuda
