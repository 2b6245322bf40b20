// Products of quantised matrices in integers: every path that the processor has gives the bits of a loop over
// the file's blocks, and their error is small.
#include "engine/backend/common/integer_products.h"

#include "engine/backend/common/kernels.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/model/quantised_blocks.h"
#include "engine/policy/formula_maths.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

namespace keyhole::test_integer_products {
namespace {

std::vector<float> random_input(std::int64_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(to_index(n));
    for (float& v : x) v = normal(generator);
    return x;
}

/// Blocks of random codes. Factors are between 0.01 and 0.1, extreme ones any number of 16 bits.
std::vector<std::byte> random_blocks(DType type, std::int64_t n, unsigned seed, bool extreme) {
    std::mt19937 generator(seed);
    std::vector<std::byte> bytes(stored_bytes(type, n));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
    std::uniform_real_distribution<float> usual(0.01f, 0.1f);
    const auto factor = [&] {
        return extreme ? static_cast<std::uint16_t>(generator()) : fp16_from_float(usual(generator));
    };
    with_block(type, [&]<class Block>(Block) {
        auto* const blocks = reinterpret_cast<Block*>(bytes.data());
        for (std::int64_t i = 0; i < n / Block::kElements; ++i) {
            if constexpr (Block::kType == DType::mxfp4)
                blocks[i].d = static_cast<std::uint8_t>(extreme ? generator() : 120 + generator() % 4);
            else
                blocks[i].d = factor();
            if constexpr (Block::kHasOffset) blocks[i].m = factor();
        }
    });
    return bytes;
}

/// Blocks with all bits set, but for factors and offsets of 1.
std::vector<std::byte> largest_blocks(DType type, std::int64_t n) {
    std::vector<std::byte> bytes(stored_bytes(type, n), std::byte{255});
    with_block(type, [&]<class Block>(Block) {
        auto* const blocks = reinterpret_cast<Block*>(bytes.data());
        for (std::int64_t i = 0; i < n / Block::kElements; ++i) {
            if constexpr (Block::kType == DType::mxfp4)
                blocks[i].d = 128;
            else
                blocks[i].d = fp16_from_float(1);
            if constexpr (Block::kHasOffset) blocks[i].m = fp16_from_float(1);
        }
    });
    return bytes;
}

/// A matrix of blocks, and the same laid.
struct Matrix {
    std::vector<std::byte> blocks;
    NarrowBlocks aligned;  // storage of `laid`, whose bytes begin at a cache line
    Weight weight;
    LaidMatrix laid;

