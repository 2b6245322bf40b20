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

/// x <- x + y + z, where given; out = norm(x), in float; block (lane)
///     RMSNorm      x / sqrt(mean(x^2) + eps) * gain
///     LayerNorm    (x - mean) / sqrt(variance + eps) * gain + bias
///     no gain      x itself
struct AddNorm {
    static constexpr int kPhases = 5;
    static constexpr int kGroups = 32;  ///< threads that sum a first share
    struct Shared {
        float sum[kMaxThreads], squares[kMaxThreads];
    };
    struct Local {
        float mean;
    };
    float* x;           ///< [lanes, d]
    const float* y;     ///< [lanes, d] or null
    const float* z;     ///< [lanes, d] or null
    const float* gain;  ///< [d] or null
    const float* bias;  ///< [d] or null
    float* out;         ///< [lanes, d]; may be x
    float eps;
    std::int32_t d;
    std::int32_t centres;  ///< 1: LayerNorm, subtracts the mean
    std::int32_t unused = 0;

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
            sum_groups(shared.sum, block);
        } else if (p == 2) {
            local.mean = centres != 0 ? total(shared.sum, block) / static_cast<float>(d) : 0.0f;
            float squares = 0;
            for (int i = block.thread; i < d; i += block.n_threads) {
                const float value = add(x[at + i], -local.mean);
                squares = add(squares, mul(value, value));
            }
            shared.squares[block.thread] = squares;
        } else if (p == 3) {
            sum_groups(shared.squares, block);
        } else {
            const float scale = 1.0f / sqrtf(add(total(shared.squares, block) / static_cast<float>(d), eps));
            for (int i = block.thread; i < d; i += block.n_threads) {
                float value = x[at + i];
                if (gain != nullptr) value = mul(mul(add(value, -local.mean), scale), gain[i]);
                if (gain != nullptr && bias != nullptr) value = add(value, bias[i]);
                out[at + i] = value;
            }
        }
    }

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

/// One of the products that a launch computes together, such as q, k and v.
template <class T>
struct Product {
    Elements<T> w;      ///< [rows, cols]; cols is a multiple of 8, so rows are whole packs
    const float* bias;  ///< [rows] or null
    float* y;           ///< [lanes, y_stride]
    std::int32_t rows;
    std::int32_t y_stride;
};

/// y[b, r] = sum_c w[r, c] * x[b, c] + bias[r], for up to three matrices with the same input. 32 threads
/// share a row, so that a warp reads 512 neighbouring bytes at once; one read serves up to kBatch lanes. Each
/// thread has kInFlight reads of weights under way before it uses the first. Where T is Stored, the matrices
/// may differ in type, and quantised ones are widened in registers. Grid:
/// x = ceil(all rows / (n_threads / 32)).
template <class T, int kBatch>
struct MatrixVector {
    static constexpr int kPhases = 2;
    static constexpr int kThreadsPerRow = 32;
    static constexpr int kInFlight = 4;
    struct Shared {
        float partial[kBatch][kMaxThreads];
    };
    using Local = NoLocal;
    Product<T> product[3];
    const float* x;  ///< [n_lanes, cols]
    std::int32_t n_products, cols;
    std::int32_t n_lanes = kBatch;  ///< at most kBatch
    std::int32_t unused = 0;

    static int blocks(int rows, int n_threads) {
        const int per_block = n_threads / kThreadsPerRow;
        return (rows + per_block - 1) / per_block;
    }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int in_block = block.thread / kThreadsPerRow, part = block.thread % kThreadsPerRow;
        int row = block.x * (block.n_threads / kThreadsPerRow) + in_block, which = 0;
        while (which < n_products && row >= product[which].rows) row -= product[which++].rows;
        if (which == n_products) return;
        const Product<T>& w = product[which];
        if (p == 0) {
            float sum[kBatch];
            for (int b = 0; b < kBatch; ++b) sum[b] = 0;
            with_packs(w.w, [&](const auto& packs) { add_row(packs, row, part, sum); });
            for (int b = 0; b < kBatch; ++b) shared.partial[b][block.thread] = sum[b];
            return;
        }
        // The row's first threads each sum one lane.
        for (int b = part; b < n_lanes; b += kThreadsPerRow) {
            float sum = 0;
            for (int i = 0; i < kThreadsPerRow; ++i)
                sum = add(sum, shared.partial[b][in_block * kThreadsPerRow + i]);
            if (w.bias != nullptr) sum = add(sum, w.bias[row]);
            w.y[static_cast<std::int64_t>(b) * w.y_stride + row] = sum;
        }
    }

    template <class Packs>
    KH_FN void add_row(const Packs& packs, int row, int part, float (&sum)[kBatch]) const {
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
            for (int k = 0; k < kInFlight; ++k) add_pack<Packs>(pack[k], i + k * kThreadsPerRow, sum);
        }
        for (; i < n_packs; i += kThreadsPerRow) add_pack<Packs>(packs.load(at + i), i, sum);
    }

    template <class Packs>
    KH_FN void add_pack(const typename Packs::Loaded& pack, int i, float (&sum)[kBatch]) const {
        float wide[8];
        Packs::widen_pack(pack, wide);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (int b = 0; b < kBatch; ++b) {
            if (b >= n_lanes) break;
            const Pack<float> column =
                reinterpret_cast<const Pack<float>*>(x + static_cast<std::int64_t>(b) * cols)[i];
            for (int j = 0; j < 8; ++j) sum[b] = fused(wide[j], column.x[j], sum[b]);
        }
    }
};

enum class ActivationKind : std::int32_t { silu, gelu, gelu_tanh, relu };  ///< in the order of Activation

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
        const float value = activated(x[i]);
        x[i] = up != nullptr ? mul(value, up[i]) : value;
    }

    KH_FN float activated(float v) const {
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
};

}  // namespace keyhole::cuda
