#include "engine/backend/common/kernels.h"
#include "engine/backend/common/kv_rows.h"
#include "engine/backend/cpu/gemm.h"
#include "engine/base/half.h"
#include "engine/base/index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace keyhole::cpu::test_kernels {
namespace {

std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(n);
    for (float& v : values) v = normal(generator);
    return values;
}

/// A matrix in each stored type, and its exact values in double.
struct Matrix {
    Weight weight;
    std::vector<double> exact;
    std::vector<float> f32;
    std::vector<std::uint16_t> bits;

    Matrix(DType dtype, std::int64_t rows, std::int64_t cols, unsigned seed)
        : f32(random_floats(to_index(rows * cols), seed)) {
        for (float v : f32) {
            if (dtype == DType::f32) {
                exact.push_back(v);
                continue;
            }
            bits.push_back(dtype == DType::f16 ? fp16_from_float(v) : bf16_from_float(v));
            exact.push_back(dtype == DType::f16 ? float_from_fp16(bits.back())
                                                : float_from_bf16(bits.back()));
        }
        weight = {dtype, dtype == DType::f32 ? static_cast<const void*>(f32.data()) : bits.data(), rows,
                  cols};
    }
};

class StoredTypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, StoredTypes, ::testing::Values(DType::f32, DType::f16, DType::bf16));

TEST_P(StoredTypes, ProductsMatchDoubleOnOddShapes) {
    for (const auto& [rows, cols, batch] : {std::array{1, 1, 1}, {5, 7, 3}, {67, 33, 6}, {130, 256, 9}}) {
        const Matrix m(GetParam(), rows, cols, 1);
        const std::vector<float> x = random_floats(to_index(batch * cols), 2);
        std::vector<float> y(to_index(batch * rows), -1);
        multiply_rows(m.weight, 0, rows, x.data(), cols, batch, y.data(), rows);
        for (int b = 0; b < batch; ++b)
            for (int r = 0; r < rows; ++r) {
                double expected = 0, magnitude = 1;
                for (int c = 0; c < cols; ++c) {
                    const double term = m.exact[to_index(r * cols + c)] * x[to_index(b * cols + c)];
                    expected += term;
                    magnitude += std::abs(term);
                }
                ASSERT_NEAR(y[to_index(b * rows + r)], expected, 1e-6 * magnitude)
                    << rows << "x" << cols << " row " << r << " column " << b;
            }
    }
}

TEST_P(StoredTypes, ProductsHaveTheSameBitsInEveryBatchAndChunk) {
    constexpr int kRows = 37, kCols = 101, kBatch = 7;
    const Matrix m(GetParam(), kRows, kCols, 3);
    const std::vector<float> x = random_floats(kBatch * kCols, 4);
    std::vector<float> together(kBatch * kRows), alone(kRows);
    multiply_rows(m.weight, 0, kRows, x.data(), kCols, kBatch, together.data(), kRows);
    for (int b = 0; b < kBatch; ++b) {
        for (const auto& [first, last] : {std::pair{0, 6}, {6, 7}, {7, 37}})
            multiply_rows(m.weight, first, last, x.data() + b * kCols, kCols, 1, alone.data(), kRows);
        for (int r = 0; r < kRows; ++r) ASSERT_EQ(alone[to_index(r)], together[to_index(b * kRows + r)]);
    }
}

TEST_P(StoredTypes, WideningIsExact) {
    const Matrix m(GetParam(), 3, 45, 5);
    std::vector<float> wide(2 * 45);
    widen_rows(m.weight, 1, 3, wide.data());
    for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(static_cast<double>(wide[i]), m.exact[45 + i]);
}

TEST(Kernels, EveryHalfWidensToItself) {
    std::vector<std::uint16_t> bits(65536);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
    std::vector<float> wide(bits.size());
    widen_rows({DType::f16, bits.data(), 256, 256}, 0, 256, wide.data());
    for (std::size_t i = 0; i < bits.size(); ++i) {
        const float expected = float_from_fp16(bits[i]);
        if (std::isnan(expected))
            ASSERT_TRUE(std::isnan(wide[i])) << i;
        else
            ASSERT_EQ(wide[i], expected) << i;
    }
}

