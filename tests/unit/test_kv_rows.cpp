// Stored keys and values: bytes against numpy, ml_dtypes and the gguf package, loops against double.
#include "engine/backend/common/integer_products.h"
#include "engine/backend/common/key_codes.h"
#include "engine/backend/common/kv_rows.h"
#include "engine/base/index.h"
#include "tests/reference/source_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <vector>

namespace keyhole {
namespace {

constexpr KvType kTypes[] = {KvType::f32, KvType::f16, KvType::bf16, KvType::q8};

/// Rows of a type with memory of their own.
struct Rows {
    std::vector<std::byte> bytes;
    KvRows rows;
    Rows(KvType type, int n, int head_dim)
        : bytes(to_index(n * kv_row_bytes(type, head_dim))), rows{bytes.data(), type, head_dim} {}
    Rows(KvType type, const std::vector<float>& values, int head_dim)
        : Rows(type, static_cast<int>(values.size()) / head_dim, head_dim) {
        for (std::size_t s = 0; s * to_index(head_dim) < values.size(); ++s)
            narrow_kv(values.data() + s * to_index(head_dim), rows.from_row(static_cast<std::int64_t>(s)));
    }
};

std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(n);
    for (float& v : values) v = normal(generator);
    return values;
}

/// IEEE 754 half by its definition.
double half_by_definition(unsigned bits) {
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent == 31) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

/// One number of a stored row, read by the definition of its type.
double stored(const KvRows& rows, int s, int d) {
    const std::byte* row = rows.data + s * kv_row_bytes(rows.type, rows.head_dim);
    const auto bits_at = [&](std::ptrdiff_t at) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, row + at, sizeof bits);
        return bits;
    };
    switch (rows.type) {
        case KvType::f16:
            return half_by_definition(bits_at(2 * d));
        case KvType::bf16: {
            const std::uint32_t bits = static_cast<std::uint32_t>(bits_at(2 * d)) << 16;
            float value = 0;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        }
        case KvType::q8: {
            const int block = d / 32 * 34;
            return half_by_definition(bits_at(block)) * static_cast<std::int8_t>(row[block + 2 + d % 32]);
        }
        default: {
            float value = 0;
            std::memcpy(&value, row + 4 * d, sizeof value);
            return value;
        }
    }
}

std::vector<std::byte> unhex(const std::string& hex) {
    std::vector<std::byte> out;
    for (std::size_t i = 0; i < hex.size(); i += 2)
        out.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    return out;
}

TEST(KvRows, BytesAreThoseOfNumpyMlDtypesAndGguf) {
    std::ifstream file(reference::source_folder() / "tests/fixtures/kv_types.json");
    const nlohmann::json cases = nlohmann::json::parse(file);
    ASSERT_EQ(cases.size(), 24u);
    for (const auto& c : cases) {
        const std::vector<std::byte> bytes = unhex(c["f32"]);
        std::vector<float> row(bytes.size() / sizeof(float));
        std::memcpy(row.data(), bytes.data(), bytes.size());
        for (const KvType type : kTypes) {
            const Rows ours(type, row, static_cast<int>(row.size()));
            EXPECT_EQ(ours.bytes, unhex(c[std::string(kv_type_name(type))]))
                << kv_type_name(type) << " of " << row.size() << " numbers from " << row[0];
        }
    }
}

TEST(KvRows, ARowTakesWhatItsTypeSays) {
    const auto bytes = [](int head_dim) {
        std::vector<std::int64_t> out;
        for (const KvType type : kTypes) out.push_back(kv_row_bytes(type, head_dim));
        return out;
    };
    EXPECT_EQ(bytes(64), (std::vector<std::int64_t>{256, 128, 128, 68}));
    EXPECT_EQ(bytes(40), (std::vector<std::int64_t>{160, 80, 80, 44})) << "the last block has 8 numbers";
    EXPECT_EQ(bytes(5), (std::vector<std::int64_t>{20, 10, 10, 7}));
    for (const KvType type : kTypes) EXPECT_EQ(kv_type_from_name(kv_type_name(type)), type);
    EXPECT_EQ(kv_type_from_name("auto"), KvType::automatic);
    EXPECT_EQ(kv_type_from_name("f61"), std::nullopt);
}

