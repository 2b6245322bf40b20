// Qwen 2 and 2.5: LLaMA's form with biases on q, k and v. With use_sliding_window, layers from
// max_window_layers on have a sliding window.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

constexpr LlamaForm kQwen2Form = {.name = "qwen2", .qkv_bias = true, .n_kv_heads = 32};

ModelConfig read_qwen2(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, kQwen2Form);
    set_qwen_window(file, config);
    return config;
}

ModelWeights map_qwen2(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, kQwen2Form, checkpoint);
}

}  // namespace

const Family kQwen2Family = {"qwen2", {"Qwen2ForCausalLM"}, "qwen2", read_qwen2, map_qwen2};

}  // namespace keyhole
