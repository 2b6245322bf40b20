#include "engine/backend/common/kv_rows.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/common/kv_rows.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set

#include "engine/backend/common/simd.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

constexpr int kBytesAhead = 3072;  // keys are read from one end to the other; so many are prefetched

// The most queries whose products with a key are computed together, so that the key is read and widened once:
// as many as have their sums in registers.
constexpr int kQueriesAtOnce = hn::MaxLanes(FloatTag()) >= 16 ? 4 : 3;

// Writes the sums of four registers' lanes, each in the order of SumOfLanes.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE void four_sums(const Floats (&v)[4], float* out) {
    // Lanes i and i + 8 of two registers, then lanes i and i + 4 of all four.
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(v[0].raw, v[1].raw, 0x44),
                                    _mm512_shuffle_f32x4(v[0].raw, v[1].raw, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(v[2].raw, v[3].raw, 0x44),
                                    _mm512_shuffle_f32x4(v[2].raw, v[3].raw, 0xee));
    const __m512 abcd = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 pairs = _mm512_add_ps(abcd, _mm512_shuffle_ps(abcd, abcd, 0x4e));
    const __m512 sums = _mm512_add_ps(pairs, _mm512_shuffle_ps(pairs, pairs, 0xb1));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums)));
}
#else
HWY_INLINE void four_sums(const Floats (&v)[4], float* out) {
    for (int j = 0; j < 4; ++j) out[j] = sum(v[j]);
}
#endif

// Writes scale times the sums of the registers' lanes and of the rest.
template <int kKeys>
HWY_INLINE void write_sums(const Floats (&total)[kKeys], const float (&rest)[kKeys], float scale,
                           float* out) {
    float sums[kKeys];
    if constexpr (kKeys == 4) {
        four_sums(total, sums);
    } else {
        for (int j = 0; j < kKeys; ++j) sums[j] = sum(total[j]);
    }
    for (int j = 0; j < kKeys; ++j) out[j] = scale * (sums[j] + rest[j]);
}

// Computes kKeys keys at once: independent sums hide the latency of the multiply-add.
template <int kQueries, int kKeys, class T>
HWY_INLINE void dot_block(const float* const* q, const T* k, int head_dim, float scale, float* const* out,
                          int s) {
    constexpr int kLine = 64 / sizeof(T), kAhead = kBytesAhead / sizeof(T);
    const int step = static_cast<int>(lanes());
    Floats total[kQueries][kKeys];
    HWY_UNROLL(4)
    for (int i = 0; i < kQueries; ++i) {
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j) total[i][j] = hn::Zero(FloatTag());
    }
    int d = 0;
    for (; d + step <= head_dim; d += step) {
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j) {
            if (d % kLine == 0) hwy::Prefetch(k + j * head_dim + d + kAhead);
            const Floats key = load(k + j * head_dim + d);
            HWY_UNROLL(4)
            for (int i = 0; i < kQueries; ++i) total[i][j] = hn::MulAdd(load(q[i] + d), key, total[i][j]);
        }
    }
    HWY_UNROLL(4)
    for (int i = 0; i < kQueries; ++i) {
        float rest[kKeys] = {};
        for (int j = 0; j < kKeys; ++j)
            for (int c = d; c < head_dim; ++c) rest[j] += q[i][c] * widen(k[j * head_dim + c]);
        write_sums(total[i], rest, scale, out[i] + s);
    }
}

template <int kQueries, class T>
HWY_INLINE void dot_queries(const float* const* q, const T* k, int s, int last, int head_dim, float scale,
                            float* const* out) {
    for (; s + 4 <= last; s += 4)
        dot_block<kQueries, 4>(q, k + static_cast<std::int64_t>(s) * head_dim, head_dim, scale, out, s);
    for (; s < last; ++s)
        dot_block<kQueries, 1>(q, k + static_cast<std::int64_t>(s) * head_dim, head_dim, scale, out, s);
}

// Calls visit(first, count) with count queries together, a constant, until all n have had their turn.
template <int kMost, class Visit>
HWY_INLINE void in_groups(int first, int n, Visit visit) {
    for (; first + kMost <= n; first += kMost) visit(first, std::integral_constant<int, kMost>());
    if constexpr (kMost > 1) in_groups<kMost - 1>(first, n, visit);
}

