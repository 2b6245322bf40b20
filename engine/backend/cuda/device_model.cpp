#include "engine/backend/cuda/device_model.h"

#include "engine/backend/cpu/kernels.h"
#include "engine/base/error.h"

#include <algorithm>
#include <initializer_list>
#include <type_traits>

namespace keyhole::cuda {
namespace {

/// What is stored in one type; norms and biases are floats.
template <class Visit>
void for_matrices(const ModelWeights& weights, Visit visit) {
    const auto visit_one = [&](const Weight& w) {
        if (w.data != nullptr) visit(w);
    };
    for (const Weight* w :
         {&weights.embedding, &weights.position_embedding, &weights.project_in, &weights.project_out})
        visit_one(*w);
    for (const LayerWeights& layer : weights.layers)
        for (const Weight* w : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
            visit_one(*w);
    if (weights.output.data != weights.embedding.data) visit_one(weights.output);
}

template <class T>
constexpr DType kStoredAs = std::is_same_v<T, Fp16>   ? DType::f16
                            : std::is_same_v<T, Bf16> ? DType::bf16
                                                      : DType::f32;

template <class T>
Matrix<T> uploaded(const std::shared_ptr<Executor>& executor, const Weight& w, const Weight& bias = {}) {
    if (w.data == nullptr) return {};
    Matrix<T> out{Buffer<T>(executor, static_cast<std::size_t>(w.rows * w.cols)),
                  {},
                  static_cast<int>(w.rows),
                  static_cast<int>(w.cols)};
    if (bias.data != nullptr) out.bias = std::move(uploaded<float>(executor, bias).data);
    if (w.dtype == kStoredAs<T>) {
        executor->upload(out.data.data(), w.data, out.data.size_bytes());
    } else if constexpr (std::is_same_v<T, float>) {
        constexpr std::int64_t kRows = 256;
        std::vector<float> block(static_cast<std::size_t>(kRows * w.cols));
        for (std::int64_t first = 0; first < w.rows; first += kRows) {
            const std::int64_t last = std::min(w.rows, first + kRows);
            cpu::widen_rows(w, first, last, block.data());
            executor->upload(out.data.data() + first * w.cols, block.data(),
                             static_cast<std::size_t>((last - first) * w.cols) * sizeof(float));
            executor->wait();
        }
    }
    executor->wait();
    return out;
}

}  // namespace

DType common_type(const Model& model) {
    const DType first = model.weights().embedding.dtype;
    bool same = true;
    for_matrices(model.weights(), [&](const Weight& w) { same = same && w.dtype == first; });
    return same ? first : DType::f32;
}

std::string unsupported_shape(const Model& model) {
    const ModelConfig& c = model.config();
    if (c.head_dim % 8 != 0 || c.head_dim > kMaxHeadDim)
        return fmt::format("it takes heads of a multiple of 8 up to {} dimensions, and {} has {}",
                           kMaxHeadDim, model.path().string(), c.head_dim);
    const std::int64_t d_embed = model.weights().embedding.cols;
    if (c.d_model % 8 != 0 || c.d_ff % 8 != 0 || d_embed % 8 != 0)
        return fmt::format("it takes widths that are multiples of 8, and {} has {}, {} and {}",
                           model.path().string(), c.d_model, c.d_ff, d_embed);
    const KvLayout& layout = model.layout();
    const int group = layout.n_heads() / std::max(1, c.n_kv_heads);
    for (int l = 0; l < layout.n_layers(); ++l)
        for (int h = 0; h < layout.n_heads(); ++h)
            if (layout.kv_head_from_head(l, h) != layout.first_of_layer(l) + h / group)
                return fmt::format("it does not share KV heads between layers yet, as {} does",
                                   model.path().string());
    return {};
}

std::int64_t device_weight_bytes(const Model& model) {
    const auto size = static_cast<std::int64_t>(dtype_bytes(common_type(model)));
    std::int64_t bytes = 0;
    for_matrices(model.weights(), [&](const Weight& w) { bytes += w.rows * w.cols * size; });
    return bytes;
}

template <class T>
DeviceModel<T>::DeviceModel(const std::shared_ptr<Executor>& executor, const Model& model) {
    const ModelWeights& w = model.weights();
    const auto floats = [&](const Weight& vector) { return uploaded<float>(executor, vector).data; };
    const bool centres = model.config().norm == NormKind::layer;
    const auto norm = [&](const Weight& gain, const Weight& bias) {
        return Norm{floats(gain), centres ? floats(bias) : Buffer<float>()};  // RMSNorm has none
    };
    embedding = uploaded<T>(executor, w.embedding);
    position_embedding = uploaded<T>(executor, w.position_embedding);
    project_in = uploaded<T>(executor, w.project_in);
    project_out = uploaded<T>(executor, w.project_out);
    if (w.output.data != w.embedding.data) own_output = uploaded<T>(executor, w.output);
    output_bias = floats(w.output_bias);
    for (const LayerWeights& layer : w.layers)
        layers.push_back(
            {norm(layer.attention_norm, layer.attention_norm_bias), norm(layer.mlp_norm, layer.mlp_norm_bias),
             floats(layer.q_norm), floats(layer.k_norm), uploaded<T>(executor, layer.q, layer.q_bias),
             uploaded<T>(executor, layer.k, layer.k_bias), uploaded<T>(executor, layer.v, layer.v_bias),
             uploaded<T>(executor, layer.o, layer.o_bias), uploaded<T>(executor, layer.gate, layer.gate_bias),
             uploaded<T>(executor, layer.up, layer.up_bias),
             uploaded<T>(executor, layer.down, layer.down_bias)});
    final_norm = norm(w.final_norm, w.final_norm_bias);
    const std::vector<float>& alibi = model.config().alibi_slopes;
    if (model.config().positions != PositionKind::alibi) return;
    slopes = Buffer<float>(executor, alibi.size());
    executor->upload(slopes.data(), alibi.data(), slopes.size_bytes());
    executor->wait();
}

template struct DeviceModel<float>;
template struct DeviceModel<Fp16>;
template struct DeviceModel<Bf16>;

}  // namespace keyhole::cuda
