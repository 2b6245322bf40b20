#include "engine/model/seeded_model.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/base/threads.h"
#include "engine/model/kv_layout.h"
#include "engine/model/seeded_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

namespace keyhole {
namespace {

constexpr std::int64_t kPacks = 1 << 13;  // packs in one chunk of work

ModelConfig decoder(int n_layers, int n_heads, int n_kv_heads, int d_model, int d_ff, int n_vocab,
                    int n_ctx) {
    ModelConfig c;
    c.family = "llama";
    c.n_layers = n_layers;
    c.n_heads = n_heads;
    c.n_kv_heads = n_kv_heads;
    c.head_dim = d_model / n_heads;
    c.d_model = d_model;
    c.d_ff = d_ff;
    c.n_vocab = n_vocab;
    c.n_ctx = n_ctx;
    return c;
}

void turn_all(ModelConfig& c, int dims, float theta) {
    c.rope_theta = theta;
    c.rotary.dims = dims;
    for (int i = 0; i < dims / 2; ++i)
        c.rotary.inverse_frequency.push_back(std::pow(static_cast<double>(theta), -2.0 * i / dims));
}

ModelShape llama(const char* name, ModelConfig config, float theta = 10000.0f) {
    turn_all(config, config.head_dim, theta);
    return {name, std::move(config), true, false, false};
}

/// Visits all weights of a shape in one fixed order: visit(weight, rows, cols, kind).
enum class WeightKind { matrix, gain, bias };
template <class Visit>
void for_weights(const ModelShape& shape, ModelWeights& w, Visit visit) {
    const ModelConfig& c = shape.config;
    const std::int64_t d = c.d_model, ff = c.d_ff, q = std::int64_t{c.n_heads} * c.head_dim,
                       kv = std::int64_t{c.n_kv_heads} * c.head_dim;
    const auto norm = [&](Weight& gain, Weight& bias) {
        visit(gain, d, 1, WeightKind::gain);
        if (shape.norm_biases) visit(bias, d, 1, WeightKind::bias);
    };
    const auto linear = [&](Weight& matrix, Weight& bias, std::int64_t rows, std::int64_t cols) {
        visit(matrix, rows, cols, WeightKind::matrix);
        if (shape.biases) visit(bias, rows, 1, WeightKind::bias);
    };
    visit(w.embedding, c.n_vocab, d, WeightKind::matrix);
    if (c.positions == PositionKind::learned)
        visit(w.position_embedding, c.n_ctx + c.position_offset, d, WeightKind::matrix);
    w.layers.resize(to_index(c.n_layers));
    const std::vector<int> owners =
        kv_owner_layers(c.n_layers, c.n_kv_layers > 0 ? c.n_kv_layers : c.n_layers);
    for (int layer = 0; layer < c.n_layers; ++layer) {
        LayerWeights& l = w.layers[to_index(layer)];
        norm(l.attention_norm, l.attention_norm_bias);
        linear(l.q, l.q_bias, q, d);
        if (std::binary_search(owners.begin(), owners.end(), layer)) {
            linear(l.k, l.k_bias, kv, d);
            linear(l.v, l.v_bias, kv, d);
        }
        linear(l.o, l.o_bias, d, q);
        if (!c.shared_norm) norm(l.mlp_norm, l.mlp_norm_bias);
        if (shape.gated) linear(l.gate, l.gate_bias, ff, d);
        linear(l.up, l.up_bias, ff, d);
        linear(l.down, l.down_bias, d, ff);
    }
    norm(w.final_norm, w.final_norm_bias);
    if (c.tied)
        w.output = w.embedding;
    else
        visit(w.output, c.n_vocab, d, WeightKind::matrix);
}

void store(DType dtype, float value, std::byte* to, std::int64_t index) {
    const auto put = [&](auto bits) {
        std::memcpy(to + index * std::int64_t{sizeof bits}, &bits, sizeof bits);
    };
    if (dtype == DType::f32) return put(value);
    put(dtype == DType::f16 ? fp16_from_float(value) : bf16_from_float(value));
}

/// The type of one weight. In a quantised model gains and biases are floats, as in a file, and so are
/// matrices whose rows are not whole blocks.
DType stored_type(DType dtype, std::int64_t cols, WeightKind kind) {
    if (!is_quantised(dtype)) return dtype;
    return kind == WeightKind::matrix && cols % block_elements(dtype) == 0 ? dtype : DType::f32;
}

/// Matrices without values, by address.
class Unmade {
  public:
    void add(const void* place, const SeededWeight& weight) {
        const std::scoped_lock lock(mutex_);
        weights_[place] = weight;
    }
    /// Removes all whose address is in [begin, begin + n_bytes).
    void drop(const std::byte* begin, std::size_t n_bytes) {
        const std::scoped_lock lock(mutex_);
        weights_.erase(weights_.lower_bound(begin), weights_.lower_bound(begin + n_bytes));
    }
    std::optional<SeededWeight> find(const void* place) {
        const std::scoped_lock lock(mutex_);
        const auto found = weights_.find(place);
        return found != weights_.end() ? std::optional(found->second) : std::nullopt;
    }

