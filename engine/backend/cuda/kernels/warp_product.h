/// Products of a warp: 16-bit factors, sums in float. On tensor cores (mma.sync) where the machine code has
/// them, elsewhere by loops. Either way a lane holds the same elements of the result and reads no other lane,
/// so kernels use results by row and column, and lanes run in any order on the host. All lanes of a warp must
/// call these functions together. Host and device. Knows nothing of attention.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/number.h"

#include <cstdint>

namespace keyhole::cuda {

inline constexpr int kWarp = 32;

/// True in code for devices whose tensor cores multiply the type: fp16 from sm_75 on, bf16 from sm_80 on.
template <class T>
inline constexpr bool kOnTensorCores = false;
#ifdef __CUDA_ARCH__
template <>
inline constexpr bool kOnTensorCores<Fp16> = true;
template <>
inline constexpr bool kOnTensorCores<Bf16> = __CUDA_ARCH__ >= 800;
#endif

/// 16 x 16 sums; a lane holds 8 of them.
struct WarpTile {
    static constexpr int kElements = 8;
    float at[kElements];

    KH_FN void clear() {
        KH_UNROLL
        for (int i = 0; i < kElements; ++i) at[i] = 0;
    }
    /// The place of the lane's element i: rows lane / 4 and lane / 4 + 8, pairs of columns.
    KH_FN static int row(int lane, int i) { return lane / 4 + i % 4 / 2 * 8; }
    KH_FN static int column(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }
};

/// 16 rows of a left factor, 16 * kSteps numbers each. A lane reads two of them: in registers on tensor
/// cores, elsewhere where they lie, so they must stay there until the last product of the phase (or of the
/// kernel, where nobody writes them).
template <class T, int kSteps>
struct WarpRows {
    std::uint32_t part[kSteps][4];
    const T* first;
    const T* second;

    /// row, row_8: rows lane / 4 and lane / 4 + 8; steps from n_steps on are not read.
    KH_FN void load(int lane, const T* row, const T* row_8, int n_steps) {
        if constexpr (kOnTensorCores<T>) {
            KH_UNROLL
            for (int s = 0; s < kSteps; ++s) {
                if (s >= n_steps) continue;
                KH_UNROLL
                for (int j = 0; j < 4; ++j)
                    part[s][j] = pair_at((j % 2 == 0 ? row : row_8) + s * 16 + factor_of(lane, j));
            }
        } else {
            first = row;
            second = row_8;
        }
    }
    /// The first of the two factors in a lane's part j of a step; parts 1 and 3 are of the second row.
    KH_FN static int factor_of(int lane, int j) { return lane % 4 * 2 + j / 2 * 8; }
    KH_FN static std::uint32_t pair_at(const T* at) { return *reinterpret_cast<const std::uint32_t*>(at); }
};

/// A right factor [16, 16] is four matrices of 8 x 8, in this order: columns 0-7 with factors 0-7, then 8-15,
/// columns 8-15 with factors 0-7, then 8-15. Returns where lane's row of matrix lane / 8 starts; the rows of
/// the matrix are columns (kByColumn), or factors.
template <bool kByColumn>
KH_FN int matrix_row(int lane, int stride) {
    const int column = lane / 16 * 8, factor = lane / 8 % 2 * 8, i = lane % 8;
    return kByColumn ? (column + i) * stride + factor : (factor + i) * stride + column;
}

#ifdef __CUDA_ARCH__

/// Loads four matrices of 8 x 8 from shared memory; `address` is that of the lane's row, a multiple of 16
/// bytes. A lane gets two neighbours of each: of row lane / 4, or of column lane / 4 (kTransposed).
template <bool kTransposed>
__device__ inline void load_matrices(std::uint32_t address, std::uint32_t (&out)[4]) {
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(address)
                     : "memory");
}

/// sum [16, 8] += a [16, 16] * b [16, 8]
template <class T>
__device__ inline void multiply_add(float* sum, const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
    if constexpr (kNumberType<T> == NumberType::bf16) {
#if __CUDA_ARCH__ >= 800
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
    } else {
#if __CUDA_ARCH__ >= 800
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
        // Turing multiplies half of it at once.
        const auto half = [&](std::uint32_t first, std::uint32_t second, std::uint32_t b) {
            asm volatile(
                "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                "{%0, %1, %2, %3};"
                : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                : "r"(first), "r"(second), "r"(b));
        };
        half(a[0], a[1], b0);
        half(a[2], a[3], b1);
#endif
    }
}

#endif

/// Right factors in shared memory, with `stride` numbers from row to row, a multiple of 8: rows are columns
/// of the result (kByColumn), or factors. A lane finds its place once; tiles lie at constant distances from
/// it.
template <bool kByColumn, class T>
struct WarpFactors {
    std::uint32_t address;
    const T* b;
    int stride;

    KH_FN void find(int lane, const T* first, int row_stride) {
        b = first;
        stride = row_stride;
#ifdef __CUDA_ARCH__
        address = static_cast<std::uint32_t>(
            __cvta_generic_to_shared(first + matrix_row<kByColumn>(lane, row_stride)));
#else
        static_cast<void>(lane);
#endif
    }
};

/// tile += a * b, where a are the rows' numbers from 16 * step on, and b [16, 16] starts at
/// factors.b + offset.
template <bool kByColumn, class T, int kSteps>
KH_FN void add_product(WarpTile& tile, const WarpRows<T, kSteps>& rows, int step,
                       const WarpFactors<kByColumn, T>& factors, int offset, int lane) {
    if constexpr (kOnTensorCores<T>) {
#ifdef __CUDA_ARCH__
        std::uint32_t part[4];
        load_matrices<!kByColumn>(factors.address + static_cast<std::uint32_t>(offset * 2), part);
        multiply_add<T>(tile.at, rows.part[step], part[0], part[1]);
        multiply_add<T>(tile.at + 4, rows.part[step], part[2], part[3]);
#endif
    } else {
        const T *first = rows.first + step * 16, *second = rows.second + step * 16, *b = factors.b + offset;
        const int stride = factors.stride;
        for (int k = 0; k < 16; ++k) {
            const float a[2] = {widen(first[k]), widen(second[k])};
            KH_UNROLL
            for (int i = 0; i < WarpTile::kElements; ++i) {
                if (i % 4 / 2 != 0) continue;
                const int column = WarpTile::column(lane, i);
                const float factor = widen(kByColumn ? b[column * stride + k] : b[k * stride + column]);
                tile.at[i] = fused(a[0], factor, tile.at[i]);
                tile.at[i + 2] = fused(a[1], factor, tile.at[i + 2]);
            }
        }
    }
}

}  // namespace keyhole::cuda
