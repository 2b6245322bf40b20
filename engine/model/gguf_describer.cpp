// Sources: constants.py and tensor_mapping.py of the gguf package, and convert_hf_to_gguf.py of llama.cpp,
// which says how each architecture's tensors are rearranged.
#include "engine/model/gguf_describer.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/model/config_file.h"
#include "engine/model/quantised_blocks.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

void GgufDescriber::refuse(const std::string& what, const std::string& instead) const {
    fail(ErrorCode::unsupported, "cannot load {}: {} is not supported, only {}; choose another model",
         file_.path().string(), what, instead);
}

/// A key that Keyhole does not know may change what the model computes.
void GgufDescriber::refuse_unknown_keys(std::span<const std::string_view> more) const {
    constexpr std::string_view kCommon[] = {
        "context_length",          "embedding_length",       "block_count",
        "feed_forward_length",     "attention.head_count",   "vocab_size",
        "attention.head_count_kv", "rope.scaling.finetuned", "tensor_data_layout"};
    const std::string prefix = architecture_ + ".";
    for (const std::string& one : file_.keys()) {
        if (!one.starts_with(prefix)) continue;
        const std::string_view rest = std::string_view(one).substr(prefix.size());
        const auto is_in = [&](auto begin, auto end) { return std::find(begin, end, rest) != end; };
        if (is_in(std::begin(kCommon), std::end(kCommon)) || is_in(more.begin(), more.end())) continue;
        if ((rest == "expert_count" || rest == "expert_used_count") &&
            file_.count_or_zero(one, 0, 1 << 20) == 0)
            continue;
        refuse("the key " + shown_text(one), "models without it");
    }
}

void GgufDescriber::read_shape() {
    d_model_ = count("embedding_length", kMostWidth);
    n_layers_ = count("block_count", kMostLayers);
    n_heads_ = count("attention.head_count", kMostHeads);
    // Where all layers have experts, a file may leave it out or write 0.
    const bool has_experts = file_.count_or_zero(key("expert_feed_forward_length"), 0, kMostNeurons) > 0;
    d_ff_ = has_experts ? std::max(file_.count_or_zero(key("feed_forward_length"), 1, kMostNeurons), 1)
                        : count("feed_forward_length", kMostNeurons);
    n_ctx_ = count("context_length", kMostPositions);
    const StoredTensor embedding = file_.tensor("token_embd.weight");
    n_vocab_ = embedding.shape.front();
    if (embedding.shape.size() != 2 || n_vocab_ > kMostVocabulary)
        fail(ErrorCode::bad_file,
             "cannot use {}: token_embd.weight has {} rows in {} extents, wanted a matrix of up to {} rows; "
             "convert the model again",
             file_.path().string(), n_vocab_, embedding.shape.size(), kMostVocabulary);
    config_["tie_word_embeddings"] = !file_.contains("output.weight");
    config_["vocab_size"] = n_vocab_;
}

/// For architectures whose heads always have the width over their number.
void GgufDescriber::check_even_heads() const {
    if (d_model_ % n_heads_ != 0)
        fail(ErrorCode::bad_file, "cannot use {}: {} {} is no multiple of {} {}; convert the model again",
             file_.path().string(), key("embedding_length"), d_model_, key("attention.head_count"), n_heads_);
}

void GgufDescriber::read_special_tokens() {
    // -1 and its 32 bits stand for none; ids beyond the vocabulary are left out later, with a warning.
    const auto id = [&](const std::string& name) {
        const double value = file_.number_or(fmt::format("tokenizer.ggml.{}_token_id", name), -1.0);
        return value >= 0 && value <= kMostVocabulary ? static_cast<int>(value) : -1;
    };
    // Null, not absent: a family's default does not count here.
    const int bos = id("bos");
    config_["bos_token_id"] = bos >= 0 ? Json(bos) : Json();
    config_["eos_token_id"] = Json::array();
    // A conversation's turns end with "eot" or "eom" where that is not the end of the text.
    for (const char* name : {"eos", "eot", "eom"})
        if (const int end = id(name); end >= 0) config_["eos_token_id"].push_back(end);
}

