// GPT-J: LayerNorm, rotary positions over neighbouring dimensions of a part of each head, parallel
// attention (without biases) and feed-forward layer under one norm, an output with a bias.
#include "engine/base/error.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

namespace keyhole {
namespace {

ModelConfig read_gptj(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    ModelConfig config;
    config.family = "gptj";
    config.d_model = file.count("/n_embd", kMostWidth);
    config.n_layers = file.count("/n_layer", kMostLayers);
    config.n_heads = config.n_kv_heads = file.count("/n_head", kMostHeads);
    config.d_ff = file.count_or("/n_inner", 4 * config.d_model, kMostNeurons);
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/n_positions", 2048, kMostPositions);
    config.head_dim = even_head_dim(file, config, "n_embd", "n_head");
    config.norm = NormKind::layer;
    config.norm_eps = static_cast<float>(file.positive_or("/layer_norm_epsilon", 1e-5));
    config.activation = read_activation(file, "/activation_function", "gelu_new");
    config.parallel = config.shared_norm = true;
    read_rotary(file, config, file.count_or("/rotary_dim", 64, kMostHeadDim), "/rope_theta");
    config.rotary.interleaved = true;
    config.tied = file.flag_or("/tie_word_embeddings", false);
    read_special_tokens(file, config, 50256, 50256);
    return config;
}

ModelWeights map_gptj(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, d_ff = config.d_ff;
    const std::string model = prefix_of(checkpoint, {"transformer.", ""}, "ln_f.weight");
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "wte.weight", "lm_head.weight", d, weights);
    weights.output_bias = checkpoint.weight("lm_head.bias", config.n_vocab);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}h.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        layer.attention_norm = checkpoint.weight(at + "ln_1.weight", d);
        layer.attention_norm_bias = checkpoint.weight(at + "ln_1.bias", d);
        layer.q = checkpoint.weight(at + "attn.q_proj.weight", d, d);
        layer.k = checkpoint.weight(at + "attn.k_proj.weight", d, d);
        layer.v = checkpoint.weight(at + "attn.v_proj.weight", d, d);
        layer.o = checkpoint.weight(at + "attn.out_proj.weight", d, d);
        layer.up = checkpoint.weight(at + "mlp.fc_in.weight", d_ff, d);
        layer.up_bias = checkpoint.weight(at + "mlp.fc_in.bias", d_ff);
        layer.down = checkpoint.weight(at + "mlp.fc_out.weight", d, d_ff);
        layer.down_bias = checkpoint.weight(at + "mlp.fc_out.bias", d);
    }
    weights.final_norm = checkpoint.weight(model + "ln_f.weight", d);
    weights.final_norm_bias = checkpoint.weight(model + "ln_f.bias", d);
    return weights;
}

}  // namespace

const Family kGptJFamily = {"gptj", {"GPTJForCausalLM"}, "gptj", read_gptj, map_gptj};

}  // namespace keyhole
