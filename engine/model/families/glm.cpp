// GLM-4: LLaMA's form with gate and up in one matrix, and rotary positions over half of each head, in
// neighbouring pairs. The newer of the two architectures also has norms after both branches.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm glm_form(const ConfigFile& file) {
    return {.name = "glm",
            .qkv_bias = file.flag_or("/attention_bias", true),
            .n_kv_heads = 2,
            .eos = 151329,
            .head_dim = 128,
            .n_heads = 32,
            .n_vocab = 151552,
            .n_ctx = 131072,
            .rotary_part = 0.5,
            .norm_eps = 0.00000015625,
            .fused_gate_up = true};
}

LlamaForm glm4_form(const ConfigFile& file) {
    LlamaForm form = glm_form(file);
    form.name = "glm4";
    form.attention_out_norm = "post_self_attn_layernorm";
    form.mlp_out_norm = "post_mlp_layernorm";
    return form;
}

ModelConfig read_interleaved(const ConfigFile& file, const LlamaForm& form) {
    ModelConfig config = read_llama_config(file, form);
    config.rotary.interleaved = true;
    return config;
}

ModelConfig read_glm(const ConfigFile& file) {
    return read_interleaved(file, glm_form(file));
}

ModelConfig read_glm4(const ConfigFile& file) {
    return read_interleaved(file, glm4_form(file));
}

ModelWeights map_glm(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, glm_form(file), checkpoint);
}

ModelWeights map_glm4(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, glm4_form(file), checkpoint);
}

}  // namespace

const Family kGlmFamily = {"glm", {"GlmForCausalLM"}, "glm", read_glm, map_glm};
const Family kGlm4Family = {"glm4", {"Glm4ForCausalLM"}, "glm4", read_glm4, map_glm4};

}  // namespace keyhole