  private:
    std::mutex mutex_;
    std::map<const void*, SeededWeight, std::less<>> weights_;
};
Unmade& unmade() {
    static Unmade all;
    return all;
}

/// Reserves addresses; memory is used only where they are written to.
std::shared_ptr<std::byte> reserved(std::size_t n_bytes) {
    void* data =
        ::mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        fail(ErrorCode::no_memory, "no addresses for {} MiB of weights; take a smaller shape", n_bytes >> 20);
    return {static_cast<std::byte*>(data), [n_bytes](std::byte* begin) {
                unmade().drop(begin, n_bytes);
                ::munmap(begin, n_bytes);
            }};
}

/// Storage of a model; places and fills one weight after the other.
class Filler {
  public:
    Filler(const ModelShape& shape, DType dtype, std::uint64_t seed, SeededStorage storage)
        : dtype_(dtype), seed_(seed), storage_(storage), pool_(storage == SeededStorage::own ? 0 : 1) {
        const double deviation = 1 / std::sqrt(static_cast<double>(shape.config.d_model));
        spread_ = static_cast<float>(deviation * std::sqrt(12.0));
        std::int64_t all = 0;
        ModelWeights none;
        for_weights(shape, none, [&](Weight&, std::int64_t rows, std::int64_t cols, WeightKind kind) {
            all += aligned(bytes_of(stored_type(dtype, cols, kind), rows * cols));
        });
        if (storage == SeededStorage::own) {
            const auto pages = std::make_shared<Pages>(to_index(all));
            base_ = {pages, static_cast<std::byte*>(pages->data())};
        } else {
            base_ = reserved(to_index(all));
        }
    }
    void operator()(Weight& w, std::int64_t rows, std::int64_t cols, WeightKind kind) {
        const std::int64_t n = rows * cols;
        const DType dtype = stored_type(dtype_, cols, kind);
        std::byte* data = base_.get() + next_;
        w = {dtype, data, rows, cols};
        next_ += aligned(bytes_of(dtype, n));
        const SeededWeight of{seed_, index_++, kind == WeightKind::bias ? 0.2f : spread_};
        if (kind == WeightKind::gain)
            for (std::int64_t i = 0; i < n; ++i) store(dtype, 1.0f, data, i);
        else if (kind == WeightKind::matrix && storage_ == SeededStorage::unmade)
            unmade().add(data, of);
        else if (is_quantised(dtype))
            fill_blocks(dtype, of, data, n / block_elements(dtype));
        else
            fill(dtype, of, data, n);
    }
    std::shared_ptr<const void> storage() const { return base_; }

  private:
    static std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
    static std::int64_t bytes_of(DType dtype, std::int64_t n) {
        return static_cast<std::int64_t>(stored_bytes(dtype, n));
    }
    void fill_blocks(DType dtype, const SeededWeight& of, std::byte* to, std::int64_t n_blocks) {
        const auto bytes = static_cast<std::int64_t>(block_bytes(dtype));
        pool_.parallel_for((n_blocks + kPacks - 1) / kPacks, [&](std::int64_t chunk, int) {
            const std::int64_t first = chunk * kPacks;
            seeded_blocks(dtype, of, first, std::min(kPacks, n_blocks - first), to + first * bytes);
        });
    }
    void fill(DType dtype, const SeededWeight& of, std::byte* to, std::int64_t n) {
        const std::int64_t n_packs = (n + kSeededPack - 1) / kSeededPack;
        pool_.parallel_for((n_packs + kPacks - 1) / kPacks, [&](std::int64_t chunk, int) {
            float values[kSeededPack];
            for (std::int64_t pack = chunk * kPacks; pack < std::min(n_packs, (chunk + 1) * kPacks); ++pack) {
                seeded_values(of, pack, values);
                const std::int64_t first = pack * kSeededPack;
                for (std::int64_t i = first; i < std::min(n, first + kSeededPack); ++i)
                    store(dtype, values[i - first], to, i);
            }
        });
    }

