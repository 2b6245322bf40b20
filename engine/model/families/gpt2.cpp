// GPT-2 and Cerebras-GPT: LayerNorm, learned positions, transposed matrices (inputs by outputs), q, k and v
// side by side.
#include "engine/base/error.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

namespace keyhole {
namespace {

ModelConfig read_gpt2(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    refuse_flag(file, "/add_cross_attention", false, "decoders alone");
    refuse_flag(file, "/scale_attn_by_inverse_layer_idx", false, "one scale of attention for all layers");
    ModelConfig config;
    config.family = "gpt2";
    config.d_model = file.count("/n_embd", kMostWidth);
    config.n_layers = file.count("/n_layer", kMostLayers);
    config.n_heads = config.n_kv_heads = file.count("/n_head", kMostHeads);
    config.d_ff = file.count_or("/n_inner", 4 * config.d_model, kMostNeurons);
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/n_positions", 1024, kMostPositions);
    config.head_dim = even_head_dim(file, config, "n_embd", "n_head");
    config.norm = NormKind::layer;
    config.norm_eps = static_cast<float>(file.positive_or("/layer_norm_epsilon", 1e-5));
    config.activation = read_activation(file, "/activation_function", "gelu_new");
    config.positions = PositionKind::learned;
    if (!file.flag_or("/scale_attn_weights", true)) config.attention_scale = 1.0f;
    config.tied = file.flag_or("/tie_word_embeddings", true);
    read_special_tokens(file, config, 50256, 50256);
    return config;
}

ModelWeights map_gpt2(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, d_ff = config.d_ff;
    const std::string model = prefix_of(checkpoint, {"transformer.", ""}, "wpe.weight");
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "wte.weight", "lm_head.weight", d, weights);
    weights.position_embedding = checkpoint.weight(model + "wpe.weight", config.n_ctx, d);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}h.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        const auto part = [&](std::int64_t which) {
            return checkpoint.transposed(at + "attn.c_attn.weight", 3 * d, d, which * d, d);
        };
        const auto part_bias = [&](std::int64_t which) {
            return checkpoint.blocks(at + "attn.c_attn.bias", 3 * d, 0, {.first = which * d, .rows = d});
        };
        layer.attention_norm = checkpoint.weight(at + "ln_1.weight", d);
        layer.attention_norm_bias = checkpoint.weight(at + "ln_1.bias", d);
        layer.q = part(0);
        layer.k = part(1);
        layer.v = part(2);
        layer.q_bias = part_bias(0);
        layer.k_bias = part_bias(1);
        layer.v_bias = part_bias(2);
        layer.o = checkpoint.transposed(at + "attn.c_proj.weight", d, d, 0, d);
        layer.o_bias = checkpoint.weight(at + "attn.c_proj.bias", d);
        layer.mlp_norm = checkpoint.weight(at + "ln_2.weight", d);
        layer.mlp_norm_bias = checkpoint.weight(at + "ln_2.bias", d);
        layer.up = checkpoint.transposed(at + "mlp.c_fc.weight", d_ff, d, 0, d_ff);
        layer.up_bias = checkpoint.weight(at + "mlp.c_fc.bias", d_ff);
        layer.down = checkpoint.transposed(at + "mlp.c_proj.weight", d, d_ff, 0, d);
        layer.down_bias = checkpoint.weight(at + "mlp.c_proj.bias", d);
    }
    weights.final_norm = checkpoint.weight(model + "ln_f.weight", d);
    weights.final_norm_bias = checkpoint.weight(model + "ln_f.bias", d);
    return weights;
}

}  // namespace

// Cerebras-GPT names the class without a head, and ties its output.
const Family kGpt2Family = {"gpt2", {"GPT2LMHeadModel", "GPT2Model"}, "gpt2", read_gpt2, map_gpt2};

}  // namespace keyhole
