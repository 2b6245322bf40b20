/// Functions of formulas and the quantities that they name, pure, for host and device, with the same bits:
/// sums, products, quotients and roots round as IEEE 754 says, and nothing is contracted. exp and log are
/// polynomials, since the libraries of host and device round theirs in other ways. Any thread.
#pragma once

#include "engine/base/host_device.h"
#include "engine/base/philox.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace keyhole {

KH_FN float formula_min(float a, float b) {
    return a != a || b != b ? a + b : b < a ? b : a;  // NaN if either is
}
KH_FN float formula_max(float a, float b) {
    return a != a || b != b ? a + b : b > a ? b : a;
}
KH_FN float lowest_if_nan(float x) {
    return x == x ? x : -INFINITY;
}

/// Returns 2^e for -126 <= e <= 127.
KH_FN float power_of_two(int e) {
    const std::uint32_t bits = static_cast<std::uint32_t>(e + 127) << 23;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/// Returns e^x to within 2 units of the last place; 0 below -87, infinity above 88.
KH_FN float formula_exp(float x) {
    if (x != x) return x;
    if (x > 88.0f) return INFINITY;
    if (x < -87.0f) return 0.0f;
    // x = k ln 2 + r, with ln 2 in two parts so that r keeps its bits.
    const float k = floorf(add(mul(x, 1.44269504f), 0.5f));
    const float r = add(add(x, -mul(k, 0.693359375f)), mul(k, 2.12194440e-4f));
    float p = 1.0f / 5040.0f;
    p = add(mul(p, r), 1.0f / 720.0f);
    p = add(mul(p, r), 1.0f / 120.0f);
    p = add(mul(p, r), 1.0f / 24.0f);
    p = add(mul(p, r), 1.0f / 6.0f);
    p = add(mul(p, r), 0.5f);
    p = add(mul(p, r), 1.0f);
    p = add(mul(p, r), 1.0f);
    return mul(p, power_of_two(static_cast<int>(k)));
}

/// Returns ln x to within 2 units of the last place, or 1e-7 near 1; -infinity at 0, NaN below.
KH_FN float formula_log(float x) {
    if (x != x || x < 0) return NAN;
    if (x == 0) return -INFINITY;
    if (x == INFINITY) return x;
    int e = 0;
    if (x < 1.17549435e-38f) {
        x = mul(x, 16777216.0f);
        e = -24;
    }
    std::uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    e += static_cast<int>(bits >> 23) - 127;
    bits = (bits & 0x007fffffu) | 0x3f800000u;
    float m;  // 1 <= m < 2, then about sqrt(1/2) to sqrt(2)
    memcpy(&m, &bits, sizeof(m));
    if (m > 1.41421354f) {
        m = mul(m, 0.5f);
        ++e;
    }
    // ln m = 2 (z + z^3 / 3 + z^5 / 5 + ...) with z = (m - 1) / (m + 1)
    const float z = add(m, -1.0f) / add(m, 1.0f), q = mul(z, z);
    float p = 2.0f / 11.0f;
    p = add(mul(p, q), 2.0f / 9.0f);
    p = add(mul(p, q), 2.0f / 7.0f);
    p = add(mul(p, q), 2.0f / 5.0f);
    p = add(mul(p, q), 2.0f / 3.0f);
    p = add(mul(p, q), 2.0f);
    const float k = static_cast<float>(e);
    return add(mul(k, 0.693359375f), add(mul(z, p), -mul(k, 2.12194440e-4f)));
}

/// Returns a^b: by products for whole b up to 64, else e^(b ln a), which is NaN for a < 0.
KH_FN float formula_power(float a, float b) {
    if (b == floorf(b) && fabsf(b) <= 64.0f) {
        float result = 1, square = a;
        for (int n = static_cast<int>(fabsf(b)); n > 0; n >>= 1) {
            if ((n & 1) != 0) result = mul(result, square);
            square = mul(square, square);
        }
        return b < 0 ? 1.0f / result : result;
    }
    return formula_exp(mul(b, formula_log(a)));
}

/// Returns the sum of 32 numbers: neighbours first, then their sums.
KH_FN float sum_in_pairs(const float (&of)[32]) {
    float half[16];
    for (int j = 0; j < 16; ++j) half[j] = add(of[2 * j], of[2 * j + 1]);
    for (int n = 8; n > 0; n /= 2)
        for (int j = 0; j < n; ++j) half[j] = add(half[2 * j], half[2 * j + 1]);
    return half[0];
}

/// Returns the sum of the eight sums of dot_channels().
KH_FN float sum_of_channels(const float (&of)[8]) {
    return add(add(add(of[0], of[1]), add(of[2], of[3])), add(add(of[4], of[5]), add(of[6], of[7])));
}

/// Returns sum_c a(c) * b(c): eight sums, of every eighth channel each, added in pairs.
template <class A, class B>
KH_FN float dot_channels(int head_dim, A a, B b) {
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int c = 0;
    for (; c + 8 <= head_dim; c += 8)
        for (int j = 0; j < 8; ++j) sum[j] = add(sum[j], mul(a(c + j), b(c + j)));
    for (int j = 0; c + j < head_dim; ++j) sum[j] = add(sum[j], mul(a(c + j), b(c + j)));
    return sum_of_channels(sum);
}

/// Returns the length of a key or value.
template <class A>
KH_FN float length_of(int head_dim, A a) {
    return sqrtf(dot_channels(head_dim, a, a));
}

inline constexpr float kSimilar = 0.5f;     ///< from this cosine on two keys are alike (R-KV)
inline constexpr float kShortest = 1e-12f;  ///< guards divisions by a length (KeyDiff, released code)

/// Returns a channel of k / |k|.
KH_FN float unit_channel(float k, float length) {
    return k / (length > kShortest ? length : kShortest);
}
/// Returns the cosine of a key and the mean direction. dot: of both.
KH_FN float cosine_of(float dot, float length, float mean_length) {
    const float both = mul(length, mean_length);
    return dot / (both > kShortest ? both : kShortest);
}

/// Returns u of a token for a selection after a row: another draw for each layer, KV head and row. Noise
/// numbers query heads, so the highest bit keeps the two apart.
KH_FN float uniform_at(std::uint64_t seed, int layer, int kv_head, int row, int position) {
    const PhiloxCounter bits = philox4x32_10(
        {{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(row),
          static_cast<std::uint32_t>(layer), 0x80000000u | static_cast<std::uint32_t>(kv_head)}},
        seed);
    return uniform_from_bits(bits.x[0]);
}

}  // namespace keyhole
