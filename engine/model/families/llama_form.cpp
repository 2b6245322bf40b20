#include "engine/model/families/llama_form.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/families/common.h"

namespace keyhole {

ModelConfig read_llama_config(const ConfigFile& file, const LlamaForm& form) {
    refuse_quantized(file);
    refuse_other_models(file);
    for (const std::string& key :
         {std::string("/partial_rotary_factor"), rope_key(file) + "/partial_rotary_factor"})
        if (file.positive_or(key, 1.0) != 1.0)
            refuse(file, "partial_rotary_factor", "rotary positions over the whole head in this family");
    ModelConfig config;
    config.family = form.name;
    config.d_model = file.count("/hidden_size", kMostWidth);
    config.n_layers = file.count("/num_hidden_layers", kMostLayers);
    config.n_heads = file.count("/num_attention_heads", kMostHeads);
    const bool by_default = form.n_kv_heads > 0 && !file.is_null("/num_key_value_heads");
    config.n_kv_heads =
        file.count_or("/num_key_value_heads", by_default ? form.n_kv_heads : config.n_heads, kMostHeads);
    config.d_ff = file.count("/intermediate_size", kMostNeurons);
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/max_position_embeddings", 2048, kMostPositions);
    if (form.head_dim > 0 || file.has("/head_dim"))
        config.head_dim = file.count_or("/head_dim", form.head_dim, kMostHeadDim);
    else
        config.head_dim = even_head_dim(file, config, "hidden_size", "num_attention_heads");
    if (config.head_dim % 2 != 0)
        fail(ErrorCode::bad_file,
             "cannot use {}: head_dim {} is odd, rotary positions need pairs; check the file",
             file.path().string(), config.head_dim);
    if (config.n_heads % config.n_kv_heads != 0)
        fail(ErrorCode::bad_file,
             "cannot use {}: num_attention_heads {} is no multiple of num_key_value_heads {}; check the file",
             file.path().string(), config.n_heads, config.n_kv_heads);
    config.norm_eps = static_cast<float>(file.positive_or("/rms_norm_eps", 1e-6));
    config.activation = read_activation(file, "/hidden_act", "silu");
    read_rotary(file, config, config.head_dim, "/rope_theta");
    config.tied = file.flag_or("/tie_word_embeddings", false);
    read_special_tokens(file, config, form.bos, form.eos);
    return config;
}

ModelWeights map_llama_weights(const ModelConfig& config, const LlamaForm& form, Checkpoint& checkpoint) {
    const std::int64_t d_model = config.d_model, d_ff = config.d_ff;
    const std::int64_t d_q = std::int64_t{config.n_heads} * config.head_dim;
    const std::int64_t d_kv = std::int64_t{config.n_kv_heads} * config.head_dim;
    const std::string model = prefix_of(checkpoint, {"model.", ""}, "norm.weight");
    const std::vector<bool> layer_owns = layers_with_kv(config);
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "embed_tokens.weight", "lm_head.weight", d_model, weights);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}layers.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        layer.attention_norm = checkpoint.weight(at + "input_layernorm.weight", d_model);
        layer.q = checkpoint.weight(at + "self_attn.q_proj.weight", d_q, d_model);
        const bool owns = layer_owns[to_index(l)];
        if (owns) layer.k = checkpoint.weight(at + "self_attn.k_proj.weight", d_kv, d_model);
        if (owns) layer.v = checkpoint.weight(at + "self_attn.v_proj.weight", d_kv, d_model);
        layer.o = checkpoint.weight(at + "self_attn.o_proj.weight", d_model, d_q);
        if (form.qkv_bias) {
            layer.q_bias = checkpoint.weight(at + "self_attn.q_proj.bias", d_q);
            if (owns) layer.k_bias = checkpoint.weight(at + "self_attn.k_proj.bias", d_kv);
            if (owns) layer.v_bias = checkpoint.weight(at + "self_attn.v_proj.bias", d_kv);
        }
        const bool has_o_bias = checkpoint.contains(at + "self_attn.o_proj.bias");
        if (form.o_bias && !has_o_bias && l == 0)
            checkpoint.add_note(
                "the attention has biases of q, k and v and none of o (attention_bias); o has none "
                "here, as with the zeros of transformers");
        if (form.o_bias && has_o_bias)
            layer.o_bias = checkpoint.weight(at + "self_attn.o_proj.bias", d_model);
        if (form.qk_norm) {
            layer.q_norm = checkpoint.weight(at + "self_attn.q_norm.weight", config.head_dim);
            if (owns) layer.k_norm = checkpoint.weight(at + "self_attn.k_norm.weight", config.head_dim);
        }
        layer.mlp_norm = checkpoint.weight(at + "post_attention_layernorm.weight", d_model);
        layer.gate = checkpoint.weight(at + "mlp.gate_proj.weight", d_ff, d_model);
        layer.up = checkpoint.weight(at + "mlp.up_proj.weight", d_ff, d_model);
        layer.down = checkpoint.weight(at + "mlp.down_proj.weight", d_model, d_ff);
        if (form.mlp_bias) {
            layer.gate_bias = checkpoint.weight(at + "mlp.gate_proj.bias", d_ff);
            layer.up_bias = checkpoint.weight(at + "mlp.up_proj.bias", d_ff);
            layer.down_bias = checkpoint.weight(at + "mlp.down_proj.bias", d_model);
        }
    }
    weights.final_norm = checkpoint.weight(model + "norm.weight", d_model);
    return weights;
}

}  // namespace keyhole
