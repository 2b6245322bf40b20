#include "engine/model/kv_sharing.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/base/reserved_pages.h"
#include "engine/base/resource_use.h"
#include "engine/model/quantised_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

namespace keyhole {
namespace {

/// Owns the merged weights, and the model that holds the other ones.
struct MergedStorage {
    std::shared_ptr<const Model> base;
    std::vector<Pages> pages;
    bool only_counts = false;  ///< weights get shapes and no memory
    std::int64_t n_bytes = 0;  ///< of all weights made
};

/// Returns the type in which a changed copy of a weight is stored: a quantised one as float, without loss.
DType changed_type(const Weight& w) {
    return is_quantised(w.dtype) ? DType::f32 : w.dtype;
}

void set_value(DType dtype, void* data, std::int64_t i, double value) {
    const auto single = static_cast<float>(value);
    switch (dtype) {
        case DType::f16:
            static_cast<std::uint16_t*>(data)[i] = fp16_from_float(single);
            return;
        case DType::bf16:
            static_cast<std::uint16_t*>(data)[i] = bf16_from_float(single);
            return;
        case DType::f32:
            static_cast<float*>(data)[i] = single;
            return;
            KH_BLOCK_LABELS
            break;  // changed_type() is none of them
    }
    KH_ASSERT(false, "dtype={}", dtype_name(dtype));
}

/// Allocates a weight with this many rows and columns in changed_type(like).
Weight make_weight(MergedStorage& storage, const Weight& like, std::int64_t rows, std::int64_t cols,
                   void** data) {
    const DType dtype = changed_type(like);
    const std::size_t n_bytes = to_index(rows * cols) * dtype_bytes(dtype);
    storage.n_bytes += static_cast<std::int64_t>(n_bytes);
    if (storage.only_counts) return {dtype, nullptr, rows, cols};
    Pages& pages = storage.pages.emplace_back(pages_for(n_bytes, "weights that share KV heads"));
    *data = pages.data();
    return {dtype, pages.data(), rows, cols};
}

/// How the KV heads of one owner are merged from those of the layers in its group.
struct Merge {
    std::vector<int> layers;  ///< layers of the base that own KV heads and are merged, ascending
    int n_to = 0;             ///< KV heads after merging
    int n_of_one = 0;         ///< number of KV heads that are merged into one
    int head_dim = 0;
    KvMerge how = KvMerge::uniform;
};

/// Returns the weight `which` of the merged owner. Its rows are those of the heads, head_dim each.
Weight merged(MergedStorage& storage, const ModelWeights& base, Weight LayerWeights::*which, const Merge& m) {
    const Weight& like = base.layers[to_index(m.layers.front())].*which;
    if (like.data == nullptr) return {};
    void* data = nullptr;
    const Weight out = make_weight(storage, like, std::int64_t{m.n_to} * m.head_dim, like.cols, &data);
    if (storage.only_counts) return out;
    const std::int64_t head_size = m.head_dim * like.cols;
    std::vector<std::vector<float>> values;  // [layers to merge][rows * cols]
    for (const int layer : m.layers) {
        const Weight& w = base.layers[to_index(layer)].*which;
        values.emplace_back(to_index(w.rows * w.cols));
        widen_stored(w.dtype, w.data, w.rows * w.cols, values.back().data());
    }
    for (std::int64_t i = 0; i < out.rows * out.cols; ++i) {
        const std::int64_t head = i / head_size, within = i % head_size;
        double value = 0;
        for (std::size_t n = 0; n < m.layers.size(); ++n) {
            double of_layer = 0;
            for (int j = 0; j < m.n_of_one; ++j)
                of_layer += values[n][to_index((head * m.n_of_one + j) * head_size + within)];
            of_layer /= m.n_of_one;
            if (m.how == KvMerge::uniform)
                value += of_layer / static_cast<double>(m.layers.size());
            else
                value = n == 0 ? of_layer : (value + of_layer) / 2;
        }
        set_value(out.dtype, data, i, value);
    }
    return out;
}

/// Returns the weight with the rows of each KV head n times, one copy after the other, in its own type.
Weight repeated_heads(MergedStorage& storage, const Weight& stored, int n, int head_dim) {
    if (stored.data == nullptr) return {};
    const auto n_bytes = to_index(stored_bytes(stored) / stored.rows * head_dim);  // of one head
    const std::int64_t n_heads = stored.rows / head_dim;
    storage.n_bytes += stored_bytes(stored) * n;
    if (storage.only_counts) return {stored.dtype, nullptr, stored.rows * n, stored.cols};
    Pages& pages =
        storage.pages.emplace_back(pages_for(to_index(stored_bytes(stored) * n), "split KV heads"));
    for (std::int64_t to = 0; to < n_heads * n; ++to)
        std::memcpy(static_cast<char*>(pages.data()) + to_index(to) * n_bytes,
                    static_cast<const char*>(stored.data) + to_index(to / n) * n_bytes, n_bytes);
    return {stored.dtype, pages.data(), stored.rows * n, stored.cols};
}

/// Returns the weight with its first n rows (or columns) repeated at the end; wraps around when it has
/// fewer.
Weight widened(MergedStorage& storage, const Weight& stored, int n, bool columns) {
    if (stored.data == nullptr) return {};
    void* data = nullptr;
    Weight w = stored;
    std::vector<float> plain;  // of a quantised weight, whose blocks do not fit the new columns
    if (is_quantised(w.dtype) && storage.only_counts) {
        w.dtype = DType::f32;
    } else if (is_quantised(w.dtype)) {
        plain.resize(to_index(w.rows * w.cols));
        widen_stored(w.dtype, w.data, w.rows * w.cols, plain.data());
        w = {DType::f32, plain.data(), w.rows, w.cols};
    }
    const std::int64_t rows = w.rows + (columns ? 0 : n), cols = w.cols + (columns ? n : 0);
    const Weight out = make_weight(storage, w, rows, cols, &data);
    if (storage.only_counts) return out;
    const std::size_t element = dtype_bytes(w.dtype);
    const auto copy = [&](std::int64_t to, std::int64_t from, std::int64_t count) {
        std::memcpy(static_cast<char*>(data) + to_index(to) * element,
                    static_cast<const char*>(w.data) + to_index(from) * element, to_index(count) * element);
    };
    for (std::int64_t r = 0; r < rows; ++r) {
        copy(r * cols, r % w.rows * w.cols, w.cols);
        for (std::int64_t c = w.cols; c < cols; ++c) copy(r * cols + c, r % w.rows * w.cols + c % w.cols, 1);
    }
    return out;
}

void widen_mlp(MergedStorage& storage, LayerWeights& layer, int n) {
    for (Weight* w : {&layer.gate, &layer.up, &layer.gate_bias, &layer.up_bias})
        *w = widened(storage, *w, n, false);
    layer.down = widened(storage, layer.down, n, true);
}

std::string shape_name(const KvShape& shape, const ModelConfig& config) {
    if (shape.n_layers < config.n_layers) return fmt::format("mlkv:m={},g={}", shape.n_layers, shape.n_heads);
    if (shape.n_heads == config.n_heads) return "mha";
    return shape.n_heads == 1 ? "mqa" : fmt::format("gqa:{}", shape.n_heads);
}

}  // namespace

KvShape kv_shape(const ModelConfig& config) {
    return {config.n_kv_layers > 0 ? config.n_kv_layers : config.n_layers, config.n_kv_heads};
}

KvShape kv_shape(const KvSharing& sharing, const ModelConfig& config) {
    switch (sharing.kind) {
        case KvSharing::Kind::own:
            return kv_shape(config);
        case KvSharing::Kind::mha:
            return {config.n_layers, config.n_heads};
        case KvSharing::Kind::gqa:
            return {config.n_layers, sharing.n_kv_heads};
        case KvSharing::Kind::mqa:
            return {config.n_layers, 1};
        case KvSharing::Kind::mlkv:
            return {sharing.n_kv_layers, sharing.n_kv_heads};
    }
    return {};
}

namespace {

/// Returns the sharing as it was asked for, which may be one that the model cannot have.
std::string asked_name(const KvSharing& sharing, const ModelConfig& config) {
    if (sharing.kind == KvSharing::Kind::gqa) return fmt::format("gqa:{}", sharing.n_kv_heads);
    if (sharing.kind == KvSharing::Kind::mlkv)
        return fmt::format("mlkv:m={},g={}", sharing.n_kv_layers, sharing.n_kv_heads);
    return shape_name(kv_shape(sharing, config), config);
}

void refuse_fault(const KvSharing& sharing, const ModelConfig& config, const std::string& what) {
    if (const std::string fault = check_sharing(sharing, config); !fault.empty())
        fail(ErrorCode::wrong_use, "cannot share the KV heads of {} as {}: {}", what,
             asked_name(sharing, config), fault);
}

}  // namespace

KvLayout layout_of(const ModelConfig& config, const KvSharing& sharing) {
    refuse_fault(sharing, config, config.family);
    const KvShape shape = kv_shape(sharing, config);
    return KvLayout::shared(config.n_layers, config.n_heads, shape.n_layers, shape.n_heads);
}

std::string kv_name(const ModelConfig& config) {
    return shape_name(kv_shape(config), config);
}

namespace {

/// Whether each KV head becomes several equal ones, of fewer query heads.
bool splits_heads(const KvShape& from, const KvShape& to, const ModelConfig& config) {
    return to.n_layers == from.n_layers && to.n_heads > from.n_heads && to.n_heads % from.n_heads == 0 &&
           config.n_heads % to.n_heads == 0;
}

}  // namespace

std::string check_sharing(const KvSharing& sharing, const ModelConfig& config) {
    const KvShape from = kv_shape(config), to = kv_shape(sharing, config);
    if (to.n_layers < 1 || to.n_layers > config.n_layers)
        return fmt::format("{} layers cannot own the KV heads of a model of {}; name 1 to {}", to.n_layers,
                           config.n_layers, from.n_layers);
    if (splits_heads(from, to, config)) return {};
    if (to.n_heads > from.n_heads && to.n_layers < from.n_layers)
        return fmt::format("layers merge, or heads split, not both: name at most {} KV heads a layer",
                           from.n_heads);
    if (to.n_heads > from.n_heads)
        return fmt::format(
            "the model has {} KV heads a layer for {} query heads, which cannot be split into {}; name a "
            "multiple of {} that divides {}",
            from.n_heads, config.n_heads, to.n_heads, from.n_heads, config.n_heads);
    if (to.n_heads < 1 || from.n_heads % to.n_heads != 0)
        return fmt::format("the model has {} KV heads a layer, which do not merge into {}; name a divisor",
                           from.n_heads, to.n_heads);
    const std::vector<int> had = kv_owner_layers(config.n_layers, from.n_layers);
    for (const int owner : kv_owner_layers(config.n_layers, to.n_layers))
        if (!std::binary_search(had.begin(), had.end(), owner))
            return fmt::format("layer {} would have to own KV heads, and the model ({}) has none there",
                               owner, kv_name(config));
    return {};
}

int compensating_neurons(const ModelConfig& config, const KvShape& from, const KvShape& to, bool biases,
                         bool gated) {
    const std::int64_t per_head =
        std::int64_t{2} * config.d_model * config.head_dim + (biases ? std::int64_t{2} * config.head_dim : 0);
    const std::int64_t lost =
        (std::int64_t{from.n_layers} * from.n_heads - std::int64_t{to.n_layers} * to.n_heads) * per_head;
    const double per_layer = static_cast<double>(lost / config.n_layers);
    const auto n = static_cast<int>(std::nearbyint(per_layer / config.d_model));  // half to even
    return n / (gated ? 3 : 2);
}

namespace {

/// Returns the weights of a variant whose KV heads are each n equal ones.
ModelWeights split_weights(MergedStorage& storage, int n) {
    const ModelConfig& config = storage.base->config();
    ModelWeights weights = storage.base->weights();
    for (LayerWeights& layer : weights.layers)
        for (auto which : {&LayerWeights::k, &LayerWeights::v, &LayerWeights::k_bias, &LayerWeights::v_bias})
            layer.*which = repeated_heads(storage, layer.*which, n, config.head_dim);
    return weights;
}

/// Returns the weights of a variant. config: the variant's, without the neurons that compensate (more).
ModelWeights merged_weights(MergedStorage& storage, const ModelConfig& config, const KvSharing& sharing,
                            int more) {
    const Model& base = *storage.base;
    if (config.n_kv_heads > base.config().n_kv_heads)
        return split_weights(storage, config.n_kv_heads / base.config().n_kv_heads);
    ModelWeights weights = base.weights();
    const int n_of_one = base.config().n_kv_heads / config.n_kv_heads;
    Merge merge{{}, config.n_kv_heads, n_of_one, config.head_dim, sharing.merge};
    Merge norms{{}, 1, 1, config.head_dim, sharing.merge};
    const KvLayout had = layout_of(base.config()), has = layout_of(config);
    for (int l = 0; l < config.n_layers; ++l) {
        LayerWeights& layer = weights.layers[to_index(l)];
        for (auto which : {&LayerWeights::k, &LayerWeights::v, &LayerWeights::k_bias, &LayerWeights::v_bias,
                           &LayerWeights::k_norm})
            if (!has.owns(l)) layer.*which = {};
        if (!has.owns(l)) continue;
        merge.layers.clear();
        for (int of = l; of < config.n_layers && has.owner_of_layer(of) == l; ++of)
            if (had.owns(of)) merge.layers.push_back(of);
        norms.layers = merge.layers;
        for (auto which : {&LayerWeights::k, &LayerWeights::v, &LayerWeights::k_bias, &LayerWeights::v_bias})
            layer.*which = merged(storage, base.weights(), which, merge);
        if (merge.layers.size() > 1)
            layer.k_norm = merged(storage, base.weights(), &LayerWeights::k_norm, norms);
    }
    if (more > 0)
        for (LayerWeights& layer : weights.layers) widen_mlp(storage, layer, more);
    return weights;
}

std::shared_ptr<const Model> merged_model(std::shared_ptr<const Model> base, const KvSharing& sharing) {
    ModelConfig config = base->config();
    refuse_fault(sharing, config, base->path().string());
    const KvShape from = kv_shape(config), to = kv_shape(sharing, config);
    if (from == to) return base;
    const LayerWeights& first = base->weights().layers.front();
    if (first.k_norm.rows > config.head_dim)
        fail(ErrorCode::unsupported,
             "cannot share the KV heads of {} as {}: one norm holds the keys of all its heads together; "
             "choose another model",
             base->path().string(), shape_name(to, config));
    if (sharing.compensate && !first.experts.empty())
        fail(ErrorCode::unsupported,
             "cannot share the KV heads of {} as {} and compensate for them: its feed-forward layers are "
             "experts; leave compensation out",
             base->path().string(), shape_name(to, config));
    config.n_kv_layers = to.n_layers;
    config.n_kv_heads = to.n_heads;
    config.merged = config.merged || to.n_heads <= from.n_heads;
    config.borrows_unrotated =
        config.borrows_unrotated || (sharing.merge == KvMerge::released && to.n_layers < config.n_layers);
    const int more =
        sharing.compensate && to.n_heads <= from.n_heads
            ? compensating_neurons(config, from, to, first.k_bias.data != nullptr, first.gate.data != nullptr)
            : 0;
    MergedStorage counted{base, {}, true, 0};
    (void)merged_weights(counted, config, sharing, more);
    check_room(
        counted.n_bytes,
        fmt::format("the weights of {} that share KV heads as {}", base->path().string(), kv_name(config)),
        "close other programs or choose a smaller model");
    auto storage = std::make_shared<MergedStorage>();
    storage->base = base;
    ModelWeights weights = merged_weights(*storage, config, sharing, more);
    config.d_ff += more;
    std::string hash =
        fmt::format("{}/{}{}{}", base->hash(), kv_name(config),
                    sharing.merge == KvMerge::released ? " released" : "", more > 0 ? " compensated" : "");
    return std::make_shared<const Model>(base->path(), std::move(config), std::move(weights),
                                         base->shared_tokenizer(), std::move(hash), std::move(storage));
}

}  // namespace

std::shared_ptr<const Model> shared_model(std::shared_ptr<const Model> base, const KvSharing& sharing) {
    struct Known {
        const Model* base;  // valid as long as the variant, which keeps the base
        KvSharing sharing;
        std::weak_ptr<const Model> variant;
    };
    static std::mutex mutex;
    static std::vector<Known> known;
    const std::scoped_lock lock(mutex);
    std::erase_if(known, [](const Known& k) { return k.variant.expired(); });
    for (const Known& k : known)
        if (k.base == base.get() && k.sharing == sharing)
            if (auto variant = k.variant.lock()) return variant;
    auto variant = merged_model(base, sharing);
    if (variant != base) known.push_back({base.get(), sharing, variant});
    return variant;
}

}  // namespace keyhole
