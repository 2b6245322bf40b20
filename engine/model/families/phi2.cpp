// Phi-1 to Phi-2: parallel branches with one LayerNorm, biases everywhere, rotary positions over a part of
// each head, a feed-forward layer without a gate.
#include "engine/base/error.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

namespace keyhole {
namespace {

ModelConfig read_phi2(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    refuse_flag(file, "/qk_layernorm", false, "queries and keys without a norm in this family");
    ModelConfig config;
    config.family = "phi";
    config.d_model = file.count("/hidden_size", kMostWidth);
    config.n_layers = file.count("/num_hidden_layers", kMostLayers);
    config.n_heads = file.count("/num_attention_heads", kMostHeads);
    config.n_kv_heads = file.count_or("/num_key_value_heads", config.n_heads, kMostHeads);
    check_kv_heads(file, config);
    config.head_dim = even_head_dim(file, config, "hidden_size", "num_attention_heads");
    config.d_ff = file.count("/intermediate_size", kMostNeurons);
    config.n_vocab = file.count_or("/vocab_size", 51200, kMostVocabulary);
    config.n_ctx = file.count_or("/max_position_embeddings", 2048, kMostPositions);
    config.norm = NormKind::layer;
    config.norm_eps = static_cast<float>(file.positive_or("/layer_norm_eps", 1e-5));
    config.activation = read_activation(file, "/hidden_act", "gelu_new");
    config.parallel = config.shared_norm = true;
    read_rotary(file, config, rotary_dims(file, config, 0.5), "/rope_theta");
    config.tied = file.flag_or("/tie_word_embeddings", false);
    read_special_tokens(file, config, 1, 2);
    return config;
}

ModelWeights map_phi2(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, d_ff = config.d_ff;
    const std::int64_t d_kv = std::int64_t{config.n_kv_heads} * config.head_dim;
    const std::string model = prefix_of(checkpoint, {"model.", ""}, "final_layernorm.weight");
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "embed_tokens.weight", "lm_head.weight", d, weights);
    weights.output_bias = checkpoint.weight("lm_head.bias", config.n_vocab);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}layers.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        const auto take = [&](const char* name, std::int64_t rows, std::int64_t cols, Weight& w,
                              Weight& bias) {
            w = checkpoint.weight(at + name + ".weight", rows, cols);
            bias = checkpoint.weight(at + name + ".bias", rows);
        };
        take("input_layernorm", d, 0, layer.attention_norm, layer.attention_norm_bias);
        take("self_attn.q_proj", d, d, layer.q, layer.q_bias);
        take("self_attn.k_proj", d_kv, d, layer.k, layer.k_bias);
        take("self_attn.v_proj", d_kv, d, layer.v, layer.v_bias);
        take("self_attn.dense", d, d, layer.o, layer.o_bias);
        take("mlp.fc1", d_ff, d, layer.up, layer.up_bias);
        take("mlp.fc2", d, d_ff, layer.down, layer.down_bias);
    }
    weights.final_norm = checkpoint.weight(model + "final_layernorm.weight", d);
    weights.final_norm_bias = checkpoint.weight(model + "final_layernorm.bias", d);
    return weights;
}

}  // namespace

const Family kPhi2Family = {"phi", {"PhiForCausalLM"}, "phi", read_phi2, map_phi2};

}  // namespace keyhole
