#include "engine/backend/common/laid_matrix.h"

#include "engine/base/error.h"

#include <hwy/base.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace keyhole {
namespace {

/// Returns what is stored for each code from -128 to 127 of a type whose codes are looked up.
constexpr std::array<std::uint8_t, 256> stored_codes(const std::array<std::int8_t, 16>& values) {
    std::array<std::uint8_t, 256> stored{};
    for (int i = 15; i >= 0; --i)
        stored[static_cast<std::size_t>(values[static_cast<std::size_t>(i)] + 128)] =
            static_cast<std::uint8_t>(i);
    return stored;
}

/// Returns what is stored for element i of a block.
template <class Block>
std::uint8_t stored_code(const Block& block, int i) {
    if constexpr (Block::kCodes.looks_up) {
        static constexpr std::array<std::uint8_t, 256> kStored = stored_codes(kCodeValues<Block>);
        return kStored[static_cast<std::size_t>(block.code(i) + 128)];
    } else {
        return static_cast<std::uint8_t>(block.code(i) + Block::kCodes.zero);
    }
}

/// Packs one row's 32 stored codes of a cell, four columns at a time.
template <class Block>
void lay_codes(const std::uint8_t* codes, int row, std::uint8_t* cell) {
    using L = Laid<Block>;
    constexpr int kLow = L::kLowBits, kOnesFrom = kLow + (L::kHasTwos ? 2 : 0);
    const auto add = [&](int at, std::uint32_t bits) {
        std::uint32_t word = 0;
        std::memcpy(&word, cell + at + 4 * row, sizeof word);
        word |= bits;
        std::memcpy(cell + at + 4 * row, &word, sizeof word);
    };
    for (int k = 0; k < 8; ++k) {
        std::uint32_t four = 0;
        std::memcpy(&four, codes + 4 * k, sizeof four);
        if constexpr (kLow == 8) add(64 * k, four);
        if constexpr (kLow == 4) add(64 * (k % 4), (four & 0x0f0f0f0fu) << (k / 4 * 4));
        if constexpr (L::kHasTwos)
            add(L::kLowBytes + 64 * (k / 4), (four >> kLow & 0x03030303u) << (k % 4 * 2));
        if constexpr (L::kHasOnes) add(L::kLowBytes + L::kTwosBytes, (four >> kOnesFrom & 0x01010101u) << k);
    }
}

/// Writes the factors of one row's block.
template <class Block>
void lay_factors(const Block& block, int row, std::byte* head) {
    using L = Laid<Block>;
    if constexpr (L::kHasExponent)
        head[row] = static_cast<std::byte>(block.d);
    else
        std::memcpy(head + 2 * row, &block.d, 2);
    if constexpr (Block::kHasOffset) std::memcpy(head + L::kOffsetAt + 2 * row, &block.m, 2);
    if constexpr (L::kHasSteps)
        for (int j = 0; j < L::kCells * L::kParts; ++j) {
            head[L::kStepsAt + j * kLaidRows + row] = static_cast<std::byte>(block.scale(j));
            if constexpr (Block::kHasOffset)
                head[L::kOffsetStepsAt + j * kLaidRows + row] = static_cast<std::byte>(block.offset(j));
        }
}

template <int kCell, class Block>
void lay_cell(const Block& block, int row, std::uint8_t* cells) {
    std::uint8_t codes[kCellColumns];
    HWY_UNROLL(32)
    for (int i = 0; i < kCellColumns; ++i) codes[i] = stored_code(block, kCell * kCellColumns + i);
    lay_codes<Block>(codes, row, cells + kCell * Laid<Block>::kCellBytes);
}

template <class Block>
void lay_group(const Block* rows, int n_rows, std::int64_t cols, std::byte* group) {
    using L = Laid<Block>;
    const std::int64_t n_blocks = cols / Block::kElements;
    std::memset(group, 0, static_cast<std::size_t>(L::group_bytes(cols)));
    auto* const cells = reinterpret_cast<std::uint8_t*>(group + L::factors_bytes(cols));
    for (int r = 0; r < n_rows; ++r)
        for (std::int64_t b = 0; b < n_blocks; ++b) {
            const Block& block = rows[r * n_blocks + b];
            lay_factors(block, r, group + b * L::kHeadBytes);
            // A cell's number is a constant, so that few instructions find a code's bits.
            [&]<int... c>(std::integer_sequence<int, c...>) {
                (lay_cell<c>(block, r, cells + b * L::kCells * L::kCellBytes), ...);
            }
            (std::make_integer_sequence<int, L::kCells>());
        }
}

}  // namespace

bool can_be_laid(const Weight& weight) {
    return weight.data != nullptr && is_quantised(weight.dtype) &&
           weight.cols % block_elements(weight.dtype) == 0;
}

std::int64_t laid_bytes(const Weight& weight) {
    const std::int64_t n_groups = (weight.rows + kLaidRows - 1) / kLaidRows;
    return with_block(weight.dtype,
                      [&]<class Block>(Block) { return n_groups * Laid<Block>::group_bytes(weight.cols); });
}

void lay_groups(const Weight& weight, std::int64_t first, std::int64_t last, std::byte* data) {
    KH_ASSERT(can_be_laid(weight), "dtype={}", dtype_name(weight.dtype));
    with_block(weight.dtype, [&]<class Block>(Block) {
        const auto* blocks = static_cast<const Block*>(weight.data);
        for (std::int64_t g = first; g < last; ++g)
            lay_group(blocks + g * kLaidRows * (weight.cols / Block::kElements),
                      static_cast<int>(std::min<std::int64_t>(kLaidRows, weight.rows - g * kLaidRows)),
                      weight.cols, data + g * Laid<Block>::group_bytes(weight.cols));
    });
}

}  // namespace keyhole
