/// Attention of a whole prompt, and its score streams, without a matrix of n x n. Three kernels compute a
/// layer's logits tile by tile, each for what it sums:
///
///     PromptSums      maximum and sum of every softmax row, of the attention and of each tempered stream
///     PromptAttend    o[row] = sum over columns of p v
///     PromptColumns   score[column] = sum over rows of alpha^(n - 1 - row) p
///
/// Logits are computed anew each time: they cost less than writing and reading them. Q, K and V are 16-bit
/// copies, products run on tensor cores (warp_product.h), everything else is float. Orders of sums are fixed.
/// Scores that round after every row (fp16, bf16) need the rows one by one: see prompt.h. Host and device.
/// Knows no cache. CPU twin: backend/cpu/prefill.cpp.
///
/// kDim is the largest head_dim; head_dim is a multiple of 16. Blocks have kMaxThreads threads.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/attention.h"
#include "engine/backend/cuda/kernels/prompt.h"
#include "engine/backend/cuda/kernels/warp_product.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace keyhole::cuda {

/// The noise of a stream. A call on a device: copies of it in loops over registers would fill the cache of
/// instructions.
#ifdef __CUDACC__
__noinline__ __host__ __device__ inline
#else
inline
#endif
    float
    stream_noise(const StreamRule& stream, int layer, int h, int row, int column) {
    return noise_at(static_cast<NoiseKind>(stream.noise_kind), static_cast<NoiseDraw>(stream.noise_draw),
                    stream.seed, layer, h, row, column);
}

/// A layer's queries, keys and values, finished.
template <class T>
struct PromptHeads {
    const T* q;           ///< [n, n_heads, head_dim]
    const T* k;           ///< [n_kv, n, head_dim]
    const T* v;           ///< same
    const float* slopes;  ///< see AttendSplit
    float scale;
    std::int32_t n, n_heads, head_dim;
    std::int32_t group;  ///< query heads that read one KV head
    std::int32_t window, layer, unused = 0;

    KH_FN const T* query(int h, int row) const {
        return q + (static_cast<std::int64_t>(row) * n_heads + h) * head_dim;
    }
    KH_FN std::int64_t of_kv(int h, int column) const {
        return (static_cast<std::int64_t>(h / group) * n + column) * head_dim;
    }
    /// Blocks of kRows rows, from the last rows to the first. Returns a block's first row.
    template <int kRows>
    KH_FN int first_row(int block) const {
        return ((n + kRows - 1) / kRows - 1 - block) * kRows;
    }
    /// Returns the column at which the first tile of kColumns columns begins that the block's rows see.
    template <int kRows, int kColumns>
    KH_FN int first_column(int block) const {
        const int first = first_row<kRows>(block) - window + 1;
        return window > 0 && first > 0 ? first / kColumns * kColumns : 0;
    }
    /// Returns the number of tiles from there to the block's last row.
    template <int kRows, int kColumns>
    KH_FN int n_tiles(int block) const {
        const int end = first_row<kRows>(block) + kRows < n ? first_row<kRows>(block) + kRows : n;
        return (end - first_column<kRows, kColumns>(block) + kColumns - 1) / kColumns;
    }
    KH_FN bool sees(int row, int column) const {
        return column <= row && row < n && (window <= 0 || column > row - window);
    }
    /// The noise of a token, where a stream draws it once.
    KH_FN float token_noise(const StreamRule& stream, int h, int column) const {
        return draws_rows(stream) ? 0.0f : stream_noise(stream, layer, h, 0, column);
    }
    KH_FN static bool draws_rows(const StreamRule& stream) {
        return stream.noise_draw == static_cast<int>(NoiseDraw::row);
    }

