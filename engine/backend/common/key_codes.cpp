#include "engine/backend/common/key_codes.h"

#include "engine/backend/common/integer_products.h"
#include "engine/backend/common/integer_targets.h"
#include "engine/base/error.h"

#include <hwy/base.h>

#include <algorithm>
#include <cstring>

#if KH_INTEGERS_AVX512_VNNI
// GCC 12 warns of vectors that its own header leaves unset on purpose.
HWY_DIAGNOSTICS(push)
HWY_DIAGNOSTICS_OFF(disable : 4701, ignored "-Wuninitialized")
HWY_DIAGNOSTICS_OFF(disable : 4703, ignored "-Wmaybe-uninitialized")
#include <immintrin.h>
HWY_DIAGNOSTICS(pop)
#endif

namespace keyhole {
namespace {

// Queries that are narrowed at once, and their most blocks.
constexpr int kMostQueries = 8, kMostBlocks = 8;

}  // namespace

#if KH_INTEGERS_AVX512_VNNI
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace key_codes {

// Keys that are multiplied at once, a lane each; dimensions of a register: four of each key. Keys are fetched
// so far ahead, into the first-level cache.
constexpr int kKeys = 16, kRegisters = kKvBlock / 4, kBlockBytes = kKvScaleBytes + kKvBlock;
constexpr std::int64_t kBytesAhead = 8192;

HWY_INLINE __m128i load_16(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

/// Loads 16 bytes of each key and puts those of the same four dimensions together: lane j of to[d] has bytes
/// 4 d to 4 d + 3 of key j. Codes become whole numbers from 0 on by adding 128.
HWY_INLINE void load_transposed(const std::byte* codes, std::int64_t row_bytes, __m512i* to) {
    __m512i rows[4];
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {  // quarter i of register j has key 4 i + j
        __m512i row = _mm512_castsi128_si512(load_16(codes + j * row_bytes));
        row = _mm512_mask_broadcast_i32x4(row, 0x00f0, load_16(codes + (4 + j) * row_bytes));
        row = _mm512_mask_broadcast_i32x4(row, 0x0f00, load_16(codes + (8 + j) * row_bytes));
        row = _mm512_mask_broadcast_i32x4(row, 0xf000, load_16(codes + (12 + j) * row_bytes));
        rows[j] = _mm512_xor_si512(row, _mm512_set1_epi8(static_cast<char>(128)));
    }
    const __m512i ab = _mm512_unpacklo_epi32(rows[0], rows[1]), cd = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i ef = _mm512_unpackhi_epi32(rows[0], rows[1]), gh = _mm512_unpackhi_epi32(rows[2], rows[3]);
    to[0] = _mm512_unpacklo_epi64(ab, cd);
    to[1] = _mm512_unpackhi_epi64(ab, cd);
    to[2] = _mm512_unpacklo_epi64(ef, gh);
    to[3] = _mm512_unpackhi_epi64(ef, gh);
}

/// Returns the scales of the block in kKeys rows.
HWY_INLINE __m512 load_scales(const std::byte* block, std::int64_t row_bytes) {
    alignas(32) std::uint16_t bits[kKeys];
    HWY_UNROLL(16)
    for (int j = 0; j < kKeys; ++j) std::memcpy(bits + j, block + j * row_bytes, sizeof bits[0]);
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(bits)));
}

/// Returns the sum of the products of a block's codes with a query, in the query's numbers.
HWY_INLINE __m512 multiply_block(const __m512i (&codes)[kRegisters], const NarrowBlock& q) {
    // The 128 that was added to each code is taken back at the beginning.
    __m512i first = _mm512_setzero_si512(), second = _mm512_set1_epi32(-128 * q.upper_sums[2]),
            lower = _mm512_set1_epi32(-128 * q.lower_sums[2]);
    HWY_UNROLL(8)
    for (int d = 0; d < kRegisters; ++d) {
        first = _mm512_dpbusd_epi32(first, codes[d], _mm512_set1_epi32(q.upper[0][d]));
        second = _mm512_dpbusd_epi32(second, codes[d], _mm512_set1_epi32(q.upper[1][d]));
        lower = _mm512_dpbusd_epi32(lower, codes[d], _mm512_set1_epi32(q.lower[0][d]));
    }
    const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(first, 8), second);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(lower));
}

