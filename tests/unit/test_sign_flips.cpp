// The test that decides several paired comparisons together: exact values, a slow twin, and its properties.
#include "engine/eval/sign_flips.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace keyhole::test_sign_flips {
namespace {

/// Returns P(at most `few` or at least n - few heads of n fair coins), a sum of binomials.
double two_sided_binomial(int few, int n) {
    double sum = 0, ways = 1;
    for (int k = 0; k <= few; ++k) {
        sum += ways;
        ways = ways * (n - k) / (k + 1);
    }
    return std::min(1.0, 2 * sum / std::pow(2.0, n));
}

/// One comparison of right and wrong answers is McNemar's exact test: a fair coin for each question that
/// exactly one of the two answers.
TEST(SignFlips, OneComparisonOfAnswersIsTheExactTestOfACoin) {
    for (int behind = 0; behind <= 5; ++behind) {
        Gains gains(40, 0.0);
        for (int i = 0; i < 10; ++i) gains[static_cast<std::size_t>(3 * i)] = i < behind ? -1 : 1;
        const SignFlips found = sign_flips(std::vector<Gains>{gains});
        EXPECT_NEAR(found.together.p, two_sided_binomial(behind, 10), 1e-12) << behind;
        EXPECT_EQ(found.comparisons[0].p, found.together.p);
        EXPECT_EQ(found.n_telling, 10);
        EXPECT_NEAR(found.comparisons[0].lead, (10 - 2 * behind) / std::sqrt(40.0 * 10), 1e-12);
    }
}

/// Flips every sample in turn, on whole copies of the gains.
struct SlowTwin {
    std::vector<Gains> gains;
    std::vector<double> leads_now() const {
        std::vector<double> leads;
        for (const Gains& of_pair : gains) {
            double sum = 0, squares = 0;
            for (const double gain : of_pair) sum += gain, squares += gain * gain;
            leads.push_back(squares > 0 ? sum / std::sqrt(squares * static_cast<double>(of_pair.size())) : 0);
        }
        return leads;
    }
    static double mean(const std::vector<double>& leads) {
        double sum = 0;
        for (const double lead : leads) sum += lead;
        return std::abs(sum / static_cast<double>(leads.size()));
    }
    void flip_from(std::size_t sample, const std::vector<double>& measured, std::vector<double>& counts) {
        if (sample == gains.front().size()) {
            const std::vector<double> leads = leads_now();
            double most = 0;
            for (const double lead : leads) most = std::max(most, std::abs(lead));
            for (std::size_t j = 0; j < measured.size(); ++j)
                counts[j] += most >= std::abs(measured[j]) - 1e-9 ? 1 : 0;
            counts.back() += mean(leads) >= mean(measured) - 1e-9 ? 1 : 0;
            return;
        }
        for (int way = 0; way < 2; ++way) {
            flip_from(sample + 1, measured, counts);
            for (Gains& of_pair : gains) of_pair[sample] = -of_pair[sample];
        }
    }
};

TEST(SignFlips, SeveralComparisonsAreASlowTwins) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (int round = 0; round < 3; ++round) {
        SlowTwin twin{std::vector<Gains>(4, Gains(9))};
        for (std::size_t j = 0; j < 4; ++j)
            for (double& gain : twin.gains[j]) gain = std::pow(10.0, j) * (normal(random) + 0.4 * round);
        twin.gains[3][2] = 0;
        const std::vector<double> measured = twin.leads_now();
        std::vector<double> counts(5, 0);
        const std::vector<Gains> gains = twin.gains;
        twin.flip_from(0, measured, counts);
        const SignFlips found = sign_flips(gains);
        for (std::size_t j = 0; j < 4; ++j) {
            EXPECT_NEAR(found.comparisons[j].lead, measured[j], 1e-12);
            EXPECT_NEAR(found.comparisons[j].p, counts[j] / 512, 1e-12) << j;
        }
        EXPECT_NEAR(found.together.p, counts[4] / 512, 1e-12);
    }
}

/// The reverse of all gains has the same p, and a unit is no matter.
TEST(SignFlips, BothDirectionsAndAllUnitsAreEqual) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal(0.3, 1);
    std::vector<Gains> gains(6, Gains(30)), reverse = gains;
    for (std::size_t j = 0; j < gains.size(); ++j)
        for (std::size_t i = 0; i < 30; ++i) {
            gains[j][i] = normal(random);
            reverse[j][i] = -1000 * gains[j][i];
        }
    const SignFlips a = sign_flips(gains), b = sign_flips(reverse);
    EXPECT_EQ(a.together.p, b.together.p);
    EXPECT_NEAR(a.together.lead, -b.together.lead, 1e-12);
    for (std::size_t j = 0; j < gains.size(); ++j) {
        EXPECT_EQ(a.comparisons[j].p, b.comparisons[j].p);
        EXPECT_GE(a.comparisons[j].p, sign_flips(std::vector<Gains>{gains[j]}).together.p - 0.02)
            << "a correction makes nothing surer, apart from the drawn flips";
    }
}

