// OPT: LayerNorm before or after the sums, learned positions from row 2 on, ReLU. The 350M model has
// embeddings narrower than its layers and no final norm.
#include "engine/base/error.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

namespace keyhole {
namespace {

ModelConfig read_opt(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    refuse_flag(file, "/layer_norm_elementwise_affine", true, "norms with weights");
    ModelConfig config;
    config.family = "opt";
    config.d_model = file.count("/hidden_size", kMostWidth);
    config.n_layers = file.count("/num_hidden_layers", kMostLayers);
    config.n_heads = config.n_kv_heads = file.count("/num_attention_heads", kMostHeads);
    config.d_ff = file.count("/ffn_dim", kMostNeurons);
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/max_position_embeddings", 2048, kMostPositions);
    config.head_dim = even_head_dim(file, config, "hidden_size", "num_attention_heads");
    config.norm = NormKind::layer;
    config.activation = read_activation(file, "/activation_function", "relu");
    config.post_norm = !file.flag_or("/do_layer_norm_before", true);
    config.positions = PositionKind::learned;
    config.position_offset = 2;
    config.tied = file.flag_or("/tie_word_embeddings", true);
    read_special_tokens(file, config, 2, 2);
    return config;
}

ModelWeights map_opt(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, d_ff = config.d_ff;
    const std::int64_t d_embed = file.count_or("/word_embed_proj_dim", config.d_model, kMostWidth);
    const bool bias = file.flag_or("/enable_bias", true);
    const std::string model = prefix_of(checkpoint, {"model.decoder.", "decoder."}, "embed_positions.weight");
    const auto bias_of = [&](const std::string& name, std::int64_t rows) {
        return bias ? checkpoint.weight(name, rows) : Weight();
    };
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "embed_tokens.weight", "lm_head.weight", d_embed, weights);
    weights.position_embedding =
        checkpoint.weight(model + "embed_positions.weight", config.n_ctx + config.position_offset, d);
    if (d_embed != d) {
        weights.project_in = checkpoint.weight(model + "project_in.weight", d, d_embed);
        weights.project_out = checkpoint.weight(model + "project_out.weight", d_embed, d);
    }
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}layers.{}.", model, l), attention = at + "self_attn.";
        LayerWeights& layer = weights.layers.emplace_back();
        layer.attention_norm = checkpoint.weight(at + "self_attn_layer_norm.weight", d);
        layer.attention_norm_bias = checkpoint.weight(at + "self_attn_layer_norm.bias", d);
        layer.q = checkpoint.weight(attention + "q_proj.weight", d, d);
        layer.k = checkpoint.weight(attention + "k_proj.weight", d, d);
        layer.v = checkpoint.weight(attention + "v_proj.weight", d, d);
        layer.o = checkpoint.weight(attention + "out_proj.weight", d, d);
        layer.q_bias = bias_of(attention + "q_proj.bias", d);
        layer.k_bias = bias_of(attention + "k_proj.bias", d);
        layer.v_bias = bias_of(attention + "v_proj.bias", d);
        layer.o_bias = bias_of(attention + "out_proj.bias", d);
        layer.mlp_norm = checkpoint.weight(at + "final_layer_norm.weight", d);
        layer.mlp_norm_bias = checkpoint.weight(at + "final_layer_norm.bias", d);
        layer.up = checkpoint.weight(at + "fc1.weight", d_ff, d);
        layer.up_bias = bias_of(at + "fc1.bias", d_ff);
        layer.down = checkpoint.weight(at + "fc2.weight", d, d_ff);
        layer.down_bias = bias_of(at + "fc2.bias", d);
    }
    if (!config.post_norm && !file.flag_or("/_remove_final_layer_norm", false)) {
        weights.final_norm = checkpoint.weight(model + "final_layer_norm.weight", d);
        weights.final_norm_bias = checkpoint.weight(model + "final_layer_norm.bias", d);
    }
    return weights;
}

}  // namespace

const Family kOptFamily = {"opt", {"OPTForCausalLM"}, "opt", read_opt, map_opt};

}  // namespace keyhole
