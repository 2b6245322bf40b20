// CUDA kernels, run thread by thread on the host, against double precision, on shapes that do not divide
// evenly.
#include "engine/backend/common/kernels.h"
#include "engine/backend/cuda/executor.h"
#include "engine/backend/cuda/kernels/attention.h"
#include "engine/backend/cuda/kernels/linear.h"
#include "engine/base/index.h"
#include "engine/model/quantised_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <type_traits>
#include <vector>

namespace keyhole::cuda::test_cuda_kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normal(std::size_t n, unsigned seed, float scale = 1) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> distribution(0, scale);
    std::vector<float> values(n);
    for (float& v : values) v = distribution(generator);
    return values;
}

template <class T>
std::vector<T> stored(const std::vector<float>& values) {
    std::vector<T> out(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) narrow(values[i], out[i]);
    return out;
}

template <class T>
class CudaKernels : public ::testing::Test {};
using StoredTypes = ::testing::Types<float, Fp16, Bf16>;
TYPED_TEST_SUITE(CudaKernels, StoredTypes);

TYPED_TEST(CudaKernels, EmbedWidensTheRowsOfTheTokens) {
    const int d = 24;
    const auto table = stored<TypeParam>(normal(to_index(5 * d), 1));
    const std::vector<std::int32_t> tokens = {4, 0, 4};
    std::vector<float> x(to_index(3 * d), kNan);
    run_on_host(Embed<TypeParam>{{table.data()}, tokens.data(), x.data(), d}, {3}, 16);
    for (int lane = 0; lane < 3; ++lane)
        for (int i = 0; i < d; ++i)
            ASSERT_EQ(x[to_index(lane * d + i)], widen(table[to_index(tokens[to_index(lane)] * d + i)]))
                << lane << " " << i;
}

template <class T, int kBatch>
void check_products(int cols, std::vector<int> rows, int n_threads) {
    const std::vector<float> x = normal(to_index(kBatch * cols), 7), bias = normal(100, 9);
    MatrixVector<T, kBatch> kernel{};
    std::vector<std::vector<T>> weights;
    std::vector<std::vector<float>> y;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        weights.push_back(stored<T>(normal(to_index(rows[i] * cols), static_cast<unsigned>(i))));
        y.emplace_back(to_index(kBatch * rows[i]), kNan);
    }
    for (std::size_t i = 0; i < rows.size(); ++i)
        kernel.product[i] = {
            {weights[i].data()}, i == 1 ? bias.data() : nullptr, y[i].data(), rows[i], rows[i]};
    kernel.n_products = static_cast<int>(rows.size());
    kernel.cols = cols;
    kernel.x = x.data();
    run_on_host(kernel, {kernel.blocks(n_threads)}, n_threads);
    for (std::size_t i = 0; i < rows.size(); ++i)
        for (int b = 0; b < kBatch; ++b)
            for (int r = 0; r < rows[i]; ++r) {
                double expected = i == 1 ? double(bias[to_index(r)]) : 0.0,
                       magnitude = 1e-6 + std::abs(expected);
                for (int c = 0; c < cols; ++c) {
                    const double term =
                        double(widen(weights[i][to_index(r * cols + c)])) * x[to_index(b * cols + c)];
                    expected += term;
                    magnitude += std::abs(term);
                }
                ASSERT_NEAR(y[i][to_index(b * rows[i] + r)], expected, 1e-6 * magnitude)
                    << "product " << i << " lane " << b << " row " << r;
            }
}

TYPED_TEST(CudaKernels, ProductsOfOneInputMatchDouble) {
    check_products<TypeParam, 1>(8, {1}, 256);
    check_products<TypeParam, 1>(264, {5, 3, 11}, 256);
    check_products<TypeParam, 3>(40, {33, 7}, 64);
    check_products<TypeParam, 8>(512, {17}, 128);
    check_products<TypeParam, 1>(4096 + 264, {2}, 128);  // two tiles of inputs
    check_products<TypeParam, 2>(2048 + 8, {3, 1}, 64);
    check_products<TypeParam, 8>(1024 + 520, {6}, 128);
}

