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

KH_FN float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
#endif
}

/// The quarter of a cell that one of four neighbouring threads narrows: eight columns, and the sums of all.
struct NarrowQuarter {
    std::uint32_t first[2], second[2], lower[2];
    NarrowCell::Sums sums;
};

/// How a cell's columns become whole numbers: with one scale, by the largest of them.
struct NarrowRule {
    float inverse;
    bool is_finite;

    /// most_bits: the largest, without signs.
    KH_FN NarrowRule(std::uint32_t most_bits, float& scale) {
        constexpr std::uint32_t kInfinity = 0x7f800000u;
        const float most = float_of(most_bits);
        is_finite = most_bits < kInfinity;
        inverse = is_finite && most >= kLeastInput ? kMostNarrow / most : 0.0f;
        scale = !is_finite ? float_of(0x7fc00000u) : inverse != 0 ? most / kMostNarrow : 0.0f;
    }
    /// Sets the codes of a quarter's columns, and the sums of their u and l.
    KH_FN void apply(const float (&x)[8], NarrowQuarter& out, std::int32_t& upper,
                     std::int32_t& lower) const {
        upper = lower = 0;
        KH_UNROLL
        for (int k = 0; k < 2; ++k) {
            out.first[k] = out.second[k] = out.lower[k] = 0;
            KH_UNROLL
            for (int i = 0; i < 4; ++i) {
                const std::int32_t q = is_finite ? nearest_whole(mul(x[4 * k + i], inverse)) : 0,
                                   l = static_cast<std::int8_t>(q & 255), u = (q - l) >> 8;
                upper += u;
                lower += l;
                out.first[k] |= static_cast<std::uint32_t>((u + 128) >> 8 & 255) << 8 * i;
                out.second[k] |= static_cast<std::uint32_t>(u & 255) << 8 * i;
                out.lower[k] |= static_cast<std::uint32_t>(l & 255) << 8 * i;
            }
        }
    }
};

/// Returns the largest of `most` and of eight numbers, in bits without signs.
KH_FN std::uint32_t most_of(std::uint32_t most, const float (&x)[8]) {
    KH_UNROLL
    for (const float value : x) {
        const std::uint32_t bits = bits_of(value) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

/// Narrows a quarter of a cell: columns 8 quarter to 8 quarter + 7. Threads 4 i to 4 i + 3 of a warp have the
/// quarters of a cell, and all threads of the warp call this together. read(i) returns columns 4 i to 4 i + 3
/// of the cell, as a HalfPack. A number that is not finite makes the scale NaN. On the host each thread reads
/// the whole cell.
template <class Read>
KH_INLINE NarrowQuarter narrow_quarter(int quarter, Read read) {
    const auto read_quarter = [&](int i, float(&x)[8]) {
        KH_UNROLL
        for (int h = 0; h < 2; ++h) {
            const HalfPack four = read(2 * i + h);
            KH_UNROLL
            for (int j = 0; j < 4; ++j) x[4 * h + j] = four.x[j];
        }
    };
    NarrowQuarter out;
    NarrowCell::Sums& sums = out.sums;
    const int part = quarter / 2;
#ifdef __CUDA_ARCH__
    float x[8];
    read_quarter(quarter, x);
    std::uint32_t most = most_of(0, x);
    KH_UNROLL
    for (int of = 1; of < 4; of *= 2) {
        const std::uint32_t other = value_beside(most, of);
        most = other > most ? other : most;
    }
    std::int32_t upper, lower;
    NarrowRule(most, sums.scale).apply(x, out, upper, lower);
    upper += value_beside(upper, 1);
    lower += value_beside(lower, 1);
    const std::int32_t other_upper = value_beside(upper, 2), other_lower = value_beside(lower, 2);
    sums.upper[0] = part == 0 ? upper : other_upper;
    sums.upper[1] = part == 0 ? other_upper : upper;
    sums.lower[0] = part == 0 ? lower : other_lower;
    sums.lower[1] = part == 0 ? other_lower : lower;
#else
    float x[4][8];
    std::uint32_t most = 0;
    for (int i = 0; i < 4; ++i) {
        read_quarter(i, x[i]);
        most = most_of(most, x[i]);
    }
    const NarrowRule rule(most, sums.scale);
    for (int i = 0; i < 2; ++i) sums.upper[i] = sums.lower[i] = 0;
    for (int i = 0; i < 4; ++i) {
        NarrowQuarter one;
        std::int32_t upper = 0, lower = 0;
        rule.apply(x[i], i == quarter ? out : one, upper, lower);
        sums.upper[i / 2] += upper;
        sums.lower[i / 2] += lower;
    }
    static_cast<void>(part);
#endif
    sums.all_upper = sums.upper[0] + sums.upper[1];
    sums.all_lower = sums.lower[0] + sums.lower[1];
    sums.scaled_sum = mul(sums.scale, static_cast<float>(256 * sums.all_upper + sums.all_lower));
    return out;
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
        return (cols / kCellColumns * 4 * NarrowTile::kLanes + n_threads - 1) / n_threads;
    }
    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        constexpr int kLanes = NarrowTile::kLanes;
        const int i = block.x * block.n_threads + block.thread, quarter = i % 4, lane = i / 4 % kLanes,
                  cell = i / (4 * kLanes);  // the same for a warp
        if (cell >= cols / kCellColumns) return;
        const auto* from =
            reinterpret_cast<const HalfPack*>(x + std::int64_t{lane} * cols + cell * kCellColumns);
        const NarrowQuarter narrowed =
            narrow_quarter(quarter, [&](int of) { return lane < n_lanes ? from[of] : HalfPack{}; });
        NarrowTile& to = out[cell];
        KH_UNROLL
        for (int k = 0; k < 2; ++k) {
            const int four = 2 * quarter + k;  // columns 4 four to 4 four + 3
            to.words[0][lane][four % 4][four / 4] = narrowed.first[k];
            to.words[1][lane][four % 4][four / 4] = narrowed.second[k];
            to.words[2][lane][four % 4][four / 4] = narrowed.lower[k];
        }
        if (quarter != 0) return;
        to.scale[lane] = narrowed.sums.scale;
        to.scaled_sum[lane] = narrowed.sums.scaled_sum;
    }
};

}  // namespace keyhole::cuda