template <class T>
void dot_numbers(const float* const* q, int n_queries, const T* k, int first, int last, int head_dim,
                 float scale, float* const* out) {
    in_groups<kQueriesAtOnce>(0, n_queries,
                              [&]<int kQueries>(int i, std::integral_constant<int, kQueries>) HWY_ATTR {
                                  dot_queries<kQueries>(q + i, k, first, last, head_dim, scale, out + i);
                              });
}

// Sums kVectors registers of dimensions from `at` on, so that a value is read in one go. Slots are spread
// over four running sums by slot % 4, combined at the end: a fixed order with enough independent work.
template <int kQueries, int kVectors, class T>
HWY_INLINE void weigh_block(const float* const* p, const T* v, int n, int head_dim, int at,
                            float* const* out) {
    const int step = static_cast<int>(lanes());
    Floats total[4][kQueries][kVectors];
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
        HWY_UNROLL(4)
        for (int q = 0; q < kQueries; ++q) {
            HWY_UNROLL(4)
            for (int i = 0; i < kVectors; ++i) total[j][q][i] = hn::Zero(FloatTag());
        }
    }
    const auto add = [&](int s, Floats(&sums)[kQueries][kVectors]) HWY_ATTR {
        const T* value = v + static_cast<std::int64_t>(s) * head_dim + at;
        hwy::Prefetch(value + kBytesAhead / sizeof(T));
        HWY_UNROLL(4)
        for (int i = 0; i < kVectors; ++i) {
            const Floats number = load(value + i * step);
            HWY_UNROLL(4)
            for (int q = 0; q < kQueries; ++q) sums[q][i] = hn::MulAdd(all(p[q][s]), number, sums[q][i]);
        }
    };
    int s = 0;
    for (; s + 4 <= n; s += 4) {
        HWY_UNROLL(4)
        for (int j = 0; j < 4; ++j) add(s + j, total[j]);
    }
    HWY_UNROLL(3)
    for (int j = 0; j < 3; ++j)
        if (s + j < n) add(s + j, total[j]);
    HWY_UNROLL(4)
    for (int q = 0; q < kQueries; ++q) {
        HWY_UNROLL(4)
        for (int i = 0; i < kVectors; ++i)
            store(hn::Add(hn::Add(total[0][q][i], total[1][q][i]), hn::Add(total[2][q][i], total[3][q][i])),
                  out[q] + at + i * step);
    }
}

// Registers of dimensions summed at once for so many queries: as many as have their four sums in registers.
template <int kQueries>
inline constexpr int kVectorsAtOnce = hn::MaxLanes(FloatTag()) < 16 ? (kQueries == 1 ? 2 : 1)
                                      : kQueries == 1               ? 4
                                      : kQueries <= 3               ? 2
                                                                    : 1;

template <int kQueries, class T>
HWY_INLINE void weigh_queries(const float* const* p, const T* v, int n, int head_dim, int d, int last,
                              float* const* out) {
    const int step = static_cast<int>(lanes());
    constexpr int kVectors = kVectorsAtOnce<kQueries>;
    for (; d + kVectors * step <= last; d += kVectors * step)
        weigh_block<kQueries, kVectors>(p, v, n, head_dim, d, out);
    for (; d + step <= last; d += step) weigh_block<kQueries, 1>(p, v, n, head_dim, d, out);
    for (; d < last; ++d)
        for (int q = 0; q < kQueries; ++q) {
            float total = 0;
            for (int s = 0; s < n; ++s)
                total += p[q][s] * widen(v[static_cast<std::int64_t>(s) * head_dim + d]);
            out[q][d] = total;
        }
}

template <class T>
void weigh_numbers(const float* const* p, int n_queries, const T* v, int n, int head_dim, int first, int last,
                   float* const* out) {
    in_groups<kQueriesAtOnce>(0, n_queries,
                              [&]<int kQueries>(int i, std::integral_constant<int, kQueries>) HWY_ATTR {
                                  weigh_queries<kQueries>(p + i, v, n, head_dim, first, last, out + i);
                              });
}

// --- q8: blocks of a scale and its codes -------------------------------------------------------------------

constexpr int kBlockBytes = kKvScaleBytes + kKvBlock;

using BlockTag = hn::CappedTag<float, kKvBlock>;  // a whole block has a whole number of registers
using BlockFloats = hn::Vec<BlockTag>;

