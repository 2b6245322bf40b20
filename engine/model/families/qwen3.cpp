// Qwen 3: LLaMA's form with an RMSNorm of each head's query and key before rotation, heads of 128 by
// default, and the sliding window of Qwen 2.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm form_of(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "qwen3",
            .qkv_bias = bias,
            .o_bias = bias,
            .qk_norm = true,
            .n_kv_heads = 32,
            .head_dim = 128};
}

ModelConfig read_config(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, form_of(file));
    set_qwen_window(file, config);
    return config;
}

ModelWeights map_weights(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, form_of(file), checkpoint);
}

}  // namespace

const Family kQwen3Family = {"qwen3", {"Qwen3ForCausalLM"}, "qwen3", read_config, map_weights};

}  // namespace keyhole
