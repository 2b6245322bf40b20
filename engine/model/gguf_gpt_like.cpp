// Architectures of GGUF files that have GPT-2's form: LayerNorm, no gate. Sources: gguf_describer.cpp.
#include "engine/base/index.h"
#include "engine/model/config_file.h"
#include "engine/model/gguf_describer.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

GgufModel GgufDescriber::gpt2() {
    refuse_unknown_keys({"attention.layer_norm_epsilon"});
    read_shape();
    config_["architectures"] = {"GPT2LMHeadModel"};
    config_["n_embd"] = d_model_;
    config_["n_layer"] = n_layers_;
    config_["n_head"] = n_heads_;
    config_["n_inner"] = d_ff_;
    config_["n_positions"] = n_ctx_;
    config_["layer_norm_epsilon"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    read_special_tokens();
    static constexpr Pair kOnce[] = {{"transformer.wte", "token_embd"},
                                     {"lm_head", "output"},
                                     {"transformer.wpe", "position_embd"},
                                     {"transformer.ln_f", "output_norm"}};
    static constexpr Pair kLayer[] = {{"transformer.h.{}.ln_1", "blk.{}.attn_norm"},
                                      {"transformer.h.{}.attn.c_attn", "blk.{}.attn_qkv"},
                                      {"transformer.h.{}.attn.c_proj", "blk.{}.attn_output"},
                                      {"transformer.h.{}.ln_2", "blk.{}.ffn_norm"},
                                      {"transformer.h.{}.mlp.c_fc", "blk.{}.ffn_up"},
                                      {"transformer.h.{}.mlp.c_proj", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    // Folders store these matrices as inputs by outputs; GGUF files store them as outputs by inputs.
    for (auto& [folder, place] : model_.places)
        place.is_transposed = folder.find(".c_") != std::string::npos && folder.ends_with(".weight");
    return done();
}

GgufModel GgufDescriber::gpt_neox() {
    refuse_unknown_keys({"attention.layer_norm_epsilon", "rope.dimension_count", "rope.freq_base",
                         "use_parallel_residual", "rope.scaling.type", "rope.scaling.factor",
                         "rope.scaling.original_context_length", "rope.scale_linear"});
    read_shape();
    const int head_dim = d_model_ / n_heads_;
    config_["architectures"] = {"GPTNeoXForCausalLM"};
    config_["hidden_size"] = d_model_;
    config_["num_hidden_layers"] = n_layers_;
    config_["num_attention_heads"] = n_heads_;
    config_["intermediate_size"] = d_ff_;
    config_["max_position_embeddings"] = n_ctx_;
    config_["layer_norm_eps"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    config_["use_parallel_residual"] = file_.flag_or(key("use_parallel_residual"), true);
    config_["rotary_emb_base"] = file_.positive_or(key("rope.freq_base"), 10000.0);
    // A quarter more, so that rounding does not take a dimension away.
    config_["rotary_pct"] =
        (file_.count_or(key("rope.dimension_count"), head_dim, kMostHeadDim) + 0.25) / std::max(head_dim, 1);
    if (const Json scaling = rope_scaling(); !scaling.is_null()) config_["rope_scaling"] = scaling;
    config_["attention_bias"] = has_bias("attn_qkv");
    read_special_tokens();
    static constexpr Pair kOnce[] = {{"gpt_neox.embed_in", "token_embd"},
                                     {"embed_out", "output"},
                                     {"gpt_neox.final_layer_norm", "output_norm"}};
    static constexpr Pair kLayer[] = {{"gpt_neox.layers.{}.input_layernorm", "blk.{}.attn_norm"},
                                      {"gpt_neox.layers.{}.attention.dense", "blk.{}.attn_output"},
                                      {"gpt_neox.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"},
                                      {"gpt_neox.layers.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"},
                                      {"gpt_neox.layers.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    // The format stores q, k and v of all heads one after the other, not head by head.
    add_qkv("gpt_neox.layers.{}.attention.query", "gpt_neox.layers.{}.attention.key",
            "gpt_neox.layers.{}.attention.value", n_heads_);
    return done();
}

GgufModel GgufDescriber::mpt() {
    refuse_unknown_keys({"attention.layer_norm_epsilon", "attention.clamp_kqv", "attention.max_alibi_bias"});
    read_shape();
    const double most_bias = file_.number_or(key("attention.max_alibi_bias"), 0.0);
    if (!(most_bias > 0)) refuse("a model of the mpt architecture without ALiBi", "positions by ALiBi");
    if (file_.count_or(key("attention.head_count_kv"), n_heads_, kMostHeads) != n_heads_)
        refuse(key("attention.head_count_kv"), "a KV head for every query head in this architecture");
    if (d_ff_ % d_model_ != 0)
        refuse(fmt::format("{} {}", key("feed_forward_length"), d_ff_),
               fmt::format("multiples of {} {}", key("embedding_length"), d_model_));
    config_["architectures"] = {"MPTForCausalLM"};
    config_["d_model"] = d_model_;
    config_["n_layers"] = n_layers_;
    config_["n_heads"] = n_heads_;
    config_["expansion_ratio"] = d_ff_ / d_model_;
    config_["max_seq_len"] = n_ctx_;
    config_["layer_norm_epsilon"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    config_["attn_config"] = {{"alibi", true}, {"alibi_bias_max", most_bias}};
    // 0 stands for none.
    if (file_.number_or(key("attention.clamp_kqv"), 0.0) != 0.0)
        config_["attn_config"]["clip_qkv"] = file_.positive_or(key("attention.clamp_kqv"), 1.0);
    read_special_tokens();
    static constexpr Pair kOnce[] = {
        {"transformer.wte", "token_embd"}, {"lm_head", "output"}, {"transformer.norm_f", "output_norm"}};
    static constexpr Pair kLayer[] = {{"transformer.blocks.{}.norm_1", "blk.{}.attn_norm"},
                                      {"transformer.blocks.{}.attn.Wqkv", "blk.{}.attn_qkv"},
                                      {"transformer.blocks.{}.attn.out_proj", "blk.{}.attn_output"},
                                      {"transformer.blocks.{}.norm_2", "blk.{}.ffn_norm"},
                                      {"transformer.blocks.{}.ffn.up_proj", "blk.{}.ffn_up"},
                                      {"transformer.blocks.{}.ffn.down_proj", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    return done();
}

GgufModel GgufDescriber::phi2() {
    refuse_unknown_keys({"attention.layer_norm_epsilon", "rope.dimension_count", "rope.freq_base"});
    read_shape();
    check_even_heads();
    const int head_dim = d_model_ / n_heads_;
    config_["architectures"] = {"PhiForCausalLM"};
    config_["hidden_size"] = d_model_;
    config_["num_hidden_layers"] = n_layers_;
    config_["num_attention_heads"] = n_heads_;
    const int n_kv_heads = file_.count_or(key("attention.head_count_kv"), n_heads_, kMostHeads);
    config_["num_key_value_heads"] = n_kv_heads;
    config_["intermediate_size"] = d_ff_;
    config_["max_position_embeddings"] = n_ctx_;
    config_["layer_norm_eps"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    config_["rope_theta"] = file_.positive_or(key("rope.freq_base"), 10000.0);
    // A quarter more, so that rounding does not take a dimension away.
    config_["partial_rotary_factor"] =
        (file_.count_or(key("rope.dimension_count"), head_dim, kMostHeadDim) + 0.25) / head_dim;
    read_special_tokens();
    static constexpr Pair kOnce[] = {{"model.embed_tokens", "token_embd"},
                                     {"lm_head", "output"},
                                     {"model.final_layernorm", "output_norm"}};
    static constexpr Pair kLayer[] = {{"model.layers.{}.input_layernorm", "blk.{}.attn_norm"},
                                      {"model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"},
                                      {"model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"},
                                      {"model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"},
                                      {"model.layers.{}.self_attn.dense", "blk.{}.attn_output"},
                                      {"model.layers.{}.mlp.fc1", "blk.{}.ffn_up"},
                                      {"model.layers.{}.mlp.fc2", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    if (file_.contains("blk.0.attn_qkv.weight"))  // older files
        add_qkv(kLayer[1].folder, kLayer[2].folder, kLayer[3].folder, n_kv_heads);
    return done();
}

// The norm of the feed-forward layer has the name of the attention's where there is one norm alone.
GgufModel GgufDescriber::falcon() {
    refuse_unknown_keys({"attention.layer_norm_epsilon", "rope.dimension_count", "rope.freq_base"});
    read_shape();
    check_even_heads();
    const int head_dim = d_model_ / n_heads_;
    if (file_.count_or(key("rope.dimension_count"), head_dim, kMostHeadDim) != head_dim)
        refuse(key("rope.dimension_count"), "rotary positions over the whole head in this architecture");
    const bool has_two_norms = file_.contains("blk.0.attn_norm_2.weight");
    const int n_kv_heads = file_.count_or(key("attention.head_count_kv"), n_heads_, kMostHeads);
    config_["architectures"] = {"FalconForCausalLM"};
    config_["hidden_size"] = d_model_;
    config_["num_hidden_layers"] = n_layers_;
    config_["num_attention_heads"] = n_heads_;
    config_["new_decoder_architecture"] = has_two_norms || n_kv_heads > 1;
    config_["num_ln_in_parallel_attn"] = has_two_norms ? 2 : 1;
    config_["num_kv_heads"] = n_kv_heads;
    config_["ffn_hidden_size"] = d_ff_;
    config_["max_position_embeddings"] = n_ctx_;
    config_["layer_norm_epsilon"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    config_["rope_theta"] = file_.positive_or(key("rope.freq_base"), 10000.0);
    read_special_tokens();
    static constexpr Pair kOnce[] = {{"transformer.word_embeddings", "token_embd"},
                                     {"lm_head", "output"},
                                     {"transformer.ln_f", "output_norm"}};
    static constexpr Pair kLayer[] = {{"transformer.h.{}.self_attention.dense", "blk.{}.attn_output"},
                                      {"transformer.h.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"},
                                      {"transformer.h.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    static constexpr Pair kOneNorm[] = {{"transformer.h.{}.input_layernorm", "blk.{}.attn_norm"}};
    static constexpr Pair kTwoNorms[] = {{"transformer.h.{}.ln_attn", "blk.{}.attn_norm_2"},
                                         {"transformer.h.{}.ln_mlp", "blk.{}.attn_norm"}};
    has_two_norms ? add({}, kTwoNorms) : add({}, kOneNorm);
    add_qkv("transformer.h.{}.self_attention.query", "transformer.h.{}.self_attention.key",
            "transformer.h.{}.self_attention.value", n_kv_heads);
    return done();
}

GgufModel GgufDescriber::bloom() {
    refuse_unknown_keys({"attention.layer_norm_epsilon"});
    read_shape();
    check_even_heads();
    if (file_.count_or(key("attention.head_count_kv"), n_heads_, kMostHeads) != n_heads_)
        refuse(key("attention.head_count_kv"), "a KV head for every query head in this architecture");
    if (d_ff_ != 4 * d_model_)
        refuse(fmt::format("{} {}", key("feed_forward_length"), d_ff_),
               fmt::format("4 times {} {}", key("embedding_length"), d_model_));
    config_["architectures"] = {"BloomForCausalLM"};
    config_["hidden_size"] = d_model_;
    config_["n_layer"] = n_layers_;
    config_["n_head"] = n_heads_;
    config_["seq_length"] = n_ctx_;
    config_["layer_norm_epsilon"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    read_special_tokens();
    static constexpr Pair kOnce[] = {{"transformer.word_embeddings", "token_embd"},
                                     {"transformer.word_embeddings_layernorm", "token_embd_norm"},
                                     {"lm_head", "output"},
                                     {"transformer.ln_f", "output_norm"}};
    static constexpr Pair kLayer[] = {{"transformer.h.{}.input_layernorm", "blk.{}.attn_norm"},
                                      {"transformer.h.{}.self_attention.dense", "blk.{}.attn_output"},
                                      {"transformer.h.{}.post_attention_layernorm", "blk.{}.ffn_norm"},
                                      {"transformer.h.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"},
                                      {"transformer.h.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    add_qkv("transformer.h.{}.self_attention.query", "transformer.h.{}.self_attention.key",
            "transformer.h.{}.self_attention.value", n_heads_);
    return done();
}

}  // namespace keyhole
