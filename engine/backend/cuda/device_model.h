/// A model's weights in device memory, in the type in which they are stored. Const after loading; engine
/// thread only. Models that share weights in main memory (a model and the results of shared_model()) share
/// them on the device. Knows no cache.
#pragma once

#include "engine/backend/common/model_tables.h"
#include "engine/backend/cuda/executor.h"
#include "engine/base/index.h"
#include "engine/model/model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace keyhole::cuda {

/// Returns the type of all matrices; f32 where they differ or are quantised.
DType common_type(const Model& model);
/// True where all matrices have common_type().
bool has_one_type(const Model& model);
/// Returns why the kernels cannot run the model, as a clause; empty when they can.
std::string unsupported_shape(const Model& model);
/// Returns the bytes of the matrices on the device. lays: as WeightStore.
std::int64_t device_weight_bytes(const Model& model, bool lays);

/// type: f32, f16 or bf16.
inline NumberType number_type_of(DType type) {
    return type == DType::f16 ? NumberType::f16 : type == DType::bf16 ? NumberType::bf16 : NumberType::f32;
}

/// A matrix and its bias, as a product reads them.
struct MatrixView {
    const void* data = nullptr;
    const float* bias = nullptr;  ///< [rows] or null
    int rows = 0, cols = 0;
    DType type = DType::f32;
    bool is_plain = true;  ///< it has the type of the model's matrices; else kernels read it as Stored
    bool is_laid = false;  ///< for products in integers (backend/common/laid_layout.h)

    NumberType number_type() const { return number_type_of(type); }  ///< where it is plain
    template <class V>
    Elements<V> elements() const {
        if constexpr (std::is_same_v<V, Stored>)
            return {data, type, is_laid ? cols : 0};
        else
            return {static_cast<const V*>(data)};
    }
    /// Returns rows [first, first + n) without a bias; in a laid matrix a group of rows begins at first.
    MatrixView part(std::int64_t first, int n) const {
        return {static_cast<const std::byte*>(data) + bytes_before(first),
                nullptr,
                n,
                cols,
                type,
                is_plain,
                is_laid};
    }

  private:
    std::size_t bytes_before(std::int64_t row) const;
};

/// Calls visit.template operator()<V>() for the type as which kernels read all of the matrices, of which
/// there is at least one.
template <class Visit>
void with_elements(std::span<const MatrixView> w, Visit visit) {
    if (std::all_of(w.begin(), w.end(), [](const MatrixView& m) { return m.is_plain; }))
        with_number(w.front().number_type(), visit);
    else
        visit.template operator()<Stored>();
}

/// Device memory that several models may share; the last owner frees it. Empty where the model family has
/// none.
template <class T>
class SharedBuffer {
  public:
    SharedBuffer() = default;
    explicit SharedBuffer(std::shared_ptr<const Buffer<T>> buffer) : buffer_(std::move(buffer)) {}
    T* data() const { return buffer_ != nullptr ? buffer_->data() : nullptr; }

  private:
    std::shared_ptr<const Buffer<T>> buffer_;
};

struct Matrix {
    SharedBuffer<std::byte> data;
    SharedBuffer<float> bias;
    int rows = 0, cols = 0;
    DType type = DType::f32;
    bool is_plain = true, is_laid = false;
    MatrixView view() const { return {data.data(), bias.data(), rows, cols, type, is_plain, is_laid}; }
};

/// Uploads weights as they are stored, each only once while someone holds it. A holder must also keep the
/// weight's main memory, since its address is the key.
class WeightStore {
  public:
    /// type: the common_type() of the models. lays: the quantised matrices of products are laid for products
    /// in integers.
    WeightStore(std::shared_ptr<Executor> executor, DType type, bool lays)
        : executor_(std::move(executor)), type_(type), lays_(lays) {}

    const std::shared_ptr<Executor>& executor() const { return executor_; }
    NumberType type() const { return number_type_of(type_); }
    std::int64_t uploaded_bytes() const { return uploaded_bytes_; }  ///< total
    /// Uploads a matrix, with zeros at the ends where the weight has fewer than rows or cols (rows alone
    /// where it is quantised); 0 keeps the weight's own size.
    Matrix matrix(const Weight& w, const Weight& bias = {}, std::int64_t rows = 0, std::int64_t cols = 0);
    /// Lays a matrix (backend/common/laid_matrix.h) and uploads it. can_be_laid(w) is asserted.
    Matrix laid(const Weight& w, const Weight& bias = {});
    bool lays() const { return lays_; }
    SharedBuffer<float> floats(const Weight& w, std::int64_t rows = 0);

