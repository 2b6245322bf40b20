/// Inputs of products in integers: 32 neighbours as whole numbers of three signed bytes with one scale, with
/// the bits of the CPU's (backend/common/integer_products.h). Host and device. Knows no matrix.
#pragma once

#include "engine/backend/common/laid_layout.h"
#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/number.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace keyhole::cuda {

/// Returns c plus the sum of the products of four signed bytes.
KH_FN std::int32_t plus_bytes(std::uint32_t a, std::uint32_t b, std::int32_t c) {
#ifdef __CUDA_ARCH__
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
#else
    for (int i = 0; i < 32; i += 8)
        c += static_cast<std::int8_t>(a >> i & 255u) * static_cast<std::int8_t>(b >> i & 255u);
    return c;
#endif
}

/// Returns the nearest whole number, even where two are as near.
KH_FN std::int32_t nearest_whole(float value) {
#ifdef __CUDA_ARCH__
    return __float2int_rn(value);
#else
    return static_cast<std::int32_t>(std::nearbyint(value));
#endif
}

/// 32 neighbours of an input, as NarrowBlock of the CPU: x(i) = scale q(i), q = 256 u + l, u = 256 v + w,
/// where l, v and w are signed bytes.
struct alignas(16) NarrowCell {
    std::uint32_t first[8], second[8], lower[8];  ///< v, w, l: four columns each
    struct alignas(16) Sums {
        float scale, scaled_sum;          ///< scaled_sum: scale times the sum of q
        std::int32_t upper[2], lower[2];  ///< of u and l, of the first 16 and of the last 16
        std::int32_t all_upper, all_lower;
    } sums;
};

/// Returns a T, read at once, or 16 bytes at a time where it is larger. p is aligned to that, and lies in
/// memory that was written as words.
template <class T>
KH_FN T read_words(const void* p) {
#ifdef __CUDA_ARCH__
    return *static_cast<const T*>(p);
#else
    T value{};
    std::memcpy(static_cast<void*>(&value), p, sizeof(value));
    return value;
#endif
}

KH_FN std::uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
#endif
}
KH_FN float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
#endif
}

/// Narrows x [32]. A number that is not finite makes the scale NaN.
KH_FN void narrow_cell(const float* x, NarrowCell& out) {
    constexpr std::uint32_t kInfinity = 0x7f800000u;
    std::uint32_t most_bits = 0;
    KH_UNROLL
    for (int i = 0; i < kCellColumns; ++i) {
        const std::uint32_t bits = bits_of(x[i]) & 0x7fffffffu;
        most_bits = bits > most_bits ? bits : most_bits;
    }
    const float most = float_of(most_bits);
    const bool is_finite = most_bits < kInfinity;
    const float inverse = is_finite && most >= kLeastInput ? kMostNarrow / most : 0.0f;
    out.sums.scale = !is_finite ? float_of(0x7fc00000u) : inverse != 0 ? most / kMostNarrow : 0.0f;
    KH_UNROLL
    for (int part = 0; part < 2; ++part) {
        std::int32_t upper_sum = 0, lower_sum = 0;
        KH_UNROLL
        for (int k = 4 * part; k < 4 * part + 4; ++k) {
            std::uint32_t first = 0, second = 0, lower = 0;
            KH_UNROLL
            for (int i = 0; i < 4; ++i) {
                const std::int32_t q = is_finite ? nearest_whole(mul(x[4 * k + i], inverse)) : 0,
                                   l = static_cast<std::int8_t>(q & 255), u = (q - l) >> 8;
                upper_sum += u;
                lower_sum += l;
                first |= static_cast<std::uint32_t>((u + 128) >> 8 & 255) << 8 * i;
                second |= static_cast<std::uint32_t>(u & 255) << 8 * i;
                lower |= static_cast<std::uint32_t>(l & 255) << 8 * i;
            }
            out.first[k] = first;
            out.second[k] = second;
            out.lower[k] = lower;
        }
        out.sums.upper[part] = upper_sum;
        out.sums.lower[part] = lower_sum;
    }
    out.sums.all_upper = out.sums.upper[0] + out.sums.upper[1];
    out.sums.all_lower = out.sums.lower[0] + out.sums.lower[1];
    out.sums.scaled_sum =
        mul(out.sums.scale, static_cast<float>(256 * out.sums.all_upper + out.sums.all_lower));
}

/// The same 32 columns of up to eight lanes, in the order in which a warp multiplies them: thread 4 g + t of
/// it reads columns 4 t to 4 t + 3, and those 16 further on, of lane g. Lanes that are missing are zeros.
struct alignas(16) NarrowTile {
    static constexpr int kLanes = 8;
    std::uint32_t words[3][kLanes][4][2];  ///< v, w, l of NarrowCell: [term, lane, t, first or later columns]
    alignas(8) float scale[kLanes], scaled_sum[kLanes];
};

/// Narrows x [n_lanes, cols]. Grid: x = blocks(n_threads).
struct NarrowTiles {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const float* x;
    NarrowTile* out;  ///< [cols / 32]
    std::int32_t n_lanes, cols;

    int blocks(int n_threads) const {
        return (cols / kCellColumns * NarrowTile::kLanes + n_threads - 1) / n_threads;
    }
    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        constexpr int kLanes = NarrowTile::kLanes;
        const int i = block.x * block.n_threads + block.thread, cell = i / kLanes, lane = i % kLanes;
        if (cell >= cols / kCellColumns) return;
        NarrowCell narrowed{};
        if (lane < n_lanes) {
            float wide[kCellColumns];
            const auto* from =
                reinterpret_cast<const HalfPack*>(x + std::int64_t{lane} * cols + cell * kCellColumns);
            KH_UNROLL
            for (int k = 0; k < kCellColumns / 4; ++k) {
                const HalfPack half = from[k];
                for (int j = 0; j < 4; ++j) wide[4 * k + j] = half.x[j];
            }
            narrow_cell(wide, narrowed);
        }
        NarrowTile& to = out[cell];
        KH_UNROLL
        for (int k = 0; k < 8; ++k) {
            to.words[0][lane][k % 4][k / 4] = narrowed.first[k];
            to.words[1][lane][k % 4][k / 4] = narrowed.second[k];
            to.words[2][lane][k % 4][k / 4] = narrowed.lower[k];
        }
        to.scale[lane] = narrowed.sums.scale;
        to.scaled_sum[lane] = narrowed.sums.scaled_sum;
    }
};

}  // namespace keyhole::cuda
