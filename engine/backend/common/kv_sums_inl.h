/// What the loops over keys and values of every type share: sums of lanes, and running sums of values. For
/// kv_rows.cpp, which Highway compiles once for each instruction set.
#if defined(KEYHOLE_ENGINE_BACKEND_COMMON_KV_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_ENGINE_BACKEND_COMMON_KV_SUMS_INL_H
#undef KEYHOLE_ENGINE_BACKEND_COMMON_KV_SUMS_INL_H
#else
#define KEYHOLE_ENGINE_BACKEND_COMMON_KV_SUMS_INL_H
#endif

#include "engine/backend/common/simd.h"

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

// Rows are read from one end to the other. So many bytes are fetched before their use, into the second-level
// cache: the first level holds few reads that wait for memory.
constexpr int kKvBytesAhead = 8192, kKvCacheLevel = 2;

HWY_INLINE void prefetch_row(const void* p, int bytes_ahead = kKvBytesAhead) {
    __builtin_prefetch(static_cast<const char*>(p) + bytes_ahead, 0, kKvCacheLevel);
}

// The most queries whose products with a key are computed together, so that the key is read and widened once:
// as many as have their sums in registers.
constexpr int kQueriesAtOnce = hn::MaxLanes(FloatTag()) >= 16 ? 4 : 3;

// --- keys --------------------------------------------------------------------------------------------------

#if HWY_TARGET == HWY_AVX3
// Keys whose lanes are added together, a quarter of them at a time.
constexpr int kManyKeys = 16;

// Adds lanes i, i + 4, i + 8 and i + 12 of four registers, in the order of SumOfLanes: four lanes for each.
HWY_INLINE Floats quarter_sums(const Floats (&v)[4]) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(v[0].raw, v[1].raw, 0x44),
                                    _mm512_shuffle_f32x4(v[0].raw, v[1].raw, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(v[2].raw, v[3].raw, 0x44),
                                    _mm512_shuffle_f32x4(v[2].raw, v[3].raw, 0xee));
    return Floats{_mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd))};
}

// Adds the four lanes of each of the sixteen registers whose quarter sums these are, in the same order. Lane
// j is the sum of register j.
HWY_INLINE Floats sums_of_quarters(const Floats (&v)[4]) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_ps(v[0].raw, v[1].raw, 0x44),
                                    _mm512_shuffle_ps(v[0].raw, v[1].raw, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_ps(v[2].raw, v[3].raw, 0x44),
                                    _mm512_shuffle_ps(v[2].raw, v[3].raw, 0xee));
    const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return Floats{_mm512_permutexvar_ps(order, sums)};
}
#elif HWY_TARGET == HWY_AVX2
constexpr int kManyKeys = 8;

// Adds lanes i and i + 4 of two registers, in the order of SumOfLanes: four lanes for each.
HWY_INLINE Floats quarter_sums(const Floats (&v)[2]) {
    return Floats{_mm256_add_ps(_mm256_permute2f128_ps(v[0].raw, v[1].raw, 0x20),
                                _mm256_permute2f128_ps(v[0].raw, v[1].raw, 0x31))};
}

// Adds the four lanes of each of the eight registers whose quarter sums these are, in the same order. Lane j
// is the sum of register j.
HWY_INLINE Floats sums_of_quarters(const Floats (&v)[4]) {
    const __m256 ab = _mm256_add_ps(_mm256_shuffle_ps(v[0].raw, v[1].raw, 0x44),
                                    _mm256_shuffle_ps(v[0].raw, v[1].raw, 0xee));
    const __m256 cd = _mm256_add_ps(_mm256_shuffle_ps(v[2].raw, v[3].raw, 0x44),
                                    _mm256_shuffle_ps(v[2].raw, v[3].raw, 0xee));
    const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd));
    return Floats{_mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))};
}
#else
constexpr int kManyKeys = 0;
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
// Writes kManyKeys keys from s on.
template <int kQueries, class Keys>
HWY_INLINE void write_many(const Keys& keys, int s, float scale, float* const* out) {
    constexpr int kPart = kManyKeys / 4;
    Floats quarters[kQueries][4];
    HWY_ALIGN float rest[kQueries][kManyKeys] = {};
    for (int part = 0; part < 4; ++part) {
        Floats sums[kQueries][kPart];
        keys.sum_lanes(s + kPart * part, sums);
        HWY_UNROLL(4)
        for (int i = 0; i < kQueries; ++i) quarters[i][part] = quarter_sums(sums[i]);
    }
    keys.add_rest(s, rest);
    HWY_UNROLL(4)
    for (int i = 0; i < kQueries; ++i)
        store(hn::Mul(all(scale), hn::Add(sums_of_quarters(quarters[i]), load(rest[i]))), out[i] + s);
}
#endif

template <int kQueries, int kKeys, class Keys>
HWY_INLINE void write_some(const Keys& keys, int s, float scale, float* const* out) {
    const typename Keys::Tag tag;
    hn::Vec<typename Keys::Tag> sums[kQueries][kKeys];
    float rest[kQueries][kKeys] = {};
    keys.sum_lanes(s, sums);
    keys.add_rest(s, rest);
    HWY_UNROLL(4)
    for (int i = 0; i < kQueries; ++i) {
        HWY_UNROLL(4)
        for (int j = 0; j < kKeys; ++j)
            out[i][s + j] = scale * (hn::GetLane(hn::SumOfLanes(tag, sums[i][j])) + rest[i][j]);
    }
}