TEST(Kernels, AttentionOfOneHeadMatchesDouble) {
    for (int head_dim : {8, 24, 32, 64, 80, 128})
        for (int n : {1, 2, 3, 5, 16, 67}) {
            const std::size_t size = to_index(n * head_dim);
            const auto q = random_floats(to_index(head_dim), 1), k = random_floats(size, 2),
                       v = random_floats(size, 3);
            std::vector<float> logits(to_index(n)), p(logits), out(to_index(head_dim));
            dot_keys(q.data(), k.data(), n, head_dim, 0.25f, logits.data());
            softmax(logits.data(), n, p.data());
            weighted_sum(p.data(), v.data(), n, head_dim, out.data());
            std::vector<double> expected(to_index(n));
            double highest = -1e30, total = 0;
            for (int s = 0; s < n; ++s) {
                double& logit = expected[to_index(s)] = 0;
                for (int d = 0; d < head_dim; ++d)
                    logit += 0.25 * q[to_index(d)] * static_cast<double>(k[to_index(s * head_dim + d)]);
                EXPECT_NEAR(logits[to_index(s)], logit, 1e-5);
                highest = std::max(highest, logit);
            }
            for (double& e : expected) total += e = std::exp(e - highest);
            for (int s = 0; s < n; ++s)
                ASSERT_NEAR(p[to_index(s)], expected[to_index(s)] / total, 1e-6) << n << " " << head_dim;
            for (int d = 0; d < head_dim; ++d) {
                double sum = 0;
                for (int s = 0; s < n; ++s)
                    sum += expected[to_index(s)] / total * v[to_index(s * head_dim + d)];
                ASSERT_NEAR(out[to_index(d)], sum, 1e-5);
            }
        }
}

TEST(Kernels, SoftmaxOfHugeLogitsStaysFinite) {
    std::vector<float> x = {1e4f, -1e4f, 1e4f};
    softmax(x.data(), 3, x.data());
    EXPECT_FLOAT_EQ(x[0], 0.5f);
    EXPECT_FLOAT_EQ(x[1], 0.0f);
    EXPECT_FLOAT_EQ(x[2], 0.5f);
}

TEST(Kernels, FoldingRoundsProductAndSumApart) {
    const auto p = random_floats(37, 1), start = random_floats(37, 2);
    std::vector<float> score = start;
    fold_scores(p.data(), 37, 0.3f, 0.9f, score.data());
    for (std::size_t i = 0; i < 37; ++i) {
        const volatile float kept = 0.3f * start[i], added = 0.9f * p[i];
        EXPECT_EQ(score[i], kept + added) << i;
    }
}

TEST(Kernels, TheLowestPositionIsThatOfTheOldestLowestScore) {
    constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();
    for (const int n : {1, 3, 16, 37, 100}) {
        std::vector<std::int32_t> position;  // slots in a scattered order: 31 is coprime to every n
        for (int i = 0; i < n; ++i) position.push_back((i * 31) % n * 2);
        std::vector<float> score = random_floats(to_index(n), 3);
        for (float& s : score) s = std::round(2 * s);  // many ties
        if (n > 20) score[5] = std::numeric_limits<float>::quiet_NaN();
        if (n > 50) score[40] = -std::numeric_limits<float>::infinity();
        for (const auto& [first, last] :
             std::vector<std::pair<int, int>>{{0, kAll}, {0, n}, {n - 1, kAll}, {n / 2, n}, {0, 0}}) {
            std::int32_t expected = -1;
            float lowest = 0;
            for (std::int32_t p = 0; p < 2 * n; ++p)
                for (std::size_t i = 0; i < position.size(); ++i) {
                    if (position[i] != p || p < first || p > last) continue;
                    const float s = std::isnan(score[i]) ? -std::numeric_limits<float>::infinity() : score[i];
                    if (expected >= 0 && s >= lowest) continue;
                    expected = p;
                    lowest = s;
                }
            if (expected < 0) continue;  // none in this range
            EXPECT_EQ(position[to_index(lowest_slot(score.data(), position.data(), n, first, last))],
                      expected)
                << n << " [" << first << ", " << last << "]";
        }
    }
}

TEST(Kernels, IndexOfFindsTheFirst) {
    std::vector<std::int32_t> values(70);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i % 50);
    for (const int value : {0, 17, 49}) EXPECT_EQ(index_of(values.data(), 70, value), value);
    EXPECT_EQ(index_of(values.data() + 20, 50, 19), 49);
    EXPECT_EQ(index_of(values.data(), 70, 50), 70);
    EXPECT_EQ(index_of(values.data(), 0, 0), 0);
}