/// Returns how many wavefronts of shared memory a warp takes for 16 bytes a thread: eight threads at a time,
/// and each bank serves one word in one. places: in words.
int wavefronts(const std::array<int, 32>& places) {
    int sum = 0;
    for (std::size_t first = 0; first < 32; first += 8) {
        std::array<int, 32> of_bank{};
        for (std::size_t i = first; i < first + 8; ++i)
            for (int j = 0; j < 4; ++j) ++of_bank[to_index((places[i] + j) % 32)];
        sum += *std::max_element(of_bank.begin(), of_bank.end());
    }
    return sum;
}

/// Wavefronts of inputs for 256 weights of one row, by all lanes.
template <class T, int kBatch>
int input_wavefronts() {
    using Tile = InputTile<kBatch>;
    int sum = 0;
    for (int half = 0; half < 2; ++half) {
        std::array<int, 32> places{};
        for (int lane = 0; lane < 32; ++lane) places[to_index(lane)] = Tile::place(64 + lane, half);
        sum += wavefronts(places);
    }
    return kBatch * sum / MatrixVector<T, kBatch>::kRows;
}

// What L1 and shared memory serve for a product's inputs, beside its weights. An SM of an H100 gets 14.5
// bytes a cycle from memory (3.35 TB/s, 132 SMs, 1.755 GHz) and serves a wavefront a cycle.
TEST(CudaWavefronts, InputsTakeLessThanWeights) {
    EXPECT_EQ((input_wavefronts<Fp16, 1>()), 4);  // as many as of weights
    EXPECT_EQ((input_wavefronts<Fp16, 8>()), 16);
    EXPECT_LE(4 + (input_wavefronts<Fp16, 8>()), 1.6 * 512 / 14.5);
    EXPECT_EQ((input_wavefronts<Stored, 1>()), 4);  // of quantised weights: counted in PTX, test_ptx.cpp
    EXPECT_EQ((input_wavefronts<Stored, 8>()), 16);
    // Writes: the threads of a warp have halves that are neighbours.
    std::array<int, 32> places{};
    for (int i = 0; i < 32; ++i) places[to_index(i)] = InputTile<1>::place(i / 2, i % 2);
    EXPECT_EQ(wavefronts(places), 4);
}

/// Products with a norm, an activation and a sum against a launch of each: the same bits.
template <class T, int kBatch>
void check_fused_products(bool centres, bool gated, bool adds, int n_lanes) {
    const int cols = 1096, rows = 19, kThreads = 256;
    std::vector<float> x = normal(to_index(kBatch * cols), 1), normed(x.size(), kNan);
    const std::vector<float> gain = normal(to_index(cols), 2), bias = normal(to_index(cols), 3),
                             of_row = normal(to_index(rows), 4);
    const auto w = stored<T>(normal(to_index(rows * cols), 5)),
               up = stored<T>(normal(to_index(rows * cols), 6));
    const std::vector<float> start = normal(to_index(kBatch * rows), 7);
    std::vector<float> y(start.size(), kNan), by_up(y), fused_y = start;
    const NormRule norm{gain.data(), centres ? bias.data() : nullptr, 1e-5f, centres ? 1 : 0};
    run_on_host(AddNorm{x.data(), nullptr, nullptr, norm, normed.data(), cols}, {n_lanes}, kThreads);
    MatrixVector<T, kBatch> kernel{};
    kernel.product[0] = {{w.data()}, of_row.data(), y.data(), rows, rows};
    kernel.product[1] = {{up.data()}, nullptr, by_up.data(), rows, rows};
    kernel.x = normed.data();
    kernel.n_products = 2;
    kernel.cols = cols;
    kernel.n_lanes = n_lanes;
    run_on_host(kernel, {kernel.blocks(kThreads)}, kThreads);
    const std::int64_t n = n_lanes * rows;
    run_on_host(Activate{y.data(), gated ? by_up.data() : nullptr, n, ActivationKind::silu}, {2}, kThreads);
    for (std::size_t i = 0; adds && i < to_index(n); ++i) y[i] = add(start[i], y[i]);
    kernel.product[0].y = fused_y.data();
    kernel.product[1].y = nullptr;
    constexpr bool kNorms = MatrixVector<T, kBatch>::kNorms;
    kernel.x = kNorms ? x.data() : normed.data();
    kernel.n_products = gated ? 2 : 1;
    kernel.use = {kNorms ? norm : NormRule{}, adds ? 1 : 0, 1, gated ? 1 : 0, ActivationKind::silu};
    run_on_host(kernel, {kernel.blocks(kThreads)}, kThreads);
    for (std::size_t i = 0; i < y.size(); ++i)
        ASSERT_EQ(fused_y[i], i < to_index(n) ? y[i] : start[i]) << "at " << i;
}

