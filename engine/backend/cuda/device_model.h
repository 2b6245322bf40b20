/// A model's weights in device memory, in the type that they are stored in. Const after loading. Models whose weights are the same in
/// main memory (a model and what shared_model() makes of it) share them on the device.
#pragma once

#include "engine/backend/common/model_tables.h"
#include "engine/backend/cuda/executor.h"
#include "engine/model/model.h"

#include <map>
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

/// Device memory that several models may hold; empty where the family has none. The last to hold it gives it back.
template <class T>
class SharedBuffer {
  public:
    SharedBuffer() = default;
    explicit SharedBuffer(std::shared_ptr<const Buffer<T>> buffer) : buffer_(std::move(buffer)) {}
    T* data() const { return buffer_ != nullptr ? buffer_->data() : nullptr; }

  private:
    std::shared_ptr<const Buffer<T>> buffer_;
};

template <class T>
struct Matrix {
    SharedBuffer<T> data;
    SharedBuffer<float> bias;
    int rows = 0, cols = 0;
    MatrixView<T> view() const { return {data.data(), bias.data(), rows, cols}; }
};

/// Puts weights on the device, each once as long as somebody holds it. Who holds one keeps its place in main memory too.
template <class T>
class WeightStore {
  public:
    explicit WeightStore(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

    const std::shared_ptr<Executor>& executor() const { return executor_; }
    std::int64_t uploaded_bytes() const { return uploaded_bytes_; }  ///< since the beginning
    /// rows, cols: with zeros at the ends where the weight has fewer; 0: as it has.
    Matrix<T> matrix(const Weight& w, const Weight& bias = {}, std::int64_t rows = 0, std::int64_t cols = 0);
    SharedBuffer<float> floats(const Weight& w, std::int64_t rows = 0);

  private:
    /// By place and size in main memory.
    template <class V>
    using Known = std::map<std::pair<const void*, std::int64_t>, std::weak_ptr<const Buffer<V>>>;

    template <class V>
    SharedBuffer<V> find(Known<V>& known, const Weight& w, std::int64_t rows, std::int64_t cols);

    std::shared_ptr<Executor> executor_;
    std::int64_t uploaded_bytes_ = 0;
    Known<T> matrices_;
    Known<float> floats_;
};

/// Weights that the family lacks are empty, their pointers null.
template <class T>
struct DeviceModel {
    DeviceModel(WeightStore<T>& store, const Model& model);

    struct Norm {
        SharedBuffer<float> gain, bias;
    };
    struct Layer {
        Norm attention_norm, mlp_norm;
        SharedBuffer<float> q_norm, k_norm;
        Matrix<T> q, k, v, o, gate, up, down;
    };
    Matrix<T> embedding, position_embedding, project_in, project_out;
    Matrix<T> own_output;  ///< empty when tied
    SharedBuffer<float> output_bias;
    std::vector<Layer> layers;
    Norm final_norm;
    Buffer<float> slopes;  ///< [n_heads] of ALiBi, or empty
    /// Neurons of a layer, rounded up to whole packs: the last ones are zeros, and so is what they make.
    int d_ff = 0;
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

/// Tables of a model's layout that kernels look things up in.
struct DeviceLayout {
    DeviceLayout(const std::shared_ptr<Executor>& executor, const KvLayout& layout);

    ReaderTable table() const { return {readers.data(), offset.data()}; }

    Buffer<std::int32_t> readers, offset;  ///< see ReaderTable
    Buffer<std::int32_t> kv_of_head;       ///< [n_layers * n_heads]
};

/// All that a step needs of a model: the session's own, or a variant that shares KV heads otherwise. It keeps the model loaded.
template <class T>
struct OnDevice {
    OnDevice(WeightStore<T>& store, std::shared_ptr<const Model> of)
        : model(std::move(of)),
          uploaded_bytes(-store.uploaded_bytes()),
          weights(store, *model),
          layout(store.executor(), model->layout()),
          tables(*model) {
        uploaded_bytes += store.uploaded_bytes();
    }

    std::shared_ptr<const Model> model;
    std::int64_t uploaded_bytes;  ///< of weights that nobody had on the device before
    DeviceModel<T> weights;
    DeviceLayout layout;
    ModelTables tables;  ///< what the shadow's queries and keys need, on the host
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