    /// Makes logits of a lane's products: of the attention (no stream), or as the stream tempers them; -inf
    /// where a row does not see a column. Queries are the tile's rows, or its columns (kTransposed).
    /// row, column: of the lane's first element. noise: of its tokens, by their distance from `column`
    /// (kTransposed: of column and column + 8).
    template <bool kTransposed>
    KH_FN void finish(WarpTile& tile, const StreamRule* stream, int h, int row, int column,
                      const float* noise) const {
        KH_UNROLL
        for (int i = 0; i < WarpTile::kElements; ++i) tile.at[i] = mul(tile.at[i], scale);
        if (slopes != nullptr) {
            KH_UNROLL
            for (int i = 0; i < WarpTile::kElements; ++i) {
                const int distance = column + place<!kTransposed>(i) - row - place<kTransposed>(i);
                tile.at[i] = add(tile.at[i], mul(slopes[h], static_cast<float>(distance)));
            }
        }
        if (stream != nullptr && stream->tempered != 0) {
            const bool of_rows = draws_rows(*stream);
            KH_UNROLL
            for (int i = 0; i < WarpTile::kElements; ++i) {
                const int to_row = place<kTransposed>(i), to_column = place<!kTransposed>(i);
                const float zeta = of_rows ? stream_noise(*stream, layer, h, row + to_row, column + to_column)
                                           : noise[kTransposed ? to_column / 8 : to_column];
                tile.at[i] = tempered_logit(tile.at[i], stream->gain, zeta, stream->tau);
            }
        }
        KH_UNROLL
        for (int i = 0; i < WarpTile::kElements; ++i)
            if (!sees(row + place<kTransposed>(i), column + place<!kTransposed>(i))) tile.at[i] = -INFINITY;
    }
    /// From the lane's first element to element i: along the tile's columns, or along its rows.
    template <bool kAlongColumns>
    KH_FN static int place(int i) {
        return kAlongColumns ? WarpTile::column(0, i) : WarpTile::row(0, i);
    }
};

/// p = exp(logit - max) * share
struct RowSum {
    float max, share;
};

/// Rows of a tile on their way to shared memory: read from device memory in one phase and stored in a later
/// one, so that the products between hide the wait.
template <class T, int kDim, int kRows>
struct RowsAhead {
    static constexpr int kPacks = kRows * kDim / 8 / kMaxThreads;
    static constexpr int kStride = kDim + 8;  ///< in shared memory: 8 rows start in different banks
    Words packs[kPacks];                      ///< 8 numbers each

    /// Rows beyond n_rows become zeros.
    KH_FN void fetch(const Block& block, const T* rows, std::int64_t stride, int n_rows, int head_dim) {
        KH_UNROLL
        for (int j = 0; j < kPacks; ++j) {
            const int row = row_of(block, j), d = dim_of(block, j);
            packs[j] = row < n_rows && d < head_dim ? load(rows + row * stride + d) : Words{};
        }
    }
    KH_FN void put(const Block& block, T* tile) const {
        KH_UNROLL
        for (int j = 0; j < kPacks; ++j)
            store_words(packs[j], tile + row_of(block, j) * kStride + dim_of(block, j));
    }
    KH_FN static Words load(const T* from) {
#ifdef __CUDA_ARCH__
        const uint4 words = *reinterpret_cast<const uint4*>(from);
        return {{words.x, words.y, words.z, words.w}};
#else
        Words words;
        std::memcpy(&words, from, sizeof(words));
        return words;
#endif
    }
    KH_FN static int row_of(const Block& block, int j) {
        return (block.thread + j * kMaxThreads) / (kDim / 8);
    }
    KH_FN static int dim_of(const Block& block, int j) {
        return (block.thread + j * kMaxThreads) % (kDim / 8) * 8;
    }
};

/// Products of 16 rows with 16 rows of a tile in shared memory, from row `first` on.
template <class T, int kDim>
KH_FN void multiply_heads(WarpTile& tile, const WarpRows<T, kDim / 16>& rows,
                          const WarpFactors<true, T>& others, int first, int head_dim, int lane) {
    tile.clear();
    KH_UNROLL
    for (int step = 0; step < kDim / 16; ++step)
        if (step * 16 < head_dim)
            add_product(tile, rows, step, others, first * RowsAhead<T, kDim, 64>::kStride + step * 16, lane);
}