TYPED_TEST(CudaKernels, FusedProductsHaveTheBitsOfSingleLaunches) {
    for (const bool centres : {false, true})
        for (const bool gated : {false, true}) {
            check_fused_products<TypeParam, 1>(centres, gated, gated, 1);
            check_fused_products<TypeParam, 2>(centres, gated, !gated, 2);
            if (!centres) check_fused_products<TypeParam, 4>(false, gated, true, 3);
        }
}

/// Blocks of random bytes whose factors are finite.
std::vector<std::uint8_t> random_blocks(DType type, std::int64_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<std::uint8_t> bytes(stored_bytes(type, n));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
    with_block(type, [&]<class Block>(Block block) {
        for (std::size_t at = 0; at < bytes.size(); at += sizeof(block)) {
            std::memcpy(&block, bytes.data() + at, sizeof(block));
            if constexpr (is_read_on_device(Block::kType)) block.d &= 0xbfff;  // below 2
            if constexpr (Block::kHasOffset) block.m &= 0xbfff;
            std::memcpy(bytes.data() + at, &block, sizeof(block));
        }
    });
    return bytes;
}

constexpr DType kQuantised[] = {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0,
                                DType::q5_1, DType::q4_k, DType::q5_k, DType::q6_k};

// Every value has the bits that the CPU gives it.
TEST(CudaStored, WidensBlocksAsTheCpuDoes) {
    for (const DType type : kQuantised) {
        SCOPED_TRACE(dtype_name(type));
        const std::int64_t cols = 3 * block_elements(type), rows = 5;
        const std::vector<std::uint8_t> blocks = random_blocks(type, rows * cols, 3);
        const Weight w{type, blocks.data(), rows, cols};
        std::vector<float> expected(to_index(rows * cols)), wide(expected.size(), kNan);
        widen_rows(w, 0, rows, expected.data());
        const int n_packs = static_cast<int>(rows * cols / 8);
        run_on_host(WidenStored{{blocks.data(), type}, wide.data(), n_packs}, {(n_packs + 63) / 64}, 64);
        EXPECT_EQ(wide, expected);
        const std::vector<std::int32_t> tokens = {4, 0};
        std::vector<float> x(to_index(2 * cols), kNan);
        run_on_host(Embed<Stored>{{blocks.data(), type}, tokens.data(), x.data(), static_cast<int>(cols)},
                    {2}, 32);
        for (std::size_t i = 0; i < to_index(cols); ++i) {
            ASSERT_EQ(x[i], expected[4 * to_index(cols) + i]) << i;
            ASSERT_EQ(x[to_index(cols) + i], expected[i]) << i;
        }
    }
}

