/// Random weights as functions of their place, so that host and device compute the same bits in any order.
/// Pure functions; any thread.
#pragma once

#include "engine/base/host_device.h"
#include "engine/base/philox.h"

#include <cstdint>

namespace keyhole {

/// Identifies a weight of a model.
struct SeededWeight {
    std::uint64_t seed = 0;
    std::uint32_t index = 0;  ///< index of the weight in the model
    float spread = 0;         ///< values are uniform in (-spread / 2, spread / 2)
};

inline constexpr int kSeededPack = 8;  ///< neighbouring values that one draw gives

/// Computes values [8 * pack, 8 * pack + 8) of a weight. Each takes 16 bits of the draw for counter (pack,
/// index, 1).
KH_FN void seeded_values(const SeededWeight& weight, std::int64_t pack, float* values) {
    const auto i = static_cast<std::uint64_t>(pack);
    const PhiloxCounter drawn = philox4x32_10(
        {{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), weight.index, 1}}, weight.seed);
    for (int j = 0; j < kSeededPack; ++j) {
        const std::uint32_t bits = drawn.x[j / 2] >> (16 * (j % 2)) & 0xffffu;
        const float uniform = mul(add(static_cast<float>(bits), 0.5f), 1.0f / 65536.0f);
        values[j] = mul(weight.spread, add(uniform, -0.5f));
    }
}

}  // namespace keyhole
