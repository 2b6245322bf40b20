/// A loaded model: weights in their stored type, config, tokenizer, KV layout. Const after loading and
/// shared by lanes and threads. Knows base only; families (one file each) map a Hugging Face folder or a GGUF
/// file onto it.
#pragma once

#include "engine/base/kv_type.h"
#include "engine/model/kv_layout.h"
#include "engine/model/safetensors.h"
#include "engine/model/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

enum class NormKind { rms, layer };
/// clamped_swiglu, of gpt-oss, takes a gate: min(g, 7) sigmoid(1.702 min(g, 7)) (clamp(u, -7, 7) + 1)
enum class Activation { silu, gelu, gelu_tanh, relu, clamped_swiglu };
enum class PositionKind { rotary, alibi, learned };

/// Rotary positions: the first `dims` dimensions of each head are rotated by position *
/// inverse_frequency[i].
struct Rotary {
    int dims = 0;                           ///< even, at most head_dim
    bool interleaved = false;               ///< pairs (2 i, 2 i + 1), as GPT-J; else (i, i + dims / 2)
    std::vector<double> inverse_frequency;  ///< [dims / 2], including the checkpoint's scaling
    float magnitude = 1.0f;                 ///< factor on cosines and sines of queries and keys (YaRN)
    /// Not 0: a call whose text is longer than this many tokens takes other frequencies (longrope, dynamic).
    /// A call is a prompt, all of it, or one decoded row: keys that are stored stay as they are.
    int switch_length = 0;
    std::vector<double> long_inverse_frequency;  ///< longrope: [dims / 2], of the longer texts
    double dynamic_factor = 0;                   ///< dynamic: its factor; 0: none
    double base = 0;                             ///< dynamic: the base up to switch_length tokens

    /// Returns the frequencies for a call whose text has n_tokens. Equations: read_rotary().
    std::vector<double> frequencies_for(int n_tokens) const;
    bool changes_with_length() const { return switch_length > 0; }
};

/// The shape of a decoder-only transformer of the supported families. One block, x [d_model]:
///     a = norm(x),  y = x + o(attention(q(a), k(a), v(a)))
///     x = y + mlp(norm(y));  parallel: x = y + mlp(norm(x)), with the attention's own norm if shared_norm
///     mlp(z) = down(act(up(z))), or down(act(gate(z)) * up(z)) with a gate
/// post_norm: the norms follow the sums. Biases and norms that a family lacks are empty weights. A branch is
/// normalised before it is added where its layer has attention_out_norm or mlp_out_norm. In a layer with
/// experts, mlp(z) is the sum of the n_experts_used that its router gives the largest probabilities,
/// weighted by these.
struct ModelConfig {
    std::string family;  ///< "llama"
    int n_layers = 0;
    int n_heads = 0;
    int n_kv_heads = 0;  ///< in a layer that owns KV heads
    /// Number of layers that own KV heads; the others borrow: kv_owner_layers(). 0: all layers
    int n_kv_layers = 0;
    /// Released MLKV: a borrowing layer reads unrotated keys for the tokens of the current call (the
    /// prompt, then each row's own token), and rotated keys for earlier ones.
    bool borrows_unrotated = false;
    /// K and V were merged from a model with more KV heads without training afterwards: a damaged model.
    bool merged = false;
    int head_dim = 0;
    int d_model = 0;
    int d_ff = 0;
    int n_vocab = 0;
    /// max_position_embeddings; later positions are decoded with a warning (refused if learned)
    int n_ctx = 0;
    NormKind norm = NormKind::rms;
    float norm_eps = 1e-5f;
    Activation activation = Activation::silu;
    bool parallel = false;
    bool shared_norm = false;
    bool post_norm = false;
    PositionKind positions = PositionKind::rotary;
    Rotary rotary;
    int position_offset = 0;          ///< learned: position 0 uses this row of position_embedding (OPT: 2)
    std::vector<float> alibi_slopes;  ///< [n_heads]: logit += slope * (key position - query position)
    float attention_scale = 0;        ///< factor on q.k; 0: 1 / sqrt(head_dim)
    float clip_qkv = 0;               ///< bound on |q|, |k|, |v| (MPT); 0: none
    /// [n_layers] or empty: a row sees the newest window[l] tokens including itself; 0: all
    std::vector<int> window;
    Rotary local_rotary;              ///< of the layers with a window, where theirs differs; dims 0: `rotary`
    std::vector<bool> unrotated;      ///< [n_layers] or empty: layers that rotate neither queries nor keys
    float norm_offset = 0;            ///< a norm's gain is its weight plus this (Gemma: 1)
    float embedding_scale = 1;        ///< factor on the embedding of a token
    float residual_scale = 1;         ///< factor on each branch before it is added (Granite)
    float logit_scale = 1;            ///< factor on the next token's logits
    float logit_cap = 0;              ///< c: these become c tanh(logit / c) (Gemma 2); 0: none
    float attention_cap = 0;          ///< the same for the scaled q.k, before a row is masked
    int n_experts = 0;                ///< of a layer with experts; 0: no layer has any
    int n_experts_used = 0;           ///< a token's
    int d_expert = 0;                 ///< neurons of an expert
    bool experts_sum_to_one = false;  ///< the weights of a token's experts are divided by their sum
    bool has_sinks = false;           ///< each query head has a learned sink (LayerWeights::sinks)
    float rope_theta = 10000.0f;      ///< for display; computation uses rotary.inverse_frequency
    bool tied = false;
    int bos = -1;          ///< -1: none
    std::vector<int> eos;  ///< ids that end a text
};

