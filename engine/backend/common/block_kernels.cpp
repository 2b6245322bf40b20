#include "engine/backend/common/block_kernels.h"

#include "engine/backend/common/prefetch.h"
#include "engine/model/quantised_blocks.h"

#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/common/block_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set

#include "engine/backend/common/widen_halves.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;  // a part of a block has 16 elements or more
using CodeTag = hn::RebindToSigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Ints = hn::Vec<CodeTag>;

HWY_INLINE int code_lanes() {
    return static_cast<int>(hn::Lanes(FloatTag()));
}
HWY_INLINE Ints load_bytes(const std::uint8_t* p) {
    return hn::PromoteTo(CodeTag(), hn::LoadU(hn::Rebind<std::uint8_t, FloatTag>(), p));
}
HWY_INLINE Ints load_bytes(const std::int8_t* p) {
    return hn::PromoteTo(CodeTag(), hn::LoadU(hn::Rebind<std::int8_t, FloatTag>(), p));
}
HWY_INLINE Ints all_ints(int value) {
    return hn::Set(CodeTag(), value);
}
HWY_INLINE Ints half_of(Ints bytes, bool upper) {
    return upper ? hn::ShiftRight<4>(bytes) : hn::And(bytes, all_ints(15));
}
// Returns 16 where bit e + lane of four bytes is set, else 0.
HWY_INLINE Ints fifth_bits(const std::uint8_t* bits, int e) {
    std::uint32_t word = 0;
    std::memcpy(&word, bits, sizeof word);
    const Ints lane = hn::Shl(all_ints(1), hn::Iota(CodeTag(), 0));
    const auto set = hn::TestBit(all_ints(static_cast<int>(word >> e)), lane);
    return hn::IfThenElseZero(set, all_ints(16));
}

// Returns the codes of elements e, e + 1, ... of part j, one a lane; as Block::code().
HWY_INLINE Ints codes(const BlockQ8_0& b, int, int e) {
    return load_bytes(b.q + e);
}
HWY_INLINE Ints codes(const BlockQ4_0& b, int, int e) {
    return hn::Sub(half_of(load_bytes(b.q + e % 16), e >= 16), all_ints(8));
}
HWY_INLINE Ints codes(const BlockQ4_1& b, int, int e) {
    return half_of(load_bytes(b.q + e % 16), e >= 16);
}
HWY_INLINE Ints codes(const BlockQ5_0& b, int, int e) {
    const Ints low = half_of(load_bytes(b.q + e % 16), e >= 16);
    return hn::Sub(hn::Or(low, fifth_bits(b.high, e)), all_ints(16));
}
HWY_INLINE Ints codes(const BlockQ5_1& b, int, int e) {
    return hn::Or(half_of(load_bytes(b.q + e % 16), e >= 16), fifth_bits(b.high, e));
}
HWY_INLINE Ints codes(const BlockQ4_K& b, int j, int e) {
    return half_of(load_bytes(b.q + j / 2 * 32 + e), j % 2 != 0);
}
HWY_INLINE Ints codes(const BlockQ5_K& b, int j, int e) {
    const Ints low = half_of(load_bytes(b.q + j / 2 * 32 + e), j % 2 != 0);
    const Ints bit = hn::And(hn::ShiftRightSame(load_bytes(b.high + e), j), all_ints(1));
    return hn::Or(low, hn::ShiftLeft<4>(bit));
}
HWY_INLINE Ints codes(const BlockQ6_K& b, int j, int e) {
    const int half = j / 8, i = j % 8 * 16 + e;  // i: within the half
    const Ints low = half_of(load_bytes(b.q + half * 64 + i % 64), i >= 64);
    const Ints high = hn::ShiftRightSame(load_bytes(b.high + half * 32 + i % 32), i / 32 * 2);
    return hn::Sub(hn::Or(low, hn::ShiftLeft<4>(hn::And(high, all_ints(3)))), all_ints(32));
}