/// Comparisons that say the same cost nothing; independent ones do.
TEST(SignFlips, TheCorrectionKnowsWhatDependsOnWhat) {
    Gains gains;
    for (int i = 0; i < 12; ++i) gains.push_back(i < 2 ? -1 : 1);
    const double alone = sign_flips(std::vector<Gains>{gains}).comparisons[0].p;
    EXPECT_EQ(sign_flips(std::vector<Gains>(20, gains)).comparisons[7].p, alone);
    std::mt19937 random(9);
    std::normal_distribution<double> normal;
    std::vector<Gains> others(20, Gains(12));
    for (Gains& other : others)
        for (double& gain : other) gain = normal(random);
    others[0] = gains;
    EXPECT_GT(sign_flips(others).comparisons[0].p, 3 * alone);
}

TEST(SignFlips, FewSamplesAndNoneDecideNothing) {
    for (int n = 1; n < kLeastSamples; ++n) {
        const SignFlips found = sign_flips(std::vector<Gains>{Gains(static_cast<std::size_t>(n), 1.0)});
        EXPECT_GT(found.together.p, kSureP) << n;
    }
    EXPECT_LE(sign_flips(std::vector<Gains>{Gains(kLeastSamples, 1.0)}).together.p, kSureP);
    const SignFlips equal = sign_flips(std::vector<Gains>{Gains(50, 0.0), Gains(50, std::nan(""))});
    EXPECT_EQ(equal.together.p, 1);
    EXPECT_EQ(equal.n_telling, 0);
    EXPECT_EQ(sign_flips({}).together.p, 1);
}

/// z = 2.8016 decides in four of five cases: 1.96 to be sure, and 0.8416 for the power.
TEST(SamplesNeeded, FollowTheNormalApproximation) {
    EXPECT_EQ(samples_needed(2.8, 100), 110) << "100.1, rounded up to two digits";
    EXPECT_EQ(samples_needed(1.0, 20), 160) << "157";
    EXPECT_EQ(samples_needed(-1.0, 20), 160) << "behind as well as ahead";
    EXPECT_EQ(samples_needed(1.0, 20, 10), 270) << "Bonferroni: 2.807 + 0.8416, squared, times 20 is 266.3";
    EXPECT_EQ(samples_needed(50, 20), kLeastSamples);
    EXPECT_EQ(samples_needed(0, 20), std::nullopt);
    EXPECT_EQ(samples_needed(std::nan(""), 20), std::nullopt);
    EXPECT_EQ(samples_needed(0.001, 20), std::nullopt) << "157 million";
    EXPECT_EQ(needed_text(160, 0.1, "questions"),
              "about 160 questions would decide it in four of five cases, if the difference stays as it is");
    EXPECT_EQ(needed_text(std::nullopt, -0.001, "windows"),
              "the difference is too small to be decided by a million windows");
    EXPECT_EQ(needed_text(std::nullopt, 0, "windows"), "these windows show no difference");
}

/// The spread is that of the difference over all flips, and as many samples as are said do decide.
TEST(SamplesNeeded, SoManyDecideInFourOfFiveCases) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal(0.3, 1);
    const auto drawn = [&](int n) {
        Gains gains;
        for (int i = 0; i < n; ++i) gains.push_back(normal(random));
        return sign_flips(std::vector<Gains>{gains});
    };
    // Of a true lead of 0.3 deviations, z is 0.3 sqrt(n) / sqrt(1 + 0.3^2) where signs are flipped.
    const int n = *samples_needed(0.3 * std::sqrt(20.0) / std::sqrt(1.09), 20);
    int n_sure = 0;
    constexpr int kRuns = 200;
    for (int i = 0; i < kRuns; ++i) n_sure += drawn(n).together.p <= kSureP ? 1 : 0;
    EXPECT_GT(n_sure, 0.72 * kRuns) << n;
    EXPECT_LT(n_sure, 0.9 * kRuns) << n;
    const SignFlips two = sign_flips(std::vector<Gains>{{1, 1, 0, 0}, {0, 2, 0, -2}});
    EXPECT_NEAR(two.comparisons[0].lead / two.comparisons[0].spread, std::sqrt(2), 1e-12);
    EXPECT_NEAR(two.comparisons[1].lead, 0, 1e-12);
    EXPECT_GT(two.comparisons[1].spread, 0);
}

}  // namespace
}  // namespace keyhole::test_sign_flips
