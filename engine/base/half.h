/// Conversions between float and the two 16-bit types, rounding to nearest even. Any thread. Host only:
/// kernels convert in registers themselves.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace keyhole {

inline float float_from_bf16(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t bf16_from_float(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // NaN stays NaN
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float float_from_fp16(std::uint16_t bits);
/// Values beyond 65504 become infinity.
std::uint16_t fp16_from_float(float value);

/// Converts a whole row with vector instructions. out.size() >= values.size().
void fp16_from_floats(std::span<const float> values, std::span<std::uint16_t> out);

}  // namespace keyhole
