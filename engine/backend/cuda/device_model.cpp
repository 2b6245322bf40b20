#include "engine/backend/cuda/device_model.h"

#include "engine/backend/common/kernels.h"
#include "engine/backend/common/laid_matrix.h"
#include "engine/backend/cuda/missing_part.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/seeded_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <initializer_list>
#include <optional>
#include <thread>

namespace keyhole::cuda {
namespace {

/// Visits the weights stored in the common type; norms and biases are float.
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

/// Uploads a matrix in its own type, with zeros after its rows and columns. The device draws it where the
/// host has no values.
Buffer<std::byte> uploaded_matrix(const std::shared_ptr<Executor>& executor, const Weight& w,
                                  std::int64_t rows, std::int64_t cols) {
    const std::int64_t n = rows * cols;
    Buffer<std::byte> out(executor, stored_bytes(w.dtype, n));
    const bool same_size = rows == w.rows && cols == w.cols;
    if (const std::optional<SeededWeight> drawn = seeded_weight(w)) {
        KH_ASSERT(same_size && !is_quantised(w.dtype), "rows={} cols={}", w.rows, w.cols);
        constexpr int kThreads = 256;
        const std::int64_t n_packs = (n + kSeededPack - 1) / kSeededPack;
        with_number(number_type_of(w.dtype), [&]<class T>() {
            executor->launch(MakeWeight<T>{reinterpret_cast<T*>(out.data()), n, *drawn},
                             {static_cast<int>((n_packs + kThreads - 1) / kThreads)}, kThreads);
        });
    } else if (same_size) {
        executor->upload(out.data(), w.data, out.size_bytes());
    } else {
        KH_ASSERT(cols == w.cols || !is_quantised(w.dtype), "rows={} cols={}", w.rows, w.cols);
        const std::size_t from_row = stored_bytes(w.dtype, w.cols), to_row = stored_bytes(w.dtype, cols);
        std::vector<std::byte> host(out.size(), std::byte{0});
        for (std::size_t row = 0; row < to_index(w.rows); ++row)
            std::memcpy(host.data() + row * to_row, static_cast<const std::byte*>(w.data) + row * from_row,
                        from_row);
        executor->upload(out.data(), host.data(), out.size_bytes());
        executor->wait();
    }
    executor->wait();
    return out;
}

/// Lays a matrix, by some threads where it is large, and uploads it.
Buffer<std::byte> uploaded_laid(const std::shared_ptr<Executor>& executor, const Weight& w) {
    constexpr std::int64_t kOfThread = 64;  // groups that are worth a thread
    std::vector<std::byte> laid(to_index(laid_bytes(w)));
    const std::int64_t n_groups = (w.rows + kLaidRows - 1) / kLaidRows;
    const std::int64_t n_threads =
        std::clamp<std::int64_t>(n_groups / kOfThread, 1, std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::future<void>> parts;
    for (std::int64_t i = 1; i < n_threads; ++i)
        parts.push_back(std::async(std::launch::async | std::launch::deferred, lay_groups, std::cref(w),
                                   i * n_groups / n_threads, (i + 1) * n_groups / n_threads, laid.data()));
    lay_groups(w, 0, n_groups / n_threads, laid.data());
    for (auto& part : parts) part.get();
    return uploaded(executor, laid);
}

/// Uploads a vector as floats, with zeros after its rows.
Buffer<float> uploaded_floats(const std::shared_ptr<Executor>& executor, const Weight& w, std::int64_t rows) {
    std::vector<float> host(to_index(rows * w.cols), 0.0f);
    widen_rows(w, 0, w.rows, host.data());
    Buffer<float> out(executor, host.size());
    executor->upload(out.data(), host.data(), out.size_bytes());
    executor->wait();
    return out;
}

Buffer<std::int32_t> uploaded_ints(const std::shared_ptr<Executor>& executor,
                                   const std::vector<std::int32_t>& from) {
    Buffer<std::int32_t> out(executor, from.size());
    executor->upload(out.data(), from.data(), out.size_bytes());
    executor->wait();
    return out;
}

}  // namespace

bool has_one_type(const Model& model) {
    const DType first = model.weights().embedding.dtype;
    bool same = !is_quantised(first);
    for_matrices(model.weights(), [&](const Weight& w) { same = same && w.dtype == first; });
    return same;
}

DType common_type(const Model& model) {
    return has_one_type(model) ? model.weights().embedding.dtype : DType::f32;
}

namespace {

/// Names a type of the weights that no kernel reads; empty: all are read.
std::string unread_type(const Model& model) {
    std::string unread;
    for_matrices(model.weights(), [&](const Weight& w) {
        if (!is_read_on_device(w.dtype)) unread = fmt::format("weights of type {}", dtype_name(w.dtype));
    });
    return unread;
}

}  // namespace

std::string unsupported_shape(const Model& model) {
    const ModelConfig& c = model.config();
    std::string part = unread_type(model);
    if (part.empty()) part = missing_part(model);
    if (!part.empty())
        return fmt::format("{} has {}, and CUDA does not compute that yet: use --backend cpu",
                           model.path().string(), part);
    if (c.head_dim % 8 != 0 || c.head_dim > kMaxHeadDim)
        return fmt::format("it takes heads of a multiple of 8 up to {} dimensions, and {} has {}",
                           kMaxHeadDim, model.path().string(), c.head_dim);
    const std::int64_t d_embed = model.weights().embedding.cols;
    if (c.d_model % 8 != 0 || d_embed % 8 != 0)
        return fmt::format("it takes widths that are multiples of 8, and {} has {} and {}",
                           model.path().string(), c.d_model, d_embed);
    return {};
}

namespace {

int padded_d_ff(const Model& model) {
    return (model.config().d_ff + 7) / 8 * 8;
}

/// Returns whether a matrix of products is laid for products in integers; lays: they are wanted.
bool is_laid(const Weight& w, bool lays) {
    return lays && can_be_laid(w) && is_read_on_device(w.dtype);
}

/// Does so for gate and up, which one launch multiplies: both or none.
bool is_hidden_laid(const LayerWeights& layer, int d_ff, bool lays) {
    const auto can = [&](const Weight& w) {
        return w.data == nullptr || (is_laid(w, lays) && w.rows == d_ff);
    };
    return can(layer.gate) && can(layer.up);
}

}  // namespace

std::int64_t device_weight_bytes(const Model& model, bool lays) {
    const ModelWeights& weights = model.weights();
    std::int64_t bytes = 0;
    const auto add = [&](const Weight& w, bool laid) {
        if (w.data != nullptr) bytes += laid ? laid_bytes(w) : stored_bytes(w);
    };
    const auto add_product = [&](const Weight& w) { add(w, is_laid(w, lays)); };
    add(weights.embedding, false);
    add(weights.position_embedding, false);
    add_product(weights.project_in);
    add_product(weights.project_out);
    for (const LayerWeights& layer : weights.layers) {
        for (const Weight* w : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.down}) add_product(*w);
        const bool hidden = is_hidden_laid(layer, padded_d_ff(model), lays);
        add(layer.gate, hidden);
        add(layer.up, hidden);
    }
    if (weights.output.data != weights.embedding.data || is_laid(weights.output, lays))
        add_product(weights.output);
    return bytes;
}

std::size_t MatrixView::bytes_before(std::int64_t row) const {
    if (!is_laid) return stored_bytes(type, row * cols);
    KH_ASSERT(row % kLaidRows == 0, "row={}", row);
    return to_index(laid_bytes({type, data, row, cols}));
}

template <class V, class Upload>
SharedBuffer<V> WeightStore::find(Known<V>& known, const Weight& w, Upload upload) {
    if (w.data == nullptr) return {};
    std::weak_ptr<const Buffer<V>>& there = known[{w.data, w.rows * w.cols}];
    std::shared_ptr<const Buffer<V>> buffer = there.lock();
    if (buffer == nullptr) {
        buffer = std::make_shared<const Buffer<V>>(upload());
        there = buffer;
        uploaded_bytes_ += static_cast<std::int64_t>(buffer->size_bytes());
    }
    return SharedBuffer<V>(std::move(buffer));
}

Matrix WeightStore::matrix(const Weight& w, const Weight& bias, std::int64_t rows, std::int64_t cols) {
    if (w.data == nullptr) return {};
    rows = std::max(rows, w.rows);
    cols = std::max(cols, w.cols);
    return {find(matrices_, w, [&] { return uploaded_matrix(executor_, w, rows, cols); }),
            floats(bias, rows),
            static_cast<int>(rows),
            static_cast<int>(cols),
            w.dtype,
            w.dtype == type_};
}

Matrix WeightStore::laid(const Weight& w, const Weight& bias) {
    return {find(laid_, w, [&] { return uploaded_laid(executor_, w); }),
            floats(bias),
            static_cast<int>(w.rows),
            static_cast<int>(w.cols),
            w.dtype,
            false,
            true};
}

SharedBuffer<float> WeightStore::floats(const Weight& w, std::int64_t rows) {
    return find(floats_, w, [&] { return uploaded_floats(executor_, w, std::max(rows, w.rows)); });
}

DeviceModel::DeviceModel(WeightStore& store, const Model& model) {
    const ModelWeights& w = model.weights();
    const bool centres = model.config().norm == NormKind::layer;
    const auto norm = [&](const Weight& gain, const Weight& bias) {
        return Norm{store.floats(gain), store.floats(centres ? bias : Weight{})};  // RMSNorm has no bias
    };
    d_ff = padded_d_ff(model);
    const bool lays = store.lays();
    const auto matrix = [&](const Weight& of, const Weight& bias, bool laid, std::int64_t rows = 0,
                            std::int64_t cols = 0) {
        if (!laid || of.data == nullptr) return store.matrix(of, bias, rows, cols);
        multiplies_integers = true;
        return store.laid(of, bias);
    };
    const auto product = [&](const Weight& of, const Weight& bias = {}) {
        return matrix(of, bias, is_laid(of, lays));
    };
    embedding = store.matrix(w.embedding);
    position_embedding = store.matrix(w.position_embedding);
    project_in = product(w.project_in);
    project_out = product(w.project_out);
    if (w.output.data != w.embedding.data || is_laid(w.output, lays)) own_output = product(w.output);
    output_bias = store.floats(w.output_bias);
    for (const LayerWeights& layer : w.layers) {
        const bool hidden = is_hidden_laid(layer, d_ff, lays);
        layers.push_back(
            {norm(layer.attention_norm, layer.attention_norm_bias), norm(layer.mlp_norm, layer.mlp_norm_bias),
             store.floats(layer.q_norm), store.floats(layer.k_norm), product(layer.q, layer.q_bias),
             product(layer.k, layer.k_bias), product(layer.v, layer.v_bias), product(layer.o, layer.o_bias),
             matrix(layer.gate, layer.gate_bias, hidden, d_ff), matrix(layer.up, layer.up_bias, hidden, d_ff),
             // The columns of a laid matrix are whole blocks, so that none is missing.
             matrix(layer.down, layer.down_bias, is_laid(layer.down, lays), 0, d_ff)});
    }
    final_norm = norm(w.final_norm, w.final_norm_bias);
    std::vector<Elements<Stored>> of_layers;
    for (const Layer& layer : layers) of_layers.push_back(layer.o.view().elements<Stored>());
    outputs = Buffer<Elements<Stored>>(store.executor(), of_layers.size());
    store.executor()->upload(outputs.data(), of_layers.data(), outputs.size_bytes());
    store.executor()->wait();
    const std::vector<float>& alibi = model.config().alibi_slopes;
    if (model.config().positions != PositionKind::alibi) return;
    slopes = Buffer<float>(store.executor(), alibi.size());
    store.executor()->upload(slopes.data(), alibi.data(), slopes.size_bytes());
    store.executor()->wait();
}

DeviceLayout::DeviceLayout(const std::shared_ptr<Executor>& executor, const KvLayout& layout) {
    std::vector<std::int32_t> list, begin = {0}, table;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        for (const HeadRef& reader : layout.kv_head(g).readers)
            list.push_back(reader.layer * layout.n_heads() + reader.head);
        begin.push_back(static_cast<std::int32_t>(list.size()));
    }
    for (int l = 0; l < layout.n_layers(); ++l)
        for (int h = 0; h < layout.n_heads(); ++h) table.push_back(layout.kv_head_from_head(l, h));
    readers = uploaded_ints(executor, list);
    offset = uploaded_ints(executor, begin);
    kv_of_head = uploaded_ints(executor, table);
}

}  // namespace keyhole::cuda
