// The kernels of fused prompt attention against double precision, on odd shapes and in any order of threads
// and blocks. The host runs them.
#include "engine/backend/cuda/kernels/prompt_attention.h"
#include "engine/base/index.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace keyhole::cuda::test_cuda_prompt_kernels {
namespace {

template <class T>
std::vector<T> normal(std::int64_t n, unsigned seed, float scale) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> distribution(0, scale);
    std::vector<T> out(to_index(n));
    for (T& value : out) narrow(distribution(generator), value);
    return out;
}

struct Shape {
    int n, n_heads, n_kv, head_dim;
    int window = 0;
    bool slopes = false;
};

/// Streams [2, n_heads] of every kind.
std::vector<StreamRule> all_streams(int n_heads) {
    const auto kind = [](NoiseKind k) { return static_cast<std::int32_t>(k); };
    const auto draw = [](NoiseDraw d) { return static_cast<std::int32_t>(d); };
    const std::vector<StreamRule> kinds = {
        {0, 1, 1, 1, 1, 0, 0, 0, 0},
        {7, 0.95f, 1.5f, 0.5f, 1, 1, 0, kind(NoiseKind::gumbel), draw(NoiseDraw::token)},
        {0, 0.5f, 1, 1, 1, 0, 0, 0, 0},
        {9, 1, 0.75f, 1, 1, 1, 0, kind(NoiseKind::gaussian), draw(NoiseDraw::row)},
        {0, 0, 1, 1, 1, 0, 0, 0, 0},
        {0, 1, 2, 1, 1, 1, 0, kind(NoiseKind::none), draw(NoiseDraw::token)},
        {},
    };
    std::vector<StreamRule> out;
    for (int i = 0; i < 2 * n_heads; ++i) out.push_back(kinds[to_index(i) % kinds.size()]);
    return out;
}

template <class T>
struct Prompt {
    Shape shape;
    std::vector<T> q, k, v;
    std::vector<float> slopes, out, score;
    std::vector<StreamRule> streams;
    std::vector<RowSum> sums;

    explicit Prompt(const Shape& of) : shape(of), streams(all_streams(of.n_heads)) {
        const std::int64_t of_q = std::int64_t{of.n} * of.n_heads * of.head_dim,
                           of_kv = std::int64_t{of.n} * of.n_kv * of.head_dim;
        q = normal<T>(of_q, 1, 2);
        k = normal<T>(of_kv, 2, 1);
        v = normal<T>(of_kv, 3, 1);
        for (int h = 0; h < of.n_heads; ++h) slopes.push_back(std::pow(0.5f, static_cast<float>(h + 1)));
        out.assign(to_index(of_q), NAN);
        score.assign(to_index(2 * of.n_heads * of.n), NAN);
        sums.assign(to_index(3 * of.n_heads * of.n), {NAN, NAN});
    }
    PromptHeads<T> heads() const {
        PromptHeads<T> of{};
        of.q = q.data();
        of.k = k.data();
        of.v = v.data();
        if (shape.slopes) of.slopes = slopes.data();
        of.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
        of.n = shape.n;
        of.n_heads = shape.n_heads;
        of.head_dim = shape.head_dim;
        of.group = shape.n_heads / shape.n_kv;
        of.window = shape.window;
        of.layer = 5;
        return of;
    }
    void run(int order, unsigned seed, unsigned char poison) {
        const int n_heads = shape.n_heads;
        const auto launch = [&]<class Kernel>(const Kernel& kernel, int of_block, int z) {
            run_on_host(kernel, {(shape.n + of_block - 1) / of_block, n_heads, z}, kMaxThreads, order, seed,
                        poison);
        };
        with_prompt_dim(shape.head_dim, [&]<int kDim>() {
            launch(PromptSums<T, kDim>{heads(), streams.data(), sums.data()}, PromptSums<T, kDim>::kRows, 3);
            launch(PromptAttend<T, kDim>{heads(), sums.data(), out.data()}, PromptAttend<T, kDim>::kRows, 1);
            launch(PromptColumns<T, kDim>{heads(), streams.data(), sums.data(), score.data()},
                   PromptColumns<T, kDim>::kColumns, 2);
        });
    }
};

/// Softmax of a row's logits up to the row, and its maximum and sum.
struct Softmax {
    std::vector<double> p;
    double max = -INFINITY, sum = 0;
    explicit Softmax(const std::vector<double>& logits) {
        for (const double value : logits) max = std::max(max, value);
        for (const double value : logits) p.push_back(std::exp(value - max)), sum += p.back();
        for (double& value : p) value /= sum;
    }
};

