/// Embedding, norms, activations and matrix-vector products of a step. One column per lane; weights are read
/// once for all lanes. Every output is summed in one fixed order. Host and device. Knows no lane. CPU twins:
/// backend/common/kernels.h.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/number.h"
#include "engine/backend/cuda/kernels/stored.h"
#include "engine/model/seeded_value.h"

#include <cmath>
#include <cstdint>

namespace keyhole::cuda {

/// Calls visit(i, value) for the elements of a row, a pack a thread.
template <class T, class Visit>
KH_FN void visit_row(const Elements<T>& table, std::int64_t row, int d, const Block& block, Visit visit) {
    with_packs(table, [&](const auto& packs) {
        const int n_packs = d / 8;
        for (int i = block.thread; i < n_packs; i += block.n_threads) {
            float wide[8];
            packs.widen_pack(packs.load(row * n_packs + i), wide);
            for (int j = 0; j < 8; ++j) visit(i * 8 + j, wide[j]);
        }
    });
}

/// x[lane, :] = embedding[token[lane], :]      block (lane), any number of threads
template <class T>
struct Embed {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    Elements<T> embedding;       ///< [n_vocab, d]
    const std::int32_t* tokens;  ///< [lanes]
    float* x;                    ///< [lanes, d]
    std::int32_t d, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        float* out = x + static_cast<std::int64_t>(block.x) * d;
        visit_row(embedding, tokens[block.x], d, block, [&](int i, float value) { out[i] = value; });
    }
};

/// x[i, :] += table[position[i] + offset, :]
/// Learned positions; with position null it is i itself. Block (i), any number of threads.
template <class T>
struct AddPositions {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    Elements<T> table;             ///< [positions, d]
    const std::int32_t* position;  ///< [lanes], or null
    float* x;                      ///< [lanes, d]
    std::int32_t d, offset;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int at = (position != nullptr ? position[block.x] : block.x) + offset;
        float* out = x + static_cast<std::int64_t>(block.x) * d;
        visit_row(table, at, d, block, [&](int i, float value) { out[i] = add(out[i], value); });
    }
};

/// Sums over the threads of a block, in one order: each sums its own share, kGroups threads sum those, and
/// whoever needs it the rest.
struct BlockSum {
    static constexpr int kGroups = 32;

    KH_FN static void sum_groups(float* partial, const Block& block) {
        if (block.thread >= kGroups) return;
        float sum = partial[block.thread];
        for (int i = block.thread + kGroups; i < block.n_threads; i += kGroups) sum = add(sum, partial[i]);
        partial[block.thread] = sum;
    }
    KH_FN static float total(const float* partial, const Block& block) {
        float sum = 0;
        for (int i = 0; i < kGroups && i < block.n_threads; ++i) sum = add(sum, partial[i]);
        return sum;
    }
};

/// A norm of rows [d]:
///     RMSNorm      x / sqrt(mean(x^2) + eps) * gain
///     LayerNorm    (x - mean) / sqrt(variance + eps) * gain + bias
///     no gain      x itself
struct NormRule {
    const float* gain;  ///< [d] or null
    const float* bias;  ///< [d] or null
    float eps;
    std::int32_t centres;  ///< 1: LayerNorm, subtracts the mean

    KH_FN float mean_of(float sum, int d) const { return centres != 0 ? sum / static_cast<float>(d) : 0.0f; }
    KH_FN float scale_of(float squares, int d) const {
        return 1.0f / sqrtf(add(squares / static_cast<float>(d), eps));
    }
    KH_FN static float applied(float x, float mean, float scale, float of_gain) {
        return mul(mul(add(x, -mean), scale), of_gain);
    }
};