/// A product with blocks against the CPU's: sums of the same terms in another order.
template <int kBatch>
void check_stored_products(DType type, std::int64_t cols, int n_lanes) {
    const std::int64_t rows = 9;
    const std::vector<std::uint8_t> blocks = random_blocks(type, rows * cols, 4);
    const std::vector<float> x = normal(to_index(kBatch * cols), 7);
    std::vector<float> y(to_index(kBatch * rows), kNan), expected(y.size(), kNan), wide(to_index(cols));
    const Weight w{type, blocks.data(), rows, cols};
    multiply_rows(w, 0, rows, x.data(), cols, n_lanes, expected.data(), rows);
    MatrixVector<Stored, kBatch> kernel{};
    kernel.product[0] = {{blocks.data(), type}, nullptr, y.data(), 9, 9};
    kernel.x = x.data();
    kernel.n_products = 1;
    kernel.cols = static_cast<int>(cols);
    kernel.n_lanes = n_lanes;
    run_on_host(kernel, {kernel.blocks(128)}, 128);
    for (int b = 0; b < kBatch; ++b)
        for (int r = 0; r < rows; ++r) {
            const std::size_t at = to_index(b * rows + r);
            if (b >= n_lanes) {
                ASSERT_TRUE(std::isnan(y[at])) << b;
                continue;
            }
            widen_rows(w, r, r + 1, wide.data());
            double magnitude = 1e-6;
            for (std::size_t c = 0; c < wide.size(); ++c)
                magnitude += std::abs(double(wide[c]) * x[to_index(b * cols) + c]);
            ASSERT_NEAR(y[at], expected[at], 1e-6 * magnitude) << "lane " << b << " row " << r;
        }
}

TEST(CudaStored, ProductsWithBlocksMatchTheCpu) {
    for (const DType type : kQuantised) {
        SCOPED_TRACE(dtype_name(type));
        const std::int64_t block = block_elements(type);
        check_stored_products<1>(type, block, 1);
        check_stored_products<1>(type, 9 * 512 + block, 1);  // several reads under way, and a rest
        check_stored_products<2>(type, 5 * block, 2);
        check_stored_products<4>(type, 3 * block, 3);
        check_stored_products<8>(type, 5 * block, 7);
    }
}

TEST(CudaNorm, AddsAndNorms) {
    for (const int d : {1, 7, 100, 300})
        for (const int n_added : {0, 1, 2})
            for (const bool centres : {false, true})
                for (const bool has_gain : {true, false}) {
                    std::vector<float> x = normal(to_index(2 * d), 1), before = x;
                    const std::vector<float> y = normal(to_index(2 * d), 2), z = normal(to_index(2 * d), 4),
                                             gain = normal(to_index(d), 3), bias = normal(to_index(d), 5);
                    std::vector<float> out(to_index(2 * d), kNan);
                    run_on_host(
                        AddNorm{x.data(), n_added > 0 ? y.data() : nullptr, n_added > 1 ? z.data() : nullptr,
                                NormRule{has_gain ? gain.data() : nullptr, centres ? bias.data() : nullptr,
                                         1e-5f, centres ? 1 : 0},
                                out.data(), d},
                        {2}, 64);
                    for (int lane = 0; lane < 2; ++lane) {
                        double mean = 0, square = 0;
                        std::vector<double> sum(to_index(d));
                        for (int i = 0; i < d; ++i) {
                            const std::size_t j = to_index(lane * d + i);
                            sum[to_index(i)] = before[j] + (n_added > 0 ? double(y[j]) : 0.0) +
                                               (n_added > 1 ? double(z[j]) : 0.0);
                            mean += centres ? sum[to_index(i)] / d : 0.0;
                        }
                        for (const double v : sum) square += (v - mean) * (v - mean);
                        for (int i = 0; i < d; ++i) {
                            const double normed =
                                (sum[to_index(i)] - mean) / std::sqrt(square / d + 1e-5) * gain[to_index(i)] +
                                (centres ? double(bias[to_index(i)]) : 0.0);
                            ASSERT_NEAR(x[to_index(lane * d + i)], sum[to_index(i)], 1e-6);
                            ASSERT_NEAR(out[to_index(lane * d + i)], has_gain ? normed : sum[to_index(i)],
                                        2e-5)
                                << d << " " << n_added << centres << has_gain;
                        }
                    }
                }
}

