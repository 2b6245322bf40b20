/// The blocks in which GGUF files store quantised matrices. Each block holds kElements neighbours of a row;
/// kPerScale of them share a scale and, in some types, an offset:
///     value(i) = scale(i / kPerScale) * code(i) + offset(i / kPerScale)
/// The product is exact in float, so that the value is rounded once whether or not the sum is fused with it.
/// Layouts: ggml's block_q4_0 and so on. Host and device; any thread. Knows no file.
#pragma once

#include "engine/base/host_device.h"
#include "engine/model/dtype.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace keyhole {

// In every block, scale(j) and offset(j) are the whole numbers that multiply `d` and `m`, which are fp16. The
// caller converts those two, since host and device do so differently. In MXFP4, d is an exponent.

/// How products in integers store the codes of a type. What is stored is never negative, so that it can be
/// the unsigned factor of a product of bytes:
///     Block::code(i) = stored - zero, or Block::value(stored) of a type whose codes are looked up
struct CodeLayout {
    int bits;  ///< of what is stored: 2 to 6, or 8
    int zero;  ///< what a product stores for the code 0
    bool looks_up = false;
};

struct BlockQ8_0 {
    static constexpr DType kType = DType::q8_0;
    static constexpr CodeLayout kCodes = {8, 128};
    static constexpr int kElements = 32, kPerScale = 32;
    static constexpr bool kHasOffset = false;
    std::uint16_t d;
    std::int8_t q[32];
    KH_FN int code(int i) const { return q[i]; }
    KH_FN int scale(int) const { return 1; }
};

struct BlockQ4_0 {
    static constexpr DType kType = DType::q4_0;
    static constexpr CodeLayout kCodes = {4, 8};
    static constexpr int kElements = 32, kPerScale = 32;
    static constexpr bool kHasOffset = false;
    std::uint16_t d;
    std::uint8_t q[16];  ///< element i in the low half of byte i, element i + 16 in the high half
    KH_FN int code(int i) const { return (q[i % 16] >> (i / 16 * 4) & 15) - 8; }
    KH_FN int scale(int) const { return 1; }
};

struct BlockQ4_1 {
    static constexpr DType kType = DType::q4_1;
    static constexpr CodeLayout kCodes = {4, 0};
    static constexpr int kElements = 32, kPerScale = 32;
    static constexpr bool kHasOffset = true;
    std::uint16_t d, m;
    std::uint8_t q[16];  ///< as BlockQ4_0
    KH_FN int code(int i) const { return q[i % 16] >> (i / 16 * 4) & 15; }
    KH_FN int scale(int) const { return 1; }
    KH_FN int offset(int) const { return 1; }
};

struct BlockQ5_0 {
    static constexpr DType kType = DType::q5_0;
    static constexpr CodeLayout kCodes = {5, 16};
    static constexpr int kElements = 32, kPerScale = 32;
    static constexpr bool kHasOffset = false;
    std::uint16_t d;
    std::uint8_t high[4];  ///< bit i: the fifth bit of element i
    std::uint8_t q[16];    ///< as BlockQ4_0
    KH_FN int code(int i) const {
        return ((q[i % 16] >> (i / 16 * 4) & 15) | (high[i / 8] >> (i % 8) & 1) << 4) - 16;
    }
    KH_FN int scale(int) const { return 1; }
};

struct BlockQ5_1 {
    static constexpr DType kType = DType::q5_1;
    static constexpr CodeLayout kCodes = {5, 0};
    static constexpr int kElements = 32, kPerScale = 32;
    static constexpr bool kHasOffset = true;
    std::uint16_t d, m;
    std::uint8_t high[4];  ///< as BlockQ5_0
    std::uint8_t q[16];    ///< as BlockQ4_0
    KH_FN int code(int i) const {
        return (q[i % 16] >> (i / 16 * 4) & 15) | (high[i / 8] >> (i % 8) & 1) << 4;
    }
    KH_FN int scale(int) const { return 1; }
    KH_FN int offset(int) const { return 1; }
};

