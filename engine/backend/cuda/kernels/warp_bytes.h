/// Products of a warp: codes of a laid matrix times inputs of three signed bytes, sums in whole numbers. On
/// tensor cores (mma.sync) in code for devices, elsewhere by loops, with the same sums. Here a lane is a
/// thread of the warp. It holds the same elements of the result either way and reads no other lane. All lanes
/// of a warp must call these functions together. Host and device. Knows no block of threads.
#pragma once

#include "engine/backend/cuda/kernels/narrow.h"
#include "engine/backend/cuda/kernels/stored.h"

#include <cstdint>
#include <cstring>

namespace keyhole::cuda {

/// Sums start here: the bits of 1.5 * 2^23, so that a sum is a float as it stands. The device conversion of
/// integers has a quarter of the speed of a subtraction, or less.
inline constexpr std::int32_t kNoSum = 0x4b400000;
/// Returns the sum as a float, exactly; it is below 2^22, since 32 products of bytes are at most 2^19.
KH_FN float float_of_sum(std::int32_t sum) {
    return float_of(static_cast<std::uint32_t>(sum)) - 12582912.0f;
}

/// A lane's place in 16 rows and 8 columns of sums, of which it has four: two rows, next to each other, and
/// two columns. Rows 2 g and 2 g + 1 of the matrix are rows g and g + 8 of mma.sync, so that a lane's codes
/// of both lie side by side.
struct WarpPlace {
    int row, column;  ///< the first of each
    KH_FN explicit WarpPlace(int lane) : row(lane / 4 * 2), column(lane % 4 * 2) {}
    /// Which of the four is of the first or second row and column.
    KH_FN static int element(int row, int column) { return 2 * row + column; }
};

/// Neighbours that are read or stored at once.
struct alignas(8) Pair {
    float x[2];
};
/// `to` is aligned to a pair.
KH_FN void store_pair(const Pair& pair, float* to) {
#ifdef __CUDA_ARCH__
    *reinterpret_cast<Pair*>(to) = pair;
#else
    std::memcpy(to, &pair, sizeof(pair));
#endif
}

/// Returns four stored codes as signed bytes, less their zero.
template <class Block>
KH_FN std::uint32_t signed_codes(std::uint32_t codes) {
    constexpr auto kZero = static_cast<std::uint32_t>(Block::kCodes.zero);
    constexpr std::uint32_t kSigns = 0x80808080u;
    if constexpr (Laid<Block>::kCodes.bits == 8) return codes ^ kSigns;
    return kZero == 0 ? codes : ((codes | kSigns) - kZero * 0x01010101u) ^ kSigns;
}

inline constexpr int kWarpCodeWords = 8;  ///< room for what a lane reads of a cell of any type

/// A lane's part of 16 rows and 32 columns: of two rows, the columns 4 t to 4 t + 3 and those 16 further on,
/// where t = lane % 4.
template <class Block>
struct WarpCodes {
    using L = Laid<Block>;
    static_assert(!L::kHasExponent && !L::kCodes.looks_up);
#ifdef __CUDA_ARCH__
    // In words of `read`, after each other; codes of two rows lie side by side.
    static constexpr int kTwos = L::kLowBits / 2, kOnes = kTwos + (L::kHasTwos ? 4 : 0),
                         kFactors = kOnes + (L::kHasOnes ? 2 : 0),
                         kOffsets = kFactors + (Block::kHasOffset ? 1 : 0), kSteps = kOffsets + 1,
                         kWords = kSteps + (L::kHasSteps ? 1 : 0);
    static_assert(kWords <= kWarpCodeWords);
    std::uint32_t read[kWords];

