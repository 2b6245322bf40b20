#include "engine/model/weight_check.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace keyhole {
namespace {

/// Elements whose exponent is all ones: infinite where nothing is behind it, else NaN. `Bits` need no alignment.
template <class Bits>
void count(const std::byte* data, std::size_t n, Bits exponent, Bits mantissa, NonFinite& found) {
    // In blocks that the compiler turns into SIMD; a look at which of the two it is comes only when there is one.
    constexpr std::size_t kBlock = 4096;
    for (std::size_t begin = 0; begin < n; begin += kBlock) {
        Bits block[kBlock];
        const std::size_t size = std::min(kBlock, n - begin);
        std::memcpy(block, data + begin * sizeof(Bits), size * sizeof(Bits));
        Bits any = 0;
        for (std::size_t i = 0; i < size; ++i)
            any = static_cast<Bits>(any | static_cast<Bits>((block[i] & exponent) == exponent));
        if (any == 0) continue;
        for (std::size_t i = 0; i < size; ++i) {
            if ((block[i] & exponent) != exponent) continue;
            ++found.n;
            found.has_nan = found.has_nan || (block[i] & mantissa) != 0;
        }
    }
    found.n_looked += n;
}

void count(DType dtype, const std::byte* data, std::size_t n, NonFinite& found) {
    switch (dtype) {
        case DType::f32:
            return count<std::uint32_t>(data, n, 0x7f800000u, 0x007fffffu, found);
        case DType::f16:
            return count<std::uint16_t>(data, n, 0x7c00u, 0x03ffu, found);
        case DType::bf16:
            return count<std::uint16_t>(data, n, 0x7f80u, 0x007fu, found);
    }
}

}  // namespace

std::optional<NonFinite> find_non_finite(DType dtype, const void* data, std::size_t n, bool all) {
    constexpr std::size_t kStretches = 8, kStretchBytes = std::size_t{32} << 10;
    const std::size_t stretch = kStretchBytes / dtype_bytes(dtype);
    const auto* bytes = static_cast<const std::byte*>(data);
    NonFinite found;
    if (all || n <= kStretches * stretch) {
        count(dtype, bytes, n, found);
    } else {
        for (std::size_t i = 0; i < kStretches; ++i) {
            const std::size_t at = (n - stretch) * i / (kStretches - 1);
            count(dtype, bytes + at * dtype_bytes(dtype), stretch, found);
        }
    }
    if (found.n == 0) return std::nullopt;
    return found;
}

}  // namespace keyhole