TEST(CudaNorm, ActivationsAreThoseOfTheirNames) {
    const std::vector<float> before = normal(301, 1, 4), up = normal(301, 2);
    for (const ActivationKind kind :
         {ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::relu})
        for (const bool gated : {false, true}) {
            std::vector<float> x = before;
            run_on_host(Activate{x.data(), gated ? up.data() : nullptr, 301, kind}, {2}, 256);
            for (std::size_t i = 0; i < 301; ++i) {
                const double v = before[i];
                double expected = std::max(0.0, v);
                if (kind == ActivationKind::silu) expected = v / (1 + std::exp(-v));
                if (kind == ActivationKind::gelu) expected = v * std::erfc(-v / std::sqrt(2.0)) / 2;
                if (kind == ActivationKind::gelu_tanh)
                    expected = v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
                ASSERT_NEAR(x[i], expected * (gated ? double(up[i]) : 1.0), 1e-5) << i;
            }
        }
}

/// One layer of one lane's cache in the device's layout. Runs one row through the attention kernels.
template <class T>
struct AttentionCase {
    int n_heads = 4, n_kv = 2, head_dim = 16, n_old = 3, capacity = 700, row = 0;
    RowRule rule{};
    std::vector<std::vector<T>> keys, values;
    std::vector<std::vector<std::int32_t>> positions;
    std::vector<std::vector<std::uint8_t>> pinned;
    std::vector<DeviceHead<T>> heads;
    std::vector<std::vector<float>> scores;  ///< [head * kScores + accumulator]
    std::vector<HeadScores> scoring;
    std::vector<std::int32_t> kv_of_head;
    std::vector<float> q, k, v, rotations, cosine, sine, logits, tempered, noise, probabilities, partial, out;
    std::vector<SplitSum> sums, totals;
    std::vector<std::uint32_t> n_done;
    int n_runs = 1;   ///< of AttendSplit, one after the other
    HostOrder order;  ///< of its blocks and threads