  private:
    /// By address and size in main memory.
    template <class V>
    using Known = std::map<std::pair<const void*, std::int64_t>, std::weak_ptr<const Buffer<V>>>;

    template <class V, class Upload>
    SharedBuffer<V> find(Known<V>& known, const Weight& w, Upload upload);

    std::shared_ptr<Executor> executor_;
    DType type_;
    bool lays_;
    std::int64_t uploaded_bytes_ = 0;
    Known<std::byte> matrices_, laid_;
    Known<float> floats_;
};

/// Weights that the model family lacks are empty, their pointers null.
struct DeviceModel {
    DeviceModel(WeightStore& store, const Model& model);

    struct Norm {
        SharedBuffer<float> gain, bias;
    };
    struct Layer {
        Norm attention_norm, mlp_norm;
        SharedBuffer<float> q_norm, k_norm;
        Matrix q, k, v, o, gate, up, down;
    };
    Matrix embedding, position_embedding, project_in, project_out;
    Matrix own_output;  ///< empty where the embedding serves as it is
    SharedBuffer<float> output_bias;
    std::vector<Layer> layers;
    Norm final_norm;
    bool multiplies_integers = false;  ///< any matrix is laid
    Buffer<float> slopes;              ///< [n_heads] of ALiBi, or empty
    Buffer<Elements<Stored>> outputs;  ///< [n_layers] `o`, for kernels that choose the layer themselves
    /// Neurons of a layer, rounded up to whole packs. The added ones have zero weights and produce zeros.
    int d_ff = 0;
    MatrixView output() const {
        MatrixView view = own_output.rows > 0 ? own_output.view() : embedding.view();
        view.bias = output_bias.data();
        return view;
    }
    /// Returns the layer's settings for its heads: norms, clipping, rotation.
    HeadRule head_rule(const ModelConfig& config, int layer) const {
        const Layer& w = layers[to_index(layer)];
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

/// Lookup tables of a model's KV layout, for kernels.
struct DeviceLayout {
    DeviceLayout(const std::shared_ptr<Executor>& executor, const KvLayout& layout);

    ReaderTable table() const { return {readers.data(), offset.data()}; }

    Buffer<std::int32_t> readers, offset;  ///< see ReaderTable
    Buffer<std::int32_t> kv_of_head;       ///< [n_layers * n_heads]
};

/// Everything that a step needs of a model: the session's own model, or a variant with other KV sharing.
/// Keeps the model loaded.
struct OnDevice {
    OnDevice(WeightStore& store, std::shared_ptr<const Model> of)
        : model(std::move(of)),
          type(store.type()),
          uploaded_bytes(-store.uploaded_bytes()),
          weights(store, *model),
          layout(store.executor(), model->layout()),
          tables(*model) {
        uploaded_bytes += store.uploaded_bytes();
    }

    std::shared_ptr<const Model> model;
    NumberType type;              ///< of plain matrices
    std::int64_t uploaded_bytes;  ///< of weights that were not on the device before
    DeviceModel weights;
    DeviceLayout layout;
    ModelTables tables;  ///< on the host, for the shadow's queries and keys
};

/// Computes act(x) over n values, multiplied by `up` where it is not null.
inline Activate activation_of(const ModelConfig& config, float* x, const float* up, std::int64_t n) {
    return {x, up, n, static_cast<ActivationKind>(config.activation)};
}
static_assert(static_cast<int>(ActivationKind::relu) == static_cast<int>(Activation::relu) &&
              static_cast<int>(ActivationKind::gelu) == static_cast<int>(Activation::gelu));

/// True when the output of a block's second half is added only before the next norm that reads the stream:
/// with parallel branches or a shared norm.
inline bool adds_late(const ModelConfig& config) {
    return config.parallel || config.shared_norm;
}

}  // namespace keyhole::cuda