GgufDescriber::Json GgufDescriber::rope_scaling() const {
    Json scaling;
    const double old_factor = file_.positive_or(key("rope.scale_linear"), 1.0);
    const std::string type = file_.text_or(key("rope.scaling.type"), old_factor != 1.0 ? "linear" : "none");
    if (type == "none") return scaling;
    if (type == "longrope" && architecture_ == "phi3" && file_.contains(kGgufLongFactors))
        return scaling;  // read_longrope()
    if (type != "linear" && type != "yarn")
        refuse("rope.scaling.type " + shown_text(type),
               "none, linear and yarn, and longrope with its factors in phi3");
    const double factor = file_.positive_or(key("rope.scaling.factor"), old_factor);
    const double magnitude = file_.positive_or(key("rope.scaling.attn_factor"), 1.0);
    scaling = {{"rope_type", type}, {"factor", factor}};
    if (type == "linear") {
        if (magnitude != 1.0) refuse("rope.scaling.attn_factor with linear scaling", "yarn");
        return scaling;
    }
    scaling["original_max_position_embeddings"] =
        file_.positive_or(key("rope.scaling.original_context_length"), n_ctx_);
    if (file_.has(key("rope.scaling.yarn_beta_fast")))
        scaling["beta_fast"] = file_.positive_or(key("rope.scaling.yarn_beta_fast"), 32.0);
    if (file_.has(key("rope.scaling.yarn_beta_slow")))
        scaling["beta_slow"] = file_.positive_or(key("rope.scaling.yarn_beta_slow"), 1.0);
    if (magnitude != 1.0)
        scaling["attention_factor"] = magnitude * (factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0);
    return scaling;
}

void GgufDescriber::add(std::span<const Pair> once, std::span<const Pair> of_layer) {
    const auto add_pair = [&](const Pair& pair, int layer) {
        const std::string folder = fmt::format(fmt::runtime(pair.folder), layer),
                          file = fmt::format(fmt::runtime(pair.file), layer);
        for (const char* kind : {".weight", ".bias"}) add_one(folder + kind, file + kind);
    };
    for (const Pair& pair : once) add_pair(pair, 0);
    for (int l = 0; l < n_layers_; ++l)
        for (const Pair& pair : of_layer) add_pair(pair, l);
}

void GgufDescriber::add_qkv(std::string_view q, std::string_view k, std::string_view v, int n_kv_heads) {
    const std::int64_t head_dim = d_model_ / n_heads_, d_kv = n_kv_heads * head_dim;
    const std::int64_t first_rows[] = {0, d_model_, d_model_ + d_kv};
    const std::string_view names[] = {q, k, v};
    for (int l = 0; l < n_layers_; ++l)
        for (std::size_t which = 0; which < 3; ++which)
            for (const char* kind : {".weight", ".bias"})
                model_.places[fmt::format(fmt::runtime(names[which]), l) + kind] = {
                    .tensor = fmt::format("blk.{}.attn_qkv{}", l, kind),
                    .first_row = first_rows[which],
                    .all_rows = d_model_ + 2 * d_kv};
}