HWY_INLINE float scale_of(const std::byte* block) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, block, sizeof bits);
    const hn::CappedTag<float, 1> one;
    return hn::GetLane(widen_halves(one, hn::Set(hn::Rebind<std::uint16_t, decltype(one)>(), bits)));
}
HWY_INLINE const std::int8_t* codes_of(const std::byte* block) {
    return reinterpret_cast<const std::int8_t*>(block + kKvScaleBytes);
}
HWY_INLINE BlockFloats load_codes(const std::int8_t* codes) {
    const auto bytes = hn::LoadU(hn::Rebind<std::int8_t, BlockTag>(), codes);
    return hn::ConvertTo(BlockTag(), hn::PromoteTo(hn::Rebind<std::int32_t, BlockTag>(), bytes));
}
HWY_INLINE int block_lanes() {
    return static_cast<int>(hn::Lanes(BlockTag()));
}

// A block's sum of products with codes is multiplied by the scale once.
template <int kQueries, int kKeys>
HWY_INLINE void dot_codes(const float* const* queries, const std::byte* k, std::int64_t row_bytes,
                          int head_dim, float scale, float* const* out, int s) {
    const BlockTag tag;
    const int step = block_lanes();
    BlockFloats total[kQueries][kKeys];
    float rest[kQueries][kKeys] = {};
    HWY_UNROLL(4)
    for (int i = 0; i < kQueries; ++i) {
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j) total[i][j] = hn::Zero(tag);
    }
    for (int first = 0; first < head_dim; first += kKvBlock, k += kBlockBytes) {
        const int n = std::min(kKvBlock, head_dim - first);
        BlockFloats sums[kQueries][kKeys];
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j) {
            hwy::Prefetch(k + j * row_bytes + kBytesAhead);
            HWY_UNROLL(4)
            for (int i = 0; i < kQueries; ++i) sums[i][j] = hn::Zero(tag);
        }
        int d = 0;
        for (; d + step <= n; d += step) {
            HWY_UNROLL(4)
            for (int j = 0; j < kKeys; ++j) {
                const BlockFloats codes = load_codes(codes_of(k + j * row_bytes) + d);
                HWY_UNROLL(4)
                for (int i = 0; i < kQueries; ++i)
                    sums[i][j] = hn::MulAdd(hn::LoadU(tag, queries[i] + first + d), codes, sums[i][j]);
            }
        }
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j) {
            const float of_block = scale_of(k + j * row_bytes);
            HWY_UNROLL(4)
            for (int i = 0; i < kQueries; ++i) {
                total[i][j] = hn::MulAdd(hn::Set(tag, of_block), sums[i][j], total[i][j]);
                for (int c = d; c < n; ++c)
                    rest[i][j] += of_block * (queries[i][first + c] *
                                              static_cast<float>(codes_of(k + j * row_bytes)[c]));
            }
        }
    }
    HWY_UNROLL(4)
    for (int i = 0; i < kQueries; ++i) {
        if constexpr (std::is_same_v<BlockFloats, Floats>) {
            write_sums(total[i], rest[i], scale, out[i] + s);
        } else {
            for (int j = 0; j < kKeys; ++j)
                out[i][s + j] = scale * (hn::GetLane(hn::SumOfLanes(tag, total[i][j])) + rest[i][j]);
        }
    }
}

// Two sums a query and key are alive at once.
constexpr int kCodeQueriesAtOnce = hn::MaxLanes(FloatTag()) >= 16 ? 3 : 1;

template <int kQueries>
HWY_INLINE void dot_code_queries(const float* const* q, const std::byte* k, int s, int last, int head_dim,
                                 float scale, float* const* out) {
    const std::int64_t row = kv_row_bytes(KvType::q8, head_dim);
    for (; s + 4 <= last; s += 4) dot_codes<kQueries, 4>(q, k + s * row, row, head_dim, scale, out, s);
    for (; s < last; ++s) dot_codes<kQueries, 1>(q, k + s * row, row, head_dim, scale, out, s);
}

void dot_blocks(const float* const* q, int n_queries, const std::byte* k, int first, int last, int head_dim,
                float scale, float* const* out) {
    in_groups<kCodeQueriesAtOnce>(
        0, n_queries, [&]<int kQueries>(int i, std::integral_constant<int, kQueries>) HWY_ATTR {
            dot_code_queries<kQueries>(q + i, k, first, last, head_dim, scale, out + i);
        });
}

