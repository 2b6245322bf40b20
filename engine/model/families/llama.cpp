// LLaMA 1 to 3 and models with the same form and name: TinyLlama, SmolLM, Yi, stories. config.json says
// which biases exist.
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm llama_form(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "llama",
            .qkv_bias = bias,
            .o_bias = bias,
            .mlp_bias = file.flag_or("/mlp_bias", false),
            .bos = 1,
            .eos = 2};
}

ModelConfig read_llama(const ConfigFile& file) {
    return read_llama_config(file, llama_form(file));
}

ModelWeights map_llama(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, llama_form(file), checkpoint);
}

}  // namespace

// The second architecture shares KV heads between layers (assets/training/README.md). It has a separate
// name since transformers' LlamaForCausalLM would load such a folder with random K and V in the layers that
// have none.
const Family kLlamaFamily = {
    "llama", {"LlamaForCausalLM", "LlamaMlkvForCausalLM"}, "llama", read_llama, map_llama};

}  // namespace keyhole