HWY_INLINE Ints two_bit_codes(const std::uint8_t* q, int i) {
    return hn::And(hn::ShiftRightSame(load_bytes(q + i / 128 * 32 + i % 32), i % 128 / 32 * 2), all_ints(3));
}
HWY_INLINE Ints codes(const BlockQ2_K& b, int j, int e) {
    return two_bit_codes(b.q, j * 16 + e);
}
HWY_INLINE Ints codes(const BlockQ3_K& b, int j, int e) {
    const int i = j * 16 + e;
    const Ints third = hn::And(hn::ShiftRightSame(load_bytes(b.high + i % 32), i / 32), all_ints(1));
    return hn::Sub(hn::Or(two_bit_codes(b.q, i), hn::ShiftLeft<2>(third)), all_ints(4));
}
HWY_INLINE Ints codes(const BlockTQ2_0& b, int, int e) {
    return hn::Sub(two_bit_codes(b.q, e), all_ints(1));
}
HWY_INLINE Ints codes(const BlockTQ1_0& b, int, int e) {
    if (e >= 240) {  // four bytes for sixteen lanes
        alignas(64) std::int32_t few[16];
        for (int i = 0; i < code_lanes(); ++i) few[i] = b.code(e + i);
        return hn::LoadU(CodeTag(), few);
    }
    constexpr int kPowers[] = {1, 3, 9, 27, 81};
    const int n = e < 160 ? e / 32 : (e - 160) / 16;
    const Ints bytes = load_bytes(b.q + (e < 160 ? e % 32 : 32 + e % 16));
    const Ints shifted = hn::And(hn::Mul(bytes, all_ints(kPowers[n])), all_ints(255));
    return hn::Sub(hn::ShiftRight<8>(hn::Mul(shifted, all_ints(3))), all_ints(1));
}
// The values that codes of four bits stand for.
template <class Block>
alignas(64) inline constexpr auto kBlockValues = [] {
    std::array<std::int32_t, 16> values{};
    for (int i = 0; i < 16; ++i) values[static_cast<std::size_t>(i)] = Block::value(i);
    return values;
}();
template <class Block>
HWY_INLINE Ints looked_up(Ints code) {
    return hn::GatherIndex(CodeTag(), kBlockValues<Block>.data(), code);
}
HWY_INLINE Ints codes(const BlockIQ4_NL& b, int, int e) {
    return looked_up<BlockIQ4_NL>(half_of(load_bytes(b.q + e % 16), e >= 16));
}
HWY_INLINE Ints codes(const BlockIQ4_XS& b, int j, int e) {
    return looked_up<BlockIQ4_XS>(half_of(load_bytes(b.q + j * 16 + e % 16), e >= 16));
}
HWY_INLINE Ints codes(const BlockMXFP4& b, int, int e) {
    return looked_up<BlockMXFP4>(half_of(load_bytes(b.q + e % 16), e >= 16));
}

HWY_INLINE Floats all_of_half(std::uint16_t bits) {
    return widen_halves(FloatTag(), hn::Set(hn::Rebind<std::uint16_t, FloatTag>(), bits));
}

// The factors of all parts of a block, as floats.
template <class Block>
struct BlockFactors {
    static constexpr int kParts = Block::kElements / Block::kPerScale;
    float scale[kParts];
    float offset[Block::kHasOffset ? kParts : 1];
};

HWY_INLINE float float_of_half(std::uint16_t bits) {
    return hn::GetLane(all_of_half(bits));
}