TEST(Kernels, TemperedLogitsAddNoiseThenDivide) {
    const auto x = random_floats(21, 1), noise = random_floats(21, 2);
    std::vector<float> with(21), without(21);
    temper_logits(x.data(), noise.data(), 21, 2.0f, 1.5f, with.data());
    temper_logits(x.data(), nullptr, 21, 2.0f, 1.5f, without.data());
    for (std::size_t i = 0; i < 21; ++i) {
        EXPECT_NEAR(with[i], (static_cast<double>(x[i]) + 2.0 * noise[i]) / 1.5, 1e-6);
        EXPECT_NEAR(without[i], x[i] / 1.5, 1e-6);
    }
}

TEST(Kernels, NormAndGateMatchDouble) {
    for (std::size_t n : {1u, 7u, 48u, 100u}) {
        const auto x = random_floats(n, 1), gain = random_floats(n, 2), up = random_floats(n, 3);
        std::vector<float> normed(n), gate = x;
        rms_norm(x, gain.data(), 1e-3f, normed.data());
        activate(Activation::silu, gate.data(), up.data(), static_cast<std::int64_t>(n));
        double squares = 0;
        for (float v : x) squares += static_cast<double>(v) * v;
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_NEAR(normed[i], x[i] / std::sqrt(squares / static_cast<double>(n) + 1e-3) * gain[i], 1e-5);
            ASSERT_NEAR(gate[i], x[i] / (1 + std::exp(-static_cast<double>(x[i]))) * up[i], 1e-5);
        }
    }
}

TEST(Kernels, LayerNormMatchesDouble) {
    for (std::size_t n : {1u, 7u, 48u, 100u}) {
        auto x = random_floats(n, 1);
        for (float& value : x) value += 20.0f;  // mean far larger than the deviation
        const auto gain = random_floats(n, 2), bias = random_floats(n, 3);
        std::vector<float> with(n), without(n);
        layer_norm(x, gain.data(), bias.data(), 1e-3f, with.data());
        layer_norm(x, gain.data(), nullptr, 1e-3f, without.data());
        double mean = 0, variance = 0;
        for (float value : x) mean += value / static_cast<double>(n);
        for (float value : x) variance += (value - mean) * (value - mean) / static_cast<double>(n);
        for (std::size_t i = 0; i < n; ++i) {
            const double expected = (x[i] - mean) / std::sqrt(variance + 1e-3) * gain[i];
            ASSERT_NEAR(without[i], expected, 2e-5);
            ASSERT_NEAR(with[i], expected + bias[i], 2e-5);
        }
    }
}

TEST(Kernels, ActivationsMatchDouble) {
    std::vector<float> x;
    for (int i = -2000; i <= 2000; ++i) x.push_back(static_cast<float>(i) * 0.01f);
    for (const float far : {-1e4f, -300.0f, -105.0f, -90.0f, 90.0f, 105.0f, 300.0f, 1e4f}) x.push_back(far);
    const auto n = static_cast<std::int64_t>(x.size());
    const auto up = random_floats(x.size(), 3);
    const auto expect = [&](Activation kind, double (*exact)(double)) {
        std::vector<float> plain = x, gated = x;
        activate(kind, plain.data(), nullptr, n);
        activate(kind, gated.data(), up.data(), n);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double y = exact(x[i]);
            ASSERT_NEAR(plain[i], y, 4e-7 * std::max(1.0, std::abs(y))) << x[i];
            ASSERT_NEAR(gated[i], y * up[i], 1e-6 * std::max(1.0, std::abs(y * up[i]))) << x[i];
        }
    };
    expect(Activation::silu, [](double v) { return v / (1 + std::exp(-v)); });
    expect(Activation::gelu, [](double v) { return v * std::erfc(-v / std::sqrt(2.0)) / 2; });
    expect(Activation::gelu_tanh,
           [](double v) { return v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))) / 2; });
    expect(Activation::relu, [](double v) { return std::max(v, 0.0); });
}