// Writes scale times the products of the keys [s, last) with kQueries queries. Several keys at once hide the
// latency of the multiply-add, and share the additions of lanes. Keys has
//     sum_lanes(s, sums)   the products of keys from s on, added in the lanes of sums [kQueries][kKeys]
//     add_rest(s, rest)    adds those that no whole register holds
template <int kQueries, class Keys>
HWY_INLINE void write_keys(const Keys& keys, int s, int last, float scale, float* const* out) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
    for (; s + kManyKeys <= last; s += kManyKeys) write_many<kQueries>(keys, s, scale, out);
#endif
    for (; s + 4 <= last; s += 4) write_some<kQueries, 4>(keys, s, scale, out);
    for (; s < last; ++s) write_some<kQueries, 1>(keys, s, scale, out);
}

// --- values ------------------------------------------------------------------------------------------------

// Registers of dimensions summed at once for so many queries: as many as have their sums in registers.
template <int kQueries>
inline constexpr int kVectorsAtOnce = hn::MaxLanes(FloatTag()) < 16 ? 2
                                      : kQueries == 1               ? 4
                                      : kQueries <= 3               ? 2
                                                                    : 1;

// Slots are spread over kSpread sums by slot % kSpread, combined at the end: a fixed order with enough
// independent work. So many of them are in registers at once.
template <int kQueries, int kVectors, int kSpread>
inline constexpr int kSumsAtOnce = (hn::MaxLanes(FloatTag()) >= 16 || kQueries * kVectors <= 3) ? kSpread : 2;

// Dimensions whose running sums lie in memory between two tiles of rows.
constexpr int kPanel = 128;

// Running sums of kVectors registers of dimensions for kQueries queries: those of slots from `from` on,
// modulo kSpread, which is 2 or 4.
template <class Tag, int kQueries, int kVectors, int kSpread>
struct ValueSums {
    static constexpr int kSums = kSumsAtOnce<kQueries, kVectors, kSpread>;
    hn::Vec<Tag> sums[kSums][kQueries][kVectors];

    // kept [kSpread][kQueries][kPanel], from these dimensions on; null: zero
    HWY_INLINE void begin(Tag tag, const float* kept, int from) {
        HWY_UNROLL(4)
        for (int j = 0; j < kSums; ++j) {
            HWY_UNROLL(4)
            for (int q = 0; q < kQueries; ++q) {
                HWY_UNROLL(4)
                for (int i = 0; i < kVectors; ++i)
                    sums[j][q][i] =
                        kept == nullptr ? hn::Zero(tag) : hn::LoadU(tag, at(kept, tag, from + j, q, i));
            }
        }
    }
    HWY_INLINE void keep(Tag tag, float* kept, int from) const {
        HWY_UNROLL(4)
        for (int j = 0; j < kSums; ++j) {
            HWY_UNROLL(4)
            for (int q = 0; q < kQueries; ++q) {
                HWY_UNROLL(4)
                for (int i = 0; i < kVectors; ++i)
                    hn::StoreU(sums[j][q][i], tag, at(kept, tag, from + j, q, i));
            }
        }
    }
    // Adds the slots [first, last); first is a multiple of kSpread.
    template <class Values>
    HWY_INLINE void add_slots(const Values& values, int first, int last, int from) {
        int s = first + from;
        for (; s + kSums <= last; s += kSpread) {
            HWY_UNROLL(4)
            for (int j = 0; j < kSums; ++j) values.add(s + j, sums[j]);
        }
        HWY_UNROLL(3)
        for (int j = 0; j < kSums - 1; ++j)
            if (s + j < last) values.add(s + j, sums[j]);
    }
    // Writes the total of the sums that are kept.
    static HWY_INLINE void write(Tag tag, int d, const float* kept, float* const* out) {
        HWY_UNROLL(4)
        for (int q = 0; q < kQueries; ++q) {
            HWY_UNROLL(4)
            for (int i = 0; i < kVectors; ++i) {
                const auto sum = [&](int j) HWY_ATTR { return hn::LoadU(tag, at(kept, tag, j, q, i)); };
                auto total = hn::Add(sum(0), sum(1));
                if constexpr (kSpread == 4) total = hn::Add(total, hn::Add(sum(2), sum(3)));
                hn::StoreU(total, tag, out[q] + d + i * static_cast<int>(hn::Lanes(tag)));
            }
        }
    }

  private:
    template <class Float>
    static HWY_INLINE Float* at(Float* kept, Tag tag, int j, int q, int i) {
        return kept + (j * kQueries + q) * kPanel + i * static_cast<int>(hn::Lanes(tag));
    }
};

// Rows [first, last) of n: a tile.
struct Tile {
    int first, last, n;
};

// Adds the tile's rows to the sums of kVectors registers of dimensions, from d on, which `kept` holds between
// tiles; writes them with the last tile. Values has add(s, sums), which adds slot s, and kSpread.
template <int kQueries, int kVectors, class Values>
HWY_INLINE void add_tile(const Values& values, const Tile& tile, int d, float* kept, float* const* out) {
    const typename Values::Tag tag;
    using Sums = ValueSums<typename Values::Tag, kQueries, kVectors, Values::kSpread>;
    for (int from = 0; from < Values::kSpread; from += Sums::kSums) {
        Sums sums;
        sums.begin(tag, tile.first == 0 ? nullptr : kept, from);
        sums.add_slots(values, tile.first, tile.last, from);
        sums.keep(tag, kept, from);
    }
    if (tile.last == tile.n) Sums::write(tag, d, kept, out);
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
