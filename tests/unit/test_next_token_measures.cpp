#include "engine/policy/next_token_measures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace keyhole::test_next_token_measures {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Distribution, LogSoftmaxOfKnownValues) {
    // Probabilities 1/7, 2/7, 4/7.
    const std::vector<float> logits{std::log(1.0f) + 300, std::log(2.0f) + 300, std::log(4.0f) + 300};
    std::vector<float> out(3);
    log_softmax(logits, out);
    EXPECT_NEAR(out[0], std::log(1.0 / 7), 3e-5);  // logits near 300 carry an error of 1.5e-5
    EXPECT_NEAR(out[1], std::log(2.0 / 7), 3e-5);
    EXPECT_NEAR(out[2], std::log(4.0 / 7), 3e-5);
}

TEST(Distribution, LogSoftmaxInPlaceKeepsImpossibleTokens) {
    std::vector<float> x{0, -kInf, 0};
    log_softmax(x, x);
    EXPECT_FLOAT_EQ(x[0], -std::log(2.0f));
    EXPECT_EQ(x[1], -kInf);
    EXPECT_FLOAT_EQ(x[2], -std::log(2.0f));
}

TEST(Distribution, LogSoftmaxWithoutAnyPossibleTokenIsNan) {
    std::vector<float> x{-kInf, -kInf};
    log_softmax(x, x);
    EXPECT_TRUE(std::isnan(x[0]));
    EXPECT_TRUE(std::isnan(x[1]));
}

TEST(Distribution, LongRowsMatchPlainSums) {
    // Longer than a vector of any processor, with a remainder, and an impossible token in each part.
    std::vector<float> x(131), other(131);
    for (std::size_t v = 0; v < x.size(); ++v) {
        x[v] = std::sin(static_cast<float>(v) * 1.7f) * 9;
        other[v] = std::cos(static_cast<float>(v) * 0.9f) * 5;
    }
    x[3] = x[130] = -kInf;
    std::vector<float> log_p(x.size()), log_q(x.size());
    log_softmax(x, log_p);
    log_softmax(other, log_q);
    double z = 0, z_other = 0;
    for (float value : x) z += std::exp(static_cast<double>(value));
    for (float value : other) z_other += std::exp(static_cast<double>(value));
    double expected_entropy = 0, expected_kl = 0;
    for (std::size_t v = 0; v < x.size(); ++v) {
        const double p = std::exp(static_cast<double>(x[v])) / z,
                     q = std::exp(static_cast<double>(other[v])) / z_other;
        if (p == 0) {
            EXPECT_EQ(log_p[v], -kInf);
            continue;
        }
        ASSERT_NEAR(log_p[v], std::log(p), 2e-6);
        expected_entropy -= p * std::log(p);
        expected_kl += p * std::log(p / q);
    }
    EXPECT_NEAR(entropy(log_p), expected_entropy, 1e-5);
    EXPECT_NEAR(kl_divergence(log_p, log_q), expected_kl, 1e-5);
    x[70] = NAN;
    log_softmax(x, log_p);
    EXPECT_TRUE(std::isnan(log_p[0]) && std::isnan(log_p[130]));
    EXPECT_TRUE(std::isnan(entropy(log_p)));
}

TEST(Distribution, EntropyOfUniformCertainAndMixed) {
    const std::vector<float> uniform(1024, -std::log(1024.0f));
    EXPECT_NEAR(entropy(uniform), std::log(1024.0), 1e-5);
    EXPECT_EQ(entropy(std::vector<float>{0, -kInf}), 0);
    const std::vector<float> mixed{std::log(0.25f), std::log(0.75f)};
    EXPECT_NEAR(entropy(mixed), -0.25 * std::log(0.25) - 0.75 * std::log(0.75), 1e-6);
}

TEST(Distribution, KlOfKnownPairIsAsymmetricAndNeverNegative) {
    const std::vector<float> p{std::log(0.5f), std::log(0.5f)}, q{std::log(0.9f), std::log(0.1f)};
    EXPECT_NEAR(kl_divergence(p, q), 0.5 * std::log(0.5 / 0.9) + 0.5 * std::log(0.5 / 0.1), 1e-6);
    EXPECT_NEAR(kl_divergence(q, p), 0.9 * std::log(0.9 / 0.5) + 0.1 * std::log(0.1 / 0.5), 1e-6);
    EXPECT_EQ(kl_divergence(p, p), 0);
    const std::vector<float> above{std::log(0.5f) + 1e-7f, std::log(0.5f) + 1e-7f};
    EXPECT_GE(kl_divergence(p, above), 0);
}

TEST(Distribution, KlWithImpossibleTokens) {
    const std::vector<float> p{0, -kInf}, q{std::log(0.5f), std::log(0.5f)};
    EXPECT_NEAR(kl_divergence(p, q), std::log(2.0), 1e-6);  // p is 0 there: no term
    EXPECT_EQ(kl_divergence(q, p), std::numeric_limits<double>::infinity());
}

TEST(Distribution, BestIsTheFirstOfTheLargestAndNeverNan) {
    std::vector<float> values(1000);
    for (std::size_t v = 0; v < values.size(); ++v) values[v] = std::sin(static_cast<float>(v)) - 5;
    for (const std::size_t at : {0u, 1u, 15u, 16u, 17u, 500u, 996u, 999u}) {
        const float had = std::exchange(values[at], -1.0f);
        EXPECT_EQ(best(values), static_cast<int>(at));
        EXPECT_EQ(best(std::span(values).first(at + 1)), static_cast<int>(at));
        values[at] = had;
    }
    values[700] = values[40] = values[39] = 2;
    values[3] = values[900] = NAN;
    EXPECT_EQ(best(values), 39);
    EXPECT_EQ(best(std::vector<float>{-kInf, -kInf}), 0);
    EXPECT_EQ(best(std::vector<float>{NAN, -kInf, NAN}), 1);
    EXPECT_EQ(best(std::vector<float>(40, NAN)), 0);
    EXPECT_EQ(best({}), 0);
}

TEST(Distribution, TopKBreaksTiesByIndexAndSkipsNan) {
    const std::vector<float> values{1, 3, NAN, 3, -kInf, 2};
    EXPECT_EQ(top_k(values, 3), (std::vector<int>{1, 3, 5}));
    EXPECT_EQ(top_k(values, 99), (std::vector<int>{1, 3, 5, 0, 4}));
    EXPECT_TRUE(top_k(values, 0).empty());
    EXPECT_TRUE(top_k({}, 4).empty());
}

}  // namespace
}  // namespace keyhole::test_next_token_measures
