#include "engine/model/weight_check.h"

#include "engine/base/index.h"
#include "engine/model/quantised_blocks.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

namespace keyhole {
namespace {

/// Counts elements whose exponent is all ones: infinite with a zero mantissa, else NaN. Read as an integer
/// without its sign, such an element is at least `infinity`. The elements need no alignment.
template <class Bits>
void count(const std::byte* data, std::size_t n, Bits infinity, NonFinite& found) {
    // Compilers vectorise the maximum over a block of fixed length.
    constexpr std::size_t kBlock = 4096;
    constexpr Bits kNoSign = std::numeric_limits<Bits>::max();
    Bits block[kBlock];
    for (std::size_t begin = 0; begin < n; begin += kBlock) {
        const std::size_t size = std::min(kBlock, n - begin);
        if (size < kBlock) std::fill(std::begin(block), std::end(block), Bits{0});
        std::memcpy(block, data + begin * sizeof(Bits), size * sizeof(Bits));
        Bits largest = 0;
        for (std::size_t i = 0; i < kBlock; ++i) {
            const Bits magnitude = static_cast<Bits>(block[i] & kNoSign);
            largest = magnitude > largest ? magnitude : largest;
        }
        if (largest < infinity) continue;
        for (const Bits bits : block) {
            const Bits magnitude = static_cast<Bits>(bits & kNoSign);
            found.n += magnitude >= infinity ? 1 : 0;
            found.has_nan = found.has_nan || magnitude > infinity;
        }
    }
    found.n_looked += n;
}

/// Counts the elements of blocks whose factors are not finite: codes are whole numbers.
template <class Block>
void count_blocks(const Block* blocks, std::size_t n_blocks, NonFinite& found) {
    found.n_looked += n_blocks * Block::kElements;
    if constexpr (Block::kType == DType::mxfp4) return;  // its factors are finite
    constexpr int kInfinity = 0x7c00, kNoSign = 0x7fff;
    for (std::size_t i = 0; i < n_blocks; ++i) {
        int largest = blocks[i].d & kNoSign;
        if constexpr (Block::kHasOffset) largest = std::max(largest, blocks[i].m & kNoSign);
        if (largest >= kInfinity) found.n += Block::kElements;
        found.has_nan = found.has_nan || largest > kInfinity;
    }
}

void count(DType dtype, const std::byte* data, std::size_t n, NonFinite& found) {
    switch (dtype) {
        case DType::f32:
            return count<std::int32_t>(data, n, 0x7f800000, found);
        case DType::f16:
            return count<std::int16_t>(data, n, 0x7c00, found);
        case DType::bf16:
            return count<std::int16_t>(data, n, 0x7f80, found);
            KH_BLOCK_LABELS
            return with_block(dtype, [&]<class Block>(Block) {
                count_blocks(reinterpret_cast<const Block*>(data), n / Block::kElements, found);
            });
    }
}

}  // namespace

std::optional<NonFinite> find_non_finite(DType dtype, const void* data, std::size_t n, bool all) {
    constexpr std::size_t kStretches = 8, kStretchBytes = std::size_t{32} << 10;
    const std::size_t block = to_index(block_elements(dtype)), size = block_bytes(dtype),
                      stretch = kStretchBytes / size * block;
    const auto* bytes = static_cast<const std::byte*>(data);
    NonFinite found;
    if (all || n <= kStretches * stretch) {
        count(dtype, bytes, n, found);
    } else {
        for (std::size_t i = 0; i < kStretches; ++i) {
            const std::size_t at = (n - stretch) / block * i / (kStretches - 1);  // in blocks
            count(dtype, bytes + at * size, stretch, found);
        }
    }
    if (found.n == 0) return std::nullopt;
    return found;
}

}  // namespace keyhole