/// Throws Error(unsupported) unless n_kv_heads divides n_heads.
KvLayout layout_of(const ModelConfig& config);

/// A weight matrix [rows, cols], row-major, y = W x; or a vector [rows] with cols 1. The rows of a quantised
/// matrix are whole blocks; a vector has a plain type.
struct Weight {
    DType dtype = DType::f32;
    const void* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t cols = 1;
};

/// Returns the bytes of a weight as it is stored.
inline std::int64_t stored_bytes(const Weight& weight) {
    return static_cast<std::int64_t>(stored_bytes(weight.dtype, weight.rows * weight.cols));
}

/// One expert of a layer: a gated feed-forward layer of d_expert neurons.
struct ExpertWeights {
    Weight gate, up, gate_bias, up_bias;  ///< [d_expert, d_model]
    Weight down, down_bias;               ///< [d_model, d_expert]
};

/// The weights of a layer. A weight with null data is absent in the family.
struct LayerWeights {
    Weight attention_norm, attention_norm_bias;  ///< [d_model]
    Weight q, q_bias;                            ///< [n_heads * head_dim, d_model]
    Weight k, v, k_bias, v_bias;  ///< [n_kv_heads * head_dim, d_model]; empty in a layer that owns no KV head
    /// [head_dim]: RMSNorm of each head before rotation (Qwen3); [n_heads * head_dim], [n_kv_heads *
    /// head_dim]: of all heads together (OLMo 2)
    Weight q_norm, k_norm;
    Weight sinks;      ///< [n_heads]: the logit of a sink that takes attention and has no value (gpt-oss)
    Weight o, o_bias;  ///< [d_model, n_heads * head_dim]
    Weight attention_out_norm, mlp_out_norm;  ///< [d_model]: of a branch before it is added
    Weight mlp_norm, mlp_norm_bias;           ///< [d_model]
    Weight gate, up, gate_bias, up_bias;      ///< [d_ff, d_model]
    Weight down, down_bias;                   ///< [d_model, d_ff]
    Weight router, router_bias;               ///< [n_experts, d_model]
    std::vector<ExpertWeights> experts;       ///< [n_experts], or empty; then gate, up and down are
};

struct ModelWeights {
    Weight embedding;  ///< [n_vocab, d_embed]; d_embed = d_model unless there is project_in
    Weight embedding_norm, embedding_norm_bias;  ///< [d_model] (BLOOM)
    Weight position_embedding;  ///< [n_ctx + position_offset, d_model], added to the embedding
    Weight project_in;          ///< [d_model, d_embed] (OPT)
    std::vector<LayerWeights> layers;
    Weight final_norm, final_norm_bias;  ///< [d_model]
    Weight project_out;                  ///< [d_embed, d_model] (OPT)
    Weight output, output_bias;          ///< [n_vocab, d_embed]; the embedding when tied
};