template <class Block>
HWY_INLINE void set_packed(const Block& b, BlockFactors<Block>& factors) {
    std::uint32_t low = 0, high = 0, upper = 0;  // four bytes at a time, as PackedScales
    std::memcpy(&low, b.scales.bytes, 4);
    std::memcpy(&high, b.scales.bytes + 4, 4);
    std::memcpy(&upper, b.scales.bytes + 8, 4);
    const std::uint32_t words[] = {low & 0x3f3f3f3f, (upper & 0x0f0f0f0f) | (low >> 2 & 0x30303030),
                                   high & 0x3f3f3f3f, (upper >> 4 & 0x0f0f0f0f) | (high >> 2 & 0x30303030)};
    std::uint8_t bytes[16];
    std::memcpy(bytes, words, sizeof bytes);
    const float d = float_of_half(b.d), m = -float_of_half(b.m);
    for (int j = 0; j < 8; ++j) factors.scale[j] = d * static_cast<float>(bytes[j]);
    for (int j = 0; j < 8; ++j) factors.offset[j] = m * static_cast<float>(bytes[8 + j]);
}
HWY_INLINE void set_factors(const BlockQ4_K& b, BlockFactors<BlockQ4_K>& factors) {
    set_packed(b, factors);
}
HWY_INLINE void set_factors(const BlockQ5_K& b, BlockFactors<BlockQ5_K>& factors) {
    set_packed(b, factors);
}
HWY_INLINE void set_factors(const BlockQ6_K& b, BlockFactors<BlockQ6_K>& factors) {
    const float d = float_of_half(b.d);
    for (int j = 0; j < 16; ++j) factors.scale[j] = d * static_cast<float>(b.scales[j]);
}
HWY_INLINE void set_factors(const BlockQ2_K& b, BlockFactors<BlockQ2_K>& factors) {
    const float d = float_of_half(b.d), m = float_of_half(b.m);
    for (int j = 0; j < 16; ++j) factors.scale[j] = d * static_cast<float>(b.scale(j));
    for (int j = 0; j < 16; ++j) factors.offset[j] = m * static_cast<float>(b.offset(j));
}
template <class Block>
HWY_INLINE void set_scales(const Block& b, BlockFactors<Block>& factors) {
    const float d = float_of_half(b.d);
    for (int j = 0; j < BlockFactors<Block>::kParts; ++j)
        factors.scale[j] = d * static_cast<float>(b.scale(j));
}
HWY_INLINE void set_factors(const BlockQ3_K& b, BlockFactors<BlockQ3_K>& factors) {
    set_scales(b, factors);
}
HWY_INLINE void set_factors(const BlockIQ4_XS& b, BlockFactors<BlockIQ4_XS>& factors) {
    set_scales(b, factors);
}
HWY_INLINE void set_factors(const BlockTQ2_0& b, BlockFactors<BlockTQ2_0>& factors) {
    set_scales(b, factors);
}
HWY_INLINE void set_factors(const BlockTQ1_0& b, BlockFactors<BlockTQ1_0>& factors) {
    set_scales(b, factors);
}
// Blocks of one part have their factors in registers alone.
template <class Block>
HWY_INLINE void set_factors(const Block&, BlockFactors<Block>&) {}

template <class Block>
inline constexpr bool kHasFourBits = Block::kCodes.bits == 4;
// Sixteen lanes hold the values of all codes of four bits: a code then only selects one.
template <class Block>
inline constexpr bool kLooksUp = kHasFourBits<Block>&& HWY_HAVE_SCALABLE == 0 && HWY_MAX_BYTES == 64;

HWY_INLINE Ints nibbles(const BlockQ4_0& b, int, int e) {
    return half_of(load_bytes(b.q + e % 16), e >= 16);
}
HWY_INLINE Ints nibbles(const BlockIQ4_NL& b, int, int e) {
    return half_of(load_bytes(b.q + e % 16), e >= 16);
}
HWY_INLINE Ints nibbles(const BlockIQ4_XS& b, int j, int e) {
    return half_of(load_bytes(b.q + j * 16 + e % 16), e >= 16);
}
HWY_INLINE Ints nibbles(const BlockMXFP4& b, int, int e) {
    return half_of(load_bytes(b.q + e % 16), e >= 16);
}
template <class Block>
HWY_INLINE Ints nibbles(const Block& b, int j, int e) {
    return codes(b, j, e);
}
// The values of the codes 0, 1, ... of a type of four bits.
template <class Block>
HWY_INLINE Floats values_of_codes() {
    if constexpr (Block::kCodes.looks_up)
        return hn::ConvertTo(FloatTag(), hn::LoadU(CodeTag(), kBlockValues<Block>.data()));
    else
        return hn::Iota(FloatTag(), static_cast<float>(-Block::kCodes.zero));
}