/// x <- x + y + z, where given; out = norm(x), in float; block (lane)
struct AddNorm {
    static constexpr int kPhases = 5;
    struct Shared {
        float sum[kMaxThreads], squares[kMaxThreads];
    };
    struct Local {
        float mean;
    };
    float* x;        ///< [lanes, d]
    const float* y;  ///< [lanes, d] or null
    const float* z;  ///< [lanes, d] or null
    NormRule norm;
    float* out;  ///< [lanes, d]; may be x
    std::int32_t d, unused = 0;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        const std::int64_t at = static_cast<std::int64_t>(block.x) * d;
        if (p == 0) {
            float sum = 0;
            for (int i = block.thread; i < d; i += block.n_threads) {
                float value = x[at + i];
                if (y != nullptr) value = add(value, y[at + i]);
                if (z != nullptr) value = add(value, z[at + i]);
                if (y != nullptr || z != nullptr) x[at + i] = value;
                sum = add(sum, value);
            }
            shared.sum[block.thread] = sum;
        } else if (p == 1) {
            BlockSum::sum_groups(shared.sum, block);
        } else if (p == 2) {
            local.mean = norm.mean_of(BlockSum::total(shared.sum, block), d);
            float squares = 0;
            for (int i = block.thread; i < d; i += block.n_threads) {
                const float value = add(x[at + i], -local.mean);
                squares = add(squares, mul(value, value));
            }
            shared.squares[block.thread] = squares;
        } else if (p == 3) {
            BlockSum::sum_groups(shared.squares, block);
        } else {
            const float scale = norm.scale_of(BlockSum::total(shared.squares, block), d);
            for (int i = block.thread; i < d; i += block.n_threads) {
                float value = x[at + i];
                if (norm.gain != nullptr) value = NormRule::applied(value, local.mean, scale, norm.gain[i]);
                if (norm.gain != nullptr && norm.bias != nullptr) value = add(value, norm.bias[i]);
                out[at + i] = value;
            }
        }
    }
};

/// y[i, :] += bias, after the executor's products. Grid x covers n = rows * width.
struct AddBias {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    float* y;
    const float* bias;  ///< [width]
    std::int64_t n;
    std::int32_t width, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i < n) y[i] = add(y[i], bias[i % width]);
    }
};

/// Writes rows of a matrix as float, for products that take no other type. For float it is a copy that fits
/// into a list of launches. Grid x covers n.
template <class T>
struct Widen {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const T* from;
    float* to;
    std::int64_t n;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i < n) to[i] = widen(from[i]);
    }
};

/// Does so for a matrix of any type. Grid x covers n_packs.
struct WidenStored {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    Elements<Stored> from;  ///< begins at a row
    float* to;
    std::int64_t n_packs;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i >= n_packs) return;
        with_packs(from, [&](const auto& packs) {
            float wide[8];
            packs.widen_pack(packs.load(i), wide);
            for (int j = 0; j < 8; ++j) to[i * 8 + j] = wide[j];
        });
    }
};

/// Writes floats in another type, rounded to nearest even: inputs of products in the type of the weights.
/// Grid x covers n.
template <class T>
struct Narrow {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const float* from;
    T* to;
    std::int64_t n;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i < n) narrow(from[i], to[i]);
    }
};

/// Draws random weights in device memory (seeded_value.h). One thread per pack of values. Grid x covers the
/// packs of n values.
template <class T>
struct MakeWeight {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    T* to;
    std::int64_t n;
    SeededWeight weight;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t pack = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread,
                           first = pack * kSeededPack;
        if (first >= n) return;
        float values[kSeededPack];
        seeded_values(weight, pack, values);
        for (int i = 0; i < kSeededPack; ++i)
            if (first + i < n) narrow(values[i], to[first + i]);
    }
};

enum class ActivationKind : std::int32_t { silu, gelu, gelu_tanh, relu };  ///< in the order of Activation

KH_FN float activated(ActivationKind kind, float v) {
    switch (kind) {
        case ActivationKind::silu:
            return v / add(1.0f, expf(-v));
        case ActivationKind::gelu:
            return mul(mul(0.5f, v), add(1.0f, erff(mul(v, 0.70710678f))));
        case ActivationKind::gelu_tanh: {
            const float cubic = add(v, mul(mul(0.044715f, mul(v, v)), v));
            return mul(mul(0.5f, v), add(1.0f, tanhf(mul(0.79788456f, cubic))));
        }
        case ActivationKind::relu:
            break;
    }
    return v > 0.0f ? v : 0.0f;
}

/// One of the products that a launch computes together, such as q, k and v.
template <class T>
struct Product {
    Elements<T> w;      ///< [rows, cols]; cols is a multiple of 8, so rows are whole packs
    const float* bias;  ///< [rows] or null
    float* y;           ///< [lanes, y_stride]
    std::int32_t rows;
    std::int32_t y_stride;
};

