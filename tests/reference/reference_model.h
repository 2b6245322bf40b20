/// The forward pass of the supported families, slow and plain, in double, one token at a time. Tests compare
/// the engine with it. It is written from the specification and shares no code with the engine. Eviction is a
/// mask here: K and V of every position stay stored.
#pragma once

#include "engine/base/index.h"
#include "engine/model/model.h"

#include <filesystem>
#include <functional>
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

/// empty: none
struct LayerWeights {
    Vector attention_norm;
    Matrix q, k, v, o;
    Vector mlp_norm;
    Matrix gate, up, down;
    Vector attention_norm_bias, mlp_norm_bias;
    Vector q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
    Vector q_norm, k_norm;  ///< [head_dim], or of all heads together
    Vector attention_out_norm, mlp_out_norm, sinks;
    Matrix router;
    Vector router_bias;
    struct Expert {
        Matrix gate, up, down;
        Vector gate_bias, up_bias, down_bias;
    };
    std::vector<Expert> experts;
};

enum class Act { silu, gelu, gelu_tanh, relu, clamped_swiglu };

/// A model of any family. Each field has the meaning that engine/model/model.h gives it.
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
    /// [n_layers] layer whose K and V each layer reads: itself or a lower one; empty: itself. k and v of a
    /// borrowing layer are empty.
    std::vector<int> owner;
    bool borrows_unrotated =
        false;  ///< as MLKV's code: keys of the present call's tokens are borrowed before rotation
    Matrix embedding, position_embedding, project_in, project_out;
    Vector embedding_norm, embedding_norm_bias;
    Vector local_frequency;  ///< of layers with a window; empty: as the others
    double local_magnitude = 1;
    std::vector<bool> unrotated;  ///< [n_layers] or empty
    double embedding_scale = 1, residual_scale = 1, logit_scale = 1, logit_cap = 0, attention_cap = 0;
    int experts_used = 0;
    bool experts_sum_to_one = false;
    Vector frequency_of(int layer) const {
        const bool slides = !window.empty() && window[keyhole::to_index(layer)] > 0;
        return slides && !local_frequency.empty() ? local_frequency : inverse_frequency;
    }

    int owner_of(int layer) const { return owner.empty() ? layer : owner[keyhole::to_index(layer)]; }
    bool owns(int layer) const { return owner_of(layer) == layer; }
    std::vector<LayerWeights> layers;
    Vector final_norm, final_norm_bias;
    Matrix output;
    Vector output_bias;
};

/// Reads config.json and model.safetensors (f32, f16, bf16) of a LLaMA folder with code of its own.
Weights load_weights(const std::filesystem::path& folder);

/// Converts a loaded model of any family to double. It judges the computation, not the loading.
Weights weights_of(const keyhole::Model& model);

/// Merges K and V of all heads to n_kv_heads heads in n_kv_layers layers (policies, section 2.11): by the
/// mean, or across layers by the running mean of the released code, with keys borrowed as that code does.
Weights shared_weights(const Weights& weights, int n_kv_layers, int n_kv_heads, bool released = false);

/// [layer][KV head] -> positions. Sets of a borrowing layer stay empty.
using PositionSets = std::vector<std::vector<std::set<int>>>;

PositionSets empty_sets(const Weights& weights);

/// The position that a visible token has for the model: its place in the text, its index among the visible
/// tokens, or its place after long gaps are shortened, as TOVA's extrapolation does.
enum class Places { original, cache, compressed };
/// Returns the model positions of these ascending text positions.
std::vector<int> places_of(Places places, const std::vector<int>& positions);

/// Results of one row. Values are [layer][query head][position <= row].
struct Row {
    int row = 0;
    Vector next_logits;                          ///< [n_vocab]
    std::vector<std::vector<Vector>> attention;  ///< 0 where masked
    std::vector<std::vector<Vector>> logits;     ///< scaled q.k and position bias; NaN where masked
    std::vector<std::vector<Vector>> full;       ///< attention with nothing evicted, at original positions
    /// Cosine between the head's output and its output with `full`.
    std::vector<Vector> output_similarity;
};

/// The cosine and sine of one channel's angle.
struct ChannelAngle {
    double cos, sin, magnitude;
};

/// One text. `weights` must outlive it.
class Sequence {
  public:
    explicit Sequence(const Weights& weights);

    /// Processes the next token. Readers of each KV head see the positions in `visible` and, unless
    /// sees_itself is false, the token itself. call_begin: first token of the model call that contains this
    /// token; -1: the token itself.
    Row feed(int token, const PositionSets& visible, Places places = Places::original,
             bool sees_itself = true, int call_begin = -1);
    int next_row() const { return next_row_; }
    /// Returns a key of a layer that owns KV heads, rotated at its place in the text. [head_dim]
    Vector key(int layer, int kv_head, int position);
    /// Returns a key, and the query of a head of any layer, before the rotation; and a value.
    const Vector& raw_key(int layer, int kv_head, int position) const;
    const Vector& raw_query(int layer, int head, int position) const;
    const Vector& value(int layer, int kv_head, int position) const;
    /// Returns a query or key of a layer as it is at a place.
    Vector turned(int layer, const Vector& x, double place) const;

    /// Chooses the stored positions that a query head reads in a row; query: rotated.
    using Reads =
        std::function<std::set<int>(int layer, int head, const Vector& query, const std::set<int>& stored)>;
    void set_reads(Reads reads) { reads_ = std::move(reads); }

    /// Rounds a head's numbers as a cache stores them, in place. [head_dim]
    using Rounding = std::function<void(Vector& head)>;
    /// Rounds all keys, as they are at their positions, and all values that it has; then each new one.
    void store_as(Rounding rounding);

  private:
    const Weights& weights_;
    int next_row_ = 0;
    // [layer][position], as far as they were needed
    std::vector<std::vector<std::vector<ChannelAngle>>> angles_;
    const std::vector<ChannelAngle>& angles_at(int layer, int position);
    void round_stored(Vector& key, Vector& value, int layer, int position);
    Rounding rounding_;
    Reads reads_;
    std::vector<std::vector<std::vector<Vector>>> queries_;  // [layer][head][position], before the rotation
    std::vector<std::vector<std::vector<Vector>>> keys_,
        values_;  // [layer][KV head][position][head_dim], keys before rotation
};

/// softmax over the entries that are not NaN; 0 for the others.
Vector softmax(const Vector& logits);

}  // namespace reference