/// Blocks take the rows of a head in reverse, so that those with the most columns start first. Grid: x =
/// blocks of kRows rows, y = query heads, z = the attention, then streams.
template <class T, int kDim>
struct PromptSums {
    static constexpr int kPhases = 3, kRepeated = 2;
    static constexpr int kRows = kMaxThreads / kWarp * 16, kColumns = 64;  ///< of a block; of a tile
    using Ahead = RowsAhead<T, kDim, kColumns>;
    struct Shared {
        alignas(16) T keys[kColumns * Ahead::kStride];
        float noise[kColumns];     ///< of the tile's tokens
        RowSum partial[4][kRows];  ///< maximum and sum over the columns of a lane
    };
    struct Local {
        WarpRows<T, kDim / 16> q;
        Ahead next;
        float max[2], sum[2];
    };
    PromptHeads<T> heads;
    const StreamRule* streams;  ///< [n_streams, n_heads]
    RowSum* sums;               ///< [1 + n_streams, n_heads, n]

    KH_FN const StreamRule* stream(const Block& block) const {
        return block.z > 0 ? streams + static_cast<std::int64_t>(block.z - 1) * heads.n_heads + block.y
                           : nullptr;
    }
    KH_FN int first_row(const Block& block) const { return heads.template first_row<kRows>(block.x); }
    KH_FN int first_column(const Block& block) const {
        return heads.template first_column<kRows, kColumns>(block.x);
    }
    KH_FN int n_tiles(const Block& block) const {
        KH_DEVICE_ASSERT(block.n_threads == kMaxThreads);
        const StreamRule* of = stream(block);
        if (of != nullptr && (of->runs == 0 || of->tempered == 0)) return 0;
        return heads.template n_tiles<kRows, kColumns>(block.x);
    }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        if (p == 0) return put_tile(block, shared, local);
        if (p == 1) return add_tile(block, shared, local);
        const int row = first_row(block) + block.thread;
        if (block.thread >= kRows || row >= heads.n) return;
        float most = -INFINITY, sum = 0;
        for (int i = 0; i < 4; ++i) {
            const float max = shared.partial[i][block.thread].max;
            most = max > most ? max : most;
        }
        for (int i = 0; i < 4; ++i) {
            const RowSum part = shared.partial[i][block.thread];
            if (part.max != -INFINITY) sum = add(sum, mul(part.share, expf(add(part.max, -most))));
        }
        const std::int64_t head = static_cast<std::int64_t>(block.z) * heads.n_heads + block.y;
        sums[head * heads.n + row] = {most, sum == 0 ? 0.0f : 1.0f / sum};
    }

    KH_FN void begin(const Block& block, Shared&, Local& local) const {
        const int lane = block.thread % kWarp, h = block.y;
        const int row = first_row(block) + block.thread / kWarp * 16 + lane / 4, end = heads.n - 1;
        local.q.load(lane, heads.query(h, row < end ? row : end),
                     heads.query(h, row + 8 < end ? row + 8 : end), heads.head_dim / 16);
        KH_UNROLL
        for (int r = 0; r < 2; ++r) {
            local.max[r] = -INFINITY;
            local.sum[r] = 0;
        }
        fetch(block, 0, local);
    }
    KH_FN void put_tile(const Block& block, Shared& shared, const Local& local) const {
        local.next.put(block, shared.keys);
        const StreamRule* of = stream(block);
        if (of == nullptr || block.thread >= kColumns) return;
        shared.noise[block.thread] =
            heads.token_noise(*of, block.y, first_column(block) + block.tile * kColumns + block.thread);
    }
    KH_FN void fetch(const Block& block, int tile, Local& local) const {
        const int first = first_column(block) + tile * kColumns;
        local.next.fetch(block, heads.k + heads.of_kv(block.y, first), heads.head_dim, heads.n - first,
                         heads.head_dim);
    }

    KH_FN void add_tile(const Block& block, Shared& shared, Local& local) const {
        if (block.tile + 1 < block.n_tiles) fetch(block, block.tile + 1, local);
        const int lane = block.thread % kWarp, h = block.y, of_block = block.thread / kWarp * 16;
        const int first = first_column(block) + block.tile * kColumns;
        const StreamRule* of = stream(block);
        WarpFactors<true, T> keys;
        keys.find(lane, shared.keys, Ahead::kStride);
        constexpr int kAtOnce = 2;  // all four would take too many registers
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
        for (int part = 0; part < kColumns; part += kAtOnce * 16) {
            WarpTile tiles[kAtOnce];
            float most[2] = {local.max[0], local.max[1]};
            KH_UNROLL
            for (int c = 0; c < kAtOnce; ++c) {
                const int in_tile = part + c * 16;
                multiply_heads<T, kDim>(tiles[c], local.q, keys, in_tile, heads.head_dim, lane);
                heads.template finish<false>(tiles[c], of, h, first_row(block) + of_block + lane / 4,
                                             first + in_tile + lane % 4 * 2,
                                             shared.noise + in_tile + lane % 4 * 2);
                KH_UNROLL
                for (int i = 0; i < WarpTile::kElements; ++i)
                    most[i % 4 / 2] = fmaxf(most[i % 4 / 2], tiles[c].at[i]);
            }
            KH_UNROLL
            for (int r = 0; r < 2; ++r) {
                // Until the lane sees a column of its row, exponents of the difference would be NaN.
                const float known = most[r] == -INFINITY ? 0.0f : most[r];
                float sum = mul(local.sum[r], expf(add(local.max[r], -known)));
                KH_UNROLL
                for (int c = 0; c < kAtOnce; ++c) {
                    KH_UNROLL
                    for (int i = 0; i < 4; ++i)
                        sum = add(sum, expf(add(tiles[c].at[i / 2 * 4 + r * 2 + i % 2], -known)));
                }
                local.max[r] = most[r];
                local.sum[r] = sum;
            }
        }
        if (block.tile + 1 < block.n_tiles) return;
        KH_UNROLL
        for (int r = 0; r < 2; ++r)
            shared.partial[lane % 4][of_block + lane / 4 + r * 8] = {local.max[r], local.sum[r]};
    }
};