GgufModel GgufDescriber::llama_form(const Form& form) {
    std::vector<std::string_view> known = {"attention.layer_norm_rms_epsilon",
                                           "attention.key_length",
                                           "attention.value_length",
                                           "attention.sliding_window",
                                           "rope.dimension_count",
                                           "rope.freq_base",
                                           "rope.scale_linear",
                                           "rope.scaling.type",
                                           "rope.scaling.factor",
                                           "rope.scaling.original_context_length",
                                           "rope.scaling.attn_factor",
                                           "rope.scaling.yarn_beta_fast",
                                           "rope.scaling.yarn_beta_slow"};
    known.insert(known.end(), form.more_keys.begin(), form.more_keys.end());
    refuse_unknown_keys(known);
    read_shape();
    if (n_heads_ > d_model_ || d_model_ % n_heads_ != 0) {
        if (!file_.has(key("attention.key_length")))
            fail(ErrorCode::bad_file,
                 "cannot use {}: {} {} is no multiple of {} {}, and {} is absent; convert the model again",
                 file_.path().string(), key("embedding_length"), d_model_, key("attention.head_count"),
                 n_heads_, key("attention.key_length"));
    }
    const int head_dim = file_.count_or(key("attention.key_length"), d_model_ / n_heads_, kMostHeadDim);
    if (file_.count_or(key("attention.value_length"), head_dim, kMostHeadDim) != head_dim)
        refuse(key("attention.value_length"), "values as long as keys");
    const int rotary = file_.count_or(key("rope.dimension_count"), head_dim, kMostHeadDim);
    // A little more, so that rounding does not take a dimension away.
    if (form.partial) config_["partial_rotary_factor"] = (rotary + 0.25) / head_dim;
    if (!form.partial && rotary != head_dim)
        refuse(fmt::format("{} {}", key("rope.dimension_count"), count("rope.dimension_count", kMostHeadDim)),
               fmt::format("rotary positions over the whole head ({})", head_dim));
    const int window = file_.count_or_zero(key("attention.sliding_window"), 0, kMostPositions);
    config_["architectures"] = {architecture_ == "llama" && window > 0 ? "MistralForCausalLM" : form.family};
    config_["hidden_size"] = d_model_;
    config_["num_hidden_layers"] = n_layers_;
    config_["num_attention_heads"] = n_heads_;
    config_["num_key_value_heads"] = file_.count_or(key("attention.head_count_kv"), n_heads_, kMostHeads);
    config_["intermediate_size"] = d_ff_;
    config_["max_position_embeddings"] = n_ctx_;
    config_["head_dim"] = head_dim;
    if (file_.has(key("attention.layer_norm_epsilon")))
        config_["layer_norm_eps"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    config_["rms_norm_eps"] = file_.positive_or(key("attention.layer_norm_rms_epsilon"), 1e-6);
    config_["rope_theta"] = file_.positive_or(key("rope.freq_base"), 10000.0);
    if (const Json scaling = rope_scaling(); !scaling.is_null()) config_["rope_scaling"] = scaling;
    config_["attention_bias"] = has_bias("attn_q");
    config_["mlp_bias"] = has_bias("ffn_gate");
    if (window > 0) {
        config_["sliding_window"] = window;
        config_["use_sliding_window"] = true;
        config_["max_window_layers"] = 0;
    }
    read_special_tokens();
    static constexpr Pair kOnce[] = {
        {"model.embed_tokens", "token_embd"}, {"lm_head", "output"}, {"model.norm", "output_norm"}};
    static constexpr Pair kLayer[] = {{"model.layers.{}.input_layernorm", "blk.{}.attn_norm"},
                                      {"model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"},
                                      {"model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"},
                                      {"model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"},
                                      {"model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"},
                                      {"model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"},
                                      {"model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"},
                                      {"model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"},
                                      {"model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"},
                                      {"model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    const std::string mlp_norm = fmt::format("model.layers.{{}}.{}", form.mlp_norm);
    const Pair of_mlp = {mlp_norm, "blk.{}.ffn_norm"};
    add({}, {&of_mlp, 1});
    if (!form.paired) return done();
    // For LLaMA the format stores the dimensions of each head's query and key in the order of GPT-J's pairs.
    for (auto& [folder, place] : model_.places)
        if (folder.find(".q_proj.") != std::string::npos || folder.find(".k_proj.") != std::string::npos)
            place.paired_head_dim = head_dim;
    return done();
}

/// Writes layer_types: the file lists which layers slide, or says that all but each nth do.
void GgufDescriber::read_layer_types(int period) {
    const std::string name = key("attention.sliding_window_pattern");
    const std::vector<std::int32_t> listed = file_.flags_or_number(name);
    if (listed.size() == 1) period = std::max(listed.front(), 1);
    if (listed.size() > 1 && listed.size() != to_index(n_layers_))
        fail(ErrorCode::bad_file, "cannot use {}: {} names {} layers of {}; convert the model again",
             file_.path().string(), name, listed.size(), n_layers_);
    for (int l = 0; l < n_layers_; ++l) {
        const bool slides = listed.size() > 1 ? listed[to_index(l)] != 0 : (l + 1) % period != 0;
        config_["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
    }
}

void GgufDescriber::add_experts(const char* count_key, const char* router, const char* experts,
                                const char* gate, const char* up, const char* down) {
    constexpr int kMostExperts = 1 << 12;
    config_[count_key] = file_.count(key("expert_count"), kMostExperts);
    config_["num_experts_per_tok"] = file_.count(key("expert_used_count"), kMostExperts);
    const auto both = [&](const std::string& folder, const char* file) {
        const Pair pair = {folder, file};
        add({}, {&pair, 1});
    };
    both(fmt::format("model.layers.{{}}.{}", router), "blk.{}.ffn_gate_inp");
    both(fmt::format("model.layers.{{}}.{}.{}", experts, gate), "blk.{}.ffn_gate_exps");
    both(fmt::format("model.layers.{{}}.{}.{}", experts, up), "blk.{}.ffn_up_exps");
    both(fmt::format("model.layers.{{}}.{}.{}", experts, down), "blk.{}.ffn_down_exps");
}

/// Reads the factors of longrope, which are tensors of the file.
void GgufDescriber::read_longrope() {
    if (!file_.contains(kGgufLongFactors) && !file_.contains(kGgufShortFactors)) return;
    const auto factors = [this](const char* name) {
        const StoredTensor tensor = file_.tensor(name);
        if (tensor.dtype != DType::f32 || tensor.shape.size() != 1)
            fail(ErrorCode::bad_file,
                 "cannot use {}: {} is no list of numbers of type F32; convert the model "
                 "again",
                 file_.path().string(), name);
        std::vector<float> values(to_index(tensor.shape.front()));
        widen_stored(tensor.dtype, tensor.data, tensor.shape.front(), values.data());
        return values;
    };
    Json scaling = {{"rope_type", "longrope"},
                    {"long_factor", factors(kGgufLongFactors)},
                    {"short_factor", factors(kGgufShortFactors)}};
    scaling["original_max_position_embeddings"] =
        file_.count_or(key("rope.scaling.original_context_length"), n_ctx_, kMostPositions);
    if (file_.has(key("rope.scaling.attn_factor")))
        scaling["attention_factor"] = file_.positive_or(key("rope.scaling.attn_factor"), 1.0);
    config_["rope_scaling"] = std::move(scaling);
}

}  // namespace keyhole
