// Falcon: LayerNorm, rotary positions, parallel branches, no biases. The 7B model has one KV head and one
// norm for both branches; the larger ones have KV heads in groups of q, k and v, and one or two norms.
#include "engine/base/error.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

namespace keyhole {
namespace {

bool is_new(const ConfigFile& file) {
    return file.flag_or("/new_decoder_architecture", false);
}

/// Returns whether the branches have a norm each.
bool has_two_norms(const ConfigFile& file) {
    return is_new(file) && file.count_or("/num_ln_in_parallel_attn", 2, 2) == 2;
}

ModelConfig read_falcon(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    refuse_flag(file, "/alibi", false, "rotary positions in this family");
    refuse_flag(file, "/bias", false, "products without biases in this family");
    if (!is_new(file)) {
        refuse_flag(file, "/parallel_attn", true, "parallel branches in this family");
        refuse_flag(file, "/multi_query", true, "one KV head, or the new decoder architecture");
    }
    ModelConfig config;
    config.family = "falcon";
    config.d_model = file.count("/hidden_size", kMostWidth);
    config.n_layers = file.count("/num_hidden_layers", kMostLayers);
    config.n_heads = file.count("/num_attention_heads", kMostHeads);
    config.n_kv_heads = is_new(file) ? file.count_or("/num_kv_heads", config.n_heads, kMostHeads) : 1;
    if (config.n_heads % config.n_kv_heads != 0)
        fail(ErrorCode::bad_file,
             "cannot use {}: num_attention_heads {} is no multiple of num_kv_heads {}; check the file",
             file.path().string(), config.n_heads, config.n_kv_heads);
    config.head_dim = even_head_dim(file, config, "hidden_size", "num_attention_heads");
    config.d_ff = file.count_or("/ffn_hidden_size", 4 * config.d_model, kMostNeurons);
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/max_position_embeddings", 2048, kMostPositions);
    config.norm = NormKind::layer;
    config.norm_eps = static_cast<float>(file.positive_or("/layer_norm_epsilon", 1e-5));
    config.activation = read_activation(file, "/activation", "gelu");
    config.parallel = true;
    config.shared_norm = !has_two_norms(file);
    read_rotary(file, config, config.head_dim, "/rope_theta");
    config.tied = file.flag_or("/tie_word_embeddings", true);
    read_special_tokens(file, config, 11, 11);
    return config;
}

ModelWeights map_falcon(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, head = config.head_dim, n_kv = config.n_kv_heads;
    const std::int64_t in_group = config.n_heads / n_kv, rows = (config.n_heads + 2 * n_kv) * head;
    const std::string model = prefix_of(checkpoint, {"transformer.", ""}, "ln_f.weight");
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "word_embeddings.weight", "lm_head.weight", d, weights);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}h.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        const auto norm = [&](const char* name, Weight& gain, Weight& bias) {
            gain = checkpoint.weight(at + name + ".weight", d);
            bias = checkpoint.weight(at + name + ".bias", d);
        };
        // A group is the queries of its heads, its k, its v; with one KV head it is the whole matrix.
        const auto part = [&](std::int64_t first, std::int64_t n) {
            return checkpoint.blocks(
                at + "self_attention.query_key_value.weight", rows, d,
                {.first = first * head, .rows = n * head, .stride = (in_group + 2) * head, .n = n_kv});
        };
        norm(has_two_norms(file) ? "ln_attn" : "input_layernorm", layer.attention_norm,
             layer.attention_norm_bias);
        if (has_two_norms(file)) norm("ln_mlp", layer.mlp_norm, layer.mlp_norm_bias);
        if (checkpoint.has_place(at + "self_attention.query.weight")) {  // GGUF
            layer.q = checkpoint.weight(at + "self_attention.query.weight", d, d);
            layer.k = checkpoint.weight(at + "self_attention.key.weight", n_kv * head, d);
            layer.v = checkpoint.weight(at + "self_attention.value.weight", n_kv * head, d);
        } else {
            layer.q = part(0, in_group);
            layer.k = part(in_group, 1);
            layer.v = part(in_group + 1, 1);
        }
        layer.o = checkpoint.weight(at + "self_attention.dense.weight", d, d);
        layer.up = checkpoint.weight(at + "mlp.dense_h_to_4h.weight", config.d_ff, d);
        layer.down = checkpoint.weight(at + "mlp.dense_4h_to_h.weight", d, config.d_ff);
    }
    weights.final_norm = checkpoint.weight(model + "ln_f.weight", d);
    weights.final_norm_bias = checkpoint.weight(model + "ln_f.bias", d);
    return weights;
}

}  // namespace

const Family kFalconFamily = {"falcon", {"FalconForCausalLM"}, "falcon", read_falcon, map_falcon};

}  // namespace keyhole