// As weigh_block(), for kVectors registers of one block's dimensions from `offset` on; v: that block of the
// first row; at: its first dimension.
template <int kQueries, int kVectors>
HWY_INLINE void weigh_codes(const float* const* p, const std::byte* v, std::int64_t row_bytes, int n,
                            int offset, int at, float* const* out) {
    const BlockTag tag;
    const int step = block_lanes();
    BlockFloats total[4][kQueries][kVectors];
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
        HWY_UNROLL(4)
        for (int q = 0; q < kQueries; ++q) {
            HWY_UNROLL(2)
            for (int i = 0; i < kVectors; ++i) total[j][q][i] = hn::Zero(tag);
        }
    }
    const auto add = [&](int s, BlockFloats(&sums)[kQueries][kVectors]) HWY_ATTR {
        const std::byte* block = v + s * row_bytes;
        hwy::Prefetch(block + kBytesAhead);
        const float scale = scale_of(block);
        HWY_UNROLL(2)
        for (int i = 0; i < kVectors; ++i) {
            const BlockFloats codes = load_codes(codes_of(block) + offset + i * step);
            HWY_UNROLL(4)
            for (int q = 0; q < kQueries; ++q)
                sums[q][i] = hn::MulAdd(hn::Set(tag, p[q][s] * scale), codes, sums[q][i]);
        }
    };
    int s = 0;
    for (; s + 4 <= n; s += 4) {
        HWY_UNROLL(4)
        for (int j = 0; j < 4; ++j) add(s + j, total[j]);
    }
    HWY_UNROLL(3)
    for (int j = 0; j < 3; ++j)
        if (s + j < n) add(s + j, total[j]);
    HWY_UNROLL(4)
    for (int q = 0; q < kQueries; ++q) {
        HWY_UNROLL(2)
        for (int i = 0; i < kVectors; ++i)
            hn::StoreU(
                hn::Add(hn::Add(total[0][q][i], total[1][q][i]), hn::Add(total[2][q][i], total[3][q][i])),
                tag, out[q] + at + offset + i * step);
    }
}

template <int kQueries>
HWY_INLINE void weigh_code_queries(const float* const* p, const std::byte* v, int n, int head_dim, int first,
                                   int last, float* const* out) {
    const std::int64_t row = kv_row_bytes(KvType::q8, head_dim);
    const int step = block_lanes();
    constexpr int kVectors = std::min(kVectorsAtOnce<kQueries>, 2);
    for (v += first / kKvBlock * kBlockBytes; first < last; first += kKvBlock, v += kBlockBytes) {
        const int dims = std::min(kKvBlock, head_dim - first);
        int d = 0;
        for (; d + kVectors * step <= dims; d += kVectors * step)
            weigh_codes<kQueries, kVectors>(p, v, row, n, d, first, out);
        for (; d + step <= dims; d += step) weigh_codes<kQueries, 1>(p, v, row, n, d, first, out);
        for (; d < dims; ++d)
            for (int q = 0; q < kQueries; ++q) {
                float total = 0;
                for (int s = 0; s < n; ++s)
                    total += p[q][s] * scale_of(v + s * row) * static_cast<float>(codes_of(v + s * row)[d]);
                out[q][first + d] = total;
            }
    }
}

void weigh_blocks(const float* const* p, int n_queries, const std::byte* v, int n, int head_dim, int first,
                  int last, float* const* out) {
    in_groups<kQueriesAtOnce>(0, n_queries,
                              [&]<int kQueries>(int i, std::integral_constant<int, kQueries>) HWY_ATTR {
                                  weigh_code_queries<kQueries>(p + i, v, n, head_dim, first, last, out + i);
                              });
}

void widen_blocks(const std::byte* rows, int n, int head_dim, float* out) {
    for (int s = 0; s < n; ++s)
        for (int first = 0; first < head_dim; first += kKvBlock) {
            const int dims = std::min(kKvBlock, head_dim - first);
            const float scale = scale_of(rows);
            for (int i = 0; i < dims; ++i) *out++ = scale * static_cast<float>(codes_of(rows)[i]);
            rows += kKvScaleBytes + dims;
        }
}

template <class T>
void widen_numbers(const T* in, std::int64_t n, float* out) {
    const std::int64_t step = lanes();
    std::int64_t i = 0;
    for (; i + step <= n; i += step) store(load(in + i), out + i);
    for (; i < n; ++i) out[i] = widen(in[i]);
}

// --- numbers that are not finite ---------------------------------------------------------------------------

