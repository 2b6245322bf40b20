// Architectures of GGUF files that have LLaMA's form, and what each adds to it. Sources: gguf_describer.cpp.
#include "engine/base/index.h"
#include "engine/model/config_file.h"
#include "engine/model/gguf_describer.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

constexpr const char *kAttentionOut = "model.layers.{}.post_attention_layernorm",
                     *kMlpOut = "model.layers.{}.post_feedforward_layernorm";

}  // namespace

// The files have no query scale. The scale of all models but the largest is that of their heads; that one's
// queries are scaled by its width over its heads.
void GgufDescriber::add_gemma(int layers_of_largest) {
    config_["keyhole_norms_are_gains"] = true;
    config_["query_pre_attn_scalar"] =
        n_layers_ == layers_of_largest ? d_model_ / n_heads_ : config_["head_dim"].get<int>();
    static constexpr Pair kLayer[] = {{kAttentionOut, "blk.{}.post_attention_norm"},
                                      {kMlpOut, "blk.{}.post_ffw_norm"}};
    add({}, kLayer);
}

GgufModel GgufDescriber::llama() {
    if (file_.count_or_zero(key("expert_count"), 0, 1 << 12) > 0) return mixtral();
    return llama_form({.family = "LlamaForCausalLM", .paired = true});
}

GgufModel GgufDescriber::gemma2() {
    model_ = llama_form({.family = "Gemma2ForCausalLM",
                         .mlp_norm = "pre_feedforward_layernorm",
                         .more_keys = {"attn_logit_softcapping", "final_logit_softcapping"}});
    constexpr int kLayersOf27B = 46;
    add_gemma(kLayersOf27B);
    config_["attn_logit_softcapping"] = file_.positive_or(key("attn_logit_softcapping"), 50.0);
    config_["final_logit_softcapping"] = file_.positive_or(key("final_logit_softcapping"), 30.0);
    config_["sliding_window"] = file_.count_or(key("attention.sliding_window"), 4096, kMostPositions);
    return done();
}

GgufModel GgufDescriber::gemma3() {
    model_ = llama_form({.family = "Gemma3ForCausalLM",
                         .mlp_norm = "pre_feedforward_layernorm",
                         .more_keys = {"attention.sliding_window_pattern", "rope.freq_base_swa"}});
    constexpr int kLayersOf27B = 62;
    add_gemma(kLayersOf27B);
    config_["rope_theta"] = file_.positive_or(key("rope.freq_base"), 1e6);
    config_["rope_local_base_freq"] = file_.positive_or(key("rope.freq_base_swa"), 1e4);
    config_["sliding_window"] = file_.count_or(key("attention.sliding_window"), 1024, kMostPositions);
    read_layer_types(6);
    return done();
}

GgufModel GgufDescriber::smollm3() {
    return llama_form({.family = "SmolLM3ForCausalLM", .paired = true});
}

GgufModel GgufDescriber::olmo2() {
    const bool slides = file_.has(key("attention.sliding_window"));  // OLMo 3
    model_ = llama_form({.family = slides ? "Olmo3ForCausalLM" : "Olmo2ForCausalLM",
                         .more_keys = {"attention.sliding_window_pattern"}});
    static constexpr Pair kLayer[] = {{kAttentionOut, "blk.{}.post_attention_norm"},
                                      {kMlpOut, "blk.{}.post_ffw_norm"}};
    add({}, kLayer);
    if (slides) read_layer_types(4);
    return done();
}

GgufModel GgufDescriber::granite() {
    model_ =
        llama_form({.family = "GraniteForCausalLM",
                    .paired = true,
                    .more_keys = {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}});
    // 0 stands for none.
    const auto factor = [this](const char* from, const char* to) {
        if (file_.number_or(key(from), 0.0) != 0.0) config_[to] = file_.positive_or(key(from), 1.0);
    };
    config_["attention_multiplier"] = 1.0 / std::sqrt(config_["head_dim"].get<double>());
    factor("attention.scale", "attention_multiplier");
    factor("embedding_scale", "embedding_multiplier");
    factor("residual_scale", "residual_multiplier");
    factor("logit_scale", "logits_scaling");
    return done();
}

namespace {

const std::vector<std::string_view> kExpertKeys = {"expert_count", "expert_used_count",
                                                   "expert_feed_forward_length"};

}  // namespace

GgufModel GgufDescriber::mixtral() {
    model_ = llama_form({.family = "MixtralForCausalLM", .paired = true, .more_keys = kExpertKeys});
    config_["architectures"] = {"MixtralForCausalLM"};
    add_experts("num_local_experts", "block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2");
    return done();
}

