#include "engine/model/seeded_model.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/mapped_file.h"
#include "engine/base/philox.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace keyhole {
namespace {

constexpr std::int64_t kBlock = 1 << 20;  // random values that are drawn; weights are made of them
constexpr std::int64_t kPiece = 1 << 15;  // values copied from one place of the block

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

/// What a model has, visited in one order: visit(weight, rows, cols, kind).
enum class Kind { matrix, gain, bias };
template <class Visit>
void for_weights(const ModelShape& shape, ModelWeights& w, Visit visit) {
    const ModelConfig& c = shape.config;
    const std::int64_t d = c.d_model, ff = c.d_ff, q = std::int64_t{c.n_heads} * c.head_dim,
                       kv = std::int64_t{c.n_kv_heads} * c.head_dim;
    const auto norm = [&](Weight& gain, Weight& bias) {
        visit(gain, d, 1, Kind::gain);
        if (shape.norm_biases) visit(bias, d, 1, Kind::bias);
    };
    const auto linear = [&](Weight& matrix, Weight& bias, std::int64_t rows, std::int64_t cols) {
        visit(matrix, rows, cols, Kind::matrix);
        if (shape.biases) visit(bias, rows, 1, Kind::bias);
    };
    visit(w.embedding, c.n_vocab, d, Kind::matrix);
    if (c.positions == PositionKind::learned)
        visit(w.position_embedding, c.n_ctx + c.position_offset, d, Kind::matrix);
    w.layers.resize(static_cast<std::size_t>(c.n_layers));
    for (LayerWeights& l : w.layers) {
        norm(l.attention_norm, l.attention_norm_bias);
        linear(l.q, l.q_bias, q, d);
        linear(l.k, l.k_bias, kv, d);
        linear(l.v, l.v_bias, kv, d);
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
        visit(w.output, c.n_vocab, d, Kind::matrix);
}

std::uint32_t word(std::uint64_t seed, std::int64_t index, std::uint32_t what) {
    const auto i = static_cast<std::uint64_t>(index);
    return philox4x32_10({{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), what, 0}},
                         seed)
        .x[0];
}

void store(DType dtype, float value, std::byte* to, std::int64_t index) {
    const auto put = [&](auto bits) {
        std::memcpy(to + index * std::int64_t{sizeof bits}, &bits, sizeof bits);
    };
    if (dtype == DType::f32) return put(value);
    put(dtype == DType::f16 ? fp16_from_float(value) : bf16_from_float(value));
}

/// Storage of a model and where the next weight goes.
class Filler {
  public:
    Filler(const ModelShape& shape, DType dtype, std::uint64_t seed, SeededStorage storage)
        : dtype_(dtype),
          size_(static_cast<std::int64_t>(dtype_bytes(dtype))),
          seed_(seed),
          storage_(storage) {
        const double deviation = 1 / std::sqrt(static_cast<double>(shape.config.d_model));
        block_.resize(static_cast<std::size_t>(kBlock * size_));
        for (std::int64_t i = 0; i < kBlock; ++i)
            store(
                dtype,
                static_cast<float>(deviation * std::sqrt(12.0) * (uniform_from_bits(word(seed, i, 0)) - 0.5)),
                block_.data(), i);
        std::int64_t all = 0, largest = 0;
        ModelWeights none;
        for_weights(shape, none, [&](Weight&, std::int64_t rows, std::int64_t cols, Kind kind) {
            ++n_weights_;
            all += aligned(rows * cols * size_);
            if (kind == Kind::matrix)
                largest = std::max(largest, rows * cols * size_);
            else
                vectors_ += aligned(rows * size_);
        });
        if (storage == SeededStorage::own) {
            pages_ = std::make_shared<Pages>(static_cast<std::size_t>(all));
        } else {
            // Matrices begin kAlign apart, so that no two are the same; vectors lie behind them.
            matrices_ = aligned(largest) + n_weights_ * kAlign;
            pages_ = std::make_shared<Pages>(static_cast<std::size_t>(matrices_ + vectors_));
            fill(base(), matrices_ / size_);
            next_vector_ = matrices_;
        }
    }
    void operator()(Weight& w, std::int64_t rows, std::int64_t cols, Kind kind) {
        const std::int64_t n = rows * cols, index = index_++;
        std::int64_t& at = storage_ == SeededStorage::own || kind == Kind::matrix ? next_ : next_vector_;
        std::byte* data = base() + at;
        w = {dtype_, data, rows, cols};
        const bool overlaps = storage_ == SeededStorage::shared && kind == Kind::matrix;
        at += overlaps ? kAlign : aligned(n * size_);
        if (kind == Kind::matrix && !overlaps) fill(data, n);
        if (kind == Kind::matrix) return;
        for (std::int64_t i = 0; i < n; ++i)
            store(dtype_,
                  kind == Kind::gain
                      ? 1.0f
                      : 0.2f *
                            (uniform_from_bits(word(seed_, i, static_cast<std::uint32_t>(index + 1))) - 0.5f),
                  data, i);
    }
    std::shared_ptr<const void> storage() const { return pages_; }

  private:
    static constexpr std::int64_t kAlign = 64;
    static std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
    std::byte* base() const { return static_cast<std::byte*>(pages_->data()); }
    /// Pieces of the block from places that the seed chooses: drawing billions of values would take minutes.
    void fill(std::byte* to, std::int64_t n) {
        for (std::int64_t first = 0; first < n; first += kPiece) {
            const std::int64_t from = word(seed_, n_pieces_++, 0x80000000u) % (kBlock - kPiece);
            std::memcpy(to + first * size_, block_.data() + from * size_,
                        static_cast<std::size_t>(std::min(kPiece, n - first) * size_));
        }
    }

    DType dtype_;
    std::int64_t size_;
    std::uint64_t seed_;
    SeededStorage storage_;
    std::vector<std::byte> block_;
    std::shared_ptr<Pages> pages_;
    std::int64_t n_weights_ = 0, matrices_ = 0, vectors_ = 0, next_ = 0, next_vector_ = 0, index_ = 0,
                 n_pieces_ = 0;
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

std::int64_t seeded_weight_bytes(const ModelShape& shape, DType dtype) {
    std::int64_t n = 0;
    ModelWeights none;
    for_weights(shape, none, [&](Weight&, std::int64_t rows, std::int64_t cols, Kind) { n += rows * cols; });
    return n * static_cast<std::int64_t>(dtype_bytes(dtype));
}

std::shared_ptr<const Model> make_seeded_model(const ModelShape& shape, DType dtype, std::uint64_t seed,
                                               SeededStorage storage) {
    Filler filler(shape, dtype, seed, storage);
    ModelWeights weights;
    for_weights(shape, weights, [&](Weight& w, std::int64_t rows, std::int64_t cols, Kind kind) {
        filler(w, rows, cols, kind);
    });
    return std::make_shared<const Model>(
        fmt::format("{} ({}, seed {})", shape.name, dtype_name(dtype), seed), shape.config,
        std::move(weights), std::make_shared<const Tokenizer>(Tokenizer::of_bytes(shape.config.n_vocab)),
        fmt::format("seeded-{}-{}-{}", shape.name, dtype_name(dtype), seed), filler.storage());
}

}  // namespace keyhole