inline constexpr int kMostNormed = 2;

/// What a launch of products does besides, each with the bits of a launch of its own.
struct ProductUse {
    /// x is normed as it is read, for kMostNormed lanes at most; without a gain it is not.
    NormRule norm{};
    std::int32_t adds = 0;       ///< 1: y += the product, instead of y =
    std::int32_t activates = 0;  ///< 1: y = act(product)
    /// 1, with activates: the second product has the same rows, and y = act(first) * second.
    std::int32_t gated = 0;
    ActivationKind kind = ActivationKind::silu;
};

/// y[b, r] = sum_c w[r, c] * x[b, c] + bias[r], for up to three matrices with the same input. 32 threads
/// share a row, so that a warp reads 512 neighbouring bytes at once; one read serves up to kBatch lanes. Each
/// thread has kInFlight reads of weights under way before it uses the first. Where T is Stored, the matrices
/// may differ in type, and quantised ones are widened in registers. Each block computes a norm's mean and
/// scale itself, in the order of AddNorm with as many threads. Grid: x = ceil(all rows / (n_threads / 32)).
template <class T, int kBatch>
struct MatrixVector {
    /// Each row norms its inputs anew. That is cheap beside the row's weights for few lanes alone.
    static constexpr bool kNorms = kBatch <= kMostNormed;
    static constexpr int kMeasures = kNorms ? 4 : 0;  ///< phases of the norm
    static constexpr int kPhases = kMeasures + 2;
    static constexpr int kThreadsPerRow = 32;
    static constexpr int kInFlight = 4;
    struct Shared {
        float sum[kNorms ? kBatch : 1][kNorms ? kMaxThreads : 1];  // of the norm, as squares
        float squares[kNorms ? kBatch : 1][kNorms ? kMaxThreads : 1];
        float partial[kBatch][kMaxThreads], gated[kBatch][kMaxThreads];
    };
    struct Local {
        float mean[kBatch], scale[kBatch];
    };
    Product<T> product[3];
    const float* x;  ///< [n_lanes, cols]
    std::int32_t n_products, cols;
    std::int32_t n_lanes = kBatch;  ///< at most kBatch
    std::int32_t unused = 0;
    ProductUse use;

