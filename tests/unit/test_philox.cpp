// Philox4x32-10 against the known answers of Random123 (tests/kat_vectors) and of an independent Python
// implementation; noise_at against its distributions.
#include "engine/base/philox.h"
#include "engine/policy/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

namespace keyhole::test_philox {
namespace {

struct KnownAnswer {
    PhiloxCounter counter;
    std::uint64_t key;
    std::array<std::uint32_t, 4> words;
};

TEST(Philox, GivesTheKnownAnswers) {
    const KnownAnswer answers[] = {
        {{{0, 0, 0, 0}}, 0, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
        {{{~0u, ~0u, ~0u, ~0u}}, ~std::uint64_t{0}, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
        {{{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}},
         0x299f31d0a4093822u,
         {0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}},
        // Not in Random123, but computed by the Python implementation: a counter in noise_at's form, and a
        // key with two different halves.
        {{{7, ~0u, 2, 3}}, 1, {0x75cb13e6u, 0x159ce18fu, 0x7e9d282bu, 0x605900e8u}},
        {{{1, 2, 3, 4}}, 0x123456789abcdef0u, {0x70538c98u, 0x18bdcc1cu, 0x0cbf6709u, 0x0bb05d21u}},
    };
    for (const KnownAnswer& answer : answers) {
        const PhiloxCounter drawn = philox4x32_10(answer.counter, answer.key);
        for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(drawn.x[i], answer.words[i]) << "word " << i;
    }
}

TEST(Philox, UniformStaysInsideTheOpenInterval) {
    EXPECT_EQ(uniform_from_bits(0), 0.5f / 8388608.0f);
    EXPECT_EQ(uniform_from_bits(~0u), 1.0f - 0.5f / 8388608.0f);
    EXPECT_LT(uniform_from_bits(~0u), 1.0f);
    EXPECT_TRUE(std::isfinite(-std::log(-std::log(uniform_from_bits(0)))));
    EXPECT_TRUE(std::isfinite(-std::log(-std::log(uniform_from_bits(~0u)))));
}

std::vector<double> drawn_noise(NoiseKind kind, int n) {
    std::vector<double> values;
    for (int i = 0; i < n; ++i) {
        values.push_back(noise_at(kind, NoiseDraw::row, 42, i % 4, i / 4 % 8, i / 32, 3 * i));
    }
    return values;
}

/// Returns the Kolmogorov-Smirnov distance between the sample's distribution and `cdf`.
template <class Cdf>
double ks_distance(std::vector<double> sample, const Cdf& cdf) {
    std::sort(sample.begin(), sample.end());
    const double n = static_cast<double>(sample.size());
    double worst = 0;
    for (std::size_t i = 0; i < sample.size(); ++i) {
        const double p = cdf(sample[i]);
        worst = std::max(
            {worst, std::abs(p - static_cast<double>(i) / n), std::abs(static_cast<double>(i + 1) / n - p)});
    }
    return worst;
}

constexpr int kDraws = 40000;
// The 0.1 % point of the distance is 1.95 / sqrt(n). The draws are fixed, so this passes always or never.
const double kKsLimit = 1.95 / std::sqrt(kDraws);

TEST(Noise, GumbelFollowsItsDistribution) {
    const auto cdf = [](double x) { return std::exp(-std::exp(-x)); };
    EXPECT_LT(ks_distance(drawn_noise(NoiseKind::gumbel, kDraws), cdf), kKsLimit);
}

TEST(Noise, GaussianHasMeanAndDeviationOfTheGumbel) {
    const double mean = 0.5772156649, deviation = std::acos(-1.0) / std::sqrt(6.0);
    const auto cdf = [&](double x) { return 0.5 * std::erfc(-(x - mean) / deviation / std::sqrt(2.0)); };
    EXPECT_LT(ks_distance(drawn_noise(NoiseKind::gaussian, kDraws), cdf), kKsLimit);
    EXPECT_NEAR(kGumbelStd, deviation, 1e-6);
}

TEST(Noise, NoneIsZeroAndConstantIsTheMean) {
    EXPECT_EQ(noise_at(NoiseKind::none, NoiseDraw::row, 1, 2, 3, 4, 5), 0.0f);
    EXPECT_EQ(noise_at(NoiseKind::constant, NoiseDraw::row, 1, 2, 3, 4, 5), kGumbelMean);
    EXPECT_EQ(noise_at(NoiseKind::constant, NoiseDraw::token, 9, 8, 7, 6, 5), kGumbelMean);
}

TEST(Noise, EqualsTheFormulaOnTheKnownWords) {
    // Counter (position 7, token draw, layer 2, head 3), seed 1: the fourth known answer above.
    const double u = (static_cast<double>(0x75cb13e6u >> 9) + 0.5) / 8388608.0;
    const double v = (static_cast<double>(0x159ce18fu >> 9) + 0.5) / 8388608.0;
    EXPECT_NEAR(noise_at(NoiseKind::gumbel, NoiseDraw::token, 1, 2, 3, 99, 7), -std::log(-std::log(u)), 1e-5);
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::acos(-1.0) * v);
    EXPECT_NEAR(noise_at(NoiseKind::gaussian, NoiseDraw::token, 1, 2, 3, 99, 7),
                0.5772156649 + 1.2825498302 * normal, 1e-5);
}

TEST(Noise, DrawOfATokenDoesNotKnowTheRow) {
    const auto draw = [](NoiseDraw kind, int row) {
        return noise_at(NoiseKind::gumbel, kind, 5, 1, 2, row, 33);
    };
    EXPECT_EQ(draw(NoiseDraw::token, 3), draw(NoiseDraw::token, 4));
    EXPECT_NE(draw(NoiseDraw::row, 3), draw(NoiseDraw::row, 4));
}

TEST(Noise, EveryPartOfTheNameMatters) {
    std::set<float> values;
    const int base[4] = {1, 2, 3, 4};
    const auto value = [](std::uint64_t seed, const int(&x)[4]) {
        return noise_at(NoiseKind::gumbel, NoiseDraw::row, seed, x[0], x[1], x[2], x[3]);
    };
    values.insert(value(7, base));
    for (int part = 0; part < 4; ++part) {
        int changed[4] = {1, 2, 3, 4};
        changed[part] += 10;
        values.insert(value(7, changed));
    }
    values.insert(value(8, base));
    values.insert(value(7 + (std::uint64_t{1} << 32), base));
    EXPECT_EQ(values.size(), 7u);
}

TEST(Noise, NeighboursAreUncorrelated) {
    const std::vector<double> x = drawn_noise(NoiseKind::gumbel, kDraws);
    double mean = 0;
    for (double value : x) mean += value / kDraws;
    double variance = 0, covariance = 0;
    for (std::size_t i = 0; i + 1 < x.size(); ++i) {
        variance += (x[i] - mean) * (x[i] - mean);
        covariance += (x[i] - mean) * (x[i + 1] - mean);
    }
    EXPECT_LT(std::abs(covariance / variance), 3.3 / std::sqrt(kDraws));
}

TEST(PolicyMath, FoldsAndTempersAsWritten) {
    EXPECT_EQ(folded_score(2.0f, 0.25f, 0.5f, 0.5f), 0.75f);
    EXPECT_EQ(folded_score(2.0f, 0.0f, 1.0f, 0.5f), 0.5f);
    EXPECT_EQ(tempered_logit(1.0f, 2.0f, 0.5f, 4.0f), 0.5f);
}

}  // namespace
}  // namespace keyhole::test_philox