    void run() {
        const int n = n_old + 1, max_splits = (capacity + kSplit - 1) / kSplit;
        row = 3 * n_old + 5;  // stored positions have gaps
        for (int g = 0; g < n_kv; ++g) {
            keys.push_back(stored<T>(normal(to_index(capacity * head_dim), static_cast<unsigned>(g + 1))));
            values.push_back(stored<T>(normal(to_index(capacity * head_dim), static_cast<unsigned>(g + 11))));
            positions.emplace_back();
            for (int s = 0; s < capacity; ++s) positions.back().push_back(3 * s + g);
            pinned.emplace_back(to_index(capacity), 1);
        }
        for (int g = 0; g < n_kv; ++g)
            heads.push_back({keys[to_index(g)].data(), values[to_index(g)].data(),
                             positions[to_index(g)].data(), pinned[to_index(g)].data(), n, capacity});
        for (int i = 0; i < n_heads * kScores; ++i)
            scores.push_back(normal(to_index(capacity), static_cast<unsigned>(100 + i)));
        for (int h = 0; h < n_heads; ++h) {
            HeadScores s{};
            for (int a = 0; a < kScores; ++a) s.score[a] = scores[to_index(h * kScores + a)].data();
            scoring.push_back(s);
            kv_of_head.push_back(h / (n_heads / n_kv));
        }
        q = normal(to_index(n_heads * head_dim), 21, 2);
        k = normal(to_index(n_kv * head_dim), 22);
        v = normal(to_index(n_kv * head_dim), 23);
        std::vector<double> frequency;
        for (int i = 0; i < head_dim / 2; ++i) frequency.push_back(std::pow(10000.0, -2.0 * i / head_dim));
        for (int p = 0; p <= row; ++p)
            for (const bool is_sine : {false, true})
                for (const double f : frequency) {
                    const double angle = p * f;
                    rotations.push_back(static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle)));
                }
        cosine.assign(rotations.end() - head_dim, rotations.end() - head_dim / 2);
        sine.assign(rotations.end() - head_dim / 2, rotations.end());
        for (auto* buffer : {&logits, &tempered, &noise, &probabilities})
            buffer->assign(to_index(n_heads * capacity), -7);
        sums.resize(to_index(n_heads * max_splits));
        totals.resize(to_index(n_heads));
        n_done.assign(to_index(n_heads), 0);
        partial.assign(to_index(n_heads * max_splits * head_dim), kNan);
        out.assign(to_index(n_heads * head_dim), kNan);
        LaneView<T> lane{};
        lane.heads = heads.data();
        lane.scores = scoring.data();
        lane.rules = &rule;
        lane.row = row;
        for (int g = 0; g < n_kv; ++g) positions[to_index(g)][to_index(n - 1)] = row;
        const std::int64_t of_lane = std::int64_t{n_heads} * capacity;
        HeadRule heads_are{};
        heads_are.magnitude = 1;
        heads_are.dims = heads_are.head_dim = head_dim;
        AttendSplit<T> attend{};
        attend.q = q.data();
        attend.k = k.data();
        attend.v = v.data();
        attend.lanes = &lane;
        attend.kv_of_head = kv_of_head.data();
        attend.logits = {logits.data(), of_lane};
        attend.tempered = {tempered.data(), of_lane};
        attend.noise = {noise.data(), of_lane};
        attend.sums = sums.data();
        attend.partial_values = partial.data();
        attend.n_done = n_done.data();
        attend.out = out.data();
        attend.totals = {totals.data(), n_heads};
        attend.n_heads = n_heads;
        attend.head_dim = head_dim;
        attend.scale = 1.0f / std::sqrt(float(head_dim));
        attend.row_stride = capacity;
        attend.max_splits = max_splits;
        attend.rotations = rotations.data();
        attend.finish = heads_are;
        attend.n_kv = n_kv;
        for (int i = 0; i < n_runs; ++i) {
            out.assign(out.size(), kNan);
            partial.assign(partial.size(), kNan);
            run_on_host(attend, {max_splits, n_heads, 1}, kSplit, static_cast<int>(order.order), order.seed,
                        order.poison);
        }
        for (int h = 0; h < n_heads; ++h)  // check() takes the rotated query
            for (int i = 0; i < head_dim / 2; ++i) {
                float &a = q[to_index(h * head_dim + i)], &b = q[to_index(h * head_dim + i + head_dim / 2)];
                rotate_pair(float(a), float(b), cosine[to_index(i)], sine[to_index(i)], a, b);
            }
        run_on_host(FoldRow<T>{&lane,
                               kv_of_head.data(),
                               {probabilities.data(), of_lane},
                               attend.logits,
                               attend.tempered,
                               attend.totals,
                               0,
                               capacity},
                    {max_splits, n_heads, 1}, kSplit);
    }

    double key(int g, int slot, int i) const {
        return widen(keys[to_index(g)][to_index((std::int64_t{i / 8} * capacity + slot) * 8 + i % 8)]);
    }

    /// Computes everything again in double from the same stored numbers.
    void check() {
        const int n = n_old + 1;
        for (int h = 0; h < n_heads; ++h) {
            const int g = kv_of_head[to_index(h)];
            const RowRule& s = rule;
            std::vector<double> logit(to_index(n)), warm(to_index(n)), zeta(to_index(n));
            double most = -INFINITY, most_warm = -INFINITY, sum = 0, sum_warm = 0;
            for (int slot = 0; slot < n; ++slot) {
                const int position = positions[to_index(g)][to_index(slot)];
                zeta[to_index(slot)] =
                    noise_at(static_cast<NoiseKind>(s.noise_kind), static_cast<NoiseDraw>(s.noise_draw),
                             s.seed, 0, h, row, position);
                double dot = 0;
                for (int i = 0; i < head_dim; ++i)
                    dot += double(q[to_index(h * head_dim + i)]) * key(g, slot, i);
                logit[to_index(slot)] = is_hidden(s, row, position) ? NAN : dot / std::sqrt(double(head_dim));
                warm[to_index(slot)] =
                    (logit[to_index(slot)] + double(s.gain) * zeta[to_index(slot)]) / s.tau;
                if (std::isnan(logit[to_index(slot)])) continue;
                most = std::max(most, logit[to_index(slot)]);
                most_warm = std::max(most_warm, warm[to_index(slot)]);
            }
            const auto weight = [](double x, double m) { return std::isnan(x) ? 0.0 : std::exp(x - m); };
            for (int slot = 0; slot < n; ++slot) {
                sum += weight(logit[to_index(slot)], most);
                sum_warm += weight(warm[to_index(slot)], most_warm);
            }
            std::vector<double> share(to_index(n));
            std::array<std::vector<float>, kScores> before;  // as run() filled the scores
            for (int a = 0; a < kScores; ++a)
                before[to_index(a)] =
                    normal(to_index(capacity), static_cast<unsigned>(100 + h * kScores + a));
            for (int slot = 0; slot < n; ++slot) {
                const double p = weight(logit[to_index(slot)], most) / sum,
                             w = weight(warm[to_index(slot)], most_warm) / sum_warm;
                share[to_index(slot)] = p;
                ASSERT_NEAR(probabilities[to_index(h * capacity + slot)], p, 1e-5)
                    << "head " << h << " slot " << slot;
                ASSERT_EQ(std::isinf(logits[to_index(h * capacity + slot)]),
                          std::isnan(logit[to_index(slot)]));
                // What a formula folds waits for a kernel of its own.
                ASSERT_EQ(scores[to_index(h * kScores + kByScoreFormula)][to_index(slot)],
                          before[to_index(kByScoreFormula)][to_index(slot)]);
                for (int a = 0; a < kByScoreFormula; ++a) {
                    const double source = (a & 2) != 0 && s.tempers != 0 ? w : p;
                    ASSERT_NEAR(scores[to_index(h * kScores + a)][to_index(slot)],
                                ((a & 1) != 0 ? double(s.alpha) : 1.0) * before[to_index(a)][to_index(slot)] +
                                    s.weight * source,
                                1e-5)
                        << "head " << h << " slot " << slot << " accumulator " << a;
                }
            }
            for (int i = 0; i < head_dim; ++i) {
                double expected = 0;
                for (int slot = 0; slot < n; ++slot)
                    expected +=
                        share[to_index(slot)] * widen(values[to_index(g)][to_index(slot * head_dim + i)]);
                ASSERT_NEAR(out[to_index(h * head_dim + i)], expected, 2e-5)
                    << "head " << h << " dimension " << i;
            }
            for (int slot = n; slot < capacity; ++slot)
                ASSERT_EQ(probabilities[to_index(h * capacity + slot)], -7)
                    << "slots beyond the count are nobody's";
        }
    }
};

