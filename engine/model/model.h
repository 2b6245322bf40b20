/// A loaded model: weights in their stored type, config, tokenizer, KV layout. Const after loading and shared
/// by lanes and threads.
/// Knows base only; families (one file each) map a Hugging Face folder onto it.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/model/safetensors.h"
#include "engine/model/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

struct ModelConfig {
    std::string family;  ///< "llama"
    int n_layers = 0;
    int n_heads = 0;
    int n_kv_heads = 0;  ///< in a layer
    int head_dim = 0;
    int d_model = 0;
    int d_ff = 0;
    int n_vocab = 0;
    int n_ctx = 0;  ///< max_position_embeddings; positions beyond it are decoded, and warned about
    float norm_eps = 1e-5f;
    float rope_theta = 10000.0f;
    bool tied = false;
    int bos = -1;          ///< -1: none
    std::vector<int> eos;  ///< ids that end a text
};

/// A weight matrix [rows, cols], row-major, y = W x; or a vector [rows] with cols 1.
struct Weight {
    DType dtype = DType::f32;
    const void* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t cols = 1;
};

struct LayerWeights {
    Weight attention_norm;  ///< [d_model]
    Weight q;               ///< [n_heads * head_dim, d_model]
    Weight k, v;            ///< [n_kv_heads * head_dim, d_model]
    Weight o;               ///< [d_model, n_heads * head_dim]
    Weight mlp_norm;        ///< [d_model]
    Weight gate, up;        ///< [d_ff, d_model]
    Weight down;            ///< [d_model, d_ff]
};

struct ModelWeights {
    Weight embedding;  ///< [n_vocab, d_model]
    std::vector<LayerWeights> layers;
    Weight final_norm;  ///< [d_model]
    Weight output;      ///< [n_vocab, d_model]; the embedding when tied
};

class Model {
  public:
    Model(std::filesystem::path path, ModelConfig config, ModelWeights weights, Tokenizer tokenizer,
          std::string hash, std::shared_ptr<const void> storage);

    const std::filesystem::path& path() const { return path_; }
    const ModelConfig& config() const { return config_; }
    const ModelWeights& weights() const { return weights_; }
    const Tokenizer& tokenizer() const { return tokenizer_; }
    const KvLayout& layout() const { return layout_; }
    /// Hex digest that names the model in logs and traces: all of config.json, then each weights file, whole
    /// up to 64 MiB, beyond
    /// that its size and 512 blocks of 64 KiB spread evenly from its first byte to its end. tokenizer.json is
    /// not in it.
    const std::string& hash() const { return hash_; }
    std::int64_t n_parameters() const;  ///< tied weights counted once

  private:
    std::filesystem::path path_;
    ModelConfig config_;
    ModelWeights weights_;
    Tokenizer tokenizer_;
    KvLayout layout_;
    std::string hash_;
    std::shared_ptr<const void> storage_;  // mapped files
};

/// Loads a Hugging Face folder: config.json, model.safetensors or its shards, tokenizer.json. Throws Error
/// with what was tried, on what, what to do.
std::shared_ptr<const Model> load_model(const std::filesystem::path& folder);

/// Bytes of K and V for one token in all layers, element size 4 (the CPU cache stores float).
std::int64_t kv_bytes_per_token(const ModelConfig& config, int element_bytes);

}  // namespace keyhole