/// The 6-bit scales and offsets of the eight parts of a Q4_K or Q5_K block. Bytes 0 to 3 and 4 to 7 hold
/// those of parts 0 to 3, with the upper bits of parts 4 to 7 above them; bytes 8 to 11 hold the lower bits
/// of parts 4 to 7.
struct PackedScales {
    std::uint8_t bytes[12];
    KH_FN int scale(int j) const {
        return j < 4 ? bytes[j] & 63 : (bytes[j + 4] & 15) | (bytes[j - 4] >> 6) << 4;
    }
    KH_FN int offset(int j) const {
        return j < 4 ? bytes[j + 4] & 63 : bytes[j + 4] >> 4 | (bytes[j] >> 6) << 4;
    }
};

struct BlockQ4_K {
    static constexpr DType kType = DType::q4_k;
    static constexpr CodeLayout kCodes = {4, 0};
    static constexpr int kElements = 256, kPerScale = 32;
    static constexpr bool kHasOffset = true;
    std::uint16_t d, m;
    PackedScales scales;
    std::uint8_t q[128];  ///< parts 2 j and 2 j + 1 in the low and high halves of bytes 32 j to 32 j + 31
    KH_FN int code(int i) const { return q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15; }
    KH_FN int scale(int j) const { return scales.scale(j); }
    KH_FN int offset(int j) const { return -scales.offset(j); }
};

struct BlockQ5_K {
    static constexpr DType kType = DType::q5_k;
    static constexpr CodeLayout kCodes = {5, 0};
    static constexpr int kElements = 256, kPerScale = 32;
    static constexpr bool kHasOffset = true;
    std::uint16_t d, m;
    PackedScales scales;
    std::uint8_t high[32];  ///< bit j of byte i: the fifth bit of element i of part j
    std::uint8_t q[128];    ///< as BlockQ4_K
    KH_FN int code(int i) const {
        return (q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15) | (high[i % 32] >> (i / 32) & 1) << 4;
    }
    KH_FN int scale(int j) const { return scales.scale(j); }
    KH_FN int offset(int j) const { return -scales.offset(j); }
};

struct BlockQ6_K {
    static constexpr DType kType = DType::q6_k;
    static constexpr CodeLayout kCodes = {6, 32};
    static constexpr int kElements = 256, kPerScale = 16;
    static constexpr bool kHasOffset = false;
    /// Each half of 128 elements has 64 bytes: bytes 0 to 63 hold elements 0 to 63 in their low halves and
    /// elements 64 to 127 in their high ones.
    std::uint8_t q[128];
    std::uint8_t high[64];  ///< each half has 32 bytes: bits 2 k and 2 k + 1 belong to elements 32 k + i
    std::int8_t scales[16];
    std::uint16_t d;
    KH_FN int code(int i) const {
        const int half = i / 128, in_half = i % 128;
        const int low = q[half * 64 + in_half % 64] >> (in_half / 64 * 4) & 15;
        return (low | (high[half * 32 + in_half % 32] >> (in_half / 32 * 2) & 3) << 4) - 32;
    }
    KH_FN int scale(int j) const { return scales[j]; }
};

