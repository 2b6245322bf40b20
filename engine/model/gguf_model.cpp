// Sources: constants.py and tensor_mapping.py of the gguf package, and convert_hf_to_gguf.py of llama.cpp,
// which says how each architecture's tensors are rearranged.
#include "engine/model/gguf_model.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/model/config_file.h"
#include "engine/model/families/family.h"
#include "engine/model/quantised_blocks.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace keyhole {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Reads one file: holds its architecture and what was found so far.
class Describer {
  public:
    Describer(const GgufFile& file, std::string architecture)
        : file_(file), architecture_(std::move(architecture)) {}

    /// How an architecture of LLaMA's form differs from it in GGUF files.
    struct Form {
        const char* family;    ///< its name in config.json
        bool paired = false;   ///< rows of q and k lie in the order of GPT-J's pairs
        bool partial = false;  ///< fewer dimensions than a head's may rotate
        const char* mlp_norm = "post_attention_layernorm";  ///< the folder's name of ffn_norm
        std::vector<std::string_view> more_keys = {};
    };
    GgufModel llama_form(const Form& form);
    GgufModel gemma2();
    GgufModel gemma3();
    GgufModel phi3();
    GgufModel smollm3();
    GgufModel olmo2();
    GgufModel granite();
    GgufModel mixtral();
    GgufModel qwen3_moe();
    GgufModel olmoe();
    GgufModel gpt_oss();
    GgufModel cohere(bool slides);
    GgufModel stablelm();
    GgufModel glm4();
    GgufModel exaone4();
    GgufModel gpt2();
    GgufModel gpt_neox();
    GgufModel mpt();

  private:
    /// The name of a tensor in a folder and in the file; {} stands for the layer.
    struct Pair {
        std::string_view folder, file;
    };

    std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }
    int count(std::string_view name, int most) const { return file_.count(key(name), most); }
    [[noreturn]] void refuse(const std::string& what, const std::string& instead) const {
        fail(ErrorCode::unsupported, "cannot load {}: {} is not supported, only {}; choose another model",
             file_.path().string(), what, instead);
    }

    void refuse_unknown_keys(std::span<const std::string_view> more) const;
    void refuse_unknown_keys(std::initializer_list<std::string_view> more) const {
        refuse_unknown_keys(std::span(more.begin(), more.size()));
    }
    void read_shape();
    void read_special_tokens();
    OrderedJson rope_scaling() const;
    void add_gemma(int layers_of_largest);
    void read_layer_types(int period);
    void read_longrope();
    /// Reads the number of experts, and adds their tensors under a folder's names of the router and of the
    /// stacked experts.
    void add_experts(const char* count_key, const char* router, const char* experts, const char* gate,
                     const char* up, const char* down);
    /// Adds tensors of the model and of every layer; a name without ending stands for a weight and, where the
    /// file has one, a bias.
    void add(std::span<const Pair> once, std::span<const Pair> of_layer);
    void add_one(const std::string& folder, const std::string& file) {
        model_.places[folder] = {.tensor = file};
    }
    /// Adds one of three matrices of equal height that lie in one tensor; `which` counts from 0.
    void add_third(const std::string& folder, const std::string& file, int which);
    bool has_bias(const char* name) const { return file_.contains(fmt::format("blk.0.{}.bias", name)); }
    GgufModel done() {
        model_.config = config_.dump();
        return std::move(model_);
    }

    const GgufFile& file_;
    std::string architecture_;
    OrderedJson config_;
    GgufModel model_;
    int d_model_ = 0, n_layers_ = 0, n_heads_ = 0, d_ff_ = 0, n_ctx_ = 0;
    std::int64_t n_vocab_ = 0;
};

