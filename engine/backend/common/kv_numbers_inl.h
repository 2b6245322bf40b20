/// The two loops of attention over rows of numbers (f32, f16, bf16). For kv_rows.cpp, which Highway compiles
/// once for each instruction set.
#if defined(KEYHOLE_ENGINE_BACKEND_COMMON_KV_NUMBERS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_ENGINE_BACKEND_COMMON_KV_NUMBERS_INL_H
#undef KEYHOLE_ENGINE_BACKEND_COMMON_KV_NUMBERS_INL_H
#else
#define KEYHOLE_ENGINE_BACKEND_COMMON_KV_NUMBERS_INL_H
#endif

#include "engine/backend/common/kv_sums_inl.h"

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

// Keys of numbers, for write_keys().
template <class T>
struct NumberKeys {
    using Tag = FloatTag;
    const float* const* q;
    const T* k;
    int head_dim;

    HWY_INLINE const T* key(int s) const { return k + static_cast<std::int64_t>(s) * head_dim; }

    template <int kQueries, int kKeys>
    HWY_INLINE void sum_lanes(int s, Floats (&sums)[kQueries][kKeys]) const {
        constexpr int kLine = 64 / sizeof(T);
        const int step = static_cast<int>(lanes());
        const T* const keys = key(s);
        HWY_UNROLL(4)
        for (int i = 0; i < kQueries; ++i) {
            HWY_UNROLL(4)
            for (int j = 0; j < kKeys; ++j) sums[i][j] = hn::Zero(FloatTag());
        }
        for (int d = 0; d + step <= head_dim; d += step) {
            HWY_UNROLL(4)
            for (int j = 0; j < kKeys; ++j) {
                if (d % kLine == 0) prefetch_row(keys + j * head_dim + d);
                const Floats number = load(keys + j * head_dim + d);
                HWY_UNROLL(4)
                for (int i = 0; i < kQueries; ++i)
                    sums[i][j] = hn::MulAdd(load(q[i] + d), number, sums[i][j]);
            }
        }
    }

    template <int kQueries, int kKeys>
    HWY_INLINE void add_rest(int s, float (&rest)[kQueries][kKeys]) const {
        const int step = static_cast<int>(lanes());
        if (head_dim % step == 0) return;
        for (int j = 0; j < kKeys; ++j)
            for (int i = 0; i < kQueries; ++i)
                for (int d = head_dim - head_dim % step; d < head_dim; ++d)
                    rest[i][j] += q[i][d] * widen(key(s + j)[d]);
    }
};

template <int kQueries, class T>
HWY_INLINE void dot_queries(const float* const* q, const T* k, int first, int last, int head_dim, float scale,
                            float* const* out) {
    write_keys<kQueries>(NumberKeys<T>{q, k, head_dim}, first, last, scale, out);
}

// Values of numbers from dimension d on, for add_tile().
template <class T>
struct NumberValues {
    using Tag = FloatTag;
    static constexpr int kSpread = 4;
    const float* const* p;
    const T* v;
    int head_dim, d;
    int bytes_ahead;  // how far the row is that is fetched now

    template <int kQueries, int kVectors>
    HWY_INLINE void add(int s, Floats (&sums)[kQueries][kVectors]) const {
        constexpr int kLine = 64 / sizeof(T);
        const T* value = v + static_cast<std::int64_t>(s) * head_dim + d;
        // Those that read the same line share its rows, so that memory always has some to bring.
        const int n_read = kVectors * static_cast<int>(lanes()), n_sharing = std::max(1, kLine / n_read);
        if (s % n_sharing == d / n_read % n_sharing)
            for (int i = 0; i < n_read; i += kLine) prefetch_row(value + i, bytes_ahead);
        HWY_UNROLL(4)
        for (int i = 0; i < kVectors; ++i) {
            const Floats number = load(value + i * static_cast<int>(lanes()));
            HWY_UNROLL(4)
            for (int q = 0; q < kQueries; ++q) sums[q][i] = hn::MulAdd(all(p[q][s]), number, sums[q][i]);
        }
    }
};

// Sums the dimensions [d, last), at most kPanel, a tile of rows after the other, so that rows are read in
// the order of their addresses.
template <int kQueries, class T>
HWY_INLINE void weigh_panel(const float* const* p, const T* v, int n, int head_dim, int d, int last,
                            float* const* out) {
    constexpr int kTileBytes = 8 << 10, kVectors = kVectorsAtOnce<kQueries>, kLeastAhead = 1 << 10;
    const int step = static_cast<int>(lanes());
    const int at_once = kTileBytes / static_cast<int>((last - d) * sizeof(T)) / 4 * 4;
    const int rows = last - d <= kVectors * step ? n : at_once;
    // In a small cache little is left behind the first rows.
    const std::int64_t part = static_cast<std::int64_t>(n) * head_dim * static_cast<int>(sizeof(T)) / 16;
    const int far = static_cast<int>(std::clamp<std::int64_t>(part, kLeastAhead, kKvBytesAhead));
    HWY_ALIGN float kept[NumberValues<T>::kSpread * kQueries * kPanel];
    Tile tile{0, 0, n};
    do {
        tile.first = tile.last;
        tile.last = std::min(n, tile.first + rows);
        NumberValues<T> values{p, v, head_dim, d, far};
        for (; values.d + kVectors * step <= last; values.d += kVectors * step)
            add_tile<kQueries, kVectors>(values, tile, values.d, kept + values.d - d, out);
        for (; values.d + step <= last; values.d += step)
            add_tile<kQueries, 1>(values, tile, values.d, kept + values.d - d, out);
    } while (tile.last < n);
}

template <int kQueries, class T>
HWY_INLINE void weigh_queries(const float* const* p, const T* v, int n, int head_dim, int d, int last,
                              float* const* out) {
    const int whole = d + (last - d) / static_cast<int>(lanes()) * static_cast<int>(lanes());
    for (; d < whole; d = std::min(d + kPanel, whole))
        weigh_panel<kQueries>(p, v, n, head_dim, d, std::min(d + kPanel, whole), out);
    for (; d < last; ++d)
        for (int q = 0; q < kQueries; ++q) {
            float total = 0;
            for (int s = 0; s < n; ++s)
                total += p[q][s] * widen(v[static_cast<std::int64_t>(s) * head_dim + d]);
            out[q][d] = total;
        }
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
