/// Quantised matrices as products in integers read them: sixteen rows side by side, so that a register holds
/// the same columns of neighbouring rows, with the codes still packed. Made once, const afterwards; any
/// thread. Knows no processor.
///
/// A group of 16 rows is its factors, then its codes. The codes are cells of 16 rows and 32 columns. A cell
/// has eight steps of four columns: in step k, byte 4 r + i belongs to row r and column 4 k + i. The bits of
/// a code lie in planes, from the lowest on:
///     a byte:     512 bytes, step after step
///     four bits:  256 bytes; steps k and k + 4 are the halves of the bytes 64 k to 64 k + 63
///     two bits:   128 bytes; step k is bits 2 (k % 4) and 2 (k % 4) + 1 of the bytes from 64 (k / 4) on
///     one bit:    64 bytes; step k is bit k
/// A block of the file gives one set of factors: d [16], m [16] where there are offsets, and in blocks of 256
/// elements the whole numbers that multiply them, a byte each, [parts of the block, 16].
#pragma once

#include "engine/model/model.h"
#include "engine/model/quantised_blocks.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace keyhole {

inline constexpr int kLaidRows = 16, kCellColumns = 32;

/// How a type's codes are laid: a row of the table. What is stored is never negative, so that it can be the
/// unsigned factor of a product of bytes:
///     Block::code(i) = stored - zero, or values[stored] where there are values
struct CodeLayout {
    DType type;
    int low_bits;               ///< 8, 4, or 0: none
    bool twos, ones;            ///< planes above the low bits
    int zero;                   ///< what a product stores for the code 0
    const std::int8_t* values;  ///< [16] of a type whose codes are looked up; else null
    // With UBSan, GCC does not take the comparison of a weak symbol with null for a constant.
    bool looks_up = false;
};

inline constexpr std::int8_t kIq4Codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::int8_t kFp4Codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline constexpr CodeLayout kCodeLayouts[] = {
    {DType::q8_0, 8, false, false, 128, nullptr},
    {DType::q4_0, 4, false, false, 8, nullptr},
    {DType::q4_1, 4, false, false, 0, nullptr},
    {DType::q5_0, 4, false, true, 16, nullptr},
    {DType::q5_1, 4, false, true, 0, nullptr},
    {DType::q4_k, 4, false, false, 0, nullptr},
    {DType::q5_k, 4, false, true, 0, nullptr},
    {DType::q6_k, 4, true, false, 32, nullptr},
    {DType::q2_k, 0, true, false, 0, nullptr},
    {DType::q3_k, 0, true, true, 4, nullptr},
    {DType::iq4_nl, 4, false, false, 128, kIq4Codes, true},
    {DType::iq4_xs, 4, false, false, 128, kIq4Codes, true},
    {DType::tq1_0, 0, true, false, 1, nullptr},
    {DType::tq2_0, 0, true, false, 1, nullptr},
    {DType::mxfp4, 4, false, false, 12, kFp4Codes, true},
};

constexpr CodeLayout code_layout(DType type) {
    for (const CodeLayout& row : kCodeLayouts)
        if (row.type == type) return row;
    return {};
}

/// Sizes that follow from a block type.
template <class Block>
struct Laid {
    static constexpr CodeLayout kCodes = code_layout(Block::kType);
    static_assert(kCodes.type == Block::kType, "the type has no row in kCodeLayouts");
    static constexpr int kCells = Block::kElements / kCellColumns;  ///< of a block
    /// A cell's parts, each with a sum of its own.
    static constexpr int kParts = Block::kPerScale < kCellColumns ? kCellColumns / Block::kPerScale : 1;
    static constexpr bool kHasExponent = Block::kType == DType::mxfp4;
    static constexpr bool kHasSteps = Block::kElements > 32 && Block::kPerScale < Block::kElements;
    static constexpr int kFactorBytes = kHasExponent ? kLaidRows : 2 * kLaidRows;  ///< of d, or of m
    static constexpr int kStepBytes = kHasSteps ? kCells * kParts * kLaidRows : 0;
    static constexpr int kHeadBytes = (kFactorBytes + kStepBytes) * (Block::kHasOffset ? 2 : 1);
    static constexpr int kLowBytes = kCodes.low_bits * 64;
    static constexpr int kTwosBytes = kCodes.twos ? 128 : 0;
    static constexpr int kCellBytes = kLowBytes + kTwosBytes + (kCodes.ones ? 64 : 0);
    // Offsets within a block's factors: d, m, steps of d, steps of m.
    static constexpr int kOffsetAt = kFactorBytes;
    static constexpr int kStepsAt = kFactorBytes * (Block::kHasOffset ? 2 : 1);
    static constexpr int kOffsetStepsAt = kStepsAt + kStepBytes;

    static constexpr std::int64_t factors_bytes(std::int64_t cols) {
        return (cols / Block::kElements * kHeadBytes + 63) / 64 * 64;
    }
    static constexpr std::int64_t group_bytes(std::int64_t cols) {
        return factors_bytes(cols) + cols / kCellColumns * kCellBytes;
    }
};

/// A matrix that is laid; rows beyond the last of a whole group are zero.
struct LaidMatrix {
    DType dtype = DType::q8_0;
    const std::byte* data = nullptr;  ///< begins at a multiple of 64 bytes
    std::int64_t rows = 0, cols = 0;
    std::int64_t n_groups() const { return (rows + kLaidRows - 1) / kLaidRows; }
};

/// Returns whether products with this weight can be computed in integers.
bool can_be_laid(const Weight& weight);
/// Returns the bytes that a weight has when laid.
std::int64_t laid_bytes(const Weight& weight);
/// Writes groups [first, last) of a weight to data, where the whole matrix lies.
void lay_groups(const Weight& weight, std::int64_t first, std::int64_t last, std::byte* data);

}  // namespace keyhole