TEST(KvRows, LoopsMatchDouble) {
    for (const KvType type : kTypes)
        for (const int head_dim : {1, 5, 8, 16, 24, 31, 32, 33, 40, 64, 80, 96, 128})
            for (const int n : {1, 2, 3, 4, 5, 7, 15, 16, 17, 67, 198}) {
                const auto size = to_index(n * head_dim);
                const Rows k(type, random_floats(size, 1), head_dim);
                const auto q = random_floats(to_index(head_dim), 2), p = random_floats(to_index(n), 3);
                std::vector<float> logits(to_index(n)), out(to_index(head_dim)), wide(size);
                dot_keys(q.data(), k.rows, n, 0.25f, logits.data());
                weighted_sum(p.data(), k.rows, n, out.data());
                widen_kv(k.rows, n, wide.data());
                const std::string where = fmt::format("{} {} x {}", kv_type_name(type), n, head_dim);
                for (int s = 0; s < n; ++s) {
                    double dot = 0, magnitude = 1;
                    for (int d = 0; d < head_dim; ++d) {
                        const double term = 0.25 * q[to_index(d)] * stored(k.rows, s, d);
                        dot += term;
                        magnitude += std::abs(term);
                        ASSERT_EQ(wide[to_index(s * head_dim + d)], stored(k.rows, s, d)) << where;
                    }
                    ASSERT_NEAR(logits[to_index(s)], dot, 1e-6 * magnitude) << where << " key " << s;
                }
                for (int d = 0; d < head_dim; ++d) {
                    double sum = 0, magnitude = 1;
                    for (int s = 0; s < n; ++s) {
                        const double term = p[to_index(s)] * stored(k.rows, s, d);
                        sum += term;
                        magnitude += std::abs(term);
                    }
                    ASSERT_NEAR(out[to_index(d)], sum, 1e-6 * magnitude) << where << " dimension " << d;
                }
            }
}

// The number of keys computed together must not change a key's bits: neighbours come and go.
TEST(KvRows, AKeyHasTheSameBitsAloneAndAmongOthers) {
    constexpr int kRows = 91;
    for (const KvType type : kTypes)
        for (const int head_dim : {5, 40, 64}) {
            const Rows k(type, random_floats(to_index(kRows * head_dim), 1), head_dim);
            const auto q = random_floats(to_index(head_dim), 2);
            std::vector<float> together(kRows), alone(kRows);
            dot_keys(q.data(), k.rows, kRows, 0.5f, together.data());
            for (int s = 0; s < kRows; ++s) dot_keys(q.data(), k.rows.from_row(s), 1, 0.5f, alone.data() + s);
            EXPECT_EQ(alone, together) << kv_type_name(type) << " " << head_dim;
        }
}

