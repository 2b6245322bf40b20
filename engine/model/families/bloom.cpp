// BLOOM: LayerNorm, also of the embedding, ALiBi, q, k and v of each head in one matrix, biases everywhere.
#include "engine/base/error.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

namespace keyhole {
namespace {

ModelConfig read_bloom(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    refuse_flag(file, "/apply_residual_connection_post_layernorm", false, "sums before the norms");
    ModelConfig config;
    config.family = "bloom";
    const auto count = [&](const char* key, const char* older, int most) {
        return file.has(key) ? file.count(key, most) : file.count(older, most);
    };
    config.d_model = count("/hidden_size", "/n_embed", kMostWidth);
    config.n_layers = count("/n_layer", "/num_hidden_layers", kMostLayers);
    config.n_heads = config.n_kv_heads = count("/n_head", "/num_attention_heads", kMostHeads);
    config.head_dim = even_head_dim(file, config, "hidden_size", "n_head");
    config.d_ff = 4 * config.d_model;
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/seq_length", 2048, kMostPositions);
    config.norm = NormKind::layer;
    config.norm_eps = static_cast<float>(file.positive_or("/layer_norm_epsilon", 1e-5));
    config.activation = Activation::gelu_tanh;
    config.positions = PositionKind::alibi;
    config.alibi_slopes = alibi_slopes(config.n_heads, 8.0);
    config.tied = file.flag_or("/tie_word_embeddings", true);
    read_special_tokens(file, config, 1, 2);
    return config;
}

ModelWeights map_bloom(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, d_ff = config.d_ff, head = config.head_dim;
    const std::string model = prefix_of(checkpoint, {"transformer.", ""}, "ln_f.weight");
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "word_embeddings.weight", "lm_head.weight", d, weights);
    weights.embedding_norm = checkpoint.weight(model + "word_embeddings_layernorm.weight", d);
    weights.embedding_norm_bias = checkpoint.weight(model + "word_embeddings_layernorm.bias", d);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}h.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        const auto take = [&](const char* name, std::int64_t rows, std::int64_t cols, Weight& w,
                              Weight& bias) {
            w = checkpoint.weight(at + name + ".weight", rows, cols);
            bias = checkpoint.weight(at + name + ".bias", rows);
        };
        // The rows of a head are its q, its k, its v.
        const auto part = [&](std::int64_t which, Weight& w, Weight& bias) {
            const std::string name = at + "self_attention.query_key_value";
            const RowBlocks rows{which * head, head, 3 * head, config.n_heads};
            w = checkpoint.blocks(name + ".weight", 3 * d, d, rows);
            bias = checkpoint.blocks(name + ".bias", 3 * d, 0, rows);
        };
        take("input_layernorm", d, 0, layer.attention_norm, layer.attention_norm_bias);
        if (checkpoint.has_place(at + "self_attention.query.weight")) {  // GGUF
            take("self_attention.query", d, d, layer.q, layer.q_bias);
            take("self_attention.key", d, d, layer.k, layer.k_bias);
            take("self_attention.value", d, d, layer.v, layer.v_bias);
        } else {
            part(0, layer.q, layer.q_bias);
            part(1, layer.k, layer.k_bias);
            part(2, layer.v, layer.v_bias);
        }
        take("self_attention.dense", d, d, layer.o, layer.o_bias);
        take("post_attention_layernorm", d, 0, layer.mlp_norm, layer.mlp_norm_bias);
        take("mlp.dense_h_to_4h", d_ff, d, layer.up, layer.up_bias);
        take("mlp.dense_4h_to_h", d, d_ff, layer.down, layer.down_bias);
    }
    weights.final_norm = checkpoint.weight(model + "ln_f.weight", d);
    weights.final_norm_bias = checkpoint.weight(model + "ln_f.bias", d);
    return weights;
}

}  // namespace

const Family kBloomFamily = {"bloom", {"BloomForCausalLM"}, "bloom", read_bloom, map_bloom};

}  // namespace keyhole
