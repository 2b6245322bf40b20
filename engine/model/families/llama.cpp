// LLaMA 1 to 3 and models with the same form and name: TinyLlama, SmolLM, Yi, stories. config.json says
// which biases exist.
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm form_of(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "llama",
            .qkv_bias = bias,
            .o_bias = bias,
            .mlp_bias = file.flag_or("/mlp_bias", false),
            .bos = 1,
            .eos = 2};
}

ModelConfig read_config(const ConfigFile& file) {
    return read_llama_config(file, form_of(file));
}

ModelWeights map_weights(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, form_of(file), checkpoint);
}

}  // namespace

// The second architecture shares KV heads between layers (assets/training/README.md). It has a separate
// name since transformers' LlamaForCausalLM would load such a folder with random K and V in the layers that
// have none.
const Family kLlamaFamily = {
    "llama", {"LlamaForCausalLM", "LlamaMlkvForCausalLM"}, "llama", read_config, map_weights};

}  // namespace keyhole
