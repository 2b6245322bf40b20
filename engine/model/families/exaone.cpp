// EXAONE 3 and 3.5: LLaMA under other names. Its own code: modeling_exaone.py of the released models.
#include "engine/base/error.h"
#include "engine/model/families/common.h"
#include "engine/model/families/family.h"

namespace keyhole {
namespace {

ModelConfig read_exaone(const ConfigFile& file) {
    refuse_quantized(file);
    refuse_other_models(file);
    ModelConfig config;
    config.family = "exaone";
    config.d_model = file.count("/hidden_size", kMostWidth);
    const char* layers = file.has("/num_layers") ? "/num_layers" : "/num_hidden_layers";
    config.n_layers = file.count(layers, kMostLayers);
    config.n_heads = file.count("/num_attention_heads", kMostHeads);
    config.n_kv_heads = file.count_or("/num_key_value_heads", config.n_heads, kMostHeads);
    check_kv_heads(file, config);
    config.head_dim = even_head_dim(file, config, "hidden_size", "num_attention_heads");
    config.d_ff = file.count_or("/intermediate_size", 4 * config.d_model, kMostNeurons);
    config.n_vocab = file.count("/vocab_size", kMostVocabulary);
    config.n_ctx = file.count_or("/max_position_embeddings", 2048, kMostPositions);
    config.norm_eps = static_cast<float>(file.positive_or("/layer_norm_epsilon", 1e-6));
    config.activation = read_activation(file, "/activation_function", "silu");
    read_rotary(file, config, config.head_dim, "/rope_theta");
    config.tied = file.flag_or("/tie_word_embeddings", true);
    read_special_tokens(file, config, 0, 2);
    return config;
}

ModelWeights map_exaone(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d = config.d_model, d_ff = config.d_ff;
    const std::int64_t d_kv = std::int64_t{config.n_kv_heads} * config.head_dim;
    const std::string model = prefix_of(checkpoint, {"transformer.", ""}, "ln_f.weight");
    ModelWeights weights;
    take_embeddings(config, checkpoint, model + "wte.weight", "lm_head.weight", d, weights);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}h.{}.", model, l);
        LayerWeights& layer = weights.layers.emplace_back();
        const auto take = [&](const char* name, std::int64_t rows, std::int64_t cols) {
            return checkpoint.weight(at + name + ".weight", rows, cols);
        };
        layer.attention_norm = take("ln_1", d, 0);
        layer.q = take("attn.attention.q_proj", d, d);
        layer.k = take("attn.attention.k_proj", d_kv, d);
        layer.v = take("attn.attention.v_proj", d_kv, d);
        layer.o = take("attn.attention.out_proj", d, d);
        layer.mlp_norm = take("ln_2", d, 0);
        layer.gate = take("mlp.c_fc_0", d_ff, d);
        layer.up = take("mlp.c_fc_1", d_ff, d);
        layer.down = take("mlp.c_proj", d, d_ff);
    }
    weights.final_norm = checkpoint.weight(model + "ln_f.weight", d);
    return weights;
}

}  // namespace

const Family kExaoneFamily = {"exaone", {"ExaoneForCausalLM"}, "exaone", read_exaone, map_exaone};

}  // namespace keyhole
