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

template <class T>
struct Matrix {
    Buffer<T> data;
    int rows = 0, cols = 0;
};

template <class T>
struct DeviceModel {
    DeviceModel(const std::shared_ptr<Executor>& executor, const Model& model);

    struct Layer {
        Buffer<float> attention_norm, mlp_norm;
        Matrix<T> q, k, v, o, gate, up, down;
    };
    Matrix<T> embedding, own_output;  ///< own_output: empty when tied
    std::vector<Layer> layers;
    Buffer<float> final_norm;
    const Matrix<T>& output() const { return own_output.rows > 0 ? own_output : embedding; }
};

}  // namespace keyhole::cuda
