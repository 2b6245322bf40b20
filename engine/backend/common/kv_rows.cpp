#include "engine/backend/common/kv_rows.h"

#include "engine/backend/common/key_codes.h"
#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"

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

#include "engine/backend/common/kv_codes_inl.h"
#include "engine/backend/common/kv_numbers_inl.h"
#include "engine/backend/common/simd.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

void widen_numbers(const std::byte* rows, int n, int head_dim, float* out) {
    for (int s = 0; s < n; ++s)
        for (int first = 0; first < head_dim; first += kKvBlock) {
            const int dims = std::min(kKvBlock, head_dim - first);
            const float scale = scale_of(rows);
            for (int i = 0; i < dims; ++i) *out++ = scale * static_cast<float>(codes_of(rows)[i]);
            rows += kKvScaleBytes + dims;
        }
}

template <class T>
void widen_numbers(const T* rows, int n_rows, int head_dim, float* out) {
    const std::int64_t step = lanes(), n = std::int64_t{n_rows} * head_dim;
    std::int64_t i = 0;
    for (; i + step <= n; i += step) store(load(rows + i), out + i);
    for (; i < n; ++i) out[i] = widen(rows[i]);
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

// Rows of one type, as many queries at once as sums have registers.
template <class T>
void dot_groups(const float* const* q, int n_queries, const T* k, int first, int last, int head_dim,
                float scale, float* const* out) {
    constexpr int kMost = std::is_same_v<T, std::byte> ? kCodeQueriesAtOnce : kQueriesAtOnce;
    in_groups<kMost>(0, n_queries, [&]<int kQueries>(int i, std::integral_constant<int, kQueries>) HWY_ATTR {
        dot_queries<kQueries>(q + i, k, first, last, head_dim, scale, out + i);
    });
}
template <class T>
void weigh_groups(const float* const* p, int n_queries, const T* v, int n, int head_dim, int first, int last,
                  float* const* out) {
    in_groups<kQueriesAtOnce>(0, n_queries,
                              [&]<int kQueries>(int i, std::integral_constant<int, kQueries>) HWY_ATTR {
                                  weigh_queries<kQueries>(p + i, v, n, head_dim, first, last, out + i);
                              });
}

void dot_rows(const float* const* q, int n_queries, const KvRows& k, int first, int last, float scale,
              float* const* out) {
#if HWY_TARGET == HWY_AVX3
    if (k.type == KvType::q8 && multiplies_key_codes(k.head_dim))
        return dot_key_codes(q, n_queries, k, first, last, scale, out);
#endif
    with_rows(k, [&](const auto* rows)
                     HWY_ATTR { dot_groups(q, n_queries, rows, first, last, k.head_dim, scale, out); });
}

void weigh_rows(const float* const* p, int n_queries, const KvRows& v, int n, int first, int last,
                float* const* out) {
    with_rows(v, [&](const auto* rows)
                     HWY_ATTR { weigh_groups(p, n_queries, rows, n, v.head_dim, first, last, out); });
}

void widen_stored(const KvRows& from, int n, float* out) {
    with_rows(from, [&](const auto* rows) HWY_ATTR { widen_numbers(rows, n, from.head_dim, out); });
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

std::vector<float> lengths_as(KvType type, const float* x, std::int64_t n, int head_dim) {
    const std::vector<float> rows = rounded_as(type, x, n, head_dim);
    std::vector<float> lengths(to_index(n));
    for (std::size_t i = 0; i < lengths.size(); ++i)
        lengths[i] = length_of(head_dim, [&](int c) { return rows[i * to_index(head_dim) + to_index(c)]; });
    return lengths;
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