// The factors of one part of a block, in registers; or the values of its codes.
template <class Block>
struct Factors {
    Floats scale, offset;
    HWY_INLINE Factors() : scale(hn::Zero(FloatTag())), offset(scale) {}
    HWY_INLINE Factors(const Block& b, const BlockFactors<Block>& of, int j) : Factors() {
        if constexpr (Block::kElements == 32) {
            if constexpr (Block::kType == DType::mxfp4)
                scale = hn::BitCast(FloatTag(),
                                    hn::Set(hn::RebindToUnsigned<FloatTag>(), BlockMXFP4::factor_bits(b.d)));
            else
                scale = all_of_half(b.d);
            if constexpr (Block::kHasOffset) offset = all_of_half(b.m);
        } else {
            scale = hn::Set(FloatTag(), of.scale[j]);
            if constexpr (Block::kHasOffset) offset = hn::Set(FloatTag(), of.offset[j]);
        }
        if constexpr (kLooksUp<Block>) {
            scale = value_of(values_of_codes<Block>());
        }
    }
    HWY_INLINE Floats value_of(Floats code) const {
        if constexpr (Block::kHasOffset) return hn::MulAdd(scale, code, offset);
        return hn::Mul(scale, code);
    }
    HWY_INLINE Floats widened(const Block& b, int j, int e) const {
        if constexpr (kLooksUp<Block>)
            return hn::TableLookupLanes(scale, hn::IndicesFromVec(FloatTag(), nibbles(b, j, e)));
        return value_of(hn::ConvertTo(FloatTag(), codes(b, j, e)));
    }
};

// Multiplies kRows rows with kColumns inputs; n_blocks is the length of a row. Each sum is independent and
// runs over the columns in ascending order. The blocks that `soon` names are prefetched.
template <int kRows, int kColumns, class Block>
HWY_INLINE void multiply_whole_blocks(const Block* w, std::int64_t n_blocks, Ahead soon, const float* x,
                                      std::int64_t x_stride, float* y, std::int64_t y_stride) {
    Floats total[kRows][kColumns];
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(4)
        for (int b = 0; b < kColumns; ++b) total[r][b] = hn::Zero(FloatTag());
    }
    for (std::int64_t i = 0; i < n_blocks; ++i) {
        HWY_UNROLL(4)
        for (int r = 0; r < kRows; ++r) hwy::Prefetch(w + soon.first + r * soon.of_row + i * soon.of_column);
        BlockFactors<Block> of[kRows];
        HWY_UNROLL(4)
        for (int r = 0; r < kRows; ++r) set_factors(w[r * n_blocks + i], of[r]);
        HWY_UNROLL(1)
        for (int j = 0; j < Block::kElements / Block::kPerScale; ++j) {
            Factors<Block> factors[kRows];
            HWY_UNROLL(4)
            for (int r = 0; r < kRows; ++r) factors[r] = Factors<Block>(w[r * n_blocks + i], of[r], j);
            HWY_UNROLL(2)
            for (int e = 0; e < Block::kPerScale; e += code_lanes()) {
                const float* column = x + i * Block::kElements + j * Block::kPerScale + e;
                HWY_UNROLL(4)
                for (int r = 0; r < kRows; ++r) {
                    const Floats weight = factors[r].widened(w[r * n_blocks + i], j, e);
                    HWY_UNROLL(4)
                    for (int b = 0; b < kColumns; ++b)
                        total[r][b] =
                            hn::MulAdd(weight, hn::LoadU(FloatTag(), column + b * x_stride), total[r][b]);
                }
            }
        }
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(4)
        for (int b = 0; b < kColumns; ++b)
            y[b * y_stride + r] = hn::GetLane(hn::SumOfLanes(FloatTag(), total[r][b]));
    }
}

