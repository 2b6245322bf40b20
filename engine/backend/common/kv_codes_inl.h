/// The two loops of attention over rows of q8, blocks of a scale and its codes. For kv_rows.cpp, which
/// Highway compiles once for each instruction set.
#if defined(KEYHOLE_ENGINE_BACKEND_COMMON_KV_CODES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_ENGINE_BACKEND_COMMON_KV_CODES_INL_H
#undef KEYHOLE_ENGINE_BACKEND_COMMON_KV_CODES_INL_H
#else
#define KEYHOLE_ENGINE_BACKEND_COMMON_KV_CODES_INL_H
#endif

#include "engine/backend/common/kv_sums_inl.h"
#include "engine/base/kv_type.h"

#include <cstddef>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

constexpr int kBlockBytes = kKvScaleBytes + kKvBlock;

using BlockTag = hn::CappedTag<float, kKvBlock>;  // a whole block has a whole number of registers
using BlockFloats = hn::Vec<BlockTag>;

// Rows whose scales are widened together, several in a register; and how many scales that may be.
constexpr int kScaleRows = 64, kScales = 4096;

HWY_INLINE float scale_of(const std::byte* block) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, block, sizeof bits);
    const hn::CappedTag<float, 1> one;
    return hn::GetLane(widen_halves(one, hn::Set(hn::Rebind<std::uint16_t, decltype(one)>(), bits)));
}
// out[s] = the scale of the block in row s, for at most kScaleRows rows.
HWY_INLINE void widen_scales(const std::byte* block, std::int64_t row_bytes, int n, float* out) {
    constexpr int kAtOnce = 16;  // scales that are copied without a loop
    const BlockTag tag;
    for (int first = 0; first < n; first += kAtOnce, block += kAtOnce * row_bytes) {
        HWY_ALIGN std::uint16_t bits[kAtOnce];
        const auto copy = [&](int s)
                              HWY_ATTR { std::memcpy(bits + s, block + s * row_bytes, sizeof bits[0]); };
        if (n - first >= kAtOnce) {
            HWY_UNROLL(16)
            for (int s = 0; s < kAtOnce; ++s) copy(s);
        } else {
            std::fill(bits, bits + kAtOnce, std::uint16_t{0});
            for (int s = 0; s < n - first; ++s) copy(s);
        }
        for (int s = 0; s < kAtOnce; s += static_cast<int>(hn::Lanes(tag)))
            hn::StoreU(widen_halves(tag, hn::LoadU(hn::Rebind<std::uint16_t, BlockTag>(), bits + s)), tag,
                       out + first + s);
    }
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

// Keys of codes, for write_keys(). A block's sum of products with codes is multiplied by the scale once.
struct CodeKeys {
    using Tag = BlockTag;
    const float* const* q;
    const std::byte* k;
    std::int64_t row_bytes;
    int head_dim;
    const float* scales;  // of the first block, by key; those of the next block follow after `stride`
    int stride;

    template <int kQueries, int kKeys>
    HWY_INLINE void sum_lanes(int s, BlockFloats (&total)[kQueries][kKeys]) const {
        const BlockTag tag;
        const int step = block_lanes();
        HWY_UNROLL(4)
        for (int i = 0; i < kQueries; ++i) {
            HWY_UNROLL(4)
            for (int j = 0; j < kKeys; ++j) total[i][j] = hn::Zero(tag);
        }
        const std::byte* block = k + s * row_bytes;
        const float* of_block = scales + s;
        for (int first = 0; first + step <= head_dim; first += kKvBlock) {
            const int n = std::min(kKvBlock, head_dim - first);
            BlockFloats sums[kQueries][kKeys];
            HWY_UNROLL(4)
            for (int j = 0; j < kKeys; ++j) {
                prefetch_row(block + j * row_bytes);
                HWY_UNROLL(4)
                for (int i = 0; i < kQueries; ++i) sums[i][j] = hn::Zero(tag);
            }
            for (int d = 0; d + step <= n; d += step) {
                HWY_UNROLL(4)
                for (int j = 0; j < kKeys; ++j) {
                    const BlockFloats codes = load_codes(codes_of(block + j * row_bytes) + d);
                    HWY_UNROLL(4)
                    for (int i = 0; i < kQueries; ++i)
                        sums[i][j] = hn::MulAdd(hn::LoadU(tag, q[i] + first + d), codes, sums[i][j]);
                }
            }
            HWY_UNROLL(4)
            for (int j = 0; j < kKeys; ++j) {
                HWY_UNROLL(4)
                for (int i = 0; i < kQueries; ++i)
                    total[i][j] = hn::MulAdd(hn::Set(tag, of_block[j]), sums[i][j], total[i][j]);
            }
            block += kBlockBytes;
            of_block += stride;
        }
    }

    template <int kQueries, int kKeys>
    HWY_INLINE void add_rest(int s, float (&rest)[kQueries][kKeys]) const {
        const int whole = head_dim - head_dim % block_lanes();
        if (whole == head_dim) return;
        for (int j = 0; j < kKeys; ++j) {
            const int last = whole / kKvBlock;  // the block
            const float of_block = scales[last * stride + s + j];
            const std::int8_t* codes = codes_of(k + (s + j) * row_bytes + last * kBlockBytes);
            for (int i = 0; i < kQueries; ++i)
                for (int d = whole; d < head_dim; ++d)
                    rest[i][j] += of_block * (q[i][d] * static_cast<float>(codes[d - last * kKvBlock]));
        }
    }
};

// Two sums a query and key are in registers at once.
constexpr int kCodeQueriesAtOnce = kManyKeys > 0 ? 3 : 1;

// Rows whose scales, n_blocks each, are widened at a time.
HWY_INLINE int scale_rows(int n_blocks) {
    return std::min(kScaleRows, kScales / n_blocks / 4 * 4);
}

template <int kQueries>
HWY_INLINE void dot_queries(const float* const* q, const std::byte* k, int first, int last, int head_dim,
                            float scale, float* const* out) {
    const std::int64_t row = kv_row_bytes(KvType::q8, head_dim);
    const int n_blocks = (head_dim + kKvBlock - 1) / kKvBlock, rows = scale_rows(n_blocks);
    HWY_ALIGN float scales[kScales + kKvBlock];
    for (; first < last; first += rows) {
        const std::byte* keys = k + first * row;
        const int n = std::min(rows, last - first);
        for (int block = 0; block < n_blocks; ++block)
            widen_scales(keys + block * kBlockBytes, row, n, scales + block * rows);
        float* to[kQueries];
        for (int i = 0; i < kQueries; ++i) to[i] = out[i] + first;
        write_keys<kQueries>(CodeKeys{q, keys, row, head_dim, scales, rows}, 0, n, scale, to);
    }
}

// What the tile's rows weigh in each block from the first on: attention times the block's scale. weights
// [n_blocks][kQueries][kScaleRows]
template <int kQueries>
HWY_INLINE void weigh_blocks(const float* const* p, const std::byte* block, std::int64_t row_bytes,
                             const Tile& tile, int n_blocks, float* weights) {
    const BlockTag tag;
    const int n = tile.last - tile.first;
    block += tile.first * row_bytes;
    HWY_ALIGN float scales[kScaleRows];
    for (int b = 0; b < n_blocks; ++b, block += kBlockBytes) {
        widen_scales(block, row_bytes, n, scales);
        for (int q = 0; q < kQueries; ++q, weights += kScaleRows) {
            int s = 0;
            for (; s + block_lanes() <= n; s += block_lanes())
                hn::StoreU(hn::Mul(hn::LoadU(tag, p[q] + tile.first + s), hn::LoadU(tag, scales + s)), tag,
                           weights + s);
            for (; s < n; ++s) weights[s] = p[q][tile.first + s] * scales[s];
        }
    }
}

// Codes of a panel's blocks from dimension `offset` on, for add_tile().
template <int kQueries>
struct CodeValues {
    using Tag = BlockTag;
    // With registers of 16, those of four sums would hold half a block's codes alone.
    static constexpr int kSpread = hn::MaxLanes(BlockTag()) >= 16 ? 2 : 4;
    const float* weights;    // [blocks][kQueries][kScaleRows]
    const std::byte* block;  // the first one of the first row
    std::int64_t row_bytes;
    int offset, first;  // first: the tile's first row

    template <int kVectors>
    HWY_INLINE void add(int s, BlockFloats (&sums)[kQueries][kVectors]) const {
        const std::byte* of_row = block + s * row_bytes + offset / kKvBlock * kBlockBytes;
        // Known to the compiler where whole blocks are summed.
        const int within = kVectors * block_lanes() >= kKvBlock ? 0 : offset % kKvBlock;
        const float* of_slot = weights + offset / kKvBlock * kQueries * kScaleRows + s - first;
        HWY_UNROLL(4)
        for (int i = 0; i < kVectors; ++i) {
            const int at = within + i * block_lanes(), next = at / kKvBlock;
            if (at % kKvBlock == 0) prefetch_row(of_row + next * kBlockBytes);
            const BlockFloats codes = load_codes(codes_of(of_row + next * kBlockBytes) + at % kKvBlock);
            HWY_UNROLL(4)
            for (int q = 0; q < kQueries; ++q)
                sums[q][i] = hn::MulAdd(hn::Set(BlockTag(), of_slot[(next * kQueries + q) * kScaleRows]),
                                        codes, sums[q][i]);
        }
    }
};

// Registers of codes that are summed at once.
template <int kQueries>
inline constexpr int kCodeVectors = hn::MaxLanes(BlockTag()) >= 16 && kQueries <= 3
                                        ? 4
                                        : std::min(kVectorsAtOnce<kQueries>, 2);

// Sums dimensions of whole registers of the blocks [first, last), at most kPanel, a tile of rows after the
// other, so that rows are read in the order of their addresses. v: the first block of the first row.
template <int kQueries>
HWY_INLINE void weigh_code_panel(const float* const* p, const std::byte* v, int n, int head_dim, int first,
                                 int last, float* const* out) {
    using Values = CodeValues<kQueries>;
    const std::int64_t row = kv_row_bytes(KvType::q8, head_dim);
    const int step = block_lanes(), dims = last - first;
    constexpr int kVectors = kCodeVectors<kQueries>;
    HWY_ALIGN float kept[Values::kSpread * kQueries * kPanel],
        weights[kPanel / kKvBlock * kQueries * kScaleRows];
    Tile tile{0, 0, n};
    do {
        tile.first = tile.last;
        tile.last = std::min(n, tile.first + kScaleRows);
        weigh_blocks<kQueries>(p, v, row, tile, (dims + kKvBlock - 1) / kKvBlock, weights);
        Values values{weights, v, row, 0, tile.first};
        for (; values.offset + kVectors * step <= dims; values.offset += kVectors * step)
            add_tile<kQueries, kVectors>(values, tile, first + values.offset, kept + values.offset, out);
        for (; values.offset + step <= dims; values.offset += step)
            add_tile<kQueries, 1>(values, tile, first + values.offset, kept + values.offset, out);
    } while (tile.last < n);
}

template <int kQueries>
HWY_INLINE void weigh_queries(const float* const* p, const std::byte* v, int n, int head_dim, int first,
                              int last, float* const* out) {
    const std::int64_t row = kv_row_bytes(KvType::q8, head_dim);
    v += first / kKvBlock * kBlockBytes;
    for (; first < last; first += kPanel, v += kPanel / kKvBlock * kBlockBytes) {
        const int end = std::min(last, first + kPanel);
        weigh_code_panel<kQueries>(p, v, n, head_dim, first, end, out);
        // What no whole register holds lies in the last block.
        const int block = first + (end - first) / kKvBlock * kKvBlock;
        const std::byte* const codes = v + (block - first) / kKvBlock * kBlockBytes;
        for (int d = end - end % block_lanes(); d < end; ++d)
            for (int q = 0; q < kQueries; ++q) {
                float total = 0;
                for (int s = 0; s < n; ++s)
                    total += p[q][s] * scale_of(codes + s * row) *
                             static_cast<float>(codes_of(codes + s * row)[d - block]);
                out[q][d] = total;
            }
    }
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
