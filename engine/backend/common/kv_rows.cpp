#include "engine/backend/common/kv_rows.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
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

// Computes kKeys keys at once: independent sums hide the latency of the multiply-add.
template <int kKeys, class T>
HWY_INLINE void dot_block(const float* q, const T* k, int head_dim, float scale, float* out) {
    constexpr int kLine = 64 / sizeof(T), kAhead = kBytesAhead / sizeof(T);
    const int step = static_cast<int>(lanes());
    Floats total[kKeys];
    HWY_UNROLL(4)
    for (int j = 0; j < kKeys; ++j) total[j] = hn::Zero(FloatTag());
    int d = 0;
    for (; d + step <= head_dim; d += step) {
        const Floats query = load(q + d);
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j) {
            if (d % kLine == 0) hwy::Prefetch(k + j * head_dim + d + kAhead);
            total[j] = hn::MulAdd(query, load(k + j * head_dim + d), total[j]);
        }
    }
    HWY_UNROLL(4)
    for (int j = 0; j < kKeys; ++j) {
        float rest = 0;
        for (int i = d; i < head_dim; ++i) rest += q[i] * widen(k[j * head_dim + i]);
        out[j] = scale * (sum(total[j]) + rest);
    }
}

template <class T>
void dot_numbers(const float* q, const T* k, int n, int head_dim, float scale, float* out) {
    int s = 0;
    for (; s + 4 <= n; s += 4)
        dot_block<4>(q, k + static_cast<std::int64_t>(s) * head_dim, head_dim, scale, out + s);
    for (; s < n; ++s) dot_block<1>(q, k + static_cast<std::int64_t>(s) * head_dim, head_dim, scale, out + s);
}

// Sums kVectors registers of dimensions at once, so that a value is read in one go. Slots are spread over
// four running sums by slot % 4, combined at the end: a fixed order with enough independent work.
template <int kVectors, class T>
HWY_INLINE void weigh_block(const float* p, const T* v, int n, int head_dim, float* out) {
    const int step = static_cast<int>(lanes());
    Floats total[4][kVectors];
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
        HWY_UNROLL(4)
        for (int i = 0; i < kVectors; ++i) total[j][i] = hn::Zero(FloatTag());
    }
    int s = 0;
    for (; s + 4 <= n; s += 4) {
        const T* value = v + static_cast<std::int64_t>(s) * head_dim;
        HWY_UNROLL(4)
        for (int j = 0; j < 4; ++j) {
            const Floats weight = all(p[s + j]);
            HWY_UNROLL(4)
            for (int i = 0; i < kVectors; ++i)
                total[j][i] = hn::MulAdd(weight, load(value + j * head_dim + i * step), total[j][i]);
        }
    }
    HWY_UNROLL(3)
    for (int j = 0; j < 3; ++j)
        if (s + j < n) {
            const T* value = v + static_cast<std::int64_t>(s + j) * head_dim;
            HWY_UNROLL(4)
            for (int i = 0; i < kVectors; ++i)
                total[j][i] = hn::MulAdd(all(p[s + j]), load(value + i * step), total[j][i]);
        }
    HWY_UNROLL(4)
    for (int i = 0; i < kVectors; ++i)
        store(hn::Add(hn::Add(total[0][i], total[1][i]), hn::Add(total[2][i], total[3][i])), out + i * step);
}

template <class T>
void weigh_numbers(const float* p, const T* v, int n, int head_dim, float* out) {
    const int step = static_cast<int>(lanes());
    constexpr int kVectors = hn::MaxLanes(FloatTag()) >= 16 ? 4 : 2;  // as many as fit the registers
    int d = 0;
    for (; d + kVectors * step <= head_dim; d += kVectors * step)
        weigh_block<kVectors>(p, v + d, n, head_dim, out + d);
    for (; d + step <= head_dim; d += step) weigh_block<1>(p, v + d, n, head_dim, out + d);
    for (; d < head_dim; ++d) {
        float total = 0;
        for (int s = 0; s < n; ++s) total += p[s] * widen(v[static_cast<std::int64_t>(s) * head_dim + d]);
        out[d] = total;
    }
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
template <int kKeys>
HWY_INLINE void dot_codes(const float* q, const std::byte* k, std::int64_t row_bytes, int head_dim,
                          float scale, float* out) {
    const BlockTag tag;
    const int step = block_lanes();
    BlockFloats total[kKeys];
    float rest[kKeys] = {};
    HWY_UNROLL(4)
    for (int j = 0; j < kKeys; ++j) total[j] = hn::Zero(tag);
    for (int first = 0; first < head_dim; first += kKvBlock, k += kBlockBytes, q += kKvBlock) {
        const int n = std::min(kKvBlock, head_dim - first);
        BlockFloats sums[kKeys];
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j) {
            sums[j] = hn::Zero(tag);
            hwy::Prefetch(k + j * row_bytes + kBytesAhead);
        }
        int d = 0;
        for (; d + step <= n; d += step) {
            const BlockFloats query = hn::LoadU(tag, q + d);
            HWY_UNROLL(4)
            for (int j = 0; j < kKeys; ++j)
                sums[j] = hn::MulAdd(query, load_codes(codes_of(k + j * row_bytes) + d), sums[j]);
        }
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j) {
            const float of_block = scale_of(k + j * row_bytes);
            total[j] = hn::MulAdd(hn::Set(tag, of_block), sums[j], total[j]);
            for (int i = d; i < n; ++i)
                rest[j] += of_block * (q[i] * static_cast<float>(codes_of(k + j * row_bytes)[i]));
        }
    }
    HWY_UNROLL(4)
    for (int j = 0; j < kKeys; ++j) out[j] = scale * (hn::GetLane(hn::SumOfLanes(tag, total[j])) + rest[j]);
}

