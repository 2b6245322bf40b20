#include "engine/model/families/llama_form.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/families/common.h"

namespace keyhole {

namespace {

/// Returns a count that must be there unless the form has a default.
int count_with(const ConfigFile& file, const char* key, int by_default, int most) {
    return by_default > 0 ? file.count_or(key, by_default, most) : file.count(key, most);
}

void read_heads(const ConfigFile& file, const LlamaForm& form, ModelConfig& config) {
    config.n_heads = count_with(file, "/num_attention_heads", form.n_heads, kMostHeads);
    const bool by_default = form.n_kv_heads > 0 && !file.is_null("/num_key_value_heads");
    config.n_kv_heads =
        file.count_or("/num_key_value_heads", by_default ? form.n_kv_heads : config.n_heads, kMostHeads);
    if (form.head_dim > 0 || file.has("/head_dim"))
        config.head_dim = file.count_or("/head_dim", form.head_dim, kMostHeadDim);
    else
        config.head_dim = even_head_dim(file, config, "hidden_size", "num_attention_heads");
    if (config.head_dim % 2 != 0)
        fail(ErrorCode::bad_file,
             "cannot use {}: head_dim {} is odd, rotary positions need pairs; check the file",
             file.path().string(), config.head_dim);
    check_kv_heads(file, config);
}

}  // namespace

ModelConfig read_llama_config(const ConfigFile& file, const LlamaForm& form) {
    if (!form.takes_mxfp4) refuse_quantized(file);
    refuse_other_models(file);
    const bool is_partial = form.rotary_part > 0;
    for (const std::string& key :
         {std::string("/partial_rotary_factor"), rope_key(file) + "/partial_rotary_factor"})
        if (!is_partial && file.positive_or(key, 1.0) != 1.0)
            refuse(file, "partial_rotary_factor", "rotary positions over the whole head in this family");
    ModelConfig config;
    config.family = form.name;
    config.d_model = file.count("/hidden_size", kMostWidth);
    config.n_layers = file.count("/num_hidden_layers", kMostLayers);
    read_heads(file, form, config);
    config.d_ff = file.count("/intermediate_size", kMostNeurons);
    config.n_vocab = count_with(file, "/vocab_size", form.n_vocab, kMostVocabulary);
    config.n_ctx = file.count_or("/max_position_embeddings", form.n_ctx, kMostPositions);
    config.norm = form.norm;
    config.norm_eps = static_cast<float>(
        file.positive_or(form.norm == NormKind::rms ? "/rms_norm_eps" : "/layer_norm_eps", form.norm_eps));
    config.activation = read_activation(file, form.activation_key, form.activation);
    if (!form.rotary_by_layer)
        read_rotary(file, config, is_partial ? rotary_dims(file, config, form.rotary_part) : config.head_dim,
                    "/rope_theta", form.theta);
    config.tied = file.flag_or("/tie_word_embeddings", form.tied);
    read_special_tokens(file, config, form.bos, form.eos);
    return config;
}

void read_experts(const ConfigFile& file, const char* width_key, ModelConfig& config) {
    constexpr int kMostExperts = 1 << 12;
    const char* count_key = file.has("/num_experts") ? "/num_experts" : "/num_local_experts";
    config.n_experts = file.count(count_key, kMostExperts);
    config.n_experts_used = file.count("/num_experts_per_tok", kMostExperts);
    config.d_expert = file.count(width_key, kMostNeurons);
    if (config.n_experts_used > config.n_experts)
        fail(ErrorCode::bad_file, "cannot use {}: num_experts_per_tok {} is above {} {}; check the file",
             file.path().string(), config.n_experts_used, count_key + 1, config.n_experts);
}

namespace {

/// Maps the tensors of one layer, whose names begin with `at`.
class LayerMap {
  public:
    LayerMap(const ModelConfig& config, const LlamaForm& form, Checkpoint& checkpoint, std::string at)
        : c_(config), form_(form), checkpoint_(checkpoint), at_(std::move(at)) {}

    LayerWeights layer(bool owns, bool o_bias) {
        norms();
        form_.fused_qkv ? fused_attention() : attention(owns);
        layer_.o = weight("self_attn.o_proj.weight", c_.d_model, d_q_);
        if (o_bias) layer_.o_bias = weight("self_attn.o_proj.bias", c_.d_model);
        if (form_.qk_norm != QkNorm::none) {
            const bool by_head = form_.qk_norm == QkNorm::head;
            layer_.q_norm = weight("self_attn.q_norm.weight", by_head ? c_.head_dim : d_q_);
            if (owns) layer_.k_norm = weight("self_attn.k_norm.weight", by_head ? c_.head_dim : d_kv_);
        }
        if (form_.own_experts) return std::move(layer_);
        has_experts() ? experts() : feed_forward();
        return std::move(layer_);
    }

  private:
    /// Of a family with experts some layers may have none. One that has nothing lacks its experts.
    bool has_experts() const {
        if (form_.experts.router == nullptr) return false;
        if (checkpoint_.contains(at_ + form_.experts.router + ".weight")) return true;
        for (const char* name : {"gate", "up", "down"})
            if (checkpoint_.contains(fmt::format("{}mlp.{}_proj.weight", at_, name))) return false;
        return true;
    }
    Weight weight(const std::string& name, std::int64_t rows, std::int64_t cols = 0) {
        return checkpoint_.weight(at_ + name, rows, cols);
    }
    Weight part(const std::string& name, std::int64_t rows, std::int64_t cols, std::int64_t first,
                std::int64_t n) {
        return checkpoint_.blocks(at_ + name, rows, cols, {.first = first, .rows = n});
    }

