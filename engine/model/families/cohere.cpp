// Command R and Command R7B (Cohere, Cohere 2): parallel branches with one LayerNorm without bias, rotary
// positions in neighbouring pairs, scaled logits. In Cohere 2 three of four layers slide, and only those
// rotate.
#include "engine/base/index.h"
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm cohere_form(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "cohere",
            .qkv_bias = bias,
            .o_bias = bias,
            .bos = 5,
            .eos = 255001,
            .n_vocab = 256000,
            .n_ctx = 8192,
            .theta = 5e5,
            .tied = true,
            .norm = NormKind::layer,
            .norm_eps = 1e-5,
            .mlp_norm = nullptr};
}

LlamaForm cohere2_form(const ConfigFile& file) {
    LlamaForm form = cohere_form(file);
    form.name = "cohere2";
    form.theta = 1e4;
    return form;
}

ModelConfig read_parallel(const ConfigFile& file, const LlamaForm& form) {
    refuse_flag(file, "/use_qk_norm", false, "queries and keys without a norm in this family");
    ModelConfig config = read_llama_config(file, form);
    config.parallel = config.shared_norm = true;
    config.rotary.interleaved = true;
    config.logit_scale = static_cast<float>(file.positive_or("/logit_scale", 0.0625));
    return config;
}

ModelConfig read_cohere(const ConfigFile& file) {
    return read_parallel(file, cohere_form(file));
}

ModelConfig read_cohere2(const ConfigFile& file) {
    ModelConfig config = read_parallel(file, cohere2_form(file));
    set_window_by_period(file, config, file.count_or("/sliding_window", 4096, kMostPositions),
                         file.count_or("/sliding_window_pattern", 4, kMostLayers));
    for (const int window : config.window) config.unrotated.push_back(window == 0);
    return config;
}

ModelWeights map_cohere(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, cohere_form(file), checkpoint);
}

}  // namespace

const Family kCohereFamily = {"cohere", {"CohereForCausalLM"}, "cohere", read_cohere, map_cohere};
const Family kCohere2Family = {"cohere2", {"Cohere2ForCausalLM"}, "cohere2", read_cohere2, map_cohere};

}  // namespace keyhole