template <class T>
void expect_as_in_double(const Shape& shape) {
    SCOPED_TRACE(fmt::format("n={} heads={} kv={} d={} window={} slopes={}", shape.n, shape.n_heads,
                             shape.n_kv, shape.head_dim, shape.window, shape.slopes));
    Prompt<T> prompt(shape);
    prompt.run(2, 77, 0xff);
    const int n = shape.n, d = shape.head_dim;
    const PromptHeads<T> heads = prompt.heads();
    // p is rounded to T for the product with v, of which the largest is about 4.
    const double out_tolerance = std::is_same_v<T, Fp16> ? 1.5e-3 : 1.2e-2;
    for (int h = 0; h < shape.n_heads; ++h) {
        std::vector<std::vector<double>> score(2, std::vector<double>(to_index(n), 0.0));
        for (int row = 0; row < n; ++row) {
            std::vector<double> logits(to_index(row + 1));
            for (int column = 0; column <= row; ++column) {
                double dot = 0;
                for (int i = 0; i < d; ++i)
                    dot += double(widen(heads.query(h, row)[i])) *
                           double(widen(heads.k[heads.of_kv(h, column) + i]));
                logits[to_index(column)] = dot * double(heads.scale);
                if (shape.slopes)
                    logits[to_index(column)] += double(prompt.slopes[to_index(h)]) * (column - row);
                if (shape.window > 0 && column <= row - shape.window) logits[to_index(column)] = -INFINITY;
            }
            const Softmax plain(logits);
            const RowSum sum = prompt.sums[to_index(h * n + row)];
            ASSERT_NEAR(sum.max, plain.max, 1e-5 * std::max(1.0, std::abs(plain.max))) << h << " " << row;
            ASSERT_NEAR(sum.share * plain.sum, 1, 2e-5) << h << " " << row;
            for (int i = 0; i < d; ++i) {
                double value = 0;
                for (int column = 0; column <= row; ++column)
                    value += plain.p[to_index(column)] * double(widen(heads.v[heads.of_kv(h, column) + i]));
                ASSERT_NEAR(prompt.out[to_index((row * shape.n_heads + h) * d + i)], value, out_tolerance)
                    << "head " << h << " row " << row << " dimension " << i;
            }
            for (int s = 0; s < 2; ++s) {
                const StreamRule& stream = prompt.streams[to_index(s * shape.n_heads + h)];
                std::vector<double> tempered = logits;
                for (int column = 0; column <= row && stream.tempered != 0; ++column)
                    tempered[to_index(column)] =
                        (logits[to_index(column)] +
                         double(stream.gain) * double(stream_noise(stream, 5, h, row, column))) /
                        double(stream.tau);
                const Softmax of_stream(tempered);
                for (int column = 0; column <= row; ++column) {
                    double& folded = score[to_index(s)][to_index(column)];
                    folded = double(stream.alpha) * folded + of_stream.p[to_index(column)];
                }
            }
        }
        for (int s = 0; s < 2; ++s) {
            const bool runs = prompt.streams[to_index(s * shape.n_heads + h)].runs != 0;
            const std::vector<double>& of_head = score[to_index(s)];
            const double largest = *std::max_element(of_head.begin(), of_head.end());
            for (int column = 0; column < n; ++column) {
                const float got = prompt.score[to_index((s * shape.n_heads + h) * n + column)];
                if (runs)
                    ASSERT_NEAR(got, of_head[to_index(column)], 2e-5 * largest)
                        << "stream " << s << " head " << h << " column " << column;
                else
                    ASSERT_TRUE(std::isnan(got)) << "written";
            }
        }
    }
}

const Shape kShapes[] = {
    {1, 1, 1, 16},
    {2, 2, 1, 16, 1},
    {63, 2, 2, 32, 0, true},
    {64, 1, 1, 64},
    {65, 2, 1, 64, 64},
    {127, 4, 1, 48, 17},
    {128, 2, 2, 16, 0, true},
    {129, 7, 7, 16, 65},
    {130, 2, 2, 80, 0, true},
    {200, 2, 1, 128, 70},
    {193, 1, 1, 96},
    {131, 2, 1, 144, 40, true},
    {97, 2, 2, 256},
    {300, 4, 2, 16, 129, true},
};

