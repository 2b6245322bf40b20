/// A model's weights in device memory, in the type that they are stored in. Const after loading; shared by nobody: a backend owns it.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/model/model.h"

#include <memory>
#include <string>
#include <vector>

namespace keyhole::cuda {

/// The type that all matrices have; f32 where they differ.
DType common_type(const Model& model);
/// Why the kernels cannot run the model, as a clause; empty when they can.
std::string unsupported_shape(const Model& model);
/// Bytes of weights on the device.
std::int64_t device_weight_bytes(const Model& model);

/// What a product reads.
template <class T>
struct MatrixView {
    const T* data = nullptr;
    const float* bias = nullptr;  ///< [rows] or null
    int rows = 0, cols = 0;
};

template <class T>
struct Matrix {
    Buffer<T> data;
    Buffer<float> bias;
    int rows = 0, cols = 0;
    MatrixView<T> view() const { return {data.data(), bias.data(), rows, cols}; }
};

/// Weights that the family lacks are empty, their pointers null.
template <class T>
struct DeviceModel {
    DeviceModel(const std::shared_ptr<Executor>& executor, const Model& model);

    struct Norm {
        Buffer<float> gain, bias;
    };
    struct Layer {
        Norm attention_norm, mlp_norm;
        Buffer<float> q_norm, k_norm;
        Matrix<T> q, k, v, o, gate, up, down;
    };
    Matrix<T> embedding, position_embedding, project_in, project_out;
    Matrix<T> own_output;  ///< empty when tied
    Buffer<float> output_bias;
    std::vector<Layer> layers;
    Norm final_norm;
    Buffer<float> slopes;  ///< [n_heads] of ALiBi, or empty
    MatrixView<T> output() const {
        MatrixView<T> view = own_output.rows > 0 ? own_output.view() : embedding.view();
        view.bias = output_bias.data();
        return view;
    }
    /// What a layer does with its heads.
    HeadRule head_rule(const ModelConfig& config, int layer) const {
        const Layer& w = layers[static_cast<std::size_t>(layer)];
        return {w.q_norm.data(),
                w.k_norm.data(),
                config.clip_qkv,
                config.norm_eps,
                config.rotary.magnitude,
                config.rotary.dims,
                config.rotary.interleaved ? 1 : 0,
                config.head_dim};
    }
};

/// act(x), gated by `up` where that is given, over n values.
inline Activate activation_of(const ModelConfig& config, float* x, const float* up, std::int64_t n) {
    return {x, up, n, static_cast<ActivationKind>(config.activation)};
}
static_assert(static_cast<int>(ActivationKind::relu) == static_cast<int>(Activation::relu) &&
              static_cast<int>(ActivationKind::gelu) == static_cast<int>(Activation::gelu));

/// The second half of a block adds to the stream only before the next norm that reads it: parallel branches, and a norm that is shared.
inline bool adds_late(const ModelConfig& config) {
    return config.parallel || config.shared_norm;
}

}  // namespace keyhole::cuda
