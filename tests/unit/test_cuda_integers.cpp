// Products of laid matrices in integers, run thread by thread on the host: the bits of the CPU's plain path.
#include "engine/backend/common/integer_products.h"
#include "engine/backend/cuda/executor.h"
#include "engine/backend/cuda/kernels/integer_tiles.h"
#include "engine/backend/cuda/kernels/integers.h"
#include "engine/base/index.h"
#include "engine/model/quantised_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace keyhole::cuda::test_cuda_integers {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kQuantised[] = {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0,
                                DType::q5_1, DType::q4_k, DType::q5_k, DType::q6_k};

std::vector<float> normal(std::int64_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> distribution(0, 1);
    std::vector<float> values(to_index(n));
    for (float& v : values) v = distribution(generator);
    return values;
}

/// Equal bits, NaN or not.
::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size();
    for (std::size_t i = 0; i < a.size(); ++i)
        if (bits_of(a[i]) != bits_of(b[i]))
            return ::testing::AssertionFailure() << "at " << i << ": " << a[i] << " and " << b[i];
    return ::testing::AssertionSuccess();
}

/// A matrix of random blocks with small finite factors, as a file has it and laid.
struct Laid16 {
    DType type;
    std::int64_t rows, cols;
    std::vector<std::uint8_t> blocks;
    std::vector<std::byte> laid;

    Laid16(DType of, std::int64_t n_rows, std::int64_t n_cols, unsigned seed)
        : type(of), rows(n_rows), cols(n_cols), blocks(stored_bytes(of, n_rows * n_cols)) {
        std::mt19937 generator(seed);
        for (std::uint8_t& byte : blocks) byte = static_cast<std::uint8_t>(generator());
        with_block(type, [&]<class Of>(Of block) {
            for (std::size_t at = 0; at < blocks.size(); at += sizeof(block)) {
                std::memcpy(&block, blocks.data() + at, sizeof(block));
                if constexpr (is_read_on_device(Of::kType)) block.d &= 0xafff;  // below 1/8
                if constexpr (Of::kHasOffset) block.m &= 0xafff;
                std::memcpy(blocks.data() + at, &block, sizeof(block));
            }
        });
        laid.resize(to_index(laid_bytes(weight())));
        lay_groups(weight(), 0, (rows + kLaidRows - 1) / kLaidRows, laid.data());
    }
    Weight weight() const { return {type, blocks.data(), rows, cols}; }
    /// Returns the CPU's products with x [n_lanes, cols], one after the other: [n_lanes, rows].
    std::vector<float> products(const std::vector<float>& x, int n_lanes, const float* bias) const {
        NarrowBlocks narrow(to_index(n_lanes * cols / kCellColumns));
        narrow_input(IntegerPath::plain, x.data(), n_lanes * cols, narrow.data());
        std::vector<float> y(to_index(n_lanes * rows), kNan);
        multiply_laid(IntegerPath::plain, {type, laid.data(), rows, cols}, 0,
                      (rows + kLaidRows - 1) / kLaidRows, {narrow.data(), nullptr}, n_lanes, y.data(), rows);
        for (std::size_t i = 0; bias != nullptr && i < y.size(); ++i)
            y[i] = add(y[i], bias[i % to_index(rows)]);
        return y;
    }
    Product<Stored> product(const float* bias, float* y) const {
        const int n_rows = static_cast<int>(rows);
        return {{laid.data(), type, static_cast<int>(cols)}, bias, y, n_rows, n_rows};
    }
};

/// Gives a kernel its inputs x [n_lanes, cols]; LaidTiles has them narrowed.
template <int kBatch>
std::vector<NarrowTile> set_inputs(LaidProducts<kBatch>& kernel, const std::vector<float>& x) {
    kernel.x = x.data();
    return {};
}
std::vector<NarrowTile> set_inputs(LaidTiles& kernel, const std::vector<float>& x) {
    std::vector<NarrowTile> tiles(to_index(kernel.cols / kCellColumns));
    std::memset(static_cast<void*>(tiles.data()), 0xff, tiles.size() * sizeof(tiles[0]));
    const NarrowTiles narrows{x.data(), tiles.data(), kernel.n_lanes, kernel.cols};
    run_on_host(narrows, {narrows.blocks(64)}, 64);
    kernel.narrowed = tiles.data();
    return tiles;
}

/// Runs a kernel whose products are set.
template <class Kernel>
void run(Kernel kernel, const std::vector<float>& x, std::int64_t cols, int n_lanes) {
    kernel.cols = static_cast<int>(cols);
    kernel.n_lanes = n_lanes;
    const std::vector<NarrowTile> tiles = set_inputs(kernel, x);
    for (const int order : {0, 2}) {
        for (int i = 0; i < kernel.n_products; ++i)
            std::fill_n(kernel.product[i].y, n_lanes * kernel.product[i].rows, kNan);
        run_on_host(kernel, {kernel.blocks()}, kMaxThreads, order, 3, 0xff);
    }
}