/// Elements with two bits in q: bits 2 k and 2 k + 1 of the 32 bytes of each half of 128 elements belong to
/// elements 32 k + i.
KH_FN int two_bits(const std::uint8_t* q, int i) {
    return q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

struct BlockQ2_K {
    static constexpr DType kType = DType::q2_k;
    static constexpr CodeLayout kCodes = {2, 0};
    static constexpr int kElements = 256, kPerScale = 16;
    static constexpr bool kHasOffset = true;
    std::uint8_t scales[16];  ///< the scale in the low half, the offset in the high one
    std::uint8_t q[64];       ///< two_bits()
    std::uint16_t d, m;
    KH_FN int code(int i) const { return two_bits(q, i); }
    KH_FN int scale(int j) const { return scales[j] & 15; }
    KH_FN int offset(int j) const { return -(scales[j] >> 4); }
};

struct BlockQ3_K {
    static constexpr DType kType = DType::q3_k;
    static constexpr CodeLayout kCodes = {3, 4};
    static constexpr int kElements = 256, kPerScale = 16;
    static constexpr bool kHasOffset = false;
    std::uint8_t high[32];    ///< bit j of byte i: the third bit of element 32 j + i
    std::uint8_t q[64];       ///< two_bits()
    std::uint8_t scales[12];  ///< 16 of six bits: four in bytes 0 to 7, two in bytes 8 to 11
    std::uint16_t d;
    KH_FN int code(int i) const { return (two_bits(q, i) | (high[i % 32] >> (i / 32) & 1) << 2) - 4; }
    KH_FN int scale(int j) const {
        return ((scales[j % 8] >> (j / 8 * 4) & 15) | (scales[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
    }
};

/// The values of the codes of IQ4: no equal steps.
KH_FN constexpr int iq4_value(int code) {
    constexpr std::int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
    return kValues[code];
}
/// Twice the values of a number of four bits: sign, two bits of exponent, one of fraction.
KH_FN constexpr int fp4_value(int code) {
    constexpr std::int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return kValues[code];
}

struct BlockIQ4_NL {
    static constexpr DType kType = DType::iq4_nl;
    static constexpr CodeLayout kCodes = {4, 128, true};
    static constexpr int kElements = 32, kPerScale = 32;
    static constexpr bool kHasOffset = false;
    std::uint16_t d;
    std::uint8_t q[16];  ///< as BlockQ4_0
    KH_FN static constexpr int value(int stored) { return iq4_value(stored); }
    KH_FN int code(int i) const { return value(q[i % 16] >> (i / 16 * 4) & 15); }
    KH_FN int scale(int) const { return 1; }
};

struct BlockIQ4_XS {
    static constexpr DType kType = DType::iq4_xs;
    static constexpr CodeLayout kCodes = {4, 128, true};
    static constexpr int kElements = 256, kPerScale = 32;
    static constexpr bool kHasOffset = false;
    std::uint16_t d;
    std::uint16_t high;   ///< bits 2 j and 2 j + 1: the upper bits of the scale of part j
    std::uint8_t low[4];  ///< the lower four bits, part 2 j in the low half of byte j
    std::uint8_t q[128];  ///< 16 bytes a part, as BlockQ4_0
    KH_FN static constexpr int value(int stored) { return iq4_value(stored); }
    KH_FN int code(int i) const { return value(q[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15); }
    KH_FN int scale(int j) const {
        return ((low[j / 2] >> (j % 2 * 4) & 15) | (high >> 2 * j & 3) << 4) - 32;
    }
};

struct BlockMXFP4 {
    static constexpr DType kType = DType::mxfp4;
    static constexpr CodeLayout kCodes = {4, 12, true};
    static constexpr int kElements = 32, kPerScale = 32;
    static constexpr bool kHasOffset = false;
    std::uint8_t d;      ///< the factor is 2^(d - 128), half of E8M0's since codes are twice their values
    std::uint8_t q[16];  ///< as BlockQ4_0
    KH_FN static constexpr int value(int stored) { return fp4_value(stored); }
    KH_FN int code(int i) const { return value(q[i % 16] >> (i / 16 * 4) & 15); }
    KH_FN int scale(int) const { return 1; }
    /// The bits of the factor as a float. The two smallest are subnormal.
    KH_FN static std::uint32_t factor_bits(std::uint8_t d) {
        return d < 2 ? 0x00200000u << d : static_cast<std::uint32_t>(d - 1) << 23;
    }
};

struct BlockTQ2_0 {
    static constexpr DType kType = DType::tq2_0;
    static constexpr CodeLayout kCodes = {2, 1};
    static constexpr int kElements = 256, kPerScale = 256;
    static constexpr bool kHasOffset = false;
    std::uint8_t q[64];  ///< two_bits()
    std::uint16_t d;
    KH_FN int code(int i) const { return two_bits(q, i) - 1; }
    KH_FN int scale(int) const { return 1; }
};

/// Codes of three values, five a byte: a byte holds ceil(t 256 / 243) of a number t of five digits to base 3.
struct BlockTQ1_0 {
    static constexpr DType kType = DType::tq1_0;
    static constexpr CodeLayout kCodes = {2, 1};
    static constexpr int kElements = 256, kPerScale = 256;
    static constexpr bool kHasOffset = false;
    std::uint8_t q[48];    ///< elements 0 to 159, the digits of 32 bytes; 160 to 239, those of 16
    std::uint8_t high[4];  ///< elements 240 to 255, four digits each
    std::uint16_t d;
    /// Returns digit n of a byte, the first digit being the highest.
    KH_FN static int digit(int byte, int n) {
        const int power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
        return (byte * power & 255) * 3 >> 8;
    }
    KH_FN int code(int i) const {
        if (i < 160) return digit(q[i % 32], i / 32) - 1;
        if (i < 240) return digit(q[32 + i % 16], (i - 160) / 16) - 1;
        return digit(high[i % 4], (i - 240) / 4) - 1;
    }
    KH_FN int scale(int) const { return 1; }
};

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 &&
              sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24 && sizeof(BlockQ4_K) == 144 &&
              sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockQ2_K) == 84 &&
              sizeof(BlockQ3_K) == 110 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136 &&
              sizeof(BlockMXFP4) == 17 && sizeof(BlockTQ2_0) == 66 && sizeof(BlockTQ1_0) == 54);

/// Every quantised type: DType, block, number and name in GGUF files. All code that asks for a type by number
/// or name, or for its block, reads this list. A type of DType that is missing here does not compile.
#define KH_BLOCK_TYPES(X)                \
    X(q4_0, BlockQ4_0, 2, "Q4_0")        \
    X(q4_1, BlockQ4_1, 3, "Q4_1")        \
    X(q5_0, BlockQ5_0, 6, "Q5_0")        \
    X(q5_1, BlockQ5_1, 7, "Q5_1")        \
    X(q8_0, BlockQ8_0, 8, "Q8_0")        \
    X(q2_k, BlockQ2_K, 10, "Q2_K")       \
    X(q3_k, BlockQ3_K, 11, "Q3_K")       \
    X(q4_k, BlockQ4_K, 12, "Q4_K")       \
    X(q5_k, BlockQ5_K, 13, "Q5_K")       \
    X(q6_k, BlockQ6_K, 14, "Q6_K")       \
    X(iq4_nl, BlockIQ4_NL, 20, "IQ4_NL") \
    X(iq4_xs, BlockIQ4_XS, 23, "IQ4_XS") \
    X(tq1_0, BlockTQ1_0, 34, "TQ1_0")    \
    X(tq2_0, BlockTQ2_0, 35, "TQ2_0")    \
    X(mxfp4, BlockMXFP4, 39, "MXFP4")

/// The labels of all quantised types, for a switch over DType without default.
#define KH_BLOCK_LABEL(type, Block, number, name) case DType::type:
#define KH_BLOCK_LABELS KH_BLOCK_TYPES(KH_BLOCK_LABEL)

/// Calls visit(Block{}) with a block of the quantised type. Ends the program if the type is a plain one.
template <class Visit>
constexpr decltype(auto) with_block(DType dtype, Visit visit) {
    switch (dtype) {
#define KH_VISIT(type, Block, number, name) \
    case DType::type:                       \
        return visit(Block());
        KH_BLOCK_TYPES(KH_VISIT)
#undef KH_VISIT
        case DType::f32:
        case DType::f16:
        case DType::bf16:
            break;
    }
    std::abort();
}

/// Writes n elements of any type as float to out [n]; data begins at a block, n is a whole number of blocks
/// (asserted). One element at a time, for loading and as a reference; kernels have their own.
void widen_stored(DType dtype, const void* data, std::int64_t n, float* out);

}  // namespace keyhole