    KH_INLINE explicit WarpCodes(const std::uint32_t (&words)[kWarpCodeWords]) {
        KH_UNROLL
        for (int i = 0; i < kWords; ++i) read[i] = words[i];
    }
    /// Reads what a lane needs. bits, head: where the cell's codes and the factors of its block begin;
    /// in_block: which cell of the block it is.
    __device__ __forceinline__ static void load(const std::byte* bits, const std::byte* head, int lane,
                                                unsigned in_block, std::uint32_t (&words)[kWarpCodeWords]) {
        const auto step = static_cast<unsigned>(lane % 4), row = static_cast<unsigned>(lane / 4 * 2);
        const auto put = [&](int at, const Codes& codes) {
            words[at] = codes.word[0];
            words[at + 1] = codes.word[1];
        };
        if constexpr (L::kLowBits >= 4) put(0, codes_at(bits + 64 * step + 4 * row));
        if constexpr (L::kLowBits == 8) put(2, codes_at(bits + 64 * (step + 4) + 4 * row));
        const std::byte* const twos = bits + L::kLowBytes + 4 * row;
        if constexpr (L::kHasTwos) put(kTwos, codes_at(twos)), put(kTwos + 2, codes_at(twos + 64));
        if constexpr (L::kHasOnes) put(kOnes, codes_at(twos + L::kTwosBytes));
        words[kFactors] = word_at<4>(head + 2 * row);
        if constexpr (Block::kHasOffset) words[kOffsets] = word_at<4>(head + L::kOffsetAt + 2 * row);
        if constexpr (L::kHasSteps) {
            const auto pair = [&](unsigned part, int from) -> std::uint32_t {
                return *reinterpret_cast<const std::uint16_t*>(
                    head + from + (in_block * L::kParts + part) * kLaidRows + row);
            };
            words[kSteps] = pair(0, L::kStepsAt);
            if constexpr (L::kParts == 2) words[kSteps] |= pair(1, L::kStepsAt) << 16;
            if constexpr (Block::kHasOffset) words[kSteps] |= pair(0, L::kOffsetStepsAt) << 16;
        }
    }
    /// Returns row r's codes of the first four columns, or of those 16 further on (half 1).
    __device__ __forceinline__ std::uint32_t codes(int r, int half, int lane) const {
        std::uint32_t four = 0;
        if constexpr (L::kLowBits == 8) four = read[2 * half + r];
        if constexpr (L::kLowBits == 4) four = low_halves(read[r], half * 4);
        if constexpr (L::kHasTwos)
            four |= (read[kTwos + 2 * half + r] >> lane % 4 * 2 & 0x03030303u) << L::kLowBits;
        if constexpr (L::kHasOnes)
            four |= (read[kOnes + r] >> (lane % 4 + 4 * half) & 0x01010101u)
                    << (L::kLowBits + (L::kHasTwos ? 2 : 0));
        return signed_codes<Block>(four);
    }
    __device__ __forceinline__ Scale scale(int r, int part) const {
        const auto half = [&](int at) { return static_cast<std::uint16_t>(read[at] >> 16 * r); };
        const auto step = [&](int at) {
            if constexpr (L::kHasSteps) return static_cast<std::int8_t>(read[kSteps] >> (16 * at + 8 * r));
            return std::int8_t{1};
        };
        return laid_scale<Block>(half(kFactors), Block::kHasOffset ? half(kOffsets) : std::uint16_t{0},
                                 step(part), step(1));
    }
#else
    LaidCell<Block> rows[2];

    WarpCodes(const std::byte* bits, const std::byte* head, int lane, unsigned in_block)
        : rows{of_row(bits, head, lane, in_block, 0), of_row(bits, head, lane, in_block, 1)} {}
    static LaidCell<Block> of_row(const std::byte* bits, const std::byte* head, int lane, unsigned in_block,
                                  unsigned r) {
        const unsigned row = static_cast<unsigned>(WarpPlace(lane).row) + r;
        return {bits + 4 * row, head, row, in_block};
    }
    Scale scale(int r, int part) const {
        return rows[r].scale(part);
    }
#endif
};

/// A lane's part of the inputs: of each term the columns of WarpCodes, and the scales of its two columns of
/// sums.
struct WarpInputs {
    Pair scale, scaled_sum;
#ifdef __CUDA_ARCH__
    Codes of[3];

