/// Describes one GGUF file for a family: what its keys become in a config.json, and its tensors there. Used
/// by one thread while loading. The architectures are in gguf_llama_like.cpp and gguf_gpt_like.cpp.
#pragma once

#include "engine/model/gguf_file.h"
#include "engine/model/gguf_model.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Reads one file: holds its architecture and what was found so far.
class GgufDescriber {
  public:
    GgufDescriber(const GgufFile& file, std::string architecture)
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
    GgufModel llama();
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
    GgufModel glm();
    GgufModel glm4();
    GgufModel exaone4();
    GgufModel gpt2();
    GgufModel gpt_neox();
    GgufModel mpt();
    GgufModel phi2();
    GgufModel falcon();
    GgufModel bloom();

  private:
    using Json = nlohmann::ordered_json;
    /// The name of a tensor in a folder and in the file; {} stands for the layer.
    struct Pair {
        std::string_view folder, file;
    };

    std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }
    int count(std::string_view name, int most) const { return file_.count(key(name), most); }
    [[noreturn]] void refuse(const std::string& what, const std::string& instead) const;

    void refuse_unknown_keys(std::span<const std::string_view> more) const;
    void refuse_unknown_keys(std::initializer_list<std::string_view> more) const {
        refuse_unknown_keys(std::span(more.begin(), more.size()));
    }
    void read_shape();
    void check_even_heads() const;
    void read_special_tokens();
    Json rope_scaling() const;
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
    /// Adds q, k and v, which lie one after the other in attn_qkv of each layer, under a folder's names of
    /// each; {} stands for the layer.
    void add_qkv(std::string_view q, std::string_view k, std::string_view v, int n_kv_heads);
    bool has_bias(const char* name) const { return file_.contains(fmt::format("blk.0.{}.bias", name)); }
    GgufModel done() {
        model_.config = config_.dump();
        return std::move(model_);
    }

    const GgufFile& file_;
    std::string architecture_;
    Json config_;
    GgufModel model_;
    int d_model_ = 0, n_layers_ = 0, n_heads_ = 0, d_ff_ = 0, n_ctx_ = 0;
    std::int64_t n_vocab_ = 0;
};

}  // namespace keyhole
