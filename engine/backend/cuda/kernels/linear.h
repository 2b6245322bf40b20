/// Embedding, norms and matrix-vector products of a step. One column a lane; weights are read once for all lanes.
/// CPU twins: backend/cpu/kernels.h. Every output is summed in one fixed order.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/number.h"

#include <cmath>
#include <cstdint>

namespace keyhole::cuda {

/// x[lane, :] = embedding[token[lane], :]      block (lane), any number of threads
template <class T>
struct Embed {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const T* embedding;          ///< [n_vocab, d]
    const std::int32_t* tokens;  ///< [lanes]
    float* x;                    ///< [lanes, d]
    std::int32_t d, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const T* row = embedding + static_cast<std::int64_t>(tokens[block.x]) * d;
        for (int i = block.thread; i < d; i += block.n_threads)
            x[static_cast<std::int64_t>(block.x) * d + i] = widen(row[i]);
    }
};

/// x <- x + y where y is given; out = x / sqrt(mean(x^2) + eps) * gain      RMSNorm; block (lane)
struct AddNorm {
    static constexpr int kPhases = 2;
    struct Shared {
        float partial[kMaxThreads];
    };
    using Local = NoLocal;
    float* x;           ///< [lanes, d]
    const float* y;     ///< [lanes, d] or null
    const float* gain;  ///< [d]
    float* out;         ///< [lanes, d]; may be x
    float eps;
    std::int32_t d;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const std::int64_t at = static_cast<std::int64_t>(block.x) * d;
        if (p == 0) {
            float sum = 0;
            for (int i = block.thread; i < d; i += block.n_threads) {
                float value = x[at + i];
                if (y != nullptr) {
                    value = add(value, y[at + i]);
                    x[at + i] = value;
                }
                sum = add(sum, mul(value, value));
            }
            shared.partial[block.thread] = sum;
            return;
        }
        float sum = 0;
        for (int i = 0; i < block.n_threads; ++i) sum = add(sum, shared.partial[i]);
        const float scale = 1.0f / sqrtf(add(sum / static_cast<float>(d), eps));
        for (int i = block.thread; i < d; i += block.n_threads)
            out[at + i] = mul(mul(x[at + i], scale), gain[i]);
    }
};

/// to = from, as a part of a list of launches. Grid x covers n.
struct CopyFloats {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const float* from;
    float* to;
    std::int64_t n;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i < n) to[i] = from[i];
    }
};

/// A matrix as floats, for products that take no other type. Grid x covers n.
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

/// One of the products that a launch computes together, such as q, k and v.
template <class T>
struct Product {
    const T* w;  ///< [rows, cols], rows of whole packs: cols a multiple of 8
    float* y;    ///< [lanes, y_stride]
    std::int32_t rows;
    std::int32_t y_stride;
};

/// y[b, r] = sum_c w[r, c] * x[b, c], for up to three matrices of one input. 32 threads share a row, so that a warp reads 512
/// neighbouring bytes at once; kBatch lanes are served by the same read. Grid: x = ceil(all rows / (n_threads / 32)).
template <class T, int kBatch>
struct MatrixVector {
    static constexpr int kPhases = 2;
    static constexpr int kThreadsPerRow = 32;
    struct Shared {
        float partial[kBatch][kMaxThreads];
    };
    using Local = NoLocal;
    Product<T> product[3];
    const float* x;  ///< [kBatch, cols]
    std::int32_t n_products, cols;

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
            const auto* packs = reinterpret_cast<const Pack<T>*>(w.w + static_cast<std::int64_t>(row) * cols);
            for (int i = part; i < cols / Pack<T>::kSize; i += kThreadsPerRow) {
                const Pack<T> pack = packs[i];
                for (int b = 0; b < kBatch; ++b) {
                    const Pack<float> column =
                        reinterpret_cast<const Pack<float>*>(x + static_cast<std::int64_t>(b) * cols)[i];
                    for (int j = 0; j < Pack<T>::kSize; ++j)
                        sum[b] = add(sum[b], mul(widen(pack.x[j]), column.x[j]));
                }
            }
            for (int b = 0; b < kBatch; ++b) shared.partial[b][block.thread] = sum[b];
            return;
        }
        // The row's first threads add up one lane each.
        for (int b = part; b < kBatch; b += kThreadsPerRow) {
            float sum = 0;
            for (int i = 0; i < kThreadsPerRow; ++i)
                sum = add(sum, shared.partial[b][in_block * kThreadsPerRow + i]);
            w.y[static_cast<std::int64_t>(b) * w.y_stride + row] = sum;
        }
    }
};

/// gate <- silu(gate) * up      SwiGLU; grid x covers n
struct SiluTimes {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    float* gate;
    const float* up;
    std::int64_t n;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i >= n) return;
        const float g = gate[i];
        gate[i] = mul(g / add(1.0f, expf(-g)), up[i]);
    }
};

}  // namespace keyhole::cuda
