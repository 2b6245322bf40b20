/// Norms and biases of a model as float, and what both backends compute with them on the host. Const after
/// construction; any thread. Knows no cache and no policy.
#pragma once

#include "engine/model/model.h"
#include "engine/policy/row.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Norms and biases as float: small enough to widen once. A vector is empty where the model family has none.
struct ModelTables {
    explicit ModelTables(const Model& model);

    struct Norm {
        std::vector<float> gain, bias;  ///< [d_model]
    };
    struct Layer {
        Norm attention_norm, mlp_norm, attention_out_norm, mlp_out_norm;
        std::vector<float> q_norm, k_norm;              ///< [head_dim]
        std::vector<float> q_width_norm, k_width_norm;  ///< [heads * head_dim]: of all heads together
        std::vector<float> q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
        std::vector<float> sinks;  ///< [n_heads]
        std::vector<float> router_bias;
        struct Expert {
            std::vector<float> gate_bias, up_bias, down_bias;
        };
        std::vector<Expert> experts;
    };
    std::vector<Layer> layers;
    Norm embedding_norm, final_norm;
    std::vector<float> output_bias;

    /// Writes the cosines and sines of a position's angles, [rotary.dims / 2] each, multiplied by the
    /// rotary's magnitude. n_tokens: of the text in this call (Rotary::switch_length).
    void angles(const Rotary& rotary, int position, int n_tokens, float* cosine, float* sine) const;
    /// The same for the rotary of most layers.
    void angles(int position, int n_tokens, float* cosine, float* sine) const;
    /// out = norm(x), or a copy of x where the norm has no gain. out may be x. [d_model]
    void normalize(const Norm& norm, std::span<const float> x, float* out) const;
    /// Normalises the queries of all heads together, or the keys, in place; nothing where norm is empty.
    void normalize_width(const std::vector<float>& norm, float* x) const;
    /// x <- x + branch, which is normalised and scaled before, in place, as the model does. Rows of d_model.
    void add_branch(const Norm& norm, float* branch, std::int64_t n_rows, float* x) const;
    /// Clips, normalises and rotates one head's query or key in place, as the model does. norm is q_norm or
    /// k_norm. A null cosine means no rotation.
    void norm_and_rotate(float* x, const std::vector<float>& norm, const float* cosine,
                         const float* sine) const;

  private:
    const ModelConfig* config_;
};

/// Scales and caps the next token's logits [n_vocab] in place, as the model does.
void finish_logits(const ModelConfig& config, float* logits);

/// Chooses a token's experts by its router's logits [n_experts], which become probabilities: `chosen` gets
/// the config.n_experts_used largest, the largest first; of equal ones the lower index. weights: what each
/// one's output is multiplied by.
void choose_experts(const ModelConfig& config, float* logits, std::vector<int>& chosen,
                    std::vector<float>& weights);

/// Makes room for the experts of a row, none so far.
void begin_experts(const ModelConfig& config, RowOutput& out);
/// Writes those of one layer.
void keep_experts(std::span<const int> chosen, int layer, RowOutput& out);

/// Returns the data of a bias, null where there is none.
inline const float* or_null(const std::vector<float>& bias) {
    return bias.empty() ? nullptr : bias.data();
}

}  // namespace keyhole