/// Blocks as those of PromptSums. Heads of more than 128 dimensions are shared by two warps. Grid: x = blocks
/// of kRows rows, y = query heads.
template <class T, int kDim>
struct PromptAttend {
    static constexpr int kHalves = kDim > 128 ? 2 : 1;  ///< warps that share 16 rows
    /// True where a lane reads the very probabilities that it wrote, so that no barrier is needed between.
    static constexpr bool kReadsOwn = kHalves == 1 && kOnTensorCores<T>;
    static constexpr int kRepeated = kReadsOwn ? 2 : 3, kPhases = kRepeated;
    static constexpr int kRows = kMaxThreads / kWarp * 16 / kHalves, kColumns = 32;
    static constexpr int kOfWarp = kDim / 16 / kHalves;  ///< tiles of 16 dimensions that a warp sums
    static constexpr int kStride = kColumns + 8;         ///< of p
    using Ahead = RowsAhead<T, kDim, kColumns>;
    struct Shared {
        alignas(16) T keys[kColumns * Ahead::kStride];
        alignas(16) T values[kColumns * Ahead::kStride];
        alignas(16) T p[kRows * kStride];
    };
    struct Local {
        WarpRows<T, kDim / 16> q;
        Ahead next_keys, next_values;
        RowSum sum[2];
        WarpTile out[kOfWarp];
    };
    PromptHeads<T> heads;
    const RowSum* sums;  ///< [n_heads, n]
    float* out;          ///< [n, n_heads, head_dim]