    Matrix(DType type, std::int64_t rows, std::int64_t cols, unsigned seed, bool extreme)
        : Matrix(type, rows, cols, random_blocks(type, rows * cols, seed, extreme)) {}
    Matrix(DType type, std::int64_t rows, std::int64_t cols, std::vector<std::byte> from)
        : blocks(std::move(from)) {
        weight = {type, blocks.data(), rows, cols};
        aligned.resize(to_index(laid_bytes(weight)) / sizeof(NarrowBlock) + 1);
        auto* const data = reinterpret_cast<std::byte*>(aligned.data());
        laid = {type, data, rows, cols};
        lay_groups(weight, 0, laid.n_groups(), data);
    }
};

/// Inputs, narrowed and ordered for a path and a matrix.
struct Inputs {
    NarrowBlocks blocks;
    OrderedBytes ordered;
    Inputs(IntegerPath path, const LaidMatrix& w, const std::vector<float>& x, int n_batch)
        : blocks(x.size() / kCellColumns), ordered(to_index(ordered_bytes(path, w.dtype, w.cols, n_batch))) {
        narrow_input(path, x.data(), static_cast<std::int64_t>(x.size()), blocks.data());
        order_inputs(path, w.dtype, blocks.data(), w.cols, n_batch, ordered.data());
    }
    NarrowInputs view() const { return {blocks.data(), ordered.data()}; }
};

std::vector<float> product(IntegerPath path, const LaidMatrix& w, const std::vector<float>& x, int n_batch) {
    const Inputs in(path, w, x, n_batch);
    std::vector<float> y(to_index(w.rows * n_batch), -1);
    multiply_laid(path, w, 0, w.n_groups(), in.view(), n_batch, y.data(), w.rows);
    return y;
}

/// What is asked of every path, from the blocks of the file.
template <class Block>
float expected_row(const Block* row, std::int64_t cols, const float* x) {
    constexpr int kPart = std::min(Block::kPerScale, 32);
    float y = 0;
    for (std::int64_t c = 0; c < cols; c += 32) {
        float most = 0;
        for (int i = 0; i < 32; ++i) most = std::max(most, std::abs(x[c + i]));
        const float inverse = most >= 1e-30f ? 8323072 / most : 0, scale = inverse != 0 ? most / 8323072 : 0;
        float of_cell = 0;
        bool begun = false;
        for (int part = 0; part < 32; part += kPart) {
            const Block& block = row[c / Block::kElements];
            const int first = static_cast<int>(c % Block::kElements) + part, j = first / Block::kPerScale;
            std::int64_t upper = 0, lower = 0, total = 0;
            for (int i = 0; i < kPart; ++i) {
                const auto q = static_cast<std::int64_t>(std::nearbyint(x[c + part + i] * inverse));
                const auto low = static_cast<std::int8_t>(q);
                upper += (q - low) / 256 * block.code(first + i);
                lower += std::int64_t{low} * block.code(first + i);
                total += q;
            }
            float d = 0;
            if constexpr (Block::kType == DType::mxfp4)
                d = std::bit_cast<float>(Block::factor_bits(block.d));
            else
                d = float_from_fp16(block.d);
            const float scaled = d * static_cast<float>(block.scale(j)) * scale;
            const float sum = 256 * static_cast<float>(upper) + static_cast<float>(lower);
            const auto plus = [&](float a, float b) { of_cell = begun ? std::fma(a, b, of_cell) : a * b; };
            if constexpr (Block::kHasOffset) {
                plus(float_from_fp16(block.m) * static_cast<float>(block.offset(j)),
                     scale * static_cast<float>(total));
                begun = true;
            }
            plus(scaled, sum);
            begun = true;
        }
        y += of_cell;
    }
    return y;
}

float expected(const Matrix& m, std::int64_t row, const float* x) {
    return with_block(m.weight.dtype, [&]<class Block>(Block) {
        const auto* blocks = static_cast<const Block*>(m.weight.data);
        return expected_row(blocks + row * (m.weight.cols / Block::kElements), m.weight.cols, x);
    });
}

std::vector<DType> all_types() {
    std::vector<DType> types;
#define KH_ADD(type, Block, number, name) types.push_back(DType::type);
    KH_BLOCK_TYPES(KH_ADD)
#undef KH_ADD
    return types;
}

bool same_bits(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
           (std::isnan(a) && std::isnan(b));
}

class IntegerProducts : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, IntegerProducts, ::testing::ValuesIn(all_types()),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

TEST_P(IntegerProducts, EveryPathGivesTheBitsOfALoopOverBlocks) {
    for (const bool extreme : {false, true})
        for (const std::int64_t rows : {5, 16, 43}) {
            constexpr std::int64_t kCols = 512;
            // In groups of three and two, and of six and one.
            const int n_batch = rows == 16 ? 5 : 7;
            const Matrix m(GetParam(), rows, kCols, static_cast<unsigned>(rows), extreme);
            std::vector<float> x = random_input(n_batch * kCols, 3);
            x[40] = 3e38f;  // a block beside which others vanish
            for (int i = 0; i < 32; ++i) x[to_index(kCols + i)] = 0;
            for (int i = 0; i < 32; ++i) x[to_index(kCols + 32 + i)] = 1e-38f;
            for (const IntegerPath path : integer_paths()) {
                const std::vector<float> y = product(path, m.laid, x, n_batch);
                for (int b = 0; b < n_batch; ++b)
                    for (std::int64_t r = 0; r < rows; ++r)
                        ASSERT_TRUE(
                            same_bits(y[to_index(b * rows + r)], expected(m, r, x.data() + b * kCols)))
                            << integer_path_name(path) << " row " << r << " of " << rows << ", input " << b
                            << (extreme ? ", extreme scales" : "") << ": " << y[to_index(b * rows + r)]
                            << " instead of " << expected(m, r, x.data() + b * kCols);
            }
        }
}

// In whole tiles, in one that lacks some, in small ones and one by one; and a row apart.
TEST_P(IntegerProducts, EveryPathGivesTheBitsOfPlainOnesForManyInputs) {
    constexpr std::int64_t kCols = 768, kRows = 147;
    const Matrix m(GetParam(), kRows, kCols, 21, true);
    for (const int n_batch : {3, 4, 6, 8, 9, 11, 16, 29, 64, 67, 70}) {
        std::vector<float> x = random_input(n_batch * kCols, 22);
        for (int i = 0; i < 32; ++i)
            x[to_index(kCols + 64 + i)] = i % 2 == 0 ? 1.0f : -1.0f;  // extreme numbers
        x[to_index(2 * kCols + 3)] = std::nanf("");
        const std::vector<float> plain = product(IntegerPath::plain, m.laid, x, n_batch);
        for (const IntegerPath path : integer_paths()) {
            const std::vector<float> y = product(path, m.laid, x, n_batch);
            for (std::size_t i = 0; i < y.size(); ++i)
                ASSERT_TRUE(same_bits(y[i], plain[i]))
                    << integer_path_name(path) << ", " << n_batch << " inputs: " << y[i] << " instead of "
                    << plain[i] << " at " << i;
        }
    }
}

// Sums of several products in 16 bits come nearest to their limits.
TEST_P(IntegerProducts, LargestCodesAndNumbersGiveTheBitsOfALoopOverBlocks) {
    constexpr std::int64_t kRows = 16, kCols = 256;
    const Matrix m(GetParam(), kRows, kCols, largest_blocks(GetParam(), kRows * kCols));
    // 65536 t0 + 256 t1 + t2, where each is a signed byte
    const auto number = [](int t0, int t1, int t2) { return static_cast<float>(65536 * t0 + 256 * t1 + t2); };
    for (const float v : {number(126, -128, -128), number(126, 127, 127), number(-127, 0, 0)}) {
        constexpr int kBatch = 3;
        std::vector<float> x(to_index(kBatch * kCols), v);
        for (std::size_t c = 0; c < x.size(); c += 32) x[c] = 8323072;  // so that the scale is 1
        for (const IntegerPath path : integer_paths()) {
            const std::vector<float> y = product(path, m.laid, x, kBatch);
            for (std::size_t i = 0; i < y.size(); ++i)
                ASSERT_TRUE(same_bits(y[i], expected(m, static_cast<std::int64_t>(i) % kRows, x.data())))
                    << integer_path_name(path) << ": " << y[i] << " with numbers of " << v;
        }
    }
}

// Of columns that begin within a block of 256 too.
TEST_P(IntegerProducts, MeasuresColumnsInTheOrderOfChannels) {
    constexpr std::int64_t kCols = 768, kRows = 43;
    const Matrix m(GetParam(), kRows, kCols, 31, false);
    const std::vector<float> x = random_input(kCols, 32);
    std::vector<float> w(to_index(kRows * kCols));
    widen_rows(m.weight, 0, kRows, w.data());
    for (const IntegerPath path : integer_paths())
        for (const auto& [first, n] : {std::pair{0, 32}, {96, 64}, {224, 96}, {256, 128}, {0, 768}})
            for (std::int64_t group = 0; group < m.laid.n_groups(); ++group) {
                float lengths[kLaidRows];
                measure_laid(path, m.laid, group, first, n, x.data(), lengths);
                for (int i = 0; i < kLaidRows; ++i) {
                    const std::int64_t row = group * kLaidRows + i;
                    const float expected =
                        row >= kRows ? 0.0f
                                     : std::fabs(dot_channels(
                                           n, [&](int c) { return w[to_index(row * kCols + first + c)]; },
                                           [&](int c) { return x[to_index(c)]; }));
                    ASSERT_EQ(lengths[i], expected)
                        << integer_path_name(path) << " row " << row << ", columns from " << first;
                }
            }
}

TEST(IntegerPaths, AfterTheLimitAreLeftOut) {
    const std::vector<IntegerPath> all = integer_paths();
    limit_integer_paths(IntegerPath::plain);
    EXPECT_EQ(integer_paths(), std::vector{IntegerPath::plain});
    limit_integer_paths(all.back());
    EXPECT_EQ(integer_paths(), all);
}

TEST_P(IntegerProducts, TheErrorIsSmall) {
    constexpr std::int64_t kRows = 64, kCols = 1536;
    const Matrix m(GetParam(), kRows, kCols, 11, false);
    const std::vector<float> x = random_input(kCols, 12);
    std::vector<float> w(to_index(kRows * kCols));
    widen_stored(GetParam(), m.weight.data, kRows * kCols, w.data());
    const std::vector<float> y = product(best_integer_path(), m.laid, x, 1);
    double worst = 0, largest = 0;
    for (std::int64_t r = 0; r < kRows; ++r) {
        double exact = 0;
        for (std::int64_t c = 0; c < kCols; ++c)
            exact += static_cast<double>(w[to_index(r * kCols + c)]) * x[to_index(c)];
        worst = std::max(worst, std::abs(exact - y[to_index(r)]));
        largest = std::max(largest, std::abs(exact));
    }
    EXPECT_LT(worst, 2e-6 * largest);
    EXPECT_GT(largest, 0);
    RecordProperty("worst_over_largest", std::to_string(worst / largest));
}

// Lanes of several models may share some inputs: a product reads the first of those that are ordered.
TEST_P(IntegerProducts, AProductMayReadFewerInputsThanAreOrdered) {
    constexpr std::int64_t kRows = 37, kCols = 512;
    constexpr int kBatch = 75;
    const Matrix m(GetParam(), kRows, kCols, 31, false);
    const std::vector<float> x = random_input(kBatch * kCols, 32);
    for (const IntegerPath path : integer_paths()) {
        const Inputs in(path, m.laid, x, kBatch);
        const std::vector<float> whole = product(IntegerPath::plain, m.laid, x, kBatch);
        for (const int n : {1, 2, 3, 5, 7, 8, 13, 64, 66, 72}) {
            std::vector<float> y(to_index(n * kRows), -1);
            multiply_laid(path, m.laid, 0, m.laid.n_groups(), in.view(), n, y.data(), kRows);
            EXPECT_EQ(y, std::vector<float>(whole.begin(), whole.begin() + n * kRows))
                << integer_path_name(path) << ", " << n << " of " << kBatch;
        }
    }
}

// The whole is computed a tile of groups after the other, of which there are several.
TEST_P(IntegerProducts, GroupsOfRowsMayBeMultipliedApart) {
    constexpr std::int64_t kRows = 1003, kCols = 512;
    constexpr int kBatch = 7;
    const Matrix m(GetParam(), kRows, kCols, 5, false);
    ASSERT_GT(laid_bytes(m.weight), 128 << 10);
    const std::vector<float> x = random_input(kBatch * kCols, 6);
    const IntegerPath path = best_integer_path();
    const Inputs in(path, m.laid, x, kBatch);
    std::vector<float> apart(to_index(kBatch * kRows), -1);
    for (std::int64_t g = 0; g < m.laid.n_groups(); ++g)
        multiply_laid(path, m.laid, g, g + 1, in.view(), kBatch, apart.data(), kRows);
    EXPECT_EQ(apart, product(path, m.laid, x, kBatch));
}

TEST(IntegerInputs, AreOfTheNearestWholeNumberAndNotOfWhatIsNotFinite) {
    std::vector<float> x(32, 0.0f);
    x[3] = -2;
    x[4] = 1;
    x[20] = 2.0f * 100.5f / 8323072;  // between two: to the even one
    for (const IntegerPath path : integer_paths()) {
        NarrowBlock block;
        narrow_input(path, x.data(), 32, &block);
        EXPECT_EQ(block.scale, 2.0f / 8323072) << integer_path_name(path);
        EXPECT_EQ(block.upper_sums[0], -32512 + 16256);
        EXPECT_EQ(block.lower_sums[0], 0);
        EXPECT_EQ(block.upper_sums[1], 0);
        EXPECT_EQ(block.lower_sums[1], 100);
        EXPECT_EQ(block.scaled_sums[2], block.scale * (-8323072 / 2 + 100));
        for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
            std::vector<float> broken = x;
            broken[9] = bad;
            narrow_input(path, broken.data(), 32, &block);
            EXPECT_TRUE(std::isnan(block.scale)) << integer_path_name(path);
            EXPECT_EQ(block.upper_sums[0], 0);
        }
    }
}

}  // namespace
}  // namespace keyhole::test_integer_products
