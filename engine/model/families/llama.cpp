// LLaMA 1 and 2 and what shares their shape (TinyLlama, Keyhole's demo models): RMSNorm, rotary positions over the whole head,
// SwiGLU, no biases, MHA or GQA.
#include "engine/base/error.h"
#include "engine/model/families/family.h"

#include <nlohmann/json.hpp>

namespace keyhole {

namespace {

using Json = nlohmann::json;

/// A number of config.json in [1, 2^24], or the default when it is absent or null.
int count_of(const Json& json, const std::string& file, const char* key, int default_value = 0) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) {
        if (default_value > 0) return default_value;
        fail(ErrorCode::bad_file, "{} has no {}; it is not the config of a LLaMA-style model", file, key);
    }
    if (!found->is_number_integer() || found->get<double>() < 1 || found->get<double>() > (1 << 24))
        fail(ErrorCode::bad_file, "{}: {} is {}, a positive whole number is needed", file, key,
             found->dump());
    return found->get<int>();
}

double real_of(const Json& json, const std::string& file, const char* key, double default_value) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return default_value;
    if (!found->is_number() || !(found->get<double>() > 0))
        fail(ErrorCode::bad_file, "{}: {} is {}, a positive number is needed", file, key, found->dump());
    return found->get<double>();
}

void refuse_unsupported(const Json& json, const std::string& file) {
    auto refuse = [&](const char* key, const char* supported) {
        fail(ErrorCode::unsupported, "{}: {} = {} is not supported, {} is", file, key, json.at(key).dump(),
             supported);
    };
    auto is_set = [&](const char* key) {
        return json.contains(key) && !json.at(key).is_null() && json.at(key) != Json(false);
    };
    if (json.contains("hidden_act") && json.at("hidden_act") != "silu") refuse("hidden_act", "silu");
    for (const char* key : {"attention_bias", "mlp_bias"})
        if (is_set(key)) refuse(key, "no bias");
    if (is_set("quantization_config")) refuse("quantization_config", "an fp32, fp16 or bf16 checkpoint");
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
        if (!is_set(key)) continue;
        const Json& scaling = json.at(key);
        if (!scaling.is_object()) fail(ErrorCode::bad_file, "{}: {} is no object", file, key);
        const Json type = scaling.value("rope_type", scaling.value("type", Json("default")));
        if (type != "default") refuse(key, "plain rotary positions");
    }
}

ModelConfig read_config(const Json& json, const std::string& file) {
    refuse_unsupported(json, file);
    ModelConfig c;
    c.family = "llama";
    c.n_layers = count_of(json, file, "num_hidden_layers");
    c.n_heads = count_of(json, file, "num_attention_heads");
    c.n_kv_heads = count_of(json, file, "num_key_value_heads", c.n_heads);
    c.d_model = count_of(json, file, "hidden_size");
    c.head_dim = count_of(json, file, "head_dim", std::max(1, c.d_model / c.n_heads));
    c.d_ff = count_of(json, file, "intermediate_size");
    c.n_vocab = count_of(json, file, "vocab_size");
    c.n_ctx = count_of(json, file, "max_position_embeddings", 2048);
    c.norm_eps = static_cast<float>(real_of(json, file, "rms_norm_eps", 1e-6));
    const Json rope = json.contains("rope_parameters") && json.at("rope_parameters").is_object()
                          ? json.at("rope_parameters")
                          : Json::object();
    c.rope_theta =
        static_cast<float>(real_of(json, file, "rope_theta", real_of(rope, file, "rope_theta", 10000.0)));
    c.tied = json.value("tie_word_embeddings", Json(false)) == Json(true);
    if (c.head_dim % 2 != 0)
        fail(ErrorCode::unsupported, "{}: head_dim {} is odd, rotary positions need pairs", file, c.head_dim);
    if (c.n_heads % c.n_kv_heads != 0)
        fail(ErrorCode::bad_file, "{}: {} query heads do not divide among {} KV heads", file, c.n_heads,
             c.n_kv_heads);
    const Json bos = json.value("bos_token_id", Json()), eos = json.value("eos_token_id", Json());
    if (bos.is_number_integer()) c.bos = bos.get<int>();
    for (const Json& id : eos.is_array() ? eos : Json::array({eos}))
        if (id.is_number_integer()) c.eos.push_back(id.get<int>());
    return c;
}

ModelWeights bind_weights(const Checkpoint& checkpoint, const ModelConfig& c) {
    const std::int64_t d = c.d_model, d_q = static_cast<std::int64_t>(c.n_heads) * c.head_dim,
                       d_kv = static_cast<std::int64_t>(c.n_kv_heads) * c.head_dim;
    const std::string embedding = "model.embed_tokens.weight", output = "lm_head.weight";
    ModelWeights weights;
    // A tied matrix may be stored under either name.
    weights.embedding =
        checkpoint.weight(c.tied && !checkpoint.contains(embedding) ? output : embedding, c.n_vocab, d);
    weights.output = c.tied ? weights.embedding : checkpoint.weight(output, c.n_vocab, d);
    weights.final_norm = checkpoint.weight("model.norm.weight", d);
    for (int l = 0; l < c.n_layers; ++l) {
        const std::string layer = fmt::format("model.layers.{}.", l);
        LayerWeights& w = weights.layers.emplace_back();
        w.attention_norm = checkpoint.weight(layer + "input_layernorm.weight", d);
        w.q = checkpoint.weight(layer + "self_attn.q_proj.weight", d_q, d);
        w.k = checkpoint.weight(layer + "self_attn.k_proj.weight", d_kv, d);
        w.v = checkpoint.weight(layer + "self_attn.v_proj.weight", d_kv, d);
        w.o = checkpoint.weight(layer + "self_attn.o_proj.weight", d, d_q);
        w.mlp_norm = checkpoint.weight(layer + "post_attention_layernorm.weight", d);
        w.gate = checkpoint.weight(layer + "mlp.gate_proj.weight", c.d_ff, d);
        w.up = checkpoint.weight(layer + "mlp.up_proj.weight", c.d_ff, d);
        w.down = checkpoint.weight(layer + "mlp.down_proj.weight", d, c.d_ff);
    }
    return weights;
}

}  // namespace

const Family kLlama = {"LlamaForCausalLM", read_config, bind_weights};

}  // namespace keyhole