    KH_FN int first_row(const Block& block) const { return heads.template first_row<kRows>(block.x); }
    KH_FN int first_column(const Block& block) const {
        return heads.template first_column<kRows, kColumns>(block.x);
    }
    KH_FN int n_tiles(const Block& block) const {
        KH_DEVICE_ASSERT(block.n_threads == kMaxThreads);
        return heads.template n_tiles<kRows, kColumns>(block.x);
    }
    /// The first of the warp's rows in the block.
    KH_FN static int rows_of(const Block& block) { return block.thread / kWarp % (kRows / 16) * 16; }
    KH_FN static int half_of(const Block& block) { return block.thread / kWarp / (kRows / 16); }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        if (p == 0) return put_tile(block, shared, local);
        if (p == 1) weigh_columns(block, shared, local);
        if (p == 2 || kReadsOwn) add_values(block, shared, local);
    }

    /// Adds the products of the tile's probabilities and values; after the last tile, writes the sums.
    KH_FN void add_values(const Block& block, const Shared& shared, Local& local) const {
        const int lane = block.thread % kWarp, d = half_of(block) * kOfWarp * 16;
        const T* row = shared.p + (rows_of(block) + lane / 4) * kStride;
        WarpRows<T, kColumns / 16> weights;
        weights.load(lane, row, row + 8 * kStride, kColumns / 16);
        WarpFactors<false, T> values;
        values.find(lane, shared.values + d, Ahead::kStride);
        KH_UNROLL
        for (int step = 0; step < kColumns / 16; ++step) {
            KH_UNROLL
            for (int c = 0; c < kOfWarp; ++c)
                if (d + c * 16 < heads.head_dim)
                    add_product(local.out[c], weights, step, values, step * 16 * Ahead::kStride + c * 16,
                                lane);
        }
        if (block.tile + 1 < block.n_tiles) return;
        KH_UNROLL
        for (int c = 0; c < kOfWarp; ++c) {
            KH_UNROLL
            for (int i = 0; i < WarpTile::kElements; ++i) {
                const int to = first_row(block) + rows_of(block) + WarpTile::row(lane, i);
                if (to < heads.n && d + c * 16 < heads.head_dim)
                    out[(static_cast<std::int64_t>(to) * heads.n_heads + block.y) * heads.head_dim + d +
                        c * 16 + WarpTile::column(lane, i)] = local.out[c].at[i];
            }
        }
    }

    KH_FN void begin(const Block& block, Shared&, Local& local) const {
        const int lane = block.thread % kWarp, h = block.y, end = heads.n - 1;
        int row[2] = {first_row(block) + rows_of(block) + lane / 4, 0};
        row[1] = row[0] + 8;
        KH_UNROLL
        for (int r = 0; r < 2; ++r) {
            row[r] = row[r] < end ? row[r] : end;
            local.sum[r] = sums[static_cast<std::int64_t>(h) * heads.n + row[r]];
        }
        local.q.load(lane, heads.query(h, row[0]), heads.query(h, row[1]), heads.head_dim / 16);
        KH_UNROLL
        for (int c = 0; c < kOfWarp; ++c) local.out[c].clear();
        fetch(block, 0, local);
    }
    KH_FN void put_tile(const Block& block, Shared& shared, const Local& local) const {
        local.next_keys.put(block, shared.keys);
        local.next_values.put(block, shared.values);
    }
    KH_FN void fetch(const Block& block, int tile, Local& local) const {
        const int first = first_column(block) + tile * kColumns, d = heads.head_dim;
        const std::int64_t at = heads.of_kv(block.y, first);
        local.next_keys.fetch(block, heads.k + at, d, heads.n - first, d);
        local.next_values.fetch(block, heads.v + at, d, heads.n - first, d);
    }

    /// Writes the tile's probabilities, rounded, to shared memory: with two warps each writes half of them.
    KH_FN void weigh_columns(const Block& block, Shared& shared, Local& local) const {
        if (block.tile + 1 < block.n_tiles) fetch(block, block.tile + 1, local);
        const int lane = block.thread % kWarp, first = first_column(block) + block.tile * kColumns;
        WarpFactors<true, T> keys;
        keys.find(lane, shared.keys, Ahead::kStride);
        constexpr int kTiles = kColumns / 16 / kHalves;
        KH_UNROLL
        for (int c = 0; c < kTiles; ++c) {
            const int of_tile = (half_of(block) * kTiles + c) * 16;
            WarpTile tile;
            multiply_heads<T, kDim>(tile, local.q, keys, of_tile, heads.head_dim, lane);
            heads.template finish<false>(tile, nullptr, block.y, first_row(block) + rows_of(block) + lane / 4,
                                         first + of_tile + lane % 4 * 2, nullptr);
            KH_UNROLL
            for (int i = 0; i < WarpTile::kElements; i += 2) {
                const RowSum sum = local.sum[i % 4 / 2];
                T two[2];
                KH_UNROLL
                for (int j = 0; j < 2; ++j)
                    narrow(mul(expf(add(tile.at[i + j], -sum.max)), sum.share), two[j]);
                const std::uint32_t word = two[0].bits | static_cast<std::uint32_t>(two[1].bits) << 16;
                std::memcpy(shared.p + (rows_of(block) + WarpTile::row(lane, i)) * kStride + of_tile +
                                WarpTile::column(lane, i),
                            &word, sizeof(word));
            }
        }
    }
};