GgufModel GgufDescriber::qwen3_moe() {
    model_ = llama_form({.family = "Qwen3MoeForCausalLM", .more_keys = kExpertKeys});
    add_experts("num_experts", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj");
    config_["moe_intermediate_size"] = count("expert_feed_forward_length", kMostNeurons);
    config_["norm_topk_prob"] = true;  // of all released models; the format cannot say otherwise
    return done();
}

GgufModel GgufDescriber::olmoe() {
    std::vector<std::string_view> keys = kExpertKeys;
    keys.push_back("attention.clamp_kqv");
    model_ = llama_form({.family = "OlmoeForCausalLM", .more_keys = keys});
    add_experts("num_experts", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj");
    if (file_.number_or(key("attention.clamp_kqv"), 0.0) != 0.0)
        config_["clip_qkv"] = file_.positive_or(key("attention.clamp_kqv"), 1.0);
    return done();
}

GgufModel GgufDescriber::gpt_oss() {
    std::vector<std::string_view> keys = kExpertKeys;
    keys.push_back("attention.sliding_window_pattern");
    model_ = llama_form({.family = "GptOssForCausalLM", .more_keys = keys});
    add_experts("num_local_experts", "mlp.router", "mlp.experts", "gate_proj", "up_proj", "down_proj");
    config_["intermediate_size"] = count("expert_feed_forward_length", kMostNeurons);
    config_["attention_bias"] = true;
    if (config_.contains("rope_scaling")) config_["rope_scaling"]["truncate"] = false;
    read_layer_types(2);
    for (int l = 0; l < n_layers_; ++l) {
        add_one(fmt::format("model.layers.{}.self_attn.sinks", l),
                fmt::format("blk.{}.attn_sinks.weight", l));
        add_one(fmt::format("model.layers.{}.post_attention_layernorm.weight", l),
                fmt::format("blk.{}.post_attention_norm.weight", l));
    }
    return done();
}

GgufModel GgufDescriber::cohere(bool slides) {
    model_ = llama_form(
        {.family = slides ? "Cohere2ForCausalLM" : "CohereForCausalLM",
         .more_keys = {"attention.layer_norm_epsilon", "logit_scale", "attention.sliding_window_pattern"}});
    config_["logit_scale"] = file_.positive_or(key("logit_scale"), 0.0625);
    if (slides) read_layer_types(4);
    return done();
}

GgufModel GgufDescriber::stablelm() {
    model_ = llama_form({.family = "StableLmForCausalLM",
                         .partial = true,
                         .more_keys = {"attention.layer_norm_epsilon", "use_parallel_residual"}});
    config_["use_qkv_bias"] = has_bias("attn_q");
    // Files say that all of these models are parallel; those that are not have a second norm.
    config_["use_parallel_residual"] = !file_.contains("blk.0.ffn_norm.weight");
    return done();
}

GgufModel GgufDescriber::glm() {
    model_ = llama_form({.family = "GlmForCausalLM", .partial = true});
    static constexpr Pair kLayer[] = {{"model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"}};
    add({}, kLayer);
    if (file_.contains("blk.0.attn_qkv.weight")) {  // as the first GLM-4 is stored
        config_["attention_bias"] = has_bias("attn_qkv");
        add_qkv("model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.k_proj",
                "model.layers.{}.self_attn.v_proj", config_["num_key_value_heads"].get<int>());
    }
    return done();
}

GgufModel GgufDescriber::glm4() {
    model_ = llama_form({.family = "Glm4ForCausalLM", .partial = true});
    static constexpr Pair kLayer[] = {
        {"model.layers.{}.post_self_attn_layernorm", "blk.{}.post_attention_norm"},
        {"model.layers.{}.post_mlp_layernorm", "blk.{}.post_ffw_norm"},
        {"model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"}};
    add({}, kLayer);
    return done();
}

GgufModel GgufDescriber::exaone4() {
    model_ = llama_form({.family = "Exaone4ForCausalLM", .more_keys = {"attention.sliding_window_pattern"}});
    static constexpr Pair kLayer[] = {{kAttentionOut, "blk.{}.post_attention_norm"},
                                      {kMlpOut, "blk.{}.post_ffw_norm"}};
    add({}, kLayer);
    if (file_.has(key("attention.sliding_window")))
        read_layer_types(4);
    else
        config_["sliding_window"] = Json();
    return done();
}

GgufModel GgufDescriber::phi3() {
    model_ = llama_form({.family = "Phi3ForCausalLM", .partial = true});
    static constexpr Pair kLayer[] = {{"model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"},
                                      {"model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"}};
    add({}, kLayer);
    read_longrope();
    return done();
}

}  // namespace keyhole