// Returns whether an element has all bits of the exponent set, which infinity and NaN alone have.
template <class Word>
bool any_full_exponent(const Word* bits, int n, Word exponent) {
    const hn::ScalableTag<Word> tag;
    const int step = static_cast<int>(hn::Lanes(tag));
    const auto mask = hn::Set(tag, exponent);
    auto found = hn::Eq(hn::Zero(tag), mask);  // none
    int i = 0;
    for (; i + step <= n; i += step)
        found = hn::Or(found, hn::Eq(hn::And(hn::LoadU(tag, bits + i), mask), mask));
    bool any = !hn::AllFalse(tag, found);
    for (; i < n; ++i) any = any || (bits[i] & exponent) == exponent;
    return any;
}

constexpr std::uint16_t kFp16Exponent = 0x7c00, kBf16Exponent = 0x7f80;
constexpr std::uint32_t kFloatExponent = 0x7f800000;

bool any_scale_is_full(const std::byte* row, int head_dim) {
    bool any = false;
    for (int first = 0; first < head_dim; first += kKvBlock, row += kBlockBytes) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, row, sizeof bits);
        any = any || (bits & kFp16Exponent) == kFp16Exponent;
    }
    return any;
}

bool is_finite_row(const KvRows& row) {
    const int d = row.head_dim;
    switch (row.type) {
        case KvType::f32:
            return !any_full_exponent(reinterpret_cast<const std::uint32_t*>(row.data), d, kFloatExponent);
        case KvType::f16:
            return !any_full_exponent(reinterpret_cast<const std::uint16_t*>(row.data), d, kFp16Exponent);
        case KvType::bf16:
            return !any_full_exponent(reinterpret_cast<const std::uint16_t*>(row.data), d, kBf16Exponent);
        case KvType::q8:
            return !any_scale_is_full(row.data, d);
        case KvType::automatic:
            break;
    }
    KH_ASSERT(false, "rows of no type");
    return true;
}

// --- by type -----------------------------------------------------------------------------------------------

// Calls visit with the rows as numbers of their type, or as bytes.
template <class Visit>
HWY_INLINE void with_rows(const KvRows& rows, Visit visit) {
    switch (rows.type) {
        case KvType::f32:
            return visit(reinterpret_cast<const float*>(rows.data));
        case KvType::f16:
            return visit(reinterpret_cast<const hwy::float16_t*>(rows.data));
        case KvType::bf16:
            return visit(reinterpret_cast<const hwy::bfloat16_t*>(rows.data));
        case KvType::q8:
            return visit(static_cast<const std::byte*>(rows.data));
        case KvType::automatic:
            break;
    }
    KH_ASSERT(false, "rows of no type");
}

void dot_rows(const float* const* q, int n_queries, const KvRows& k, int first, int last, float scale,
              float* const* out) {
    with_rows(k, [&]<class T>(const T* rows) HWY_ATTR {
        if constexpr (std::is_same_v<T, std::byte>)
            dot_blocks(q, n_queries, rows, first, last, k.head_dim, scale, out);
        else
            dot_numbers(q, n_queries, rows, first, last, k.head_dim, scale, out);
    });
}

void weigh_rows(const float* const* p, int n_queries, const KvRows& v, int n, int first, int last,
                float* const* out) {
    with_rows(v, [&]<class T>(const T* rows) HWY_ATTR {
        if constexpr (std::is_same_v<T, std::byte>)
            weigh_blocks(p, n_queries, rows, n, v.head_dim, first, last, out);
        else
            weigh_numbers(p, n_queries, rows, n, v.head_dim, first, last, out);
    });
}

