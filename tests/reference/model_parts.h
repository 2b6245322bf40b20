/// Model descriptions to test a backend on: every feature alone, and the pairs that occur together in a
/// family.
#pragma once

#include "tests/reference/any_model.h"

#include <functional>
#include <ostream>

namespace reference {

using keyhole::Activation;
using keyhole::NormKind;
using keyhole::PositionKind;

struct ModelPart {
    const char* name;
    std::function<void(AnyShape&)> change;
};

inline std::ostream& operator<<(std::ostream& out, const ModelPart& part) {
    return out << part.name;
}

inline const ModelPart kModelParts[] = {
    {"llama", [](AnyShape&) {}},
    {"layer_norm", [](AnyShape& s) { s.config.norm = NormKind::layer, s.config.norm_eps = 0.05f; }},
    {"layer_norm_with_biases", [](AnyShape& s) { s.config.norm = NormKind::layer, s.biases = true; }},
    {"biases", [](AnyShape& s) { s.biases = true; }},
    {"gelu", [](AnyShape& s) { s.config.activation = Activation::gelu, s.gate = false, s.biases = true; }},
    {"gelu_gated", [](AnyShape& s) { s.config.activation = Activation::gelu; }},
    {"gelu_tanh", [](AnyShape& s) { s.config.activation = Activation::gelu_tanh, s.gate = false; }},
    {"relu", [](AnyShape& s) { s.config.activation = Activation::relu, s.gate = false; }},
    {"silu_without_gate", [](AnyShape& s) { s.gate = false; }},
    {"rotary_partial", [](AnyShape& s) { s.config.rotary.dims = 4; }},
    {"rotary_of_two", [](AnyShape& s) { s.config.rotary.dims = 2, s.config.head_dim = 10; }},
    {"rotary_interleaved", [](AnyShape& s) { s.config.rotary.interleaved = true; }},
    {"rotary_interleaved_partial",
     [](AnyShape& s) { s.config.rotary.interleaved = true, s.config.rotary.dims = 6; }},
    {"rotary_wide",
     [](AnyShape& s) { s.config.head_dim = 40, s.config.rotary.dims = 36, s.config.n_heads = 2; }},
    {"rotary_frequencies",
     [](AnyShape& s) {
         s.config.rotary.inverse_frequency = {0.9, 0.31, 0.002, 0.05};
     }},
    {"rotary_magnitude", [](AnyShape& s) { s.config.rotary.magnitude = 1.3f; }},
    {"rotary_magnitude_partial",
     [](AnyShape& s) { s.config.rotary.magnitude = 0.8f, s.config.rotary.dims = 4; }},
    {"alibi", [](AnyShape& s) { s.config.positions = PositionKind::alibi; }},
    {"alibi_slopes",
     [](AnyShape& s) {
         s.config.positions = PositionKind::alibi;
         s.config.n_heads = 6;
         s.config.alibi_slopes = {0.7f, 0.1f, 0.03f, 1.5f, 0.0f, 0.4f};
     }},
    {"learned", [](AnyShape& s) { s.config.positions = PositionKind::learned; }},
    {"learned_with_offset",
     [](AnyShape& s) { s.config.positions = PositionKind::learned, s.config.position_offset = 2; }},
    {"learned_to_the_end",
     [](AnyShape& s) {
         s.config.positions = PositionKind::learned;
         s.config.n_ctx = 51;
     }},
    {"parallel",
     [](AnyShape& s) { s.config.parallel = true, s.config.norm = NormKind::layer, s.biases = true; }},
    {"parallel_shared", [](AnyShape& s) { s.config.parallel = s.config.shared_norm = true; }},
    {"post_norm",
     [](AnyShape& s) { s.config.post_norm = true, s.config.norm = NormKind::layer, s.final_norm = false; }},
    {"qk_norm", [](AnyShape& s) { s.qk_norm = true; }},
    {"clipped", [](AnyShape& s) { s.config.clip_qkv = 0.8f; }},
    {"attention_scale", [](AnyShape& s) { s.config.attention_scale = 0.21f; }},
    {"projections", [](AnyShape& s) { s.d_embed = 20; }},
    {"output_bias", [](AnyShape& s) { s.output_bias = true; }},
    {"head_dim_apart", [](AnyShape& s) { s.config.d_model = 20; }},
    {"window",
     [](AnyShape& s) {
         s.config.window = {9, 9};
     }},
    {"window_in_one_layer",
     [](AnyShape& s) {
         s.config.window = {0, 5};
     }},
    {"window_of_one",
     [](AnyShape& s) {
         s.config.window = {1, 1};
     }},
    {"window_beyond_the_text",
     [](AnyShape& s) {
         s.config.window = {100, 45};
     }},
    {"window_with_alibi",
     [](AnyShape& s) {
         s.config.positions = PositionKind::alibi, s.config.window = {7, 12};
     }},
};

/// Parts that the CPU computes and CUDA refuses.
inline const ModelPart kCpuParts[] = {
    {"norm_offset", [](AnyShape& s) { s.config.norm_offset = 1, s.qk_norm = true; }},
    {"scales",
     [](AnyShape& s) {
         s.config.embedding_scale = 1.7f, s.config.residual_scale = 0.6f, s.config.logit_scale = 0.3f;
     }},
    {"caps", [](AnyShape& s) { s.config.attention_cap = 1.5f, s.config.logit_cap = 2.0f; }},
    {"out_norms", [](AnyShape& s) { s.out_norms = true; }},
    {"out_norms_alone", [](AnyShape& s) { s.out_norms = true, s.input_norms = false; }},
    {"width_norm", [](AnyShape& s) { s.width_norm = true; }},
    {"embedding_norm",
     [](AnyShape& s) { s.embedding_norm = s.biases = true, s.config.norm = NormKind::layer; }},
    {"two_rotary_bases",
     [](AnyShape& s) {
         s.config.window = {0, 7};
         s.config.local_rotary = s.config.rotary;
         s.config.local_rotary.inverse_frequency = {0.9, 0.31, 0.02, 0.05};
     }},
    {"unrotated_layer",
     [](AnyShape& s) {
         s.config.unrotated = {true, false};
     }},
    {"experts",
     [](AnyShape& s) {
         s.config.n_experts = 5, s.config.n_experts_used = 2, s.config.d_expert = 24, s.config.d_ff = 24;
     }},
    {"experts_of_gpt_oss",
     [](AnyShape& s) {
         s.config.n_experts = 4, s.config.n_experts_used = 3, s.config.d_expert = 20, s.config.d_ff = 20;
         s.config.experts_sum_to_one = true, s.config.activation = Activation::clamped_swiglu;
         s.biases = true;
     }},
    {"sinks", [](AnyShape& s) { s.config.has_sinks = true; }},
    {"sinks_and_window",
     [](AnyShape& s) {
         s.config.has_sinks = true, s.config.window = {0, 5};
     }},
};

}  // namespace reference