/// Two products of one input, the second with a bias and of another type.
template <class Kernel>
void check_products(DType type, std::int64_t cols, int n_lanes, int pairs_of_block) {
    SCOPED_TRACE(::testing::Message()
                 << dtype_name(type) << " " << cols << " columns, " << n_lanes << " lanes");
    const std::vector<float> x = normal(n_lanes * cols, 7), bias = normal(19, 8);
    const DType other = cols % 256 == 0 ? DType::q6_k : DType::q8_0;
    const Laid16 a(type, 37, cols, 1), b(other, 19, cols, 2);
    std::vector<float> of_a(to_index(Kernel::kLanes * a.rows), kNan),
        of_b(to_index(Kernel::kLanes * b.rows), kNan);
    Kernel kernel{};
    kernel.product[0] = a.product(nullptr, of_a.data());
    kernel.product[1] = b.product(bias.data(), of_b.data());
    kernel.n_products = 2;
    kernel.pairs_of_block = pairs_of_block;
    run(kernel, x, cols, n_lanes);
    for (std::size_t i = to_index(n_lanes * a.rows); i < of_a.size(); ++i) ASSERT_TRUE(std::isnan(of_a[i]));
    for (std::size_t i = to_index(n_lanes * b.rows); i < of_b.size(); ++i) ASSERT_TRUE(std::isnan(of_b[i]));
    of_a.resize(to_index(n_lanes * a.rows));
    of_b.resize(to_index(n_lanes * b.rows));
    EXPECT_TRUE(same_bits(of_a, a.products(x, n_lanes, nullptr)));
    EXPECT_TRUE(same_bits(of_b, b.products(x, n_lanes, bias.data())));
}

TEST(CudaIntegers, ProductsHaveTheBitsOfTheCpu) {
    for (const DType type : kQuantised) {
        const std::int64_t block = block_elements(type);
        check_products<LaidProducts<1>>(type, block, 1, 1);
        check_products<LaidProducts<1>>(type, 4096, 1, 3);
        check_products<LaidProducts<1>>(type, 4096 + 3 * block, 1, 2);  // a second tile
        check_products<LaidProducts<2>>(type, 2048 + 5 * block, 2, 2);
        check_products<LaidTiles>(type, 3 * block, 3, 1);
        for (const int n_lanes : {5, 6}) check_products<LaidTiles>(type, block, n_lanes, 2);
        check_products<LaidTiles>(type, 512 + 3 * block, 7, 4);
    }
    check_products<LaidTiles>(DType::q4_k, 4096, 8, 2);
    check_products<LaidTiles>(DType::q6_k, 2304, 4, 1);
}

/// A norm before, an activation after, two products as one, a sum with what is there.
template <class Kernel>
void check_use(bool centres, bool gated, bool adds, int n_lanes, std::int64_t cols) {
    SCOPED_TRACE(::testing::Message() << Kernel::kLanes << centres << gated << adds << " " << cols);
    const int rows = 35;
    std::vector<float> x = normal(n_lanes * cols, 1), normed(x.size(), kNan);
    const std::vector<float> gain = normal(cols, 2), of_norm = normal(cols, 3), bias = normal(rows, 4),
                             start = normal(n_lanes * rows, 5);
    const NormRule norm{gain.data(), centres ? of_norm.data() : nullptr, 1e-5f, centres ? 1 : 0};
    run_on_host(AddNorm{x.data(), nullptr, nullptr, norm, normed.data(), static_cast<int>(cols)}, {n_lanes},
                kMaxThreads);
    const Laid16 gate(DType::q4_k, rows, cols, 6), up(DType::q6_k, rows, cols, 7);
    std::vector<float> expected = gate.products(normed, n_lanes, bias.data());
    const std::vector<float> by = up.products(normed, n_lanes, nullptr);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] = activated(ActivationKind::silu, expected[i]);
        if (gated) expected[i] = mul(expected[i], by[i]);
        if (adds) expected[i] = add(start[i], expected[i]);
    }
    std::vector<float> y = start;
    Kernel kernel{};
    kernel.product[0] = gate.product(bias.data(), y.data());
    kernel.product[1] = up.product(nullptr, nullptr);
    kernel.n_products = gated ? 2 : 1;
    kernel.pairs_of_block = 2;
    constexpr bool kNorms = Kernel::kNorms;
    kernel.use = {kNorms ? norm : NormRule{}, adds ? 1 : 0, 1, gated ? 1 : 0, ActivationKind::silu};
    kernel.cols = static_cast<int>(cols);
    kernel.n_lanes = n_lanes;
    const std::vector<NarrowTile> tiles = set_inputs(kernel, kNorms ? x : normed);
    run_on_host(kernel, {kernel.blocks()}, kMaxThreads);
    EXPECT_TRUE(same_bits(y, expected));
}