/// A block owns columns and walks over the rows that see them, so that a score is summed where it stays.
/// Grid: x = blocks of kColumns columns, y = query heads, z = streams.
template <class T, int kDim>
struct PromptColumns {
    static constexpr int kPhases = 3, kRepeated = 2;
    static constexpr int kColumns = kMaxThreads / kWarp * 16, kRows = 64;  ///< of a block; of a tile
    using Ahead = RowsAhead<T, kDim, kRows>;
    struct Shared {
        alignas(16) T queries[kRows * Ahead::kStride];
        RowSum sums[kRows];
        float powers[kRows + 1];     ///< of alpha
        float partial[4][kColumns];  ///< sums over the rows of a lane
    };
    struct Local {
        WarpRows<T, kDim / 16> k;
        Ahead next;
        float score[2], noise[2];
    };
    PromptHeads<T> heads;
    const StreamRule* streams;  ///< [n_streams, n_heads]
    const RowSum* sums;         ///< [1 + n_streams, n_heads, n]
    float* score;               ///< [n_streams, n_heads, n]; not written where a head has no such stream

    KH_FN const StreamRule& stream(const Block& block) const {
        return streams[static_cast<std::int64_t>(block.z) * heads.n_heads + block.y];
    }
    KH_FN static int first_column(const Block& block) { return block.x * kColumns; }
    KH_FN int n_tiles(const Block& block) const {
        KH_DEVICE_ASSERT(block.n_threads == kMaxThreads);
        if (stream(block).runs == 0) return 0;
        const int seen = first_column(block) + kColumns - 1 + heads.window;
        const int last = heads.window > 0 && seen < heads.n ? seen : heads.n;
        return (last - first_column(block) + kRows - 1) / kRows;
    }
    /// The first row behind the tile.
    KH_FN int end_row(const Block& block, int tile) const {
        const int end = first_column(block) + (tile + 1) * kRows;
        return end < heads.n ? end : heads.n;
    }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        if (p == 0) return put_tile(block, shared, local);
        if (p == 1) return add_tile(block, shared, local);
        const int column = first_column(block) + block.thread;
        if (block.thread >= kColumns || column >= heads.n) return;
        float sum = 0;
        for (int i = 0; i < 4; ++i) sum = add(sum, shared.partial[i][block.thread]);
        // Rows that no longer see the column still forget it.
        const float later = power(stream(block).alpha, heads.n - end_row(block, block.n_tiles - 1));
        score[(static_cast<std::int64_t>(block.z) * heads.n_heads + block.y) * heads.n + column] =
            mul(sum, later);
    }
    KH_FN static float power(float base, int exponent) {
        float result = 1;
        for (; exponent > 0; exponent /= 2) {
            if (exponent % 2 != 0) result = mul(result, base);
            base = mul(base, base);
        }
        return result;
    }

    KH_FN void begin(const Block& block, Shared& shared, Local& local) const {
        const int lane = block.thread % kWarp, h = block.y;
        const StreamRule& of = stream(block);
        const int column = first_column(block) + block.thread / kWarp * 16 + lane / 4, end = heads.n - 1;
        local.k.load(lane, heads.k + heads.of_kv(h, column < end ? column : end),
                     heads.k + heads.of_kv(h, column + 8 < end ? column + 8 : end), heads.head_dim / 16);
        KH_UNROLL
        for (int r = 0; r < 2; ++r) {
            local.score[r] = 0;
            local.noise[r] = of.tempered != 0 ? heads.token_noise(of, h, column + r * 8) : 0.0f;
        }
        if (block.thread <= kRows) shared.powers[block.thread] = power(of.alpha, block.thread);
        fetch(block, 0, local);
    }
    KH_FN void put_tile(const Block& block, Shared& shared, const Local& local) const {
        const StreamRule& of = stream(block);
        local.next.put(block, shared.queries);
        if (block.thread >= kRows) return;
        const int row = first_column(block) + block.tile * kRows + block.thread;
        const std::int64_t head =
            static_cast<std::int64_t>(of.tempered != 0 ? 1 + block.z : 0) * heads.n_heads + block.y;
        shared.sums[block.thread] = row < heads.n ? sums[head * heads.n + row] : RowSum{0, 0};
    }
    KH_FN void fetch(const Block& block, int tile, Local& local) const {
        const int first = first_column(block) + tile * kRows;
        local.next.fetch(block, heads.query(block.y, first),
                         static_cast<std::int64_t>(heads.n_heads) * heads.head_dim, heads.n - first,
                         heads.head_dim);
    }

    KH_FN void add_tile(const Block& block, Shared& shared, Local& local) const {
        if (block.tile + 1 < block.n_tiles) fetch(block, block.tile + 1, local);
        const int lane = block.thread % kWarp, h = block.y, of_block = block.thread / kWarp * 16;
        const int first = first_column(block) + block.tile * kRows, end = end_row(block, block.tile);
        const StreamRule& of = stream(block);
        WarpFactors<true, T> queries;
        queries.find(lane, shared.queries, Ahead::kStride);
        KH_UNROLL
        for (int r = 0; r < 2; ++r) local.score[r] = mul(local.score[r], shared.powers[end - first]);
        KH_UNROLL
        for (int c = 0; c < kRows / 16; ++c) {
            WarpTile tile;
            multiply_heads<T, kDim>(tile, local.k, queries, c * 16, heads.head_dim, lane);
            heads.template finish<true>(tile, &of, h, first + c * 16 + lane % 4 * 2,
                                        first_column(block) + of_block + lane / 4, local.noise);
            KH_UNROLL
            for (int i = 0; i < WarpTile::kElements; ++i) {
                const int in_tile = c * 16 + WarpTile::column(lane, i), later = end - 1 - first - in_tile,
                          r = i % 4 / 2;
                const RowSum sum = shared.sums[in_tile];
                const float p = mul(expf(add(tile.at[i], -sum.max)), sum.share);
                // Rows beyond the prompt weigh nothing, since p is 0.
                local.score[r] = add(local.score[r], mul(shared.powers[later > 0 ? later : 0], p));
            }
        }
        if (block.tile + 1 < block.n_tiles) return;
        KH_UNROLL
        for (int r = 0; r < 2; ++r) shared.partial[lane % 4][of_block + lane / 4 + r * 8] = local.score[r];
    }
};

/// Calls visit.template operator()<kDim>() for the kernels that take the head size. Host only.
template <class Visit>
void with_prompt_dim(int head_dim, Visit visit) {
    if (head_dim <= 64) return visit.template operator()<64>();
    if (head_dim <= 128) return visit.template operator()<128>();
    return visit.template operator()<kMaxHeadDim>();
}

}  // namespace keyhole::cuda