// Query heads that share a KV head read it together.
TEST(KvRows, AQueryHasTheSameBitsAloneAndAmongOthersInParts) {
    constexpr int kRows = 203;  // tiles, and a rest
    for (const KvType type : kTypes)
        for (const int head_dim : {5, 40, 64, 96, 128, 168})
            for (const std::size_t n_queries : {1, 2, 3, 4, 5, 9}) {
                const Rows k(type, random_floats(to_index(kRows * head_dim), 1), head_dim);
                const auto dims = to_index(head_dim);
                const auto q = random_floats(n_queries * dims, 2), p = random_floats(n_queries * kRows, 3);
                std::vector<float> logits(n_queries * kRows), sums(n_queries * dims), alone(kRows), sum(dims);
                std::vector<const float*> queries, weights;
                std::vector<float*> logits_out, sums_out;
                for (std::size_t i = 0; i < n_queries; ++i) {
                    queries.push_back(q.data() + i * dims);
                    weights.push_back(p.data() + i * kRows);
                    logits_out.push_back(logits.data() + i * kRows);
                    sums_out.push_back(sums.data() + i * dims);
                }
                for (int first = 0; first < kRows; first += 70)
                    dot_keys(queries, k.rows, first, std::min(first + 70, kRows), 0.5f, logits_out);
                for (int first = 0; first < head_dim; first += kKvBlock)
                    weighted_sums(weights, k.rows, kRows, first, std::min(first + kKvBlock, head_dim),
                                  sums_out);
                for (std::size_t i = 0; i < n_queries; ++i) {
                    dot_keys(queries[i], k.rows, kRows, 0.5f, alone.data());
                    weighted_sum(weights[i], k.rows, kRows, sum.data());
                    const std::string where =
                        fmt::format("{} {} query {} of {}", kv_type_name(type), head_dim, i, n_queries);
                    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), logits_out[i])) << where;
                    EXPECT_TRUE(std::equal(sum.begin(), sum.end(), sums_out[i])) << where;
                }
            }
}

/// A logit as key_codes.h defines it, from the numbers that plain C++ narrows a query to.
float logit_in_integers(const std::vector<float>& q, const KvRows& k, int s, float scale) {
    NarrowBlocks narrow(q.size() / kKvBlock);
    narrow_input(IntegerPath::plain, q.data(), std::ssize(q), narrow.data());
    float total = 0;
    for (std::size_t b = 0; b < narrow.size(); ++b) {
        const std::byte* block = k.from_row(s).data + b * (kKvScaleBytes + kKvBlock);
        std::uint16_t bits = 0;
        std::memcpy(&bits, block, sizeof bits);
        std::int32_t upper = 0, lower = 0;
        for (int c = 0; c < kKvBlock; ++c) {  // columns 4 k and 4 k + 2 are halves of [0], the others of [1]
            const auto half = [&](const std::int32_t(&of)[2][8]) {
                return static_cast<std::int16_t>(of[c % 2][c / 4] >> (c % 4 < 2 ? 0 : 16));
            };
            const int code = static_cast<std::int8_t>(block[kKvScaleBytes + c]);
            upper += code * half(narrow[b].upper);
            lower += code * half(narrow[b].lower);
        }
        const float sum = std::fma(static_cast<float>(upper), 256.0f, static_cast<float>(lower));
        total = std::fma(static_cast<float>(half_by_definition(bits)) * narrow[b].scale, sum, total);
    }
    return total * scale;
}

// Codes are multiplied in integers where the processor can: by dimensions of whole blocks, up to a number.
TEST(KvRows, KeysOfCodesInIntegersAndInFloatsAgree) {
    constexpr int kRows = 37;
    const IntegerPath last = best_integer_path();
    const bool can = last >= IntegerPath::avx512_vnni;  // no kernel asks below AVX-512
    for (const int head_dim : {32, 64, 256, 288}) {
        if (can) {
            EXPECT_EQ(multiplies_key_codes(head_dim), head_dim <= 256) << head_dim;
        }
        EXPECT_FALSE(multiplies_key_codes(head_dim + 8)) << head_dim;
        std::vector<float> keys = random_floats(to_index(kRows * head_dim), 1, 3);
        std::fill_n(keys.begin() + 3 * head_dim, head_dim, 0.0f);
        keys[to_index(7 * head_dim)] = std::nanf("");
        const Rows k(KvType::q8, keys, head_dim);
        auto q = random_floats(to_index(head_dim), 2);
        q[1] = 1000;  // the others of its block are rounded to parts of it
        std::vector<float> integers(kRows), floats(kRows), none(kRows);
        dot_keys(q.data(), k.rows, kRows, 0.25f, integers.data());
        q[2] = std::numeric_limits<float>::infinity();
        dot_keys(q.data(), k.rows, kRows, 0.25f, none.data());
        q[2] = random_floats(to_index(head_dim), 2)[2];
        limit_integer_paths(IntegerPath::plain);
        EXPECT_FALSE(multiplies_key_codes(head_dim));
        dot_keys(q.data(), k.rows, kRows, 0.25f, floats.data());
        limit_integer_paths(last);
        for (int s = 0; s < kRows; ++s) {
            const auto at = to_index(s);
            if (can && head_dim <= 256) {
                EXPECT_TRUE(std::isnan(none[at])) << "a query with infinity";
            }
            if (s == 7) {
                EXPECT_TRUE(std::isnan(integers[at]) && std::isnan(floats[at])) << head_dim;
                continue;
            }
            if (can && head_dim <= 256) {
                EXPECT_EQ(integers[at], logit_in_integers(q, k.rows, s, 0.25f)) << head_dim << " key " << s;
            }
            double rounding = 1e-6;  // of the sums, and of 24 bits
            for (int d = 0; d < head_dim; ++d)
                rounding += 0.25 * std::abs(stored(k.rows, s, d)) *
                            ((d < 32 ? 1000.0 / 8323072 / 2 : 0) + 1e-6 * std::abs(q[to_index(d)]));
            EXPECT_NEAR(integers[at], floats[at], rounding) << head_dim << " key " << s;
        }
        EXPECT_EQ(integers[3], 0.0f) << "a key of zeros";
    }
}

