/// The small weights of a model as float, and what both backends do with them on the host. Any thread.
#pragma once

#include "engine/model/model.h"

#include <span>
#include <vector>

namespace keyhole {

/// Norms and biases as float: small enough to widen once. Empty: the family has none.
struct ModelTables {
    explicit ModelTables(const Model& model);

    struct Norm {
        std::vector<float> gain, bias;  ///< [d_model]
    };
    struct Layer {
        Norm attention_norm, mlp_norm;
        std::vector<float> q_norm, k_norm;  ///< [head_dim]
        std::vector<float> q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
    };
    std::vector<Layer> layers;
    Norm final_norm;
    std::vector<float> output_bias;

    /// Cosines and sines of a position's angles, [rotary.dims / 2] each, times the model's magnitude.
    void angles(int position, float* cosine, float* sine) const;
    /// out = norm(x), x itself without a gain; may be x. [d_model]
    void normalize(const Norm& norm, std::span<const float> x, float* out) const;
    /// Clips, normalises and rotates one head's query or key as the model does it, in place. norm: q_norm or k_norm. cosine null: does
    /// not rotate.
    void norm_and_rotate(float* x, const std::vector<float>& norm, const float* cosine,
                         const float* sine) const;

  private:
    const ModelConfig* config_;
};

/// A bias, null where there is none.
inline const float* or_null(const std::vector<float>& bias) {
    return bias.empty() ? nullptr : bias.data();
}

}  // namespace keyhole