// As weigh_block(), for kVectors registers of one block's dimensions from `offset` on; v: that block of the
// first row.
template <int kVectors>
HWY_INLINE void weigh_codes(const float* p, const std::byte* v, std::int64_t row_bytes, int n, int offset,
                            float* out) {
    const BlockTag tag;
    const int step = block_lanes();
    BlockFloats total[4][kVectors];
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
        HWY_UNROLL(2)
        for (int i = 0; i < kVectors; ++i) total[j][i] = hn::Zero(tag);
    }
    const auto add = [&](int s, int j) HWY_ATTR {
        const std::byte* block = v + s * row_bytes;
        const BlockFloats weight = hn::Set(tag, p[s] * scale_of(block));
        HWY_UNROLL(2)
        for (int i = 0; i < kVectors; ++i)
            total[j][i] = hn::MulAdd(weight, load_codes(codes_of(block) + offset + i * step), total[j][i]);
    };
    int s = 0;
    for (; s + 4 <= n; s += 4) {
        HWY_UNROLL(4)
        for (int j = 0; j < 4; ++j) add(s + j, j);
    }
    HWY_UNROLL(3)
    for (int j = 0; j < 3; ++j)
        if (s + j < n) add(s + j, j);
    HWY_UNROLL(2)
    for (int i = 0; i < kVectors; ++i)
        hn::StoreU(hn::Add(hn::Add(total[0][i], total[1][i]), hn::Add(total[2][i], total[3][i])), tag,
                   out + offset + i * step);
}

void dot_blocks(const float* q, const std::byte* k, int n, int head_dim, float scale, float* out) {
    const std::int64_t row = kv_row_bytes(KvType::q8, head_dim);
    int s = 0;
    for (; s + 4 <= n; s += 4) dot_codes<4>(q, k + s * row, row, head_dim, scale, out + s);
    for (; s < n; ++s) dot_codes<1>(q, k + s * row, row, head_dim, scale, out + s);
}

void weigh_blocks(const float* p, const std::byte* v, int n, int head_dim, float* out) {
    const std::int64_t row = kv_row_bytes(KvType::q8, head_dim);
    const int step = block_lanes();
    for (int first = 0; first < head_dim; first += kKvBlock, v += kBlockBytes, out += kKvBlock) {
        const int dims = std::min(kKvBlock, head_dim - first);
        int d = 0;
        for (; d + 2 * step <= dims; d += 2 * step) weigh_codes<2>(p, v, row, n, d, out);
        for (; d + step <= dims; d += step) weigh_codes<1>(p, v, row, n, d, out);
        for (; d < dims; ++d) {
            out[d] = 0;
            for (int s = 0; s < n; ++s)
                out[d] += p[s] * scale_of(v + s * row) * static_cast<float>(codes_of(v + s * row)[d]);
        }
    }
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

void dot_rows(const float* q, const KvRows& k, int n, float scale, float* out) {
    with_rows(k, [&]<class T>(const T* rows) HWY_ATTR {
        if constexpr (std::is_same_v<T, std::byte>)
            dot_blocks(q, rows, n, k.head_dim, scale, out);
        else
            dot_numbers(q, rows, n, k.head_dim, scale, out);
    });
}

void weigh_rows(const float* p, const KvRows& v, int n, float* out) {
    with_rows(v, [&]<class T>(const T* rows) HWY_ATTR {
        if constexpr (std::is_same_v<T, std::byte>)
            weigh_blocks(p, rows, n, v.head_dim, out);
        else
            weigh_numbers(p, rows, n, v.head_dim, out);
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
    HWY_DYNAMIC_DISPATCH(dot_rows)(q, k, n, scale, out);
}
void weighted_sum(const float* p, const float* v, int n, int head_dim, float* out) {
    weighted_sum(p, floats_of(v, head_dim), n, out);
}
void weighted_sum(const float* p, const KvRows& v, int n, float* out) {
    HWY_DYNAMIC_DISPATCH(weigh_rows)(p, v, n, out);
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