RowRule plain_rule() {
    RowRule s{};
    s.alpha = 0.5f;
    s.gain = 1;
    s.tau = 1;
    s.weight = 1;
    s.hidden_position = -1;
    return s;
}

TYPED_TEST(CudaKernels, ARowOfAttentionOnOddShapes) {
    for (const int n_old : {0, 1, 254, 255, 256, 600})
        for (const int head_dim : {8, 64, 80}) {
            AttentionCase<TypeParam> row;
            row.n_old = n_old;
            row.head_dim = head_dim;
            row.rule = plain_rule();
            row.run();
            ASSERT_NO_FATAL_FAILURE(row.check()) << n_old << " stored, head_dim " << head_dim;
        }
}

TYPED_TEST(CudaKernels, TheNewTokenIsRotatedIntoItsSlot) {
    AttentionCase<TypeParam> row;
    row.rule = plain_rule();
    row.run();
    const int half = row.head_dim / 2, slot = row.n_old;
    for (int g = 0; g < row.n_kv; ++g) {
        for (int i = 0; i < half; ++i) {
            const double a = row.k[to_index(g * row.head_dim + i)],
                         b = row.k[to_index(g * row.head_dim + i + half)];
            const double c = row.cosine[to_index(i)], s = row.sine[to_index(i)];
            EXPECT_NEAR(row.key(g, slot, i), a * c - b * s, 0.02);
            EXPECT_NEAR(row.key(g, slot, i + half), b * c + a * s, 0.02);
        }
        for (int i = 0; i < row.head_dim; ++i)
            EXPECT_NEAR(widen(row.values[to_index(g)][to_index(slot * row.head_dim + i)]),
                        row.v[to_index(g * row.head_dim + i)], 0.02);
    }
}