TEST(Kernels, CapsAndClampedGatesMatchDouble) {
    std::vector<float> x;
    for (int i = -1500; i <= 1500; ++i) x.push_back(static_cast<float>(i) * 0.01f);
    for (const float far : {-1e4f, -300.0f, 300.0f, 1e4f}) x.push_back(far);
    std::vector<float> capped = x, gate = x, up(x.rbegin(), x.rend());
    soft_cap(capped.data(), 2.5f, static_cast<std::int64_t>(x.size()));
    activate(Activation::clamped_swiglu, gate.data(), up.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(capped[i], 2.5 * std::tanh(static_cast<double>(x[i]) / 2.5), 1e-6) << x[i];
        const double g = std::min(static_cast<double>(x[i]), 7.0), u = std::clamp<double>(up[i], -7.0, 7.0);
        EXPECT_NEAR(gate[i], g / (1 + std::exp(-1.702 * g)) * (u + 1), 1e-5) << x[i] << " " << up[i];
    }
}

TEST(Kernels, DistancesAndLimits) {
    std::vector<std::int32_t> position(21), back(21);
    std::vector<float> logit(21, 0.5f), moved = logit;
    for (int i = 0; i < 21; ++i) position[to_index(i)] = 3 * i, back[to_index(i)] = i;
    add_distances(position.data(), nullptr, 21, 0.25f, 70, logit.data());
    add_distances(position.data(), back.data(), 21, 0.25f, 70, moved.data());
    for (int i = 0; i < 21; ++i) {
        EXPECT_FLOAT_EQ(logit[to_index(i)], 0.5f + 0.25f * static_cast<float>(3 * i - 70));
        EXPECT_FLOAT_EQ(moved[to_index(i)], 0.5f + 0.25f * static_cast<float>(2 * i - 70));
    }
    clip(moved.data(), 15.0f, 21);
    EXPECT_EQ(moved[0], -15.0f);
    EXPECT_EQ(moved[20], 0.5f + 0.25f * -30);
}

TEST(Kernels, RotationTurnsPairsHalfAHeadApart) {
    const auto turned = [](bool interleaved) {
        Rotary rotary;
        rotary.dims = 4;
        rotary.interleaved = interleaved;
        return rotary;
    };
    std::vector<float> x = {1, 2, 3, 4};
    const std::vector<float> cosine = {0, 0.6f}, sine = {1, 0.8f};
    rotate_head(x.data(), cosine.data(), sine.data(), turned(false));
    EXPECT_FLOAT_EQ(x[0], -3);  // 1 * 0 - 3 * 1
    EXPECT_FLOAT_EQ(x[2], 1);   // 3 * 0 + 1 * 1
    EXPECT_FLOAT_EQ(x[1], 0.6f * 2 - 0.8f * 4);
    EXPECT_FLOAT_EQ(x[3], 0.6f * 4 + 0.8f * 2);
    std::vector<float> y = {1, 2, 3, 4, 5, 6};  // adjacent pairs; two channels are not rotated
    rotate_head(y.data(), cosine.data(), sine.data(), turned(true));
    EXPECT_EQ(y, (std::vector<float>{-2, 1, 0.6f * 3 - 0.8f * 4, 0.6f * 4 + 0.8f * 3, 5, 6}));
}

TEST(Kernels, DenseProductsMatchDouble) {
    constexpr int kM = 19, kN = 23, kK = 31;
    const auto a = random_floats(kM * kK, 1), b = random_floats(kN * kK, 2),
               plain = random_floats(kK * kN, 3);
    std::vector<float> c(kM * kN), d(kM * kN);
    multiply_transposed(kM, kN, kK, 0.5f, a.data(), kK, b.data(), kK, c.data(), kN);
    multiply_plain(kM, kN, kK, a.data(), kK, plain.data(), kN, d.data(), kN);
    for (std::size_t i = 0; i < kM; ++i)
        for (std::size_t j = 0; j < kN; ++j) {
            double transposed = 0, straight = 0;
            for (std::size_t t = 0; t < kK; ++t) {
                transposed += 0.5 * a[i * kK + t] * static_cast<double>(b[j * kK + t]);
                straight += static_cast<double>(a[i * kK + t]) * plain[t * kN + j];
            }
            ASSERT_NEAR(c[i * kN + j], transposed, 1e-5);
            ASSERT_NEAR(d[i * kN + j], straight, 1e-5);
        }
}

}  // namespace
}  // namespace keyhole::cpu::test_kernels
