/// The forward pass of the supported families, slow and obvious, in double, one token at a time: what the engine is compared
/// with. Written from the specification; shares no code with the engine. Eviction is a mask here: K and V of
/// every position stay.
#pragma once

#include "engine/model/model.h"

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

/// Empty: there is none.
struct LayerWeights {
    Vector attention_norm;
    Matrix q, k, v, o;
    Vector mlp_norm;
    Matrix gate, up, down;
    Vector attention_norm_bias, mlp_norm_bias;
    Vector q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
    Vector q_norm, k_norm;  ///< [head_dim]
};

enum class Act { silu, gelu, gelu_tanh, relu };

/// A model of any family, with the meaning that engine/model/model.h gives each part.
struct Weights {
    int n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, d_model = 0, d_ff = 0, n_vocab = 0;
    double norm_eps = 0;
    bool layer_norm = false, parallel = false, shared_norm = false, post_norm = false;
    Act act = Act::silu;
    int rotary_dims = 0;  ///< 0: no rotation
    bool interleaved = false;
    Vector inverse_frequency;  ///< [rotary_dims / 2]
    double magnitude = 1;
    Vector alibi_slopes;         ///< [n_heads] or empty
    double attention_scale = 0;  ///< 0: 1 / sqrt(head_dim)
    double clip_qkv = 0;         ///< 0: none
    std::vector<int> window;     ///< [n_layers] or empty; 0: sees all
    int position_offset = 0;
    /// [n_layers] layer whose K and V each layer reads, itself or one below; empty: itself. k and v of a layer that borrows are empty.
    std::vector<int> owner;
    bool borrows_unrotated =
        false;  ///< MLKV's code: keys of the present call's tokens are borrowed before rotation
    Matrix embedding, position_embedding, project_in, project_out;

    int owner_of(int layer) const { return owner.empty() ? layer : owner[static_cast<std::size_t>(layer)]; }
    bool owns(int layer) const { return owner_of(layer) == layer; }
    std::vector<LayerWeights> layers;
    Vector final_norm, final_norm_bias;
    Matrix output;
    Vector output_bias;
};

/// Reads config.json and model.safetensors (f32, f16, bf16) of a LLaMA folder by code of its own.
Weights load_weights(const std::filesystem::path& folder);

/// What a loaded model of any family says of itself, in double: judges what is computed with it, not how it was loaded.
Weights weights_of(const keyhole::Model& model);

/// The weights with the K and V of n_kv_heads heads in n_kv_layers layers, merged from those of all (policies, section 2.11): the mean, or
/// across layers the running mean of the released code, with keys borrowed as that code does.
Weights shared_weights(const Weights& weights, int n_kv_layers, int n_kv_heads, bool released = false);

/// [layer][KV head] -> positions. Those of a layer that borrows stay empty.
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
    std::vector<std::vector<Vector>> logits;     ///< scaled q.k and position bias; NaN where masked
    std::vector<std::vector<Vector>> full;       ///< attention with nothing evicted, at original positions
    /// Cosine of the head's output with that of `full`.
    std::vector<Vector> output_similarity;
};

/// One text. Needs `weights` to outlive it.
class Sequence {
  public:
    explicit Sequence(const Weights& weights);

    /// Processes the next token; each KV head's readers see the positions in `visible` and, unless told otherwise, the token itself.
    /// call_begin: first token of the call of the model that the token is in; -1: itself.
    Row feed(int token, const PositionSets& visible, Places places = Places::original,
             bool sees_itself = true, int call_begin = -1);
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