/// Calls visit(const Weight&) for every weight that exists, tied weights once.
template <class Visit>
void visit_weights(const ModelWeights& weights, Visit visit) {
    const auto visit_one = [&](const Weight& weight) {
        if (weight.data != nullptr) visit(weight);
    };
    visit_one(weights.embedding);
    visit_one(weights.embedding_norm);
    visit_one(weights.embedding_norm_bias);
    visit_one(weights.position_embedding);
    visit_one(weights.project_in);
    for (const LayerWeights& l : weights.layers) {
        for (const Weight* weight : {&l.attention_norm,
                                     &l.attention_norm_bias,
                                     &l.q,
                                     &l.q_bias,
                                     &l.k,
                                     &l.v,
                                     &l.k_bias,
                                     &l.v_bias,
                                     &l.q_norm,
                                     &l.k_norm,
                                     &l.sinks,
                                     &l.o,
                                     &l.o_bias,
                                     &l.attention_out_norm,
                                     &l.mlp_out_norm,
                                     &l.mlp_norm,
                                     &l.mlp_norm_bias,
                                     &l.gate,
                                     &l.up,
                                     &l.gate_bias,
                                     &l.up_bias,
                                     &l.down,
                                     &l.down_bias,
                                     &l.router,
                                     &l.router_bias})
            visit_one(*weight);
        for (const ExpertWeights& e : l.experts)
            for (const Weight* weight : {&e.gate, &e.up, &e.gate_bias, &e.up_bias, &e.down, &e.down_bias})
                visit_one(*weight);
    }
    visit_one(weights.final_norm);
    visit_one(weights.final_norm_bias);
    visit_one(weights.project_out);
    if (weights.output.data != weights.embedding.data) visit_one(weights.output);
    visit_one(weights.output_bias);
}

class Model {
  public:
    Model(std::filesystem::path path, ModelConfig config, ModelWeights weights,
          std::shared_ptr<const Tokenizer> tokenizer, std::string hash, std::shared_ptr<const void> storage,
          std::vector<std::string> warnings = {});
    Model(std::filesystem::path path, ModelConfig config, ModelWeights weights, Tokenizer tokenizer,
          std::string hash, std::shared_ptr<const void> storage, std::vector<std::string> warnings = {})
        : Model(std::move(path), std::move(config), std::move(weights),
                std::make_shared<const Tokenizer>(std::move(tokenizer)), std::move(hash), std::move(storage),
                std::move(warnings)) {}

    const std::filesystem::path& path() const { return path_; }
    const ModelConfig& config() const { return config_; }
    const ModelWeights& weights() const { return weights_; }
    const Tokenizer& tokenizer() const { return *tokenizer_; }
    const std::shared_ptr<const Tokenizer>& shared_tokenizer() const { return tokenizer_; }
    const KvLayout& layout() const { return layout_; }
    /// Returns the hex digest that names the model in logs and traces. It covers all of config.json and
    /// each weights file: whole up to 64 MiB; above that its size and 512 blocks of 64 KiB spread evenly
    /// over it. It does not cover tokenizer.json. Of a GGUF file it covers all metadata, the tokenizer
    /// included, and the tensors as a weights file.
    const std::string& hash() const { return hash_; }
    std::int64_t n_parameters() const;  ///< tied weights counted once
    /// Returns warnings for the user about a model that loads all the same, one line each.
    const std::vector<std::string>& warnings() const { return warnings_; }

  private:
    std::filesystem::path path_;
    ModelConfig config_;
    ModelWeights weights_;
    std::shared_ptr<const Tokenizer> tokenizer_;
    KvLayout layout_;
    std::string hash_;
    std::shared_ptr<const void> storage_;  // mapped files
    std::vector<std::string> warnings_;
};

/// Loads a Hugging Face folder (config.json, model.safetensors or its shards, and the tokenizer) or a GGUF
/// file, told apart by being a folder or a file. Throws Error with the action, the file and a remedy.
std::shared_ptr<const Model> load_model(const std::filesystem::path& path);

/// Returns the bytes of K and V for one token: 2 * layers with KV heads * their KV heads * kv_row_bytes()
/// (MLKV, table 1).
std::int64_t kv_bytes_per_token(const ModelConfig& config, KvType type);

}  // namespace keyhole