void widen_stored(const KvRows& from, int n, float* out) {
    with_rows(from, [&]<class T>(const T* rows) HWY_ATTR {
        if constexpr (std::is_same_v<T, std::byte>)
            widen_blocks(rows, n, from.head_dim, out);
        else
            widen_numbers(rows, static_cast<std::int64_t>(n) * from.head_dim, out);
    });
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keyhole {

HWY_EXPORT(dot_rows);
HWY_EXPORT(weigh_rows);
HWY_EXPORT(widen_stored);
HWY_EXPORT(is_finite_row);

namespace {

KvRows floats_of(const float* rows, int head_dim) {
    return {reinterpret_cast<std::byte*>(const_cast<float*>(rows)), KvType::f32, head_dim};
}

/// Writes one block of n numbers as q8.
void narrow_block(const float* x, int n, std::byte* to) {
    float most = 0;
    bool finite = true;
    for (int i = 0; i < n; ++i) {
        most = std::max(most, std::abs(x[i]));
        finite = finite && std::isfinite(x[i]);
    }
    const float scale = most / 127, inverse = scale >= std::numeric_limits<float>::min() ? 1 / scale : 0;
    const std::uint16_t bits = fp16_from_float(finite ? scale : std::numeric_limits<float>::quiet_NaN());
    std::memcpy(to, &bits, sizeof bits);
    for (int i = 0; i < n; ++i) {
        const float code = finite ? std::clamp(std::round(x[i] * inverse), -127.0f, 127.0f) : 0;
        to[kKvScaleBytes + i] = static_cast<std::byte>(static_cast<std::int8_t>(code));
    }
}

}  // namespace

void dot_keys(const float* q, const float* k, int n, int head_dim, float scale, float* out) {
    dot_keys(q, floats_of(k, head_dim), n, scale, out);
}
void dot_keys(const float* q, const KvRows& k, int n, float scale, float* out) {
    HWY_DYNAMIC_DISPATCH(dot_rows)(&q, 1, k, 0, n, scale, &out);
}
void dot_keys(std::span<const float* const> q, const KvRows& k, int first, int last, float scale,
              std::span<float* const> out) {
    HWY_DYNAMIC_DISPATCH(dot_rows)(q.data(), static_cast<int>(q.size()), k, first, last, scale, out.data());
}
void weighted_sum(const float* p, const float* v, int n, int head_dim, float* out) {
    weighted_sum(p, floats_of(v, head_dim), n, out);
}
void weighted_sum(const float* p, const KvRows& v, int n, float* out) {
    HWY_DYNAMIC_DISPATCH(weigh_rows)(&p, 1, v, n, 0, v.head_dim, &out);
}
void weighted_sums(std::span<const float* const> p, const KvRows& v, int n, int first, int last,
                   std::span<float* const> out) {
    KH_ASSERT(first % kKvBlock == 0 && (last % kKvBlock == 0 || last == v.head_dim), "first={} last={}",
              first, last);
    HWY_DYNAMIC_DISPATCH(weigh_rows)(p.data(), static_cast<int>(p.size()), v, n, first, last, out.data());
}
void widen_kv(const KvRows& rows, int n, float* out) {
    HWY_DYNAMIC_DISPATCH(widen_stored)(rows, n, out);
}

void narrow_kv(const float* x, const KvRows& to) {
    const int d = to.head_dim;
    auto* halves = reinterpret_cast<std::uint16_t*>(to.data);
    switch (to.type) {
        case KvType::f32:
            std::copy_n(x, d, reinterpret_cast<float*>(to.data));
            return;
        case KvType::f16:
            fp16_from_floats({x, to_index(d)}, {halves, to_index(d)});
            return;
        case KvType::bf16:
            for (int i = 0; i < d; ++i) halves[i] = bf16_from_float(x[i]);
            return;
        case KvType::q8:
            for (int first = 0; first < d; first += kKvBlock)
                narrow_block(x + first, std::min(kKvBlock, d - first),
                             to.data + first / kKvBlock * (kKvScaleBytes + kKvBlock));
            return;
        case KvType::automatic:
            break;
    }
    KH_ASSERT(false, "rows of no type");
}

std::vector<float> rounded_as(KvType type, const float* x, std::int64_t n, int head_dim) {
    std::vector<float> out(x, x + n * head_dim);
    if (type == KvType::f32) return out;
    std::vector<std::byte> bytes(to_index(kv_row_bytes(type, head_dim)));
    const KvRows row{bytes.data(), type, head_dim};
    for (std::int64_t i = 0; i < n; ++i) {
        narrow_kv(x + i * head_dim, row);
        widen_kv(row, 1, out.data() + i * head_dim);
    }
    return out;
}

bool is_finite_kv(const KvRows& row) {
    return HWY_DYNAMIC_DISPATCH(is_finite_row)(row);
}

void convert_kv(const KvRows& from, int n, const KvRows& to) {
    KH_ASSERT(from.head_dim == to.head_dim, "from={} to={}", from.head_dim, to.head_dim);
    if (n == 0) return;
    if (from.type == to.type) {
        std::memcpy(to.data, from.data, to_index(n * from.row_bytes()));
        return;
    }
    std::vector<float> row(to_index(from.head_dim));
    for (int s = 0; s < n; ++s) {
        widen_kv(from.from_row(s), 1, row.data());
        narrow_kv(row.data(), to.from_row(s));
    }
}

}  // namespace keyhole
#endif
