// StableLM: LLaMA's form with LayerNorm and rotary positions over a quarter of each head; with
// use_parallel_residual both branches read one norm.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm stablelm_form(const ConfigFile& file) {
    return {.name = "stablelm",
            .qkv_bias = file.flag_or("/use_qkv_bias", false),
            .n_kv_heads = 32,
            .bos = 0,
            .eos = 0,
            .n_heads = 32,
            .n_vocab = 50304,
            .n_ctx = 4096,
            .rotary_part = 0.25,
            .norm = NormKind::layer,
            .norm_bias = true,
            .norm_eps = 1e-5,
            .mlp_norm = file.flag_or("/use_parallel_residual", false) ? nullptr : "post_attention_layernorm"};
}

ModelConfig read_stablelm(const ConfigFile& file) {
    refuse_flag(file, "/qk_layernorm", false, "queries and keys without a norm in this family");
    ModelConfig config = read_llama_config(file, stablelm_form(file));
    config.parallel = config.shared_norm = file.flag_or("/use_parallel_residual", false);
    return config;
}

ModelWeights map_stablelm(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, stablelm_form(file), checkpoint);
}

}  // namespace

const Family kStableLmFamily = {"stablelm", {"StableLmForCausalLM"}, "stablelm", read_stablelm, map_stablelm};

}  // namespace keyhole
