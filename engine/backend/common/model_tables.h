/// Norms and biases of a model as float, and what both backends compute with them on the host. Const after
/// construction; any thread. Knows no cache and no policy.
#pragma once

#include "engine/model/model.h"

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
        Norm attention_norm, mlp_norm;
        std::vector<float> q_norm, k_norm;  ///< [head_dim]
        std::vector<float> q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
    };
    std::vector<Layer> layers;
    Norm final_norm;
    std::vector<float> output_bias;

    /// Writes the cosines and sines of a position's angles, [rotary.dims / 2] each, multiplied by the model's
    /// magnitude.
    void angles(int position, float* cosine, float* sine) const;
    /// out = norm(x), or a copy of x where the norm has no gain. out may be x. [d_model]
    void normalize(const Norm& norm, std::span<const float> x, float* out) const;
    /// Clips, normalises and rotates one head's query or key in place, as the model does. norm is q_norm or
    /// k_norm. A null cosine means no rotation.
    void norm_and_rotate(float* x, const std::vector<float>& norm, const float* cosine,
                         const float* sine) const;

  private:
    const ModelConfig* config_;
};

/// Returns the data of a bias, null where there is none.
inline const float* or_null(const std::vector<float>& bias) {
    return bias.empty() ? nullptr : bias.data();
}

}  // namespace keyhole