/// A key that Keyhole does not know may change what the model computes.
void Describer::refuse_unknown_keys(std::span<const std::string_view> more) const {
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

void Describer::read_shape() {
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

void Describer::read_special_tokens() {
    // -1 and its 32 bits stand for none; ids beyond the vocabulary are left out later, with a warning.
    const auto id = [&](const std::string& name) {
        const double value = file_.number_or(fmt::format("tokenizer.ggml.{}_token_id", name), -1.0);
        return value >= 0 && value <= kMostVocabulary ? static_cast<int>(value) : -1;
    };
    // Null, not absent: a family's default does not count here.
    const int bos = id("bos");
    config_["bos_token_id"] = bos >= 0 ? OrderedJson(bos) : OrderedJson();
    config_["eos_token_id"] = OrderedJson::array();
    // A conversation's turns end with "eot" or "eom" where that is not the end of the text.
    for (const char* name : {"eos", "eot", "eom"})
        if (const int end = id(name); end >= 0) config_["eos_token_id"].push_back(end);
}

OrderedJson Describer::rope_scaling() const {
    OrderedJson scaling;
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

void Describer::add(std::span<const Pair> once, std::span<const Pair> of_layer) {
    const auto add_pair = [&](const Pair& pair, int layer) {
        const std::string folder = fmt::format(fmt::runtime(pair.folder), layer),
                          file = fmt::format(fmt::runtime(pair.file), layer);
        for (const char* kind : {".weight", ".bias"}) add_one(folder + kind, file + kind);
    };
    for (const Pair& pair : once) add_pair(pair, 0);
    for (int l = 0; l < n_layers_; ++l)
        for (const Pair& pair : of_layer) add_pair(pair, l);
}

void Describer::add_third(const std::string& folder, const std::string& file, int which) {
    for (const char* kind : {".weight", ".bias"})
        model_.places[folder + kind] = {.tensor = file + kind, .third = which};
}

GgufModel Describer::llama_form(const Form& form) {
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
    if (const OrderedJson scaling = rope_scaling(); !scaling.is_null()) config_["rope_scaling"] = scaling;
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

namespace {

constexpr const char *kAttentionOut = "model.layers.{}.post_attention_layernorm",
                     *kMlpOut = "model.layers.{}.post_feedforward_layernorm";

}  // namespace

// The files have no query scale. The scale of all models but the largest is that of their heads; that one's
// queries are scaled by its width over its heads.
void Describer::add_gemma(int layers_of_largest) {
    config_["keyhole_norms_are_gains"] = true;
    config_["query_pre_attn_scalar"] =
        n_layers_ == layers_of_largest ? d_model_ / n_heads_ : config_["head_dim"].get<int>();
    static constexpr Pair kLayer[] = {{kAttentionOut, "blk.{}.post_attention_norm"},
                                      {kMlpOut, "blk.{}.post_ffw_norm"}};
    add({}, kLayer);
}

GgufModel Describer::gemma2() {
    model_ = llama_form({.family = "Gemma2ForCausalLM",
                         .mlp_norm = "pre_feedforward_layernorm",
                         .more_keys = {"attn_logit_softcapping", "final_logit_softcapping"}});
    constexpr int kLayersOf27B = 46;
    add_gemma(kLayersOf27B);
    config_["attn_logit_softcapping"] = file_.positive_or(key("attn_logit_softcapping"), 50.0);
    config_["final_logit_softcapping"] = file_.positive_or(key("final_logit_softcapping"), 30.0);
    config_["sliding_window"] = file_.count_or(key("attention.sliding_window"), 4096, kMostPositions);
    return done();
}

GgufModel Describer::gemma3() {
    model_ = llama_form({.family = "Gemma3ForCausalLM",
                         .mlp_norm = "pre_feedforward_layernorm",
                         .more_keys = {"attention.sliding_window_pattern", "rope.freq_base_swa"}});
    constexpr int kLayersOf27B = 62;
    add_gemma(kLayersOf27B);
    config_["rope_theta"] = file_.positive_or(key("rope.freq_base"), 1e6);
    config_["rope_local_base_freq"] = file_.positive_or(key("rope.freq_base_swa"), 1e4);
    config_["sliding_window"] = file_.count_or(key("attention.sliding_window"), 1024, kMostPositions);
    read_layer_types(6);
    return done();
}

/// Writes layer_types: the file lists which layers slide, or says that all but each nth do.
void Describer::read_layer_types(int period) {
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

GgufModel Describer::smollm3() {
    return llama_form({.family = "SmolLM3ForCausalLM", .paired = true});
}

GgufModel Describer::olmo2() {
    const bool slides = file_.has(key("attention.sliding_window"));  // OLMo 3
    model_ = llama_form({.family = slides ? "Olmo3ForCausalLM" : "Olmo2ForCausalLM",
                         .more_keys = {"attention.sliding_window_pattern"}});
    static constexpr Pair kLayer[] = {{kAttentionOut, "blk.{}.post_attention_norm"},
                                      {kMlpOut, "blk.{}.post_ffw_norm"}};
    add({}, kLayer);
    if (slides) read_layer_types(4);
    return done();
}

GgufModel Describer::granite() {
    model_ =
        llama_form({.family = "GraniteForCausalLM",
                    .paired = true,
                    .more_keys = {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}});
    // 0 stands for none.
    const auto factor = [this](const char* from, const char* to) {
        if (file_.number_or(key(from), 0.0) != 0.0) config_[to] = file_.positive_or(key(from), 1.0);
    };
    config_["attention_multiplier"] = 1.0 / std::sqrt(config_["head_dim"].get<double>());
    factor("attention.scale", "attention_multiplier");
    factor("embedding_scale", "embedding_multiplier");
    factor("residual_scale", "residual_multiplier");
    factor("logit_scale", "logits_scaling");
    return done();
}

void Describer::add_experts(const char* count_key, const char* router, const char* experts, const char* gate,
                            const char* up, const char* down) {
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

namespace {

const std::vector<std::string_view> kExpertKeys = {"expert_count", "expert_used_count",
                                                   "expert_feed_forward_length"};

}  // namespace

GgufModel Describer::mixtral() {
    model_ = llama_form({.family = "MixtralForCausalLM", .paired = true, .more_keys = kExpertKeys});
    config_["architectures"] = {"MixtralForCausalLM"};
    add_experts("num_local_experts", "block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2");
    return done();
}

GgufModel Describer::qwen3_moe() {
    model_ = llama_form({.family = "Qwen3MoeForCausalLM", .more_keys = kExpertKeys});
    add_experts("num_experts", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj");
    config_["moe_intermediate_size"] = count("expert_feed_forward_length", kMostNeurons);
    config_["norm_topk_prob"] = true;  // of all released models; the format cannot say otherwise
    return done();
}

GgufModel Describer::olmoe() {
    std::vector<std::string_view> keys = kExpertKeys;
    keys.push_back("attention.clamp_kqv");
    model_ = llama_form({.family = "OlmoeForCausalLM", .more_keys = keys});
    add_experts("num_experts", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj");
    if (file_.number_or(key("attention.clamp_kqv"), 0.0) != 0.0)
        config_["clip_qkv"] = file_.positive_or(key("attention.clamp_kqv"), 1.0);
    return done();
}

GgufModel Describer::gpt_oss() {
    std::vector<std::string_view> keys = kExpertKeys;
    keys.push_back("attention.sliding_window_pattern");
    model_ = llama_form({.family = "GptOssForCausalLM", .more_keys = keys});
    add_experts("num_local_experts", "mlp.router", "mlp.experts", "gate_proj", "up_proj", "down_proj");
    config_["intermediate_size"] = count("expert_feed_forward_length", kMostNeurons);
    config_["attention_bias"] = true;
    if (config_.contains("rope_scaling")) config_["rope_scaling"]["truncate"] = false;
    read_layer_types(2);
    for (int l = 0; l < n_layers_; ++l) {
        add_one(fmt::format("model.layers.{}.self_attn.sinks", l),
                fmt::format("blk.{}.attn_sinks.weight", l));
        add_one(fmt::format("model.layers.{}.post_attention_layernorm.weight", l),
                fmt::format("blk.{}.post_attention_norm.weight", l));
    }
    return done();
}

GgufModel Describer::cohere(bool slides) {
    model_ = llama_form(
        {.family = slides ? "Cohere2ForCausalLM" : "CohereForCausalLM",
         .more_keys = {"attention.layer_norm_epsilon", "logit_scale", "attention.sliding_window_pattern"}});
    config_["logit_scale"] = file_.positive_or(key("logit_scale"), 0.0625);
    if (slides) read_layer_types(4);
    return done();
}

GgufModel Describer::stablelm() {
    model_ = llama_form({.family = "StableLmForCausalLM",
                         .partial = true,
                         .more_keys = {"attention.layer_norm_epsilon", "use_parallel_residual"}});
    config_["use_qkv_bias"] = has_bias("attn_q");
    // Files say that all of these models are parallel; those that are not have a second norm.
    config_["use_parallel_residual"] = !file_.contains("blk.0.ffn_norm.weight");
    return done();
}

GgufModel Describer::glm4() {
    model_ = llama_form({.family = "Glm4ForCausalLM", .partial = true});
    static constexpr Pair kLayer[] = {
        {"model.layers.{}.post_self_attn_layernorm", "blk.{}.post_attention_norm"},
        {"model.layers.{}.post_mlp_layernorm", "blk.{}.post_ffw_norm"},
        {"model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"}};
    add({}, kLayer);
    return done();
}

GgufModel Describer::exaone4() {
    model_ = llama_form({.family = "Exaone4ForCausalLM", .more_keys = {"attention.sliding_window_pattern"}});
    static constexpr Pair kLayer[] = {{kAttentionOut, "blk.{}.post_attention_norm"},
                                      {kMlpOut, "blk.{}.post_ffw_norm"}};
    add({}, kLayer);
    if (file_.has(key("attention.sliding_window")))
        read_layer_types(4);
    else
        config_["sliding_window"] = OrderedJson();
    return done();
}

GgufModel Describer::phi3() {
    model_ = llama_form({.family = "Phi3ForCausalLM", .partial = true});
    static constexpr Pair kLayer[] = {{"model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"},
                                      {"model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"}};
    add({}, kLayer);
    read_longrope();
    return done();
}

/// Reads the factors of longrope, which are tensors of the file.
void Describer::read_longrope() {
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
    OrderedJson scaling = {{"rope_type", "longrope"},
                           {"long_factor", factors(kGgufLongFactors)},
                           {"short_factor", factors(kGgufShortFactors)}};
    scaling["original_max_position_embeddings"] =
        file_.count_or(key("rope.scaling.original_context_length"), n_ctx_, kMostPositions);
    if (file_.has(key("rope.scaling.attn_factor")))
        scaling["attention_factor"] = file_.positive_or(key("rope.scaling.attn_factor"), 1.0);
    config_["rope_scaling"] = std::move(scaling);
}

GgufModel Describer::gpt2() {
    refuse_unknown_keys({"attention.layer_norm_epsilon"});
    read_shape();
    config_["architectures"] = {"GPT2LMHeadModel"};
    config_["n_embd"] = d_model_;
    config_["n_layer"] = n_layers_;
    config_["n_head"] = n_heads_;
    config_["n_inner"] = d_ff_;
    config_["n_positions"] = n_ctx_;
    config_["layer_norm_epsilon"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    read_special_tokens();
    static constexpr Pair kOnce[] = {{"transformer.wte", "token_embd"},
                                     {"lm_head", "output"},
                                     {"transformer.wpe", "position_embd"},
                                     {"transformer.ln_f", "output_norm"}};
    static constexpr Pair kLayer[] = {{"transformer.h.{}.ln_1", "blk.{}.attn_norm"},
                                      {"transformer.h.{}.attn.c_attn", "blk.{}.attn_qkv"},
                                      {"transformer.h.{}.attn.c_proj", "blk.{}.attn_output"},
                                      {"transformer.h.{}.ln_2", "blk.{}.ffn_norm"},
                                      {"transformer.h.{}.mlp.c_fc", "blk.{}.ffn_up"},
                                      {"transformer.h.{}.mlp.c_proj", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    // Folders store these matrices as inputs by outputs; GGUF files store them as outputs by inputs.
    for (auto& [folder, place] : model_.places)
        place.is_transposed = folder.find(".c_") != std::string::npos && folder.ends_with(".weight");
    return done();
}

GgufModel Describer::gpt_neox() {
    refuse_unknown_keys({"attention.layer_norm_epsilon", "rope.dimension_count", "rope.freq_base",
                         "use_parallel_residual", "rope.scaling.type", "rope.scaling.factor",
                         "rope.scaling.original_context_length", "rope.scale_linear"});
    read_shape();
    const int head_dim = d_model_ / n_heads_;
    config_["architectures"] = {"GPTNeoXForCausalLM"};
    config_["hidden_size"] = d_model_;
    config_["num_hidden_layers"] = n_layers_;
    config_["num_attention_heads"] = n_heads_;
    config_["intermediate_size"] = d_ff_;
    config_["max_position_embeddings"] = n_ctx_;
    config_["layer_norm_eps"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    config_["use_parallel_residual"] = file_.flag_or(key("use_parallel_residual"), true);
    config_["rotary_emb_base"] = file_.positive_or(key("rope.freq_base"), 10000.0);
    // A quarter more, so that rounding does not take a dimension away.
    config_["rotary_pct"] =
        (file_.count_or(key("rope.dimension_count"), head_dim, kMostHeadDim) + 0.25) / std::max(head_dim, 1);
    if (const OrderedJson scaling = rope_scaling(); !scaling.is_null()) config_["rope_scaling"] = scaling;
    config_["attention_bias"] = has_bias("attn_qkv");
    read_special_tokens();
    static constexpr Pair kOnce[] = {{"gpt_neox.embed_in", "token_embd"},
                                     {"embed_out", "output"},
                                     {"gpt_neox.final_layer_norm", "output_norm"}};
    static constexpr Pair kLayer[] = {{"gpt_neox.layers.{}.input_layernorm", "blk.{}.attn_norm"},
                                      {"gpt_neox.layers.{}.attention.dense", "blk.{}.attn_output"},
                                      {"gpt_neox.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"},
                                      {"gpt_neox.layers.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"},
                                      {"gpt_neox.layers.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    // The format stores q, k and v of all heads one after the other, not head by head.
    static constexpr const char* kParts[] = {"query", "key", "value"};
    for (int l = 0; l < n_layers_; ++l)
        for (int which = 0; which < 3; ++which)
            add_third(fmt::format("gpt_neox.layers.{}.attention.{}", l, kParts[which]),
                      fmt::format("blk.{}.attn_qkv", l), which);
    return done();
}

GgufModel Describer::mpt() {
    refuse_unknown_keys({"attention.layer_norm_epsilon", "attention.clamp_kqv", "attention.max_alibi_bias"});
    read_shape();
    const double most_bias = file_.number_or(key("attention.max_alibi_bias"), 0.0);
    if (!(most_bias > 0)) refuse("a model of the mpt architecture without ALiBi", "positions by ALiBi");
    if (file_.count_or(key("attention.head_count_kv"), n_heads_, kMostHeads) != n_heads_)
        refuse(key("attention.head_count_kv"), "a KV head for every query head in this architecture");
    if (d_ff_ % d_model_ != 0)
        refuse(fmt::format("{} {}", key("feed_forward_length"), d_ff_),
               fmt::format("multiples of {} {}", key("embedding_length"), d_model_));
    config_["architectures"] = {"MPTForCausalLM"};
    config_["d_model"] = d_model_;
    config_["n_layers"] = n_layers_;
    config_["n_heads"] = n_heads_;
    config_["expansion_ratio"] = d_ff_ / d_model_;
    config_["max_seq_len"] = n_ctx_;
    config_["layer_norm_epsilon"] = file_.positive_or(key("attention.layer_norm_epsilon"), 1e-5);
    config_["attn_config"] = {{"alibi", true}, {"alibi_bias_max", most_bias}};
    // 0 stands for none.
    if (file_.number_or(key("attention.clamp_kqv"), 0.0) != 0.0)
        config_["attn_config"]["clip_qkv"] = file_.positive_or(key("attention.clamp_kqv"), 1.0);
    read_special_tokens();
    static constexpr Pair kOnce[] = {
        {"transformer.wte", "token_embd"}, {"lm_head", "output"}, {"transformer.norm_f", "output_norm"}};
    static constexpr Pair kLayer[] = {{"transformer.blocks.{}.norm_1", "blk.{}.attn_norm"},
                                      {"transformer.blocks.{}.attn.Wqkv", "blk.{}.attn_qkv"},
                                      {"transformer.blocks.{}.attn.out_proj", "blk.{}.attn_output"},
                                      {"transformer.blocks.{}.norm_2", "blk.{}.ffn_norm"},
                                      {"transformer.blocks.{}.ffn.up_proj", "blk.{}.ffn_up"},
                                      {"transformer.blocks.{}.ffn.down_proj", "blk.{}.ffn_down"}};
    add(kOnce, kLayer);
    return done();
}

}  // namespace

namespace {

/// Names what is in the file instead of a model: general.type says it, or what it holds.
void refuse_no_model(const GgufFile& file) {
    const std::string type = file.text_or("general.type", "model");
    const std::string base = shown_text(file.text_or("general.base_model.0.name", "its base model"));
    if (type == "adapter" || file.has("adapter.type"))
        fail(ErrorCode::unsupported,
             "cannot load {}: it is an adapter (LoRA), no model; merge it into {} with llama-export-lora and "
             "name "
             "the result",
             file.path().string(), base);
    if (type != "model")
        fail(ErrorCode::unsupported, "cannot load {}: it is no model, its general.type is {}; name the model",
             file.path().string(), shown_text(type));
    if (file.names().empty())
        fail(ErrorCode::unsupported, "cannot load {}: it has no tensors, only metadata; name the whole model",
             file.path().string());
}

}  // namespace

GgufModel describe_gguf(const GgufFile& file) {
    refuse_no_model(file);
    const std::string architecture = file.text("general.architecture");
    Describer describer(file, architecture);
    if (architecture == "llama" && file.count_or_zero("llama.expert_count", 0, 1 << 12) > 0)
        return describer.mixtral();
    if (architecture == "llama") return describer.llama_form({.family = "LlamaForCausalLM", .paired = true});
    if (architecture == "qwen2") return describer.llama_form({.family = "Qwen2ForCausalLM"});
    if (architecture == "qwen3") return describer.llama_form({.family = "Qwen3ForCausalLM"});
    if (architecture == "gemma2") return describer.gemma2();
    if (architecture == "gemma3") return describer.gemma3();
    if (architecture == "phi3") return describer.phi3();
    if (architecture == "smollm3") return describer.smollm3();
    if (architecture == "olmo2") return describer.olmo2();
    if (architecture == "granite") return describer.granite();
    if (architecture == "qwen3moe") return describer.qwen3_moe();
    if (architecture == "olmoe") return describer.olmoe();
    if (architecture == "gpt-oss") return describer.gpt_oss();
    if (architecture == "command-r") return describer.cohere(false);
    if (architecture == "cohere2") return describer.cohere(true);
    if (architecture == "stablelm") return describer.stablelm();
    if (architecture == "glm4") return describer.glm4();
    if (architecture == "exaone4") return describer.exaone4();
    if (architecture == "gpt2") return describer.gpt2();
    if (architecture == "gptneox") return describer.gpt_neox();
    if (architecture == "mpt") return describer.mpt();
    if (const std::string_view why = known_obstacle(architecture); !why.empty())
        fail(ErrorCode::unsupported,
             "cannot load {}: its general.architecture is {}, and {}; choose another model",
             file.path().string(), architecture, why);
    fail(ErrorCode::unsupported,
         "cannot load {}: its general.architecture is {}; this build reads llama, qwen2, qwen3, gpt2, "
         "gptneox, mpt, gemma2, gemma3, phi3, smollm3, olmo2, granite, qwen3moe, olmoe, gpt-oss, "
         "command-r, cohere2, stablelm, glm4 and exaone4 from GGUF files",
         file.path().string(), shown_text(architecture));
}

void scale_by_gguf_factors(const GgufFile& file, ModelConfig& config) {
    if (!file.contains(kGgufFactors)) return;
    const StoredTensor factors = file.tensor(kGgufFactors);
    auto& frequencies = config.rotary.inverse_frequency;
    if (factors.dtype != DType::f32 ||
        factors.shape != std::vector{static_cast<std::int64_t>(frequencies.size())} || frequencies.empty())
        fail(ErrorCode::bad_file,
             "cannot use {}: {} wants {} numbers of type F32, one for each pair of dimensions; convert the "
             "model "
             "again",
             file.path().string(), kGgufFactors, frequencies.size());
    std::vector<float> values(frequencies.size());
    widen_stored(factors.dtype, factors.data, factors.shape.front(), values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!(values[i] > 0) || !std::isfinite(values[i]))
            fail(ErrorCode::bad_file,
                 "cannot use {}: {} holds {}, wanted positive numbers; convert the model again",
                 file.path().string(), kGgufFactors, values[i]);
        frequencies[i] /= static_cast<double>(values[i]);
    }
}

}  // namespace keyhole