template <class Block>
void multiply_four_rows(const Block* w, std::int64_t n_blocks, Ahead soon, const float* x,
                        std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    int b = 0;
    // Blocks are widened once for four lanes.
    for (; b + 4 <= n_batch; b += 4)
        multiply_whole_blocks<4, 4>(w, n_blocks, soon, x + b * x_stride, x_stride, y + b * y_stride,
                                    y_stride);
    if (b + 2 <= n_batch) {
        multiply_whole_blocks<4, 2>(w, n_blocks, soon, x + b * x_stride, x_stride, y + b * y_stride,
                                    y_stride);
        b += 2;
    }
    if (b < n_batch)
        multiply_whole_blocks<4, 1>(w, n_blocks, soon, x + b * x_stride, x_stride, y + b * y_stride,
                                    y_stride);
}

template <class Block>
void multiply_block_type(const Block* w, std::int64_t n_rows, std::int64_t n_blocks, const float* x,
                         std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    constexpr std::int64_t kRows = 4;
    const BlocksAhead ahead(kRows, n_blocks, 1, sizeof(Block));
    std::int64_t r = 0;
    for (; r + kRows <= n_rows; r += kRows)
        multiply_four_rows(w + r * n_blocks, n_blocks, ahead.after(r, n_rows), x, x_stride, n_batch, y + r,
                           y_stride);
    for (; r < n_rows; ++r)  // three rows at most, so one lane at a time will do
        for (int b = 0; b < n_batch; ++b)
            multiply_whole_blocks<1, 1>(w + r * n_blocks, n_blocks, Ahead{}, x + b * x_stride, x_stride,
                                        y + r + b * y_stride, y_stride);
}

void multiply_blocked(const Weight& w, std::int64_t first_row, std::int64_t last_row, const float* x,
                      std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    with_block(w.dtype, [&]<class Block>(Block) HWY_ATTR {
        const std::int64_t n_blocks = w.cols / Block::kElements;
        multiply_block_type(static_cast<const Block*>(w.data) + first_row * n_blocks, last_row - first_row,
                            n_blocks, x, x_stride, n_batch, y + first_row, y_stride);
    });
}

template <class Block>
void widen_block_type(const Block* blocks, std::int64_t n_blocks, float* out) {
    for (std::int64_t i = 0; i < n_blocks; ++i) {
        BlockFactors<Block> of;
        set_factors(blocks[i], of);
        for (int j = 0; j < Block::kElements / Block::kPerScale; ++j) {
            const Factors<Block> factors(blocks[i], of, j);
            for (int e = 0; e < Block::kPerScale; e += code_lanes(), out += code_lanes())
                hn::StoreU(factors.widened(blocks[i], j, e), FloatTag(), out);
        }
    }
}

void widen_blocked(const Weight& w, std::int64_t first_row, std::int64_t last_row, std::int64_t first,
                   std::int64_t n, float* out) {
    with_block(w.dtype, [&]<class Block>(Block) HWY_ATTR {
        const std::int64_t of_row = w.cols / Block::kElements;
        const Block* blocks = static_cast<const Block*>(w.data) + first / Block::kElements;
        for (std::int64_t r = first_row; r < last_row; ++r, out += n)
            widen_block_type(blocks + r * of_row, n / Block::kElements, out);
    });
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keyhole {

HWY_EXPORT(multiply_blocked);
HWY_EXPORT(widen_blocked);

void multiply_block_rows(const Weight& w, std::int64_t first_row, std::int64_t last_row, const float* x,
                         std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    HWY_DYNAMIC_DISPATCH(multiply_blocked)(w, first_row, last_row, x, x_stride, n_batch, y, y_stride);
}
void widen_block_columns(const Weight& w, std::int64_t first_row, std::int64_t last_row, std::int64_t first,
                         std::int64_t n, float* out) {
    HWY_DYNAMIC_DISPATCH(widen_blocked)(w, first_row, last_row, first, n, out);
}

}  // namespace keyhole
#endif
