/// The form that most families share: an RMSNorm or LayerNorm before or after each branch, rotary positions,
/// a gated feed-forward layer or experts, MHA or GQA. Used by one thread while loading.
#pragma once

#include "engine/model/families/family.h"

namespace keyhole {

/// What the norm of queries and keys covers.
enum class QkNorm { none, head, all_heads };

/// The names of a layer's experts, after its prefix: "mlp.gate", "mlp.experts", "gate_proj" and so on.
struct ExpertNames {
    const char *router = nullptr, *experts = nullptr;  ///< null: no experts
    const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
};

/// The differences between these families. A name of a norm is that of its tensor; null: it has none.
struct LlamaForm {
    std::string_view name;
    bool qkv_bias = false;
    bool o_bias = false;
    bool mlp_bias = false;
    QkNorm qk_norm = QkNorm::none;
    int n_kv_heads =
        0;  ///< when the file has no num_key_value_heads, and not null; 0: as many as query heads
    int bos = -1, eos = -1;  ///< when the file has no bos_token_id or eos_token_id
    int head_dim = 0;        ///< when the file has none; 0: hidden_size / num_attention_heads
    int n_heads = 0, n_vocab = 0, n_ctx = 2048;  ///< when the file has none; 0: it must have it
    double theta = 10000.0;                      ///< the same
    bool tied = false;                           ///< the same
    double rotary_part = 0;        ///< partial_rotary_factor, when the file has none; 0: it must not have it
    bool rotary_by_layer = false;  ///< sliding layers have another rotary, which the family reads
    NormKind norm = NormKind::rms;
    bool norm_bias = false;
    double norm_eps = 1e-6;  ///< when the file has none
    const char* activation_key = "/hidden_act";
    const char* activation = "silu";
    const char *attention_norm = "input_layernorm", *mlp_norm = "post_attention_layernorm";
    const char *attention_out_norm = nullptr, *mlp_out_norm = nullptr;  ///< before a branch is added
    bool fused_qkv = false;      ///< self_attn.qkv_proj: all of q, of k, of v
    bool fused_gate_up = false;  ///< mlp.gate_up_proj: all of gate, of up
    bool takes_mxfp4 = false;    ///< quantization_config is left to the family
    bool own_experts = false;    ///< the family takes the feed-forward layers
    ExpertNames experts = {};
};

ModelConfig read_llama_config(const ConfigFile& file, const LlamaForm& form);
ModelWeights map_llama_weights(const ModelConfig& config, const LlamaForm& form, Checkpoint& checkpoint);

/// Reads num_experts or num_local_experts, num_experts_per_tok, and the neurons of an expert at width_key.
void read_experts(const ConfigFile& file, const char* width_key, ModelConfig& config);

}  // namespace keyhole
