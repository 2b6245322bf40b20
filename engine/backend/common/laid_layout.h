/// How quantised matrices are laid for products in integers: sixteen rows side by side, with the codes still
/// packed. Constants; host and device. Knows no matrix.
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

#include "engine/base/host_device.h"
#include "engine/model/quantised_blocks.h"

#include <cstdint>

namespace keyhole {

inline constexpr int kLaidRows = 16, kCellColumns = 32;

/// The largest number of an input that products in integers narrow: 127 * 65536, three signed bytes.
inline constexpr float kMostNarrow = 8323072;
/// Where all numbers of 32 neighbours are below it, they count as zeros.
inline constexpr float kLeastInput = 1e-30f;

/// Sizes that follow from a block type.
template <class Block>
struct Laid {
    static constexpr CodeLayout kCodes = Block::kCodes;
    static constexpr int kLowBits = kCodes.bits == 8 ? 8 : kCodes.bits >= 4 ? 4 : 0;
    static constexpr bool kHasTwos = (kCodes.bits - kLowBits & 2) != 0;  ///< planes above the low bits
    static constexpr bool kHasOnes = (kCodes.bits - kLowBits & 1) != 0;
    static constexpr int kCells = Block::kElements / kCellColumns;  ///< of a block
    /// A cell's parts, each with a sum of its own.
    static constexpr int kParts = Block::kPerScale < kCellColumns ? kCellColumns / Block::kPerScale : 1;
    static constexpr bool kHasExponent = Block::kType == DType::mxfp4;
    static constexpr bool kHasSteps = Block::kElements > 32 && Block::kPerScale < Block::kElements;
    static constexpr int kFactorBytes = kHasExponent ? kLaidRows : 2 * kLaidRows;  ///< of d, or of m
    static constexpr int kStepBytes = kHasSteps ? kCells * kParts * kLaidRows : 0;
    static constexpr int kHeadBytes = (kFactorBytes + kStepBytes) * (Block::kHasOffset ? 2 : 1);
    static constexpr int kLowBytes = kLowBits * 64;
    static constexpr int kTwosBytes = kHasTwos ? 128 : 0;
    static constexpr int kCellBytes = kLowBytes + kTwosBytes + (kHasOnes ? 64 : 0);
    // Offsets within a block's factors: d, m, steps of d, steps of m.
    static constexpr int kOffsetAt = kFactorBytes;
    static constexpr int kStepsAt = kFactorBytes * (Block::kHasOffset ? 2 : 1);
    static constexpr int kOffsetStepsAt = kStepsAt + kStepBytes;

    KH_FN static constexpr std::int64_t factors_bytes(std::int64_t cols) {
        return (cols / Block::kElements * kHeadBytes + 63) / 64 * 64;
    }
    KH_FN static constexpr std::int64_t group_bytes(std::int64_t cols) {
        return factors_bytes(cols) + cols / kCellColumns * kCellBytes;
    }
};

}  // namespace keyhole