TEST(CudaPromptKernels, SumsAndOutputsAreThoseOfDoublePrecision) {
    for (const Shape& shape : kShapes) {
        expect_as_in_double<Fp16>(shape);
        expect_as_in_double<Bf16>(shape);
    }
}

/// A warp that loads and multiplies as the PTX manual describes ldmatrix (.x4, .trans) and mma.m16n8k16, with
/// the addresses that a device takes.
template <bool kByColumn>
void expect_lanes_as_in_the_manual() {
    constexpr int kStride = 24;
    const std::vector<Bf16> a = normal<Bf16>(16 * 16, 4, 1), b = normal<Bf16>(16 * kStride, 5, 1);
    using Rows = WarpRows<Bf16, 1>;
    std::vector<std::array<Bf16, 8>> left(kWarp), right(kWarp);  // what a lane holds, in its order
    for (int lane = 0; lane < kWarp; ++lane)
        for (int i = 0; i < 8; ++i) {
            const int row = lane / 4 + (i / 2 % 2 == 0 ? 0 : 8);
            left[to_index(lane)][to_index(i)] = a[to_index(row * 16 + Rows::factor_of(lane, i / 2) + i % 2)];
            // Matrix j, whose row r is where lane 8 j + r points.
            const int j = i / 2, of_row = lane / 4, of_pair = lane % 4 * 2 + i % 2;
            const int r = kByColumn ? of_row : of_pair, c = kByColumn ? of_pair : of_row;
            right[to_index(lane)][to_index(i)] = b[to_index(matrix_row<kByColumn>(8 * j + r, kStride) + c)];
        }
    for (int half = 0; half < 2; ++half) {  // a product of 8 columns
        double left_of[16][16] = {}, right_of[16][8] = {};
        for (int lane = 0; lane < kWarp; ++lane) {
            const int group = lane / 4, in_group = lane % 4;
            for (int i = 0; i < 8; ++i)
                left_of[i < 2 || (i >= 4 && i < 6) ? group : group + 8]
                       [in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)] =
                           double(widen(left[to_index(lane)][to_index(i)]));
            for (int i = 0; i < 4; ++i)
                right_of[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group] =
                    double(widen(right[to_index(lane)][to_index(half * 4 + i)]));
        }
        for (int lane = 0; lane < kWarp; ++lane) {
            WarpTile tile;
            tile.clear();
            Rows rows;
            rows.load(lane, a.data() + lane / 4 * 16, a.data() + (lane / 4 + 8) * 16, 1);
            WarpFactors<kByColumn, Bf16> factors;
            factors.find(lane, b.data(), kStride);
            add_product(tile, rows, 0, factors, 0, lane);
            for (int i = 0; i < 4; ++i) {
                const int row = i < 2 ? lane / 4 : lane / 4 + 8, column = lane % 4 * 2 + (i & 1);
                double sum = 0;
                for (int k = 0; k < 16; ++k) sum += left_of[row][k] * right_of[k][column];
                ASSERT_NEAR(tile.at[half * 4 + i], sum, 1e-5) << "lane " << lane << " element " << i;
                EXPECT_EQ(WarpTile::row(lane, half * 4 + i), row);
                EXPECT_EQ(WarpTile::column(lane, half * 4 + i), half * 8 + column);
            }
        }
    }
}

TEST(CudaPromptKernels, LanesHoldWhatTheManualSays) {
    expect_lanes_as_in_the_manual<true>();
    expect_lanes_as_in_the_manual<false>();
}

TEST(CudaPromptKernels, NoOrderChangesABit) {
    for (const Shape& shape : {Shape{150, 7, 7, 48, 0, true}, Shape{140, 2, 1, 144, 33}}) {
        Prompt<Bf16> first(shape);
        first.run(0, 0, 0xff);
        for (const int order : {1, 2})
            for (const unsigned seed : {1u, 4242u}) {
                Prompt<Bf16> other(shape);
                other.run(order, seed, static_cast<unsigned char>(seed));
                const auto same_bits = [](const auto& a, const auto& b) {
                    return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
                };
                EXPECT_TRUE(same_bits(first.sums, other.sums));
                EXPECT_TRUE(same_bits(first.out, other.out));
                EXPECT_TRUE(same_bits(first.score, other.score));
            }
    }
}

}  // namespace
}  // namespace keyhole::cuda::test_cuda_prompt_kernels