TEST(CudaIntegers, FusedProductsHaveTheBitsOfSingleLaunches) {
    for (const bool centres : {false, true})
        for (const bool gated : {false, true}) {
            check_use<LaidProducts<1>>(centres, gated, gated, 1, 1280);
            check_use<LaidProducts<1>>(centres, gated, !gated, 1, 4096 + 768);
            check_use<LaidProducts<2>>(centres, gated, gated, 2, 2304);
            if (!centres) check_use<LaidTiles>(false, gated, true, 3, 1280);
            if (!centres) check_use<LaidTiles>(false, gated, false, 8, 768);
        }
}

TEST(CudaIntegers, NumbersThatAreNotFiniteMakeNaN) {
    for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
        const Laid16 w(DType::q4_k, 16, 512, 1);
        std::vector<float> x = normal(512, 2), y(16, 0.0f);
        x[300] = bad;
        LaidProducts<1> kernel{};
        kernel.product[0] = w.product(nullptr, y.data());
        kernel.n_products = 1;
        run(kernel, x, 512, 1);
        for (const float v : y) EXPECT_TRUE(std::isnan(v));
    }
    // Numbers too small for a scale count as zeros, as on the CPU.
    const Laid16 w(DType::q8_0, 16, 64, 1);
    std::vector<float> x(64, 5e-31f), y(16, kNan);
    LaidProducts<1> kernel{};
    kernel.product[0] = w.product(nullptr, y.data());
    kernel.n_products = 1;
    run(kernel, x, 64, 1);
    EXPECT_TRUE(same_bits(y, w.products(x, 1, nullptr)));
}

/// What one lane has does not reach the others, whose products are the same instructions.
TEST(CudaIntegers, NumbersOfOneLaneStayInIt) {
    const Laid16 w(DType::q5_k, 16, 512, 1);
    std::vector<float> x = normal(3 * 512, 2), y(3 * 16, kNan);
    LaidTiles kernel{};
    kernel.product[0] = w.product(nullptr, y.data());
    kernel.n_products = 1;
    for (const float bad : {kNan, std::numeric_limits<float>::infinity(), 5e-31f}) {
        std::fill_n(x.begin() + 512, 512, bad);
        run(kernel, x, 512, 3);
        EXPECT_TRUE(same_bits(y, w.products(x, 3, nullptr))) << bad;
        EXPECT_EQ(std::isnan(y[16]), bad != 5e-31f);
    }
}

/// Sums start within the bits of a float, so they have a limit.
TEST(CudaIntegers, TheLargestSumsHaveTheBitsOfTheCpu) {
    Laid16 w(DType::q8_0, 16, 64, 1);
    for (const int code : {-128, 127}) {
        with_block(w.type, [&]<class Of>(Of) {
            for (std::size_t at = 0; at < w.blocks.size(); at += sizeof(Of))
                std::memset(w.blocks.data() + at + sizeof(Of) - 32, code, 32);
        });
        lay_groups(w.weight(), 0, 1, w.laid.data());
        for (const float largest :
             {8323072.0f, -8323072.0f, -8290432.0f}) {  // v = 127; -127; -126 with w = l = -128
            std::vector<float> x(4 * 64, largest), y(4 * 16, kNan);
            x[0] = 8323072;  // the scale is 1
            LaidTiles kernel{};
            kernel.product[0] = w.product(nullptr, y.data());
            kernel.n_products = 1;
            run(kernel, x, 64, 4);
            EXPECT_TRUE(same_bits(y, w.products(x, 4, nullptr))) << code << " " << largest;
        }
    }
}

TEST(CudaIntegers, ALaidMatrixWidensAsTheFileDoes) {
    for (const DType type : kQuantised) {
        SCOPED_TRACE(dtype_name(type));
        const Laid16 w(type, 21, 3 * block_elements(type), 5);
        const std::int64_t n_packs = w.rows * w.cols / 8;
        std::vector<float> wide(to_index(w.rows * w.cols), kNan), of_file = wide;
        const int blocks = static_cast<int>(n_packs + 63) / 64;
        run_on_host(WidenStored{{w.laid.data(), type, static_cast<int>(w.cols)}, wide.data(), n_packs},
                    {blocks}, 64);
        run_on_host(WidenStored{{w.blocks.data(), type}, of_file.data(), n_packs}, {blocks}, 64);
        EXPECT_EQ(wide, of_file);  // where an offset is 0, its sign may differ
    }
}

}  // namespace
}  // namespace keyhole::cuda::test_cuda_integers
