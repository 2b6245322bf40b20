/// Philox4x32-10 (Salmon et al., SC'11), a counter-based generator: the same counter and key give the same
/// four words on every machine, thread and device, in any order. Host and device.
#pragma once

#include "engine/base/host_device.h"

#include <cstdint>

namespace keyhole {

struct PhiloxCounter {
    std::uint32_t x[4];
};

/// counter: identifies the draw; key: the seed. Returns four independent uniform 32-bit words.
KH_FN PhiloxCounter philox4x32_10(PhiloxCounter counter, std::uint64_t key) {
    constexpr std::uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
    constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
    std::uint32_t key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product0 = static_cast<std::uint64_t>(kMul0) * counter.x[0];
        const std::uint64_t product1 = static_cast<std::uint64_t>(kMul1) * counter.x[2];
        counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.x[1] ^ key0,
                    static_cast<std::uint32_t>(product1),
                    static_cast<std::uint32_t>(product0 >> 32) ^ counter.x[3] ^ key1,
                    static_cast<std::uint32_t>(product0)}};
        key0 += kWeyl0;
        key1 += kWeyl1;
    }
    return counter;
}

/// Uniform in the open interval (0, 1): 23 bits, centred, so that every value is exact in float.
KH_FN float uniform_from_bits(std::uint32_t bits) {
    return (static_cast<float>(bits >> 9) + 0.5f) * (1.0f / 8388608.0f);
}

}  // namespace keyhole