/// Writes the logits of kKeys rows: out [n_queries][kKeys]
HWY_INLINE void multiply_keys(const NarrowBlock (&q)[kMostQueries][kMostBlocks], int n_queries,
                              const std::byte* k, std::int64_t row_bytes, int n_blocks, float scale,
                              float (&out)[kMostQueries][kKeys]) {
    for (int b = 0; b < n_blocks; ++b, k += kBlockBytes) {
        HWY_UNROLL(16)
        for (int j = 0; j < kKeys; ++j) __builtin_prefetch(k + j * row_bytes + kBytesAhead);
        __m512i codes[kRegisters];
        load_transposed(k + kKvScaleBytes, row_bytes, codes);
        load_transposed(k + kKvScaleBytes + kKvBlock / 2, row_bytes, codes + kRegisters / 2);
        const __m512 scales = load_scales(k, row_bytes);
        for (int i = 0; i < n_queries; ++i) {
            const __m512 both = _mm512_mul_ps(scales, _mm512_set1_ps(q[i][b].scale));
            const __m512 sum = b == 0 ? _mm512_setzero_ps() : _mm512_load_ps(out[i]);
            _mm512_store_ps(out[i], _mm512_fmadd_ps(both, multiply_block(codes, q[i][b]), sum));
        }
    }
    for (int i = 0; i < n_queries; ++i)
        _mm512_store_ps(out[i], _mm512_mul_ps(_mm512_load_ps(out[i]), _mm512_set1_ps(scale)));
}

void dot(const float* const* q, int n_queries, const KvRows& k, int first, int last, float scale,
         float* const* out) {
    const int n_blocks = k.head_dim / kKvBlock;
    const std::int64_t row = k.row_bytes();
    NarrowBlock narrow[kMostQueries][kMostBlocks];
    for (int i = 0; i < n_queries; ++i) narrow_input(IntegerPath::avx512_vnni, q[i], k.head_dim, narrow[i]);
    alignas(64) float logits[kMostQueries][kKeys];
    const auto write = [&](int s, int n) {
        for (int i = 0; i < n_queries; ++i) std::copy_n(logits[i], n, out[i] + s);
    };
    for (; first + kKeys <= last; first += kKeys) {
        multiply_keys(narrow, n_queries, k.data + first * row, row, n_blocks, scale, logits);
        write(first, kKeys);
    }
    if (first == last) return;
    // The rest as if others of zeros followed it.
    std::byte rest[kKeys * kMostBlocks * kBlockBytes] = {};
    std::memcpy(rest, k.data + first * row, static_cast<std::size_t>((last - first) * row));
    multiply_keys(narrow, n_queries, rest, row, n_blocks, scale, logits);
    write(first, last - first);
}

}  // namespace key_codes
HWY_POP_ATTRIBUTES
#endif

bool multiplies_key_codes(int head_dim) {
#if KH_INTEGERS_AVX512_VNNI
    return __builtin_cpu_supports("avx512vnni") && integer_path_limit() >= IntegerPath::avx512_vnni &&
           head_dim % kKvBlock == 0 && head_dim <= kMostBlocks * kKvBlock;
#else
    static_cast<void>(head_dim);
    return false;
#endif
}

void dot_key_codes([[maybe_unused]] const float* const* q, [[maybe_unused]] int n_queries,
                   [[maybe_unused]] const KvRows& k, [[maybe_unused]] int first, [[maybe_unused]] int last,
                   [[maybe_unused]] float scale, [[maybe_unused]] float* const* out) {
    KH_ASSERT(k.type == KvType::q8 && multiplies_key_codes(k.head_dim), "head_dim={}", k.head_dim);
#if KH_INTEGERS_AVX512_VNNI
    for (int i = 0; i < n_queries; i += kMostQueries)
        key_codes::dot(q + i, std::min(kMostQueries, n_queries - i), k, first, last, scale, out + i);
#endif
}

}  // namespace keyhole
