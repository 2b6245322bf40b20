#include "engine/backend/cuda/device_model.h"

#include "engine/backend/cpu/kernels.h"
#include "engine/base/error.h"

#include <algorithm>
#include <initializer_list>
#include <type_traits>

namespace keyhole::cuda {
namespace {

template <class Visit>
void for_matrices(const ModelWeights& weights, Visit visit) {
    visit(weights.embedding);
    for (const LayerWeights& layer : weights.layers)
        for (const Weight* w : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
            visit(*w);
    if (weights.output.data != weights.embedding.data) visit(weights.output);
}

template <class T>
constexpr DType kStoredAs = std::is_same_v<T, Fp16>   ? DType::f16
                            : std::is_same_v<T, Bf16> ? DType::bf16
                                                      : DType::f32;

template <class T>
Matrix<T> uploaded(const std::shared_ptr<Executor>& executor, const Weight& w) {
    Matrix<T> out{Buffer<T>(executor, static_cast<std::size_t>(w.rows * w.cols)), static_cast<int>(w.rows),
                  static_cast<int>(w.cols)};
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

namespace {

/// What the model has that the kernels lack, in words; empty when they have it all.
std::string missing_feature(const Model& model) {
    const ModelConfig& c = model.config();
    const ModelWeights& w = model.weights();
    const LayerWeights& layer = w.layers.front();
    const auto has = [](std::initializer_list<const Weight*> weights) {
        return std::any_of(weights.begin(), weights.end(),
                           [](const Weight* x) { return x->data != nullptr; });
    };
    if (c.norm != NormKind::rms) return "LayerNorm";
    if (c.activation != Activation::silu || !has({&layer.gate})) return "this feed-forward layer";
    if (c.positions != PositionKind::rotary) return "positions other than rotary ones";
    if (c.rotary.dims != c.head_dim || c.rotary.interleaved || c.rotary.magnitude != 1.0f)
        return "this form of rotary positions";
    if (c.parallel || c.post_norm) return "this order of norms and sums";
    if (c.attention_scale != 0) return "another scale of attention";
    if (c.clip_qkv != 0) return "clipped queries, keys and values";
    if (std::any_of(c.window.begin(), c.window.end(), [](int window) { return window > 0; }))
        return "a sliding window";
    if (has({&layer.q_bias, &layer.k_bias, &layer.v_bias, &layer.o_bias, &layer.gate_bias, &layer.up_bias,
             &layer.down_bias, &w.output_bias}))
        return "biases";
    if (has({&layer.q_norm, &layer.k_norm})) return "norms of queries and keys";
    if (has({&w.project_in, &w.project_out})) return "embeddings of another width";
    return {};
}

}  // namespace

std::string unsupported_shape(const Model& model) {
    const ModelConfig& c = model.config();
    if (const std::string missing = missing_feature(model); !missing.empty())
        return fmt::format("it does not do {} yet, which {} has", missing, model.path().string());
    if (c.head_dim % 8 != 0 || c.head_dim > kMaxHeadDim)
        return fmt::format("it takes heads of a multiple of 8 up to {} dimensions, and {} has {}",
                           kMaxHeadDim, model.path().string(), c.head_dim);
    if (c.d_model % 8 != 0 || c.d_ff % 8 != 0)
        return fmt::format("it takes widths that are multiples of 8, and {} has {} and {}",
                           model.path().string(), c.d_model, c.d_ff);
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
    const auto norm = [&](const Weight& gain) { return uploaded<float>(executor, gain).data; };
    embedding = uploaded<T>(executor, w.embedding);
    if (w.output.data != w.embedding.data) own_output = uploaded<T>(executor, w.output);
    for (const LayerWeights& layer : w.layers)
        layers.push_back({norm(layer.attention_norm), norm(layer.mlp_norm), uploaded<T>(executor, layer.q),
                          uploaded<T>(executor, layer.k), uploaded<T>(executor, layer.v),
                          uploaded<T>(executor, layer.o), uploaded<T>(executor, layer.gate),
                          uploaded<T>(executor, layer.up), uploaded<T>(executor, layer.down)});
    final_norm = norm(w.final_norm);
}

template struct DeviceModel<float>;
template struct DeviceModel<Fp16>;
template struct DeviceModel<Bf16>;

}  // namespace keyhole::cuda
