// Qwen 3: LLaMA's form with an RMSNorm of each head's query and key before rotation, heads of 128 by
// default, and the sliding window of Qwen 2.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm qwen3_form(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "qwen3",
            .qkv_bias = bias,
            .o_bias = bias,
            .qk_norm = QkNorm::head,
            .n_kv_heads = 32,
            .head_dim = 128};
}

ModelConfig read_qwen3(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, qwen3_form(file));
    set_qwen_window(file, config);
    return config;
}

ModelWeights map_qwen3(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, qwen3_form(file), checkpoint);
}

}  // namespace

const Family kQwen3Family = {"qwen3", {"Qwen3ForCausalLM"}, "qwen3", read_qwen3, map_qwen3};

}  // namespace keyhole