TYPED_TEST(CudaKernels, WhicheverBlockIsLastCombinesTheSameBits) {
    std::vector<AttentionCase<TypeParam>> rows;
    for (const RunOrder order : {RunOrder::forward, RunOrder::backward, RunOrder::shuffled,
                                 RunOrder::in_turns, RunOrder::in_turns}) {
        AttentionCase<TypeParam>& row = rows.emplace_back();
        row.n_old = 600;
        row.n_runs = static_cast<int>(rows.size());  // each counts the blocks from 0
        row.order = {order, static_cast<unsigned>(rows.size()), 0xff};
        row.rule = plain_rule();
        row.run();
        ASSERT_NO_FATAL_FAILURE(row.check());
        EXPECT_EQ(row.n_done, std::vector<std::uint32_t>(to_index(row.n_heads), 0));
        EXPECT_EQ(row.out, rows.front().out);
        EXPECT_EQ(row.probabilities, rows.front().probabilities);
        EXPECT_EQ(row.scores, rows.front().scores);
    }
}

TYPED_TEST(CudaKernels, NoiseTemperatureAndHiddenSlots) {
    for (const NoiseDraw draw : {NoiseDraw::row, NoiseDraw::token}) {
        AttentionCase<TypeParam> row;
        row.n_old = 300;
        row.rule = plain_rule();
        row.rule.tempers = 1;
        row.rule.tau = 1.75f;
        row.rule.gain = 0.5f;
        row.rule.weight = 0.25f;
        row.rule.noise_kind = static_cast<int>(NoiseKind::gumbel);
        row.rule.noise_draw = static_cast<int>(draw);
        row.rule.seed = 5;
        row.rule.hidden_position = 6;  // slot 2 of the first KV head, no slot of the second
        row.run();
        ASSERT_NO_FATAL_FAILURE(row.check());
    }
    AttentionCase<TypeParam> dilated;
    dilated.n_old = 300;
    dilated.rule = plain_rule();
    dilated.rule.dilation = 1;
    dilated.rule.span = 40;
    dilated.run();
    ASSERT_NO_FATAL_FAILURE(dilated.check());
}

// A thread that reads what another one writes in the same phase would give other bits in another order.
TEST(CudaKernelOrder, DoesNotMatter) {
    std::vector<float> first;
    for (const unsigned shuffle : {0u, 1u, 5u, 77u}) {
        std::vector<float> x = normal(100, 1), gain(100, 1.0f), out(100);
        run_on_host(
            AddNorm{x.data(), nullptr, nullptr, NormRule{gain.data(), nullptr, 1e-5f, 1}, out.data(), 100},
            {1}, 64, shuffle);
        if (first.empty()) first = out;
        EXPECT_EQ(out, first);
    }
}

}  // namespace
}  // namespace keyhole::cuda::test_cuda_kernels
