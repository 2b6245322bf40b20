/// The LLaMA forward pass, slow and obvious, in double, one token at a time: what the engine is compared
/// with. Written from the specification; shares no code with the engine. Eviction is a mask here: K and V of
/// every position stay.
#pragma once

#include <filesystem>
#include <set>
#include <vector>

namespace reference {

using Vector = std::vector<double>;

/// y = W x, W [rows, cols] row-major.
struct Matrix {
    int rows = 0;
    int cols = 0;
    Vector values;
};

struct LayerWeights {
    Vector attention_norm;
    Matrix q, k, v, o;
    Vector mlp_norm;
    Matrix gate, up, down;
};

struct Weights {
    int n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, d_model = 0, d_ff = 0, n_vocab = 0;
    double norm_eps = 0, rope_theta = 0;
    Matrix embedding;
    std::vector<LayerWeights> layers;
    Vector final_norm;
    Matrix output;
};

/// Reads config.json and model.safetensors (f32, f16, bf16) of a LLaMA folder by code of its own.
Weights load_weights(const std::filesystem::path& folder);

/// [layer][KV head] -> positions.
using PositionSets = std::vector<std::vector<std::set<int>>>;

PositionSets empty_sets(const Weights& weights);

/// Where a seen position stands for the model: in the text, at its index among what is seen, or with long gaps shortened as TOVA's
/// extrapolation does it.
enum class Places { original, cache, compressed };
/// Places of ascending positions.
std::vector<int> places_of(Places places, const std::vector<int>& positions);

/// What one row saw. Values are [layer][query head][position <= row].
struct Row {
    int row = 0;
    Vector next_logits;                          ///< [n_vocab]
    std::vector<std::vector<Vector>> attention;  ///< 0 where masked
    std::vector<std::vector<Vector>> logits;     ///< q.k / sqrt(head_dim); NaN where masked
    std::vector<std::vector<Vector>> full;       ///< attention with nothing masked, at original positions
    /// Cosine of the head's output with that of `full`.
    std::vector<Vector> output_similarity;
};

/// One text. Needs `weights` to outlive it.
class Sequence {
  public:
    explicit Sequence(const Weights& weights);

    /// Processes the next token; each KV head's readers see the positions in `visible` and, unless told otherwise, the token itself.
    Row feed(int token, const PositionSets& visible, Places places = Places::original,
             bool sees_itself = true);
    int next_row() const { return next_row_; }

  private:
    const Weights& weights_;
    int next_row_ = 0;
    std::vector<std::vector<std::vector<Vector>>> keys_,
        values_;  // [layer][KV head][position][head_dim], keys before rotation
};

/// softmax over the entries that are not NaN; 0 at those that are.
Vector softmax(const Vector& logits);

}  // namespace reference
