#include "engine/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace keyhole::test_half {
namespace {

/// Decodes IEEE 754 half by its definition: sign, 5 bits of exponent (bias 15), 10 of fraction.
double half_by_definition(unsigned bits) {
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent == 31) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, -24);
    return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Half, EveryHalfIsItsDefinitionAndComesBack) {
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        const double expected = half_by_definition(bits);
        const float value = float_from_fp16(half);
        if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(value)) << bits;
            EXPECT_TRUE(std::isnan(float_from_fp16(fp16_from_float(value)))) << bits;
        } else {
            EXPECT_EQ(value, expected) << bits;
            EXPECT_EQ(fp16_from_float(value), half) << bits;
        }
    }
}

TEST(Half, RoundsToNearestAndTiesToEven) {
    for (unsigned bits = 0; bits < 0x7c00; ++bits) {
        const auto below = static_cast<std::uint16_t>(bits), above = static_cast<std::uint16_t>(bits + 1);
        // The next value above the largest counts as 65536.
        const double a = half_by_definition(bits),
                     b = bits == 0x7bff ? 65536.0 : half_by_definition(bits + 1);
        const auto middle = static_cast<float>((a + b) / 2);
        const std::uint16_t even = bits % 2 == 0 ? below : above;
        EXPECT_EQ(fp16_from_float(middle), even) << bits;
        EXPECT_EQ(fp16_from_float(std::nextafter(middle, 0.0f)), below) << bits;
        EXPECT_EQ(fp16_from_float(std::nextafter(middle, 1e9f)), above) << bits;
        EXPECT_EQ(fp16_from_float(-middle), even | 0x8000) << bits;
    }
    EXPECT_EQ(fp16_from_float(1e6f), 0x7c00);
    EXPECT_EQ(fp16_from_float(-std::numeric_limits<float>::infinity()), 0xfc00);
    EXPECT_EQ(fp16_from_float(1e-30f), 0);
}

TEST(Half, RowsEqualSingles) {
    std::vector<float> values;
    for (int i = 0; i < 1037; ++i) {
        values.push_back(std::ldexp(static_cast<float>(std::sin(i * 0.7)), i % 44 - 28));
    }
    std::vector<std::uint16_t> rows(values.size());
    fp16_from_floats(values, rows);
    for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(rows[i], fp16_from_float(values[i])) << values[i];
}

TEST(Half, Bfloat16RoundsToNearestAndTiesToEven) {
    EXPECT_EQ(bf16_from_float(1.0f), 0x3f80);
    EXPECT_EQ(float_from_bf16(0x3f80), 1.0f);
    EXPECT_EQ(bf16_from_float(1.00390625f), 0x3f80);  // half a step above 1: even below
    EXPECT_EQ(bf16_from_float(1.01171875f), 0x3f82);  // half a step above the odd one: up
    EXPECT_EQ(bf16_from_float(std::nextafter(1.00390625f, 2.0f)), 0x3f81);
    EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
    EXPECT_EQ(bf16_from_float(-std::numeric_limits<float>::infinity()), 0xff80);
    EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::nanf("")))));
    EXPECT_EQ(float_from_bf16(0x0001), std::ldexp(1.0f, -133));
    EXPECT_EQ(bf16_from_float(std::ldexp(1.0f, -133)), 0x0001);
}

}  // namespace
}  // namespace keyhole::test_half
