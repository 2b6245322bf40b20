// Granite 3: LLaMA's form with four multipliers: of embeddings, of each branch, of q.k and of the logits.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm granite_form(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "granite",
            .qkv_bias = bias,
            .o_bias = bias,
            .mlp_bias = file.flag_or("/mlp_bias", false),
            .bos = 1,
            .eos = 2,
            .n_heads = 32,
            .n_vocab = 32000};
}

ModelConfig read_granite(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, granite_form(file));
    const auto factor = [&](const char* key) { return static_cast<float>(file.positive_or(key, 1.0)); };
    config.embedding_scale = factor("/embedding_multiplier");
    config.residual_scale = factor("/residual_multiplier");
    config.attention_scale = factor("/attention_multiplier");
    config.logit_scale = 1.0f / factor("/logits_scaling");
    return config;
}

ModelWeights map_granite(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, granite_form(file), checkpoint);
}

}  // namespace

const Family kGraniteFamily = {"granite", {"GraniteForCausalLM"}, "granite", read_granite, map_granite};

}  // namespace keyhole