    DType dtype_;
    std::uint64_t seed_;
    SeededStorage storage_;
    ThreadPool pool_;
    float spread_ = 0;
    std::shared_ptr<std::byte> base_;
    std::int64_t next_ = 0;
    std::uint32_t index_ = 0;
};

}  // namespace

std::vector<std::string_view> shape_names() {
    return {"pythia-160m", "tinyllama-1.1b", "mpt-7b", "llama-2-7b", "llama-3-8b"};
}

ModelShape shape_of(std::string_view name) {
    if (name == "llama-2-7b") return llama("llama-2-7b", decoder(32, 32, 32, 4096, 11008, 32000, 4096));
    if (name == "llama-3-8b")
        return llama("llama-3-8b", decoder(32, 32, 8, 4096, 14336, 128256, 8192), 500000.0f);
    if (name == "tinyllama-1.1b") return llama("tinyllama-1.1b", decoder(22, 32, 4, 2048, 5632, 32000, 2048));
    if (name == "pythia-160m") {
        ModelShape pythia{"pythia-160m", decoder(12, 12, 12, 768, 3072, 50304, 2048), false, true, true};
        ModelConfig& c = pythia.config;
        turn_all(c, c.head_dim / 4, 10000.0f);
        c.norm = NormKind::layer;
        c.activation = Activation::gelu;
        c.parallel = true;
        return pythia;
    }
    if (name == "mpt-7b") {
        ModelShape mpt{"mpt-7b", decoder(32, 32, 32, 4096, 16384, 50432, 65536), false, false, false};
        ModelConfig& c = mpt.config;
        c.norm = NormKind::layer;
        c.activation = Activation::gelu;
        c.positions = PositionKind::alibi;
        for (int h = 0; h < c.n_heads; ++h)
            c.alibi_slopes.push_back(
                std::pow(2.0f, -8.0f * static_cast<float>(h + 1) / static_cast<float>(c.n_heads)));
        c.tied = true;
        return mpt;
    }
    std::string names;
    for (const std::string_view known : shape_names())
        names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
    fail(ErrorCode::wrong_use, "there is no shape '{}'; take one of {}", name, names);
}

std::optional<SeededWeight> seeded_weight(const Weight& weight) {
    return unmade().find(weight.data);
}

std::int64_t seeded_weight_bytes(const ModelShape& shape, DType dtype) {
    std::size_t bytes = 0;
    ModelWeights none;
    for_weights(shape, none, [&](Weight&, std::int64_t rows, std::int64_t cols, WeightKind kind) {
        bytes += stored_bytes(stored_type(dtype, cols, kind), rows * cols);
    });
    return static_cast<std::int64_t>(bytes);
}

std::shared_ptr<const Model> make_seeded_model(const ModelShape& shape, DType dtype, std::uint64_t seed,
                                               SeededStorage storage) {
    KH_ASSERT(!is_quantised(dtype) || (has_seeded_blocks(dtype) && storage == SeededStorage::own));
    Filler filler(shape, dtype, seed, storage);
    ModelWeights weights;
    for_weights(shape, weights, [&](Weight& w, std::int64_t rows, std::int64_t cols, WeightKind kind) {
        filler(w, rows, cols, kind);
    });
    return std::make_shared<const Model>(
        fmt::format("{} ({}, seed {})", shape.name, dtype_name(dtype), seed), shape.config,
        std::move(weights), std::make_shared<const Tokenizer>(Tokenizer::of_bytes(shape.config.n_vocab)),
        fmt::format("seeded-{}-{}-{}", shape.name, dtype_name(dtype), seed), filler.storage());
}

}  // namespace keyhole