    static int blocks(int rows, int n_threads) {
        const int per_block = n_threads / kThreadsPerRow;
        return (rows + per_block - 1) / per_block;
    }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        if constexpr (kNorms) {
            if (p < kMeasures) return measure(p, block, shared, local);
            if (p == kMeasures && use.norm.gain != nullptr)
                for (int b = 0; b < kBatch && b < n_lanes; ++b)
                    local.scale[b] = use.norm.scale_of(BlockSum::total(shared.squares[b], block), cols);
        }
        const int in_block = block.thread / kThreadsPerRow, part = block.thread % kThreadsPerRow;
        int row = block.x * (block.n_threads / kThreadsPerRow) + in_block, which = 0;
        const int n = use.gated != 0 ? 1 : n_products;
        while (which < n && row >= product[which].rows) row -= product[which++].rows;
        if (which == n) return;
        if (p == kMeasures) {
            add_product(product[which], row, part, local, shared.partial, block.thread);
            if (use.gated != 0) add_product(product[1], row, part, local, shared.gated, block.thread);
            return;
        }
        // The row's first threads each finish one lane.
        for (int b = part; b < n_lanes; b += kThreadsPerRow) {
            float sum = total(shared.partial[b], in_block, product[which], row);
            if (use.activates != 0) sum = activated(use.kind, sum);
            if (use.gated != 0) sum = mul(sum, total(shared.gated[b], in_block, product[1], row));
            float& y = product[which].y[static_cast<std::int64_t>(b) * product[which].y_stride + row];
            y = use.adds != 0 ? add(y, sum) : sum;
        }
    }

    /// Computes the mean and the sum of squares of each lane's x, where there is a norm.
    KH_FN void measure(int p, const Block& block, Shared& shared, Local& local) const {
        if (use.norm.gain == nullptr) return;
        for (int b = 0; b < kBatch && b < n_lanes; ++b) {
            const float* lane = x + static_cast<std::int64_t>(b) * cols;
            if (p == 0 && use.norm.centres != 0) {
                float sum = 0;
                for (int i = block.thread; i < cols; i += block.n_threads) sum = add(sum, lane[i]);
                shared.sum[b][block.thread] = sum;
            } else if (p == 1 && use.norm.centres != 0) {
                BlockSum::sum_groups(shared.sum[b], block);
            } else if (p == 2) {
                local.mean[b] = use.norm.centres != 0
                                    ? use.norm.mean_of(BlockSum::total(shared.sum[b], block), cols)
                                    : 0.0f;
                float squares = 0;
                for (int i = block.thread; i < cols; i += block.n_threads) {
                    const float value = add(lane[i], -local.mean[b]);
                    squares = add(squares, mul(value, value));
                }
                shared.squares[b][block.thread] = squares;
            } else if (p == 3) {
                BlockSum::sum_groups(shared.squares[b], block);
            }
        }
    }

    KH_FN void add_product(const Product<T>& of, int row, int part, const Local& local,
                           float (&partial)[kBatch][kMaxThreads], int thread) const {
        float sum[kBatch];
        for (int b = 0; b < kBatch; ++b) sum[b] = 0;
        with_packs(of.w, [&](const auto& packs) { add_row(packs, row, part, local, sum); });
        for (int b = 0; b < kBatch; ++b) partial[b][thread] = sum[b];
    }

    KH_FN static float total(const float* partial, int in_block, const Product<T>& of, int row) {
        float sum = 0;
        for (int i = 0; i < kThreadsPerRow; ++i) sum = add(sum, partial[in_block * kThreadsPerRow + i]);
        return of.bias != nullptr ? add(sum, of.bias[row]) : sum;
    }

    template <class Packs>
    KH_FN void add_row(const Packs& packs, int row, int part, const Local& local,
                       float (&sum)[kBatch]) const {
        const int n_packs = cols / 8;
        const std::int64_t at = static_cast<std::int64_t>(row) * n_packs;
        int i = part;
        // The same terms in the same order as one by one.
        for (; i + (kInFlight - 1) * kThreadsPerRow < n_packs; i += kInFlight * kThreadsPerRow) {
            typename Packs::Loaded pack[kInFlight];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int k = 0; k < kInFlight; ++k) pack[k] = packs.load(at + i + k * kThreadsPerRow);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int k = 0; k < kInFlight; ++k) add_pack<Packs>(pack[k], i + k * kThreadsPerRow, local, sum);
        }
        for (; i < n_packs; i += kThreadsPerRow) add_pack<Packs>(packs.load(at + i), i, local, sum);
    }

    template <class Packs>
    KH_FN void add_pack(const typename Packs::Loaded& pack, int i, const Local& local,
                        float (&sum)[kBatch]) const {
        float wide[8];
        Packs::widen_pack(pack, wide);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (int b = 0; b < kBatch; ++b) {
            if (b >= n_lanes) break;
            Pack<float> column =
                reinterpret_cast<const Pack<float>*>(x + static_cast<std::int64_t>(b) * cols)[i];
            if (kNorms && use.norm.gain != nullptr) norm_pack(column, i, local.mean[b], local.scale[b]);
            for (int j = 0; j < 8; ++j) sum[b] = fused(wide[j], column.x[j], sum[b]);
        }
    }

    KH_FN void norm_pack(Pack<float>& column, int i, float mean, float scale) const {
        const Pack<float> gain = reinterpret_cast<const Pack<float>*>(use.norm.gain)[i];
        for (int j = 0; j < 8; ++j) column.x[j] = NormRule::applied(column.x[j], mean, scale, gain.x[j]);
        if (use.norm.bias == nullptr) return;
        const Pack<float> bias = reinterpret_cast<const Pack<float>*>(use.norm.bias)[i];
        for (int j = 0; j < 8; ++j) column.x[j] = add(column.x[j], bias.x[j]);
    }
};

/// x <- act(x), or act(x) * up where up is not null; see activate() in backend/common/kernels.h.
/// Grid x covers n.
struct Activate {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    float* x;
    const float* up;  ///< or null
    std::int64_t n;
    ActivationKind kind;
    std::int32_t unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i >= n) return;
        const float value = activated(kind, x[i]);
        x[i] = up != nullptr ? mul(value, up[i]) : value;
    }
};

}  // namespace keyhole::cuda
