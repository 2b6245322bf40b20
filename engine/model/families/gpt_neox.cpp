// GPT-NeoX and Pythia: LayerNorm, rotary positions over a part of each head, q, k and v of each head in one
// matrix, parallel attention and feed-forward layer. pythia-mlkv: the same with separate q, k and v, fewer
// KV heads, and layers that borrow those of an owner below.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

#include <algorithm>

namespace keyhole {
namespace {

bool has_attention_bias(const ConfigFile& file) {
    return file.flag_or("/attention_bias", true);
}

ModelConfig read_gpt_neox(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    ModelConfig config;
    config.family = "gpt_neox";
    config.d_model = file.count("/hidden_size", kMostWidth);
    config.n_layers = file.count("/num_hidden_layers", kMostLayers);
    config.n_heads = file.count("/num_attention_heads", kMostHeads);
    config.n_kv_heads = file.count_or("/num_key_value_heads", config.n_heads, kMostHeads);
    check_kv_heads(file, config);
    // pythia-mlkv was trained this way: its code passes keys to other layers before it rotates them.
    config.borrows_unrotated =
        file.count_or("/num_key_value_layers", config.n_layers, kMostLayers) < config.n_layers;
    config.d_ff = file.count("/intermediate_size", kMostNeurons);
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/max_position_embeddings", 2048, kMostPositions);
    config.head_dim = even_head_dim(file, config, "hidden_size", "num_attention_heads");
    config.norm = NormKind::layer;
    config.norm_eps = static_cast<float>(file.positive_or("/layer_norm_eps", 1e-5));
    config.activation = read_activation(file, "/hidden_act", "gelu");
    config.parallel = file.flag_or("/use_parallel_residual", true);
    const std::string inner = rope_key(file) + "/partial_rotary_factor";
    if (file.differ(inner, "/rotary_pct"))
        file.warn(
            fmt::format("config.json says {} for rotary_pct and {} for {}, which counts, as in transformers",
                        file.shown("/rotary_pct"), file.shown(inner), inner.substr(1)));
    const double part = file.positive_or(inner, file.positive_or("/rotary_pct", 0.25));
    read_rotary(file, config, static_cast<int>(config.head_dim * std::min(part, 2.0)), "/rotary_emb_base");
    config.tied = file.flag_or("/tie_word_embeddings", false);
    read_special_tokens(file, config, 0, 2);
    return config;
}

/// GPT-NeoX: the rows of a head are its q, its k, its v.
void take_fused(const ModelConfig& config, const std::string& name, bool bias, Checkpoint& checkpoint,
                LayerWeights& layer) {
    const std::int64_t d = config.d_model, head = config.head_dim;
    const auto part = [&](const char* kind, std::int64_t cols, std::int64_t which) {
        return checkpoint.blocks(
            name + kind, 3 * d, cols,
            {.first = which * head, .rows = head, .stride = 3 * head, .n = config.n_heads});
    };
    layer.q = part("weight", d, 0);
    layer.k = part("weight", d, 1);
    layer.v = part("weight", d, 2);
    if (!bias) return;
    layer.q_bias = part("bias", 0, 0);
    layer.k_bias = part("bias", 0, 1);
    layer.v_bias = part("bias", 0, 2);
}

/// pythia-mlkv: layers without KV heads have no key and no value.
void take_apart(const ModelConfig& config, bool owns, const std::string& at, bool bias,
                Checkpoint& checkpoint, LayerWeights& layer) {
    const std::int64_t d = config.d_model, d_kv = std::int64_t{config.n_kv_heads} * config.head_dim;
    layer.q = checkpoint.weight(at + "query.weight", d, d);
    if (bias) layer.q_bias = checkpoint.weight(at + "query.bias", d);
    if (!owns) return;
    layer.k = checkpoint.weight(at + "key.weight", d_kv, d);
    layer.v = checkpoint.weight(at + "value.weight", d_kv, d);
    if (!bias) return;
    layer.k_bias = checkpoint.weight(at + "key.bias", d_kv);
    layer.v_bias = checkpoint.weight(at + "value.bias", d_kv);
}

ModelWeights map_gpt_neox(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, d_ff = config.d_ff;
    const std::string model = prefix_of(checkpoint, {"gpt_neox.", ""}, "final_layer_norm.weight");
    const bool bias = has_attention_bias(file);
    const std::vector<bool> owns = layers_with_kv(config);
    ModelWeights weights;
    const std::string first_query = model + "layers.0.attention.query.weight";
    const bool splits = checkpoint.contains(first_query) || checkpoint.has_place(first_query);
    if (!splits &&
        (config.n_kv_heads != config.n_heads || std::find(owns.begin(), owns.end(), false) != owns.end()))
        fail(ErrorCode::bad_file,
             "cannot use {}: it shares KV heads, and the weights hold q, k and v of all heads in one tensor; "
             "check the file",
             file.path().string());
    const std::string output = checkpoint.contains("lm_head.weight") ? "lm_head.weight" : "embed_out.weight";
    take_embeddings(config, checkpoint, model + "embed_in.weight", output, d, weights);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}layers.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        layer.attention_norm = checkpoint.weight(at + "input_layernorm.weight", d);
        layer.attention_norm_bias = checkpoint.weight(at + "input_layernorm.bias", d);
        if (splits) {
            take_apart(config, owns[to_index(l)], at + "attention.", bias, checkpoint, layer);
        } else {
            take_fused(config, at + "attention.query_key_value.", bias, checkpoint, layer);
        }
        layer.o = checkpoint.weight(at + "attention.dense.weight", d, d);
        if (bias) layer.o_bias = checkpoint.weight(at + "attention.dense.bias", d);
        layer.mlp_norm = checkpoint.weight(at + "post_attention_layernorm.weight", d);
        layer.mlp_norm_bias = checkpoint.weight(at + "post_attention_layernorm.bias", d);
        layer.up = checkpoint.weight(at + "mlp.dense_h_to_4h.weight", d_ff, d);
        layer.up_bias = checkpoint.weight(at + "mlp.dense_h_to_4h.bias", d_ff);
        layer.down = checkpoint.weight(at + "mlp.dense_4h_to_h.weight", d, d_ff);
        layer.down_bias = checkpoint.weight(at + "mlp.dense_4h_to_h.bias", d);
    }
    weights.final_norm = checkpoint.weight(model + "final_layer_norm.weight", d);
    weights.final_norm_bias = checkpoint.weight(model + "final_layer_norm.bias", d);
    return weights;
}

}  // namespace

const Family kGptNeoXFamily = {"gpt_neox", {"GPTNeoXForCausalLM"}, "gpt_neox", read_gpt_neox, map_gpt_neox};

}  // namespace keyhole
