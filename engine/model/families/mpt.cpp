// MPT: LayerNorm, ALiBi, q, k and v stacked in one matrix, biases only if the checkpoint has them, tied
// embeddings.
#include "engine/base/error.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

namespace keyhole {
namespace {

ModelConfig read_mpt(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    const std::string attention = "/attn_config";
    refuse_flag(file, attention + "/alibi", true, "positions by ALiBi");
    refuse_flag(file, attention + "/qk_ln", false, "queries and keys without a norm");
    refuse_flag(file, attention + "/prefix_lm", false, "causal attention");
    refuse_flag(file, attention + "/attn_uses_sequence_id", false, "one text in a sequence");
    const std::string type = file.text_or(attention + "/attn_type", "multihead_attention");
    if (type != "multihead_attention") refuse(file, "attn_type " + type, "multihead_attention");
    const std::string norm = file.text_or("/norm_type", "low_precision_layernorm");
    if (norm != "low_precision_layernorm" && norm != "layernorm")
        refuse(file, "norm_type " + norm, "layernorm and low_precision_layernorm");
    if (file.has("/logit_scale")) refuse(file, "logit_scale", "outputs that are not scaled");
    if (file.has("/embedding_fraction") && file.positive_or("/embedding_fraction", 1.0) != 1.0)
        refuse(file, "embedding_fraction", "embeddings as they are");

    ModelConfig config;
    config.family = "mpt";
    config.d_model = file.count("/d_model", kMostWidth);
    config.n_layers = file.count("/n_layers", kMostLayers);
    config.n_heads = config.n_kv_heads = file.count("/n_heads", kMostHeads);
    config.d_ff = config.d_model * file.count_or("/expansion_ratio", 4, kMostNeurons / kMostWidth);
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/max_seq_len", 2048, kMostPositions);
    config.head_dim = even_head_dim(file, config, "d_model", "n_heads");
    config.norm = NormKind::layer;
    config.norm_eps = static_cast<float>(file.positive_or("/layer_norm_epsilon", 1e-5));
    config.activation = Activation::gelu;
    config.positions = PositionKind::alibi;
    config.alibi_slopes = alibi_slopes(config.n_heads, file.positive_or(attention + "/alibi_bias_max", 8.0));
    if (file.has(attention + "/softmax_scale"))
        config.attention_scale = static_cast<float>(file.positive_or(attention + "/softmax_scale", 1.0));
    if (file.has(attention + "/clip_qkv"))
        config.clip_qkv = static_cast<float>(file.positive_or(attention + "/clip_qkv", 1.0));
    config.tied = file.flag_or("/tie_word_embeddings", true);
    read_special_tokens(file, config);
    return config;
}

ModelWeights map_mpt(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, d_ff = config.d_ff;
    const std::string model = prefix_of(checkpoint, {"transformer.", ""}, "norm_f.weight");
    const auto bias = [&](const std::string& name, std::int64_t rows) {
        return checkpoint.contains(name) ? checkpoint.weight(name, rows) : Weight();
    };
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "wte.weight", "lm_head.weight", d, weights);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}blocks.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        layer.attention_norm = checkpoint.weight(at + "norm_1.weight", d);
        layer.attention_norm_bias = bias(at + "norm_1.bias", d);
        const auto part = [&](std::int64_t which) {
            return checkpoint.blocks(at + "attn.Wqkv.weight", 3 * d, d, {.first = which * d, .rows = d});
        };
        const auto part_bias = [&](std::int64_t which) {
            const std::string name = at + "attn.Wqkv.bias";
            return checkpoint.contains(name)
                       ? checkpoint.blocks(name, 3 * d, 0, {.first = which * d, .rows = d})
                       : Weight();
        };
        layer.q = part(0);
        layer.k = part(1);
        layer.v = part(2);
        layer.q_bias = part_bias(0);
        layer.k_bias = part_bias(1);
        layer.v_bias = part_bias(2);
        layer.o = checkpoint.weight(at + "attn.out_proj.weight", d, d);
        layer.o_bias = bias(at + "attn.out_proj.bias", d);
        layer.mlp_norm = checkpoint.weight(at + "norm_2.weight", d);
        layer.mlp_norm_bias = bias(at + "norm_2.bias", d);
        layer.up = checkpoint.weight(at + "ffn.up_proj.weight", d_ff, d);
        layer.up_bias = bias(at + "ffn.up_proj.bias", d_ff);
        layer.down = checkpoint.weight(at + "ffn.down_proj.weight", d, d_ff);
        layer.down_bias = bias(at + "ffn.down_proj.bias", d);
    }
    weights.final_norm = checkpoint.weight(model + "norm_f.weight", d);
    weights.final_norm_bias = bias(model + "norm_f.bias", d);
    return weights;
}

}  // namespace

const Family kMptFamily = {"mpt", {"MptForCausalLM", "MPTForCausalLM"}, "mpt", read_mpt, map_mpt};

}  // namespace keyhole