TEST(KvRows, ConversionRoundsOnceAndBringsNothingBack) {
    constexpr int kRows = 3, kHeadDim = 40;
    const std::vector<float> values = random_floats(kRows * kHeadDim, 5);
    const Rows exact(KvType::f32, values, kHeadDim);
    for (const KvType type : kTypes) {
        const Rows direct(type, values, kHeadDim);
        Rows converted(type, kRows, kHeadDim), wide(KvType::f32, kRows, kHeadDim), again(converted);
        again.rows.data = again.bytes.data();
        convert_kv(exact.rows, kRows, converted.rows);
        EXPECT_EQ(converted.bytes, direct.bytes) << kv_type_name(type);
        convert_kv(converted.rows, kRows, wide.rows);
        EXPECT_EQ(wide.bytes == exact.bytes, type == KvType::f32) << kv_type_name(type);
        convert_kv(wide.rows, kRows, again.rows);
        EXPECT_EQ(again.bytes, direct.bytes) << kv_type_name(type);
    }
}

TEST(KvRows, ExtremesStayWhatTheyAre) {
    const float infinity = std::numeric_limits<float>::infinity();
    const auto of = [](KvType type, float value) {
        std::vector<float> row(40, 1.0f), wide(row);
        row[7] = value;
        const Rows rows(type, row, 40);
        widen_kv(rows.rows, 1, wide.data());
        return wide;
    };
    for (const KvType type : kTypes) {
        EXPECT_TRUE(std::isnan(of(type, std::nanf(""))[7])) << kv_type_name(type);
        EXPECT_FALSE(std::isfinite(of(type, infinity)[7])) << kv_type_name(type);
        EXPECT_NEAR(of(type, infinity)[39], 1.0f, 1e-3) << "another block, or another number";
        EXPECT_EQ(of(type, 0.0f)[7], 0.0f) << kv_type_name(type);
        EXPECT_TRUE(std::isfinite(of(type, 65504.0f)[7])) << kv_type_name(type);
        EXPECT_TRUE(std::isfinite(of(type, 1e-42f)[7])) << kv_type_name(type);
    }
    EXPECT_EQ(of(KvType::f16, 65520.0f)[7], infinity);
    EXPECT_TRUE(std::isfinite(of(KvType::bf16, 1e30f)[7]));
    const Rows tiny(KvType::q8, std::vector<float>(32, 1e-42f), 32);
    std::vector<float> wide(32, -1);
    widen_kv(tiny.rows, 1, wide.data());
    EXPECT_EQ(wide, std::vector<float>(32, 0.0f)) << "a scale below fp16";
}

}  // namespace
}  // namespace keyhole