    void norms() {
        const auto take = [&](const char* name, Weight& gain, Weight* bias) {
            if (name == nullptr) return;
            gain = weight(std::string(name) + ".weight", c_.d_model);
            if (form_.norm_bias && bias != nullptr) *bias = weight(std::string(name) + ".bias", c_.d_model);
        };
        take(form_.attention_norm, layer_.attention_norm, &layer_.attention_norm_bias);
        take(form_.mlp_norm, layer_.mlp_norm, &layer_.mlp_norm_bias);
        take(form_.attention_out_norm, layer_.attention_out_norm, nullptr);
        take(form_.mlp_out_norm, layer_.mlp_out_norm, nullptr);
    }

    void attention(bool owns) {
        layer_.q = weight("self_attn.q_proj.weight", d_q_, c_.d_model);
        if (owns) layer_.k = weight("self_attn.k_proj.weight", d_kv_, c_.d_model);
        if (owns) layer_.v = weight("self_attn.v_proj.weight", d_kv_, c_.d_model);
        if (!form_.qkv_bias) return;
        layer_.q_bias = weight("self_attn.q_proj.bias", d_q_);
        if (owns) layer_.k_bias = weight("self_attn.k_proj.bias", d_kv_);
        if (owns) layer_.v_bias = weight("self_attn.v_proj.bias", d_kv_);
    }

    void fused_attention() {
        const std::int64_t rows = d_q_ + 2 * d_kv_;
        const auto take = [&](std::int64_t first, std::int64_t n, Weight& w) {
            w = part("self_attn.qkv_proj.weight", rows, c_.d_model, first, n);
        };
        take(0, d_q_, layer_.q);
        take(d_q_, d_kv_, layer_.k);
        take(d_q_ + d_kv_, d_kv_, layer_.v);
    }

    void feed_forward() {
        const std::int64_t d = c_.d_model, d_ff = c_.d_ff;
        if (form_.fused_gate_up) {
            layer_.gate = part("mlp.gate_up_proj.weight", 2 * d_ff, d, 0, d_ff);
            layer_.up = part("mlp.gate_up_proj.weight", 2 * d_ff, d, d_ff, d_ff);
        } else {
            layer_.gate = weight("mlp.gate_proj.weight", d_ff, d);
            layer_.up = weight("mlp.up_proj.weight", d_ff, d);
        }
        layer_.down = weight("mlp.down_proj.weight", d, d_ff);
        if (!form_.mlp_bias) return;
        layer_.gate_bias = weight("mlp.gate_proj.bias", d_ff);
        layer_.up_bias = weight("mlp.up_proj.bias", d_ff);
        layer_.down_bias = weight("mlp.down_proj.bias", d);
    }

    /// Each expert has tensors of its own, or all experts of a layer lie in one (GGUF).
    void experts() {
        const ExpertNames& names = form_.experts;
        const std::int64_t d = c_.d_model, width = c_.d_expert;
        layer_.router = weight(std::string(names.router) + ".weight", c_.n_experts, d);
        const auto take = [&](int e, const char* kind, std::int64_t rows, std::int64_t cols) {
            const std::string stacked = fmt::format("{}{}.{}.weight", at_, names.experts, kind);
            return checkpoint_.has_place(stacked)
                       ? checkpoint_.one_of(stacked, e, c_.n_experts, rows, cols)
                       : weight(fmt::format("{}.{}.{}.weight", names.experts, e, kind), rows, cols);
        };
        for (int e = 0; e < c_.n_experts; ++e) {
            ExpertWeights& expert = layer_.experts.emplace_back();
            expert.gate = take(e, names.gate, width, d);
            expert.up = take(e, names.up, width, d);
            expert.down = take(e, names.down, d, width);
        }
    }

    const ModelConfig& c_;
    const LlamaForm& form_;
    Checkpoint& checkpoint_;
    std::string at_;
    LayerWeights layer_;
    std::int64_t d_q_ = std::int64_t{c_.n_heads} * c_.head_dim,
                 d_kv_ = std::int64_t{c_.n_kv_heads} * c_.head_dim;
};

/// Returns whether the layers have biases of o. attention_bias of a file may mean q, k and v alone.
bool has_o_bias(const ModelConfig& config, const LlamaForm& form, const std::string& model,
                Checkpoint& checkpoint) {
    if (!form.o_bias) return false;
    for (int l = 0; l < config.n_layers; ++l)
        if (checkpoint.contains(fmt::format("{}layers.{}.self_attn.o_proj.bias", model, l))) return true;
    checkpoint.add_note(
        "the attention has biases of q, k and v and none of o (attention_bias); o has none here, as with the "
        "zeros of transformers");
    return false;
}

}  // namespace

ModelWeights map_llama_weights(const ModelConfig& config, const LlamaForm& form, Checkpoint& checkpoint) {
    const std::string model = prefix_of(
        checkpoint, {"model.", "", "model.language_model.", "language_model.model."}, "norm.weight");
    const std::vector<bool> layer_owns = layers_with_kv(config);
    ModelWeights weights;
    const bool in_part = model == "language_model.model.";
    take_embeddings(config, checkpoint, model + "embed_tokens.weight",
                    in_part ? "language_model.lm_head.weight" : "lm_head.weight", config.d_model, weights);
    const bool o_bias = has_o_bias(config, form, model, checkpoint);
    for (int l = 0; l < config.n_layers; ++l)
        weights.layers.push_back(LayerMap(config, form, checkpoint, fmt::format("{}layers.{}.", model, l))
                                     .layer(layer_owns[to_index(l)], o_bias));
    weights.final_norm = checkpoint.weight(model + "norm.weight", config.d_model);
    if (form.norm_bias) weights.final_norm_bias = checkpoint.weight(model + "norm.bias", config.d_model);
    return weights;
}

}  // namespace keyhole
