// Gemma 2 and 3: LLaMA's form with norms before and after both branches whose gain is 1 + weight, embeddings
// times the square root of their width, a query scale of its own, and sliding layers. Gemma 2 caps the
// logits of attention and of the next token. Gemma 3 has norms of queries and keys instead, and another
// rotary base in sliding layers. Models that also read pictures hold it as their text_config.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

#include <cmath>

namespace keyhole {
namespace {

constexpr LlamaForm kGemma2Form = {.name = "gemma2",
                                   .n_kv_heads = 4,
                                   .bos = 2,
                                   .eos = 1,
                                   .head_dim = 256,
                                   .n_heads = 8,
                                   .n_vocab = 256000,
                                   .n_ctx = 8192,
                                   .tied = true,
                                   .activation_key = "/hidden_activation",
                                   .activation = "gelu_pytorch_tanh",
                                   .mlp_norm = "pre_feedforward_layernorm",
                                   .attention_out_norm = "post_attention_layernorm",
                                   .mlp_out_norm = "post_feedforward_layernorm"};

constexpr LlamaForm kGemma3Form = [] {
    LlamaForm form = kGemma2Form;
    form.name = "gemma3";
    form.qk_norm = QkNorm::head;
    form.n_vocab = 262208;
    form.n_ctx = 131072;
    form.rotary_by_layer = true;
    return form;
}();

/// Reads a cap of logits; null is none.
float read_cap(const ConfigFile& file, const char* key, double by_default) {
    if (file.is_null(key) || by_default == 0.0) return 0;
    return static_cast<float>(file.positive_or(key, by_default));
}

ModelConfig read_gemma(const ConfigFile& file, const LlamaForm& form) {
    refuse_flag(file, "/attention_bias", false, "attention without biases in this family");
    ModelConfig config = read_llama_config(file, form);
    config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
    config.attention_scale =
        static_cast<float>(1.0 / std::sqrt(file.positive_or("/query_pre_attn_scalar", 256.0)));
    // GGUF files hold 1 + weight.
    config.norm_offset = file.flag_or("/keyhole_norms_are_gains", false) ? 0.0f : 1.0f;
    return config;
}

ModelConfig read_gemma2(const ConfigFile& file) {
    ModelConfig config = read_gemma(file, kGemma2Form);
    config.attention_cap = read_cap(file, "/attn_logit_softcapping", 50.0);
    config.logit_cap = read_cap(file, "/final_logit_softcapping", 30.0);
    set_window_by_period(file, config, file.count_or("/sliding_window", 4096, kMostPositions), 2);
    return config;
}

ModelConfig read_gemma3(const ConfigFile& file) {
    refuse_flag(file, "/use_bidirectional_attention", false, "attention to earlier tokens");
    for (const char* cap : {"/attn_logit_softcapping", "/final_logit_softcapping"})
        if (file.has(cap)) refuse(file, cap + 1, "logits without a cap in this family");
    ModelConfig config = read_gemma(file, kGemma3Form);
    read_rotary_by_layer(file, config, 1e6, "/rope_local_base_freq", 1e4);
    set_window_by_period(
        file, config, file.count_or("/sliding_window", 4096, kMostPositions),
        file.count_or("/_sliding_window_pattern", file.count_or("/sliding_window_pattern", 6, kMostLayers),
                      kMostLayers));
    return config;
}

ModelWeights map_gemma2(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, kGemma2Form, checkpoint);
}

ModelWeights map_gemma3(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, kGemma3Form, checkpoint);
}

}  // namespace

const Family kGemma2Family = {"gemma2", {"Gemma2ForCausalLM"}, "gemma2", read_gemma2, map_gemma2};
const Family kGemma3Family = {"gemma3",      {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
                              "gemma3_text", read_gemma3,
                              map_gemma3,    true};

}  // namespace keyhole
