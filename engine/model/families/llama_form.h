/// The form that LLaMA, Mistral and Qwen share: RMSNorm, rotary positions over the whole head, a gated
/// feed-forward layer, MHA or GQA. Used by one thread while loading.
#pragma once

#include "engine/model/families/family.h"

namespace keyhole {

/// The differences between these families.
struct LlamaForm {
    std::string_view name;
    bool qkv_bias = false;
    bool o_bias = false;
    bool mlp_bias = false;
    bool qk_norm = false;
    int n_kv_heads =
        0;  ///< when the file has no num_key_value_heads, and not null; 0: as many as query heads
    int bos = -1, eos = -1;  ///< when the file has no bos_token_id or eos_token_id
    int head_dim = 0;        ///< when the file has none; 0: hidden_size / num_attention_heads
};

ModelConfig read_llama_config(const ConfigFile& file, const LlamaForm& form);
ModelWeights map_llama_weights(const ModelConfig& config, const LlamaForm& form, Checkpoint& checkpoint);

}  // namespace keyhole
