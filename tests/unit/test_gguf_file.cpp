// The reader of GGUF files and the widening of their blocks, on files of the official gguf package and on
// malicious files.
#include "engine/model/gguf_file.h"

#include "engine/backend/common/kernels.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/model/quantised_blocks.h"
#include "engine/model/weight_check.h"
#include "tests/reference/gguf_bytes.h"
#include "tests/reference/small_memory.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

namespace keyhole::test_gguf_file {
namespace {

namespace fs = std::filesystem;
using reference::GgufBytes;

const fs::path kFixtures = reference::source_folder() / "tests/fixtures/gguf";

/// Bytes as a file, removed with the object.
class RawFile {
  public:
    explicit RawFile(const std::string& bytes) { write_text_file(path(), bytes); }
    fs::path path() const { return folder_.path() / "raw.gguf"; }

  private:
    reference::TempFolder folder_{"gguf"};
};

/// Returns the one-line refusal of a file, within 64 MiB of memory.
void expect_refused(const std::string& bytes, const std::string& part,
                    const std::function<void(const GgufFile&)>& use = {}) {
    const RawFile file(bytes);
    const std::string said = reference::in_small_memory(std::size_t{64} << 20, [&] {
        const GgufFile opened(file.path());
        if (use) use(opened);
        return std::string("accepted");
    });
    EXPECT_TRUE(said.starts_with("Error: ")) << said << "\nexpected: " << part;
    EXPECT_NE(said.find(part), std::string::npos) << said << "\nexpected: " << part;
    EXPECT_NE(said.find(file.path().string()), std::string::npos) << said;
    EXPECT_EQ(said, printable_text(said));
}

void expect_refused(const GgufBytes& bytes, const std::string& part,
                    const std::function<void(const GgufFile&)>& use = {}) {
    expect_refused(bytes.bytes(), part, use);
}

constexpr DType kQuantised[] = {DType::q8_0,   DType::q4_0,   DType::q4_1,  DType::q5_0,  DType::q5_1,
                                DType::q4_k,   DType::q5_k,   DType::q6_k,  DType::q2_k,  DType::q3_k,
                                DType::iq4_nl, DType::iq4_xs, DType::mxfp4, DType::tq2_0, DType::tq1_0};

TEST(GgufFile, ReadsKeysOfEveryType) {
    const GgufFile file(kFixtures / "keys.gguf");
    EXPECT_EQ(file.text("general.architecture"), "llama");
    EXPECT_EQ(file.text("test.string"), "größer");
    EXPECT_EQ(file.count("test.uint8", 1000), 200);
    EXPECT_EQ(file.count("test.uint16", 100000), 60000);
    EXPECT_EQ(file.number_or("test.int8", 0), -100.0);
    EXPECT_EQ(file.number_or("test.int16", 0), -30000.0);
    EXPECT_EQ(file.number_or("test.uint32", 0), 4e9);
    EXPECT_EQ(file.number_or("test.int32", 0), -2e9);
    EXPECT_EQ(file.number_or("test.uint64", 0), std::exp2(40));
    EXPECT_EQ(file.number_or("test.int64", 0), -std::exp2(40));
    EXPECT_EQ(file.positive_or("test.float32", 0), static_cast<double>(0.1f));
    EXPECT_EQ(file.positive_or("test.float64", 0), 0.1);
    EXPECT_TRUE(file.flag_or("test.bool", false));
    EXPECT_EQ(file.texts("test.texts"), (std::vector<std::string_view>{"", "a", "größer"}));
    EXPECT_EQ(file.integers("test.integers"), (std::vector<std::int32_t>{1, -2, 3}));
    EXPECT_EQ(file.numbers("test.numbers"), (std::vector<float>{0.5f, -1.5f}));
    EXPECT_EQ(file.count("test.equal", 10), 7);
    EXPECT_EQ(file.text_or("nothing", "else"), "else");
    EXPECT_EQ(file.count_or("nothing", 3, 10), 3);
    EXPECT_TRUE(file.texts("nothing").empty());
    EXPECT_FALSE(file.has("nothing"));
}

TEST(GgufFile, ReadersNameFileAndKey) {
    const GgufFile file(kFixtures / "keys.gguf");
    const auto said = [&](const std::function<void()>& read) {
        try {
            read();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    const auto expect_says = [&](const std::string& what, const std::string& part) {
        EXPECT_NE(what.find(part), std::string::npos) << what << "\nexpected: " << part;
        EXPECT_NE(what.find("keys.gguf"), std::string::npos) << what;
    };
    expect_says(said([&] { file.text("nothing"); }), "nothing is absent, wanted a text");
    expect_says(said([&] { file.text("test.bool"); }), "test.bool is true, wanted a text");
    expect_says(said([&] { file.count("test.string", 5); }),
                "test.string is the text größer, wanted a whole number");
    expect_says(said([&] { file.count("test.uint8", 199); }),
                "test.uint8 is 200, wanted a whole number from 1 to 199");
    expect_says(said([&] { file.count("test.int8", 199); }), "test.int8 is -100");
    expect_says(said([&] { file.count("test.float32", 5); }), "test.float32 is 0.1");
    expect_says(said([&] { file.count("test.integers", 5); }), "test.integers differs between layers");
    expect_says(said([&] { file.positive_or("test.int8", 1); }), "wanted a positive number");
    expect_says(said([&] { file.flag_or("test.uint8", true); }), "wanted true or false");
    expect_says(said([&] { file.texts("test.numbers"); }),
                "is a list of 2 elements of type f32, wanted a list of texts");
    expect_says(said([&] { file.numbers("test.texts"); }), "wanted a list of numbers");
    expect_says(said([&] { file.integers("test.numbers"); }), "wanted a list of whole numbers");
    expect_says(said([&] { file.tensor("blk.0"); }), "cannot find tensor blk.0");
}

/// Returns the float32 tensor as the package stored it.
std::vector<float> floats_of(const StoredTensor& tensor) {
    std::vector<float> values(to_index(tensor.shape[0] * tensor.shape[1]));
    std::memcpy(values.data(), tensor.data, values.size() * sizeof(float));
    return values;
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(expected[i]))
            << i << ": " << got[i] << " for " << expected[i];
}

TEST(GgufFile, EveryTypeWidensToTheBitsOfThePackage) {
    const GgufFile file(kFixtures / "types.gguf");
    for (int i = 0; i <= static_cast<int>(DType::tq1_0); ++i) {
        const auto dtype = static_cast<DType>(i);
        const std::string name(dtype_name(dtype));
        SCOPED_TRACE(name);
        const StoredTensor stored = file.tensor(name);
        EXPECT_EQ(stored.dtype, dtype);
        const std::int64_t rows = stored.shape[0], cols = stored.shape[1];
        EXPECT_EQ(rows, 3);
        const std::vector<float> expected = floats_of(file.tensor(name + ".values"));
        std::vector<float> got(expected.size());
        widen_stored(dtype, stored.data, rows * cols, got.data());
        expect_same_bits(got, expected);
        const Weight weight{dtype, stored.data, rows, cols};
        widen_rows(weight, 0, rows, got.data());
        expect_same_bits(got, expected);
        std::vector<float> last(to_index(cols));
        widen_rows(weight, 2, 3, last.data());
        expect_same_bits(last, {expected.end() - cols, expected.end()});
    }
}

TEST(GgufFile, OtherTypesAreListedAndRefusedByName) {
    const GgufFile file(kFixtures / "types.gguf");
    ASSERT_TRUE(file.contains("iq2_xxs"));
    try {
        file.tensor("iq2_xxs");
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
        EXPECT_NE(std::string(error.what()).find("its type is IQ2_XXS, and this build reads F32, F16"),
                  std::string::npos)
            << error.what();
    }
}

TEST(GgufFile, EveryCutIsNoticed) {
    for (const char* name : {"keys.gguf", "types.gguf"}) {
        const std::string whole = read_text_file(kFixtures / name);
        const std::size_t header = GgufFile(kFixtures / name).header().size();
        const std::size_t step = header > 1000 ? 3 : 1;
        for (std::size_t size = 0; size < header; size += step) {
            const RawFile file(whole.substr(0, size));
            EXPECT_THROW(GgufFile opened(file.path()), Error) << name << " " << size;
        }
    }
    const std::string whole = read_text_file(kFixtures / "types.gguf");
    // The last tensor has 96 bytes of a type whose size is not known.
    for (std::size_t cut = 97; cut < 4096; cut += 97) {
        const RawFile file(whole.substr(0, whole.size() - cut));
        EXPECT_THROW(GgufFile opened(file.path()), Error) << cut;
    }
    EXPECT_THROW(GgufFile opened("/nowhere/model.gguf"), Error);
    EXPECT_THROW(GgufFile opened(fs::temp_directory_path()), Error);
}

TEST(GgufFile, HeadersThatLieAreRefused) {
    expect_refused(std::string(), "too few");
    expect_refused(std::string(64, 'x'), "no GGUF file");
    GgufBytes file;
    file.version = 1;
    expect_refused(file, "version 1");
    file.version = 4;
    expect_refused(file, "version 4");
    file.version = 0x03000000;
    expect_refused(file, "big-endian");
    file.version = 2;
    const RawFile second(file.bytes());
    EXPECT_NO_THROW(GgufFile opened(second.path()));
    file.more_keys = 1;
    expect_refused(file, "cut off");
    file.more_keys = std::uint64_t{1} << 60;
    expect_refused(file, "at most");
    file.more_keys = 0;
    file.more_tensors = std::uint64_t{1} << 60;
    expect_refused(file, "at most");
    file.more_tensors = 3;
    expect_refused(file, "cut off");
}

/// Returns a file with one key of any type and value.
std::string with_key(std::uint32_t type, const std::string& value, const std::string& name = "a.key") {
    GgufBytes file;
    file.key(name, type, value);
    return file.bytes();
}

TEST(GgufFile, ValuesThatLieAreRefused) {
    const auto raw32 = [](std::uint32_t value) { return GgufBytes::raw(value); };
    const auto raw64 = [](std::uint64_t value) { return GgufBytes::raw(value); };
    expect_refused(with_key(13, "x"), "unknown type 13");
    expect_refused(with_key(~0u, "x"), "unknown type");
    expect_refused(with_key(GgufBytes::flag, "\2"), "neither true nor false");
    expect_refused(with_key(GgufBytes::text, raw64(~0ull)), "at most");
    expect_refused(with_key(GgufBytes::text, raw64(1 << 20) + "abc"), "cut off");
    expect_refused(with_key(GgufBytes::list, raw32(GgufBytes::list) + raw64(1)), "holds lists");
    expect_refused(with_key(GgufBytes::list, raw32(GgufBytes::u64) + raw64(std::uint64_t{1} << 61)),
                   "claims");
    expect_refused(with_key(GgufBytes::list, raw32(GgufBytes::u8) + raw64(~0ull)), "cut off");
    expect_refused(with_key(GgufBytes::list, raw32(GgufBytes::text) + raw64(~0ull)), "cut off");
    expect_refused(with_key(GgufBytes::list, raw32(GgufBytes::u32) + raw64(1 << 30)), "cut off");
    expect_refused(with_key(GgufBytes::list, raw32(99) + raw64(1)), "unknown type 99");
    GgufBytes twice;
    twice.add("same", true);
    twice.add("same", true);
    expect_refused(twice, "the key same occurs twice");
    GgufBytes odd;
    odd.add("general.alignment", std::uint32_t{48});
    expect_refused(odd, "general.alignment is 48");
    GgufBytes zero;
    zero.add("general.alignment", std::uint32_t{0});
    expect_refused(zero, "general.alignment is 0");
    GgufBytes colour;
    colour.add("a\x1b[31m\n", true);
    colour.add("a\x1b[31m\n", true);
    expect_refused(colour, "occurs twice");
    GgufBytes infinite;
    infinite.add("x", INFINITY);
    expect_refused(infinite, "x is inf", [](const GgufFile& opened) { opened.number_or("x", 1); });
}

TEST(GgufFile, TensorsThatLieAreRefused) {
    const auto with_tensor = [](const std::vector<std::uint64_t>& extents, std::uint32_t type,
                                std::uint64_t offset) {
        GgufBytes file;
        file.tensor_at("w", extents, type, offset);
        file.add_data(4096);
        return file;
    };
    constexpr std::uint32_t kF32 = 0, kF16 = 1, kQ4_1 = 3, kQ4_K = 12;
    EXPECT_NO_THROW(GgufFile opened(RawFile(with_tensor({32, 2}, kF32, 0).bytes()).path()));
    expect_refused(with_tensor({}, kF32, 0), "0 extents");
    expect_refused(with_tensor({1, 1, 1, 1, 1}, kF32, 0), "5 extents");
    expect_refused(with_tensor({0}, kF32, 0), "impossible shape");
    expect_refused(with_tensor({~0ull}, kF32, 0), "impossible shape");
    expect_refused(with_tensor({1ull << 32, 1ull << 32}, kF32, 0), "impossible shape");
    expect_refused(with_tensor({1ull << 62}, kF32, 0), "impossible shape");  // the bytes overflow
    expect_refused(with_tensor({1ull << 40}, kF16, 0), "cut off");
    expect_refused(with_tensor({1025}, kF32, 0), "cut off");
    expect_refused(with_tensor({4}, kF32, 4096), "cut off");
    expect_refused(with_tensor({64}, kF32, ~0ull - 31), "impossible shape");  // the end overflows
    expect_refused(with_tensor({4}, kF32, 4), "no multiple of 32");
    expect_refused(with_tensor({48, 2}, kQ4_1, 0), "blocks of 32");
    expect_refused(with_tensor({32, 8}, kQ4_K, 0), "blocks of 256");
    expect_refused(with_tensor({32}, 77, 8192), "cut off");
    expect_refused(with_tensor({32}, 77, 0), "its type is number 77",
                   [](const GgufFile& opened) { opened.tensor("w"); });
    GgufBytes overlap;
    overlap.tensor_at("a", {64}, kF32, 0);
    overlap.tensor_at("b", {64}, kF32, 128);
    overlap.add_data(1024);
    expect_refused(overlap, "tensors a and b overlap");
    GgufBytes twice;
    twice.tensor_at("a", {8}, kF32, 0);
    twice.tensor_at("a", {8}, kF32, 32);
    twice.add_data(1024);
    expect_refused(twice, "tensor a occurs twice");
    GgufBytes long_name;
    long_name.tensor_at(std::string(300, 'n'), {8}, kF32, 0);
    long_name.add_data(64);
    expect_refused(long_name, "at most 256");
}

// --- kernels ----------------------------------------------------------------------------------------------

/// A matrix of random blocks with ordinary factors.
struct Blocks {
    std::vector<std::uint16_t> bytes;  // aligned as in a file
    Weight weight;
    Blocks(DType dtype, std::int64_t rows, std::int64_t cols) {
        std::mt19937 random(11);
        bytes.resize(stored_bytes(dtype, rows * cols) / 2);
        for (std::uint16_t& two : bytes) two = static_cast<std::uint16_t>(random());
        with_block(dtype, [&]<class Block>(Block) {
            auto* blocks = reinterpret_cast<Block*>(bytes.data());
            for (std::int64_t i = 0; i < rows * cols / Block::kElements; ++i) {
                if constexpr (Block::kType == DType::mxfp4)
                    blocks[i].d = static_cast<std::uint8_t>(121 + random() % 2);
                else
                    blocks[i].d = static_cast<std::uint16_t>(0x2000 + random() % 0x800);  // 0.008 to 0.03
                if constexpr (Block::kHasOffset)
                    blocks[i].m = static_cast<std::uint16_t>(0x2000 + random() % 0x800);
            }
        });
        weight = {dtype, bytes.data(), rows, cols};
    }
};

class QuantisedTypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, QuantisedTypes, ::testing::ValuesIn(kQuantised),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(QuantisedTypes, ProductsHaveTheBitsOfTheFloatMatrixInEveryBatchAndChunk) {
    constexpr int kRows = 23, kCols = 768, kBatch = 9;
    const Blocks m(GetParam(), kRows, kCols);
    std::vector<float> wide(kRows * kCols), x(kBatch * kCols), expected(kBatch * kRows), got(expected),
        alone(kRows);
    widen_stored(GetParam(), m.weight.data, kRows * kCols, wide.data());
    std::mt19937 random(5);
    for (float& value : x) value = std::normal_distribution<float>()(random);
    multiply_rows({DType::f32, wide.data(), kRows, kCols}, 0, kRows, x.data(), kCols, kBatch, expected.data(),
                  kRows);
    multiply_rows(m.weight, 0, kRows, x.data(), kCols, kBatch, got.data(), kRows);
    expect_same_bits(got, expected);
    for (int b = 0; b < kBatch; ++b) {
        for (const auto& [first, last] : {std::pair{0, 6}, {6, 7}, {7, kRows}})
            multiply_rows(m.weight, first, last, x.data() + b * kCols, kCols, 1, alone.data(), kRows);
        for (int r = 0; r < kRows; ++r)
            ASSERT_EQ(alone[to_index(r)], expected[to_index(b * kRows + r)]) << b << " " << r;
    }
}

TEST_P(QuantisedTypes, FactorsThatAreNotFiniteAreCounted) {
    if (GetParam() == DType::mxfp4) GTEST_SKIP() << "every factor of MXFP4 is finite";
    Blocks m(GetParam(), 4, 512);
    const auto n = to_index(m.weight.rows * m.weight.cols);
    EXPECT_FALSE(find_non_finite(GetParam(), m.weight.data, n, true));
    with_block(GetParam(), [&]<class Block>(Block) {
        auto* blocks = reinterpret_cast<Block*>(m.bytes.data());
        const auto set = [](auto& factor, unsigned bits) {
            factor = static_cast<std::remove_reference_t<decltype(factor)>>(bits);
        };
        set(blocks[1].d, 0xfc00);  // -infinity
        const auto infinite = find_non_finite(GetParam(), m.weight.data, n, true);
        ASSERT_TRUE(infinite);
        EXPECT_EQ(infinite->n, to_index(Block::kElements));
        EXPECT_EQ(infinite->n_looked, n);
        EXPECT_FALSE(infinite->has_nan);
        if constexpr (Block::kHasOffset)
            blocks[2].m = 0x7e00;
        else
            set(blocks[2].d, 0x7e00);
        const auto nan = find_non_finite(GetParam(), m.weight.data, n, true);
        EXPECT_EQ(nan->n, to_index(2 * Block::kElements));
        EXPECT_TRUE(nan->has_nan);
    });
}

}  // namespace
}  // namespace keyhole::test_gguf_file
