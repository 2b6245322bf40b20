// LLaMA and its relatives in the same form (TinyLlama, SmolLM, stories): RMSNorm, rotary positions over the
// whole head, SwiGLU,
// no biases, MHA or GQA.
#include "engine/model/families/family.h"

#include "engine/base/error.h"

#include <algorithm>
#include <cmath>

namespace keyhole {
namespace {

[[noreturn]] void unsupported(const ConfigFile& file, const std::string& feature,
                              const std::string& instead) {
    fail(ErrorCode::unsupported, "cannot load {}: {} is not supported, only {}; choose another model",
         file.path().string(), feature, instead);
}

void refuse_what_is_missing(const ConfigFile& file) {
    for (const std::string& key : {std::string("/rope_scaling"), std::string("/rope_parameters")}) {
        if (!file.has(key)) continue;
        const std::string type = file.text_or(key + "/rope_type", file.text_or(key + "/type", "default"));
        if (type != "default")
            unsupported(file, key.substr(1) + " of type " + type, "plain rotary positions");
        if (file.positive_or(key + "/partial_rotary_factor", 1.0) != 1.0) {
            unsupported(file, "partial_rotary_factor", "rotary positions over the whole head");
        }
    }
    if (file.positive_or("/partial_rotary_factor", 1.0) != 1.0) {
        unsupported(file, "partial_rotary_factor", "rotary positions over the whole head");
    }
    for (const char* key : {"/attention_bias", "/mlp_bias"}) {
        if (file.flag_or(key, false))
            unsupported(file, std::string(key + 1) + " true", "layers without biases");
    }
    const std::string activation = file.text_or("/hidden_act", "silu");
    if (activation != "silu" && activation != "swish") unsupported(file, "hidden_act " + activation, "silu");
    if (file.has("/quantization_config")) {
        unsupported(file, "quantization_config", "weights in F32, F16 or BF16");
    }
}

ModelConfig read_config(const ConfigFile& file) {
    refuse_what_is_missing(file);
    ModelConfig config;
    config.family = kLlamaFamily.name;
    config.d_model = file.count("/hidden_size");
    config.n_layers = file.count("/num_hidden_layers");
    config.n_heads = file.count("/num_attention_heads");
    config.n_kv_heads = file.count_or("/num_key_value_heads", config.n_heads);
    config.d_ff = file.count("/intermediate_size");
    config.n_vocab = file.count("/vocab_size");
    config.n_ctx = file.count_or("/max_position_embeddings", 2048);
    if (!file.has("/head_dim") && config.d_model % config.n_heads != 0) {
        fail(ErrorCode::bad_file,
             "cannot use {}: hidden_size {} is no multiple of num_attention_heads {}; check the file",
             file.path().string(), config.d_model, config.n_heads);
    }
    config.head_dim = file.count_or("/head_dim", config.d_model / config.n_heads);
    if (config.head_dim % 2 != 0) {
        fail(ErrorCode::bad_file,
             "cannot use {}: head_dim {} is odd, rotary positions need pairs; check the file",
             file.path().string(), config.head_dim);
    }
    if (config.n_heads % config.n_kv_heads != 0) {
        fail(ErrorCode::bad_file,
             "cannot use {}: num_attention_heads {} is no multiple of num_key_value_heads {}; check the file",
             file.path().string(), config.n_heads, config.n_kv_heads);
    }
    config.norm_eps = static_cast<float>(file.positive_or("/rms_norm_eps", 1e-6));
    const double theta = file.positive_or("/rope_parameters/rope_theta", 10000.0);
    config.rope_theta = static_cast<float>(file.positive_or("/rope_theta", theta));
    config.rotary.dims = config.head_dim;
    for (int i = 0; i < config.head_dim / 2; ++i)
        config.rotary.inverse_frequency.push_back(
            std::pow(static_cast<double>(config.rope_theta), -2.0 * i / config.head_dim));
    config.tied = file.flag_or("/tie_word_embeddings", false);
    const std::vector<int> bos = file.ids("/bos_token_id");
    config.bos = bos.empty() ? -1 : bos.front();
    config.eos = file.ids("/eos_token_id");
    return config;
}

ModelWeights map_weights(const ModelConfig& config, Checkpoint& checkpoint) {
    const std::int64_t d_model = config.d_model, d_ff = config.d_ff, n_vocab = config.n_vocab;
    const std::int64_t d_q = std::int64_t{config.n_heads} * config.head_dim;
    const std::int64_t d_kv = std::int64_t{config.n_kv_heads} * config.head_dim;
    const std::string embedding = "model.embed_tokens.weight", output = "lm_head.weight";

    ModelWeights weights;
    // A tied model may be stored under either name.
    const bool by_output = config.tied && !checkpoint.contains(embedding) && checkpoint.contains(output);
    weights.embedding = checkpoint.weight(by_output ? output : embedding, n_vocab, d_model);
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("model.layers.{}.", l);
        LayerWeights& layer = weights.layers.emplace_back();
        layer.attention_norm = checkpoint.weight(at + "input_layernorm.weight", d_model);
        layer.q = checkpoint.weight(at + "self_attn.q_proj.weight", d_q, d_model);
        layer.k = checkpoint.weight(at + "self_attn.k_proj.weight", d_kv, d_model);
        layer.v = checkpoint.weight(at + "self_attn.v_proj.weight", d_kv, d_model);
        layer.o = checkpoint.weight(at + "self_attn.o_proj.weight", d_model, d_q);
        layer.mlp_norm = checkpoint.weight(at + "post_attention_layernorm.weight", d_model);
        layer.gate = checkpoint.weight(at + "mlp.gate_proj.weight", d_ff, d_model);
        layer.up = checkpoint.weight(at + "mlp.up_proj.weight", d_ff, d_model);
        layer.down = checkpoint.weight(at + "mlp.down_proj.weight", d_model, d_ff);
    }
    weights.final_norm = checkpoint.weight("model.norm.weight", d_model);
    weights.output = config.tied ? weights.embedding : checkpoint.weight(output, n_vocab, d_model);
    return weights;
}

}  // namespace

const Family kLlamaFamily = {"llama", "LlamaForCausalLM", "llama", read_config, map_weights};

}  // namespace keyhole