    __device__ __forceinline__ WarpInputs(const NarrowTile& tile, int lane)
        : scale(pair_of(tile.scale, lane)), scaled_sum(pair_of(tile.scaled_sum, lane)) {
        KH_UNROLL
        for (int term = 0; term < 3; ++term) of[term] = codes_at(tile.words[term][lane / 4][lane % 4]);
    }
#else
    const NarrowTile& tile;

    WarpInputs(const NarrowTile& from, int lane)
        : scale(pair_of(from.scale, lane)), scaled_sum(pair_of(from.scaled_sum, lane)), tile(from) {}
#endif

  private:
    KH_FN static Pair pair_of(const float* of_columns, int lane) {
        return read_words<Pair>(of_columns + WarpPlace(lane).column);
    }
};

#ifdef __CUDA_ARCH__

#if __CUDA_ARCH__ < 800
/// Of Turing: a lane has one row of a [8, 16] and two columns of the sums, which start at `from`.
__device__ inline void multiply_eight_rows(const std::int32_t (&from)[2], std::uint32_t a, std::uint32_t b,
                                           std::int32_t* sum) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
                 : "=r"(sum[0]), "=r"(sum[1])
                 : "r"(a), "r"(b), "r"(from[0]), "r"(from[1]));
}
#endif

/// sum [16, 8] = kNoSum + a [16, 16] * b [16, 8], of signed bytes; a0, a1: of the two rows.
__device__ inline void multiply_bytes(std::int32_t (&sum)[4], std::uint32_t a0, std::uint32_t a1,
                                      std::uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(kNoSum));
#else
    multiply_eight_rows({kNoSum, kNoSum}, a0, b, sum);
    multiply_eight_rows({kNoSum, kNoSum}, a1, b, sum + 2);
#endif
}

/// sum [16, 8] = kNoSum + a [16, 32] * b [32, 8]; a: of the two rows the first columns, then the later ones.
__device__ inline void multiply_bytes(std::int32_t (&sum)[4], const std::uint32_t (&a)[4], const Codes& b) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.word[0]), "r"(b.word[1]), "r"(kNoSum));
#else
    multiply_bytes(sum, a[0], a[1], b.word[0]);
    multiply_eight_rows({sum[0], sum[1]}, a[2], b.word[1], sum);
    multiply_eight_rows({sum[2], sum[3]}, a[3], b.word[1], sum + 2);
#endif
}

#endif

/// Sets the sums of the products of codes and inputs, of each term and each part of the columns; they start
/// at kNoSum.
template <class Block>
KH_INLINE void multiply_bytes(const WarpCodes<Block>& codes, const WarpInputs& inputs, int lane,
                              std::int32_t (&sum)[3][Laid<Block>::kParts][4]) {
    constexpr int kParts = Laid<Block>::kParts;
#ifdef __CUDA_ARCH__
    const std::uint32_t a[4] = {codes.codes(0, 0, lane), codes.codes(1, 0, lane), codes.codes(0, 1, lane),
                                codes.codes(1, 1, lane)};
    KH_UNROLL
    for (int term = 0; term < 3; ++term) {
        if constexpr (kParts == 1) {
            multiply_bytes(sum[term][0], a, inputs.of[term]);
        } else {
            multiply_bytes(sum[term][0], a[0], a[1], inputs.of[term].word[0]);
            multiply_bytes(sum[term][1], a[2], a[3], inputs.of[term].word[1]);
        }
    }
#else
    for (auto& of_term : sum)
        for (auto& of_part : of_term)
            for (std::int32_t& one : of_part) one = kNoSum;
    const int column = WarpPlace(lane).column;
    for (int k = 0; k < 8; ++k)
        for (int r = 0; r < 2; ++r) {
            const std::uint32_t four = signed_codes<Block>(codes.rows[r].codes(k));
            for (int c = 0; c < 2; ++c)
                for (int term = 0; term < 3; ++term) {
                    std::int32_t& to = sum[term][k * kParts / 8][WarpPlace::element(r, c)];
                    to = plus_bytes(four, inputs.tile.words[term][column + c][k % 4][k / 4], to);
                }
        }
#endif
}

}  // namespace keyhole::cuda
