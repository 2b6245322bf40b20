/// Embedding, norms, activations and matrix-vector products of a step. One column per lane; weights are read
/// once for all lanes. Every output is summed in one fixed order. Host and device. Knows no lane. CPU twins:
/// backend/common/kernels.h.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/number.h"
#include "engine/backend/cuda/kernels/stored.h"
#include "engine/model/seeded_value.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace keyhole::cuda {

/// Calls visit(i, value) for the elements of a row, a pack a thread.
template <class T, class Visit>
KH_FN void visit_row(const Elements<T>& table, std::int64_t row, int d, const Block& block, Visit visit) {
    with_packs(table, [&](const auto& packs) {
        const int n_packs = d / 8;
        for (int i = block.thread; i < n_packs; i += block.n_threads) {
            float wide[8];
            packs.widen_pack(packs.load(row * n_packs + i), wide);
            for (int j = 0; j < 8; ++j) visit(i * 8 + j, wide[j]);
        }
    });
}

/// x[lane, :] = embedding[token[lane], :]      block (lane), any number of threads
template <class T>
struct Embed {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    Elements<T> embedding;       ///< [n_vocab, d]
    const std::int32_t* tokens;  ///< [lanes]
    float* x;                    ///< [lanes, d]
    std::int32_t d, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        float* out = x + static_cast<std::int64_t>(block.x) * d;
        visit_row(embedding, tokens[block.x], d, block, [&](int i, float value) { out[i] = value; });
    }
};

/// x[i, :] += table[position[i] + offset, :]
/// Learned positions; with position null it is i itself. Block (i), any number of threads.
template <class T>
struct AddPositions {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    Elements<T> table;             ///< [positions, d]
    const std::int32_t* position;  ///< [lanes], or null
    float* x;                      ///< [lanes, d]
    std::int32_t d, offset;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int at = (position != nullptr ? position[block.x] : block.x) + offset;
        float* out = x + static_cast<std::int64_t>(block.x) * d;
        visit_row(table, at, d, block, [&](int i, float value) { out[i] = add(out[i], value); });
    }
};

/// Sums over the threads of a block, in one order: 32 sums of every 32nd thread's share, then their sum. Each
/// warp computes all of it, so that one barrier behind the shares is enough. The threads are whole warps.
struct BlockSum {
    static constexpr int kGroups = 32;

    KH_FN static float total(const float* share, const Block& block) {
        KH_DEVICE_ASSERT(block.n_threads % kGroups == 0);
        float sum = 0;
#ifdef __CUDA_ARCH__
        const int group = block.thread % kGroups;
        float of_group = share[group];
        for (int i = group + kGroups; i < block.n_threads; i += kGroups) of_group = add(of_group, share[i]);
        KH_UNROLL
        for (int i = 0; i < kGroups; ++i) sum = add(sum, value_of_thread(of_group, i));
#else
        float of_group[kGroups];
        for (int i = 0; i < kGroups; ++i) of_group[i] = share[i];
        for (int first = kGroups; first < block.n_threads; first += kGroups)
            for (int i = 0; i < kGroups; ++i) of_group[i] = add(of_group[i], share[first + i]);
        for (const float one : of_group) sum = add(sum, one);
#endif
        return sum;
    }
};

/// A norm of rows [d]:
///     RMSNorm      x / sqrt(mean(x^2) + eps) * gain
///     LayerNorm    (x - mean) / sqrt(variance + eps) * gain + bias
///     no gain      x itself
struct NormRule {
    const float* gain;  ///< [d] or null
    const float* bias;  ///< [d] or null
    float eps;
    std::int32_t centres;  ///< 1: LayerNorm, subtracts the mean

    KH_FN float mean_of(float sum, int d) const { return centres != 0 ? sum / static_cast<float>(d) : 0.0f; }
    KH_FN float scale_of(float squares, int d) const {
        return 1.0f / sqrtf(add(squares / static_cast<float>(d), eps));
    }
    KH_FN static float applied(float x, float mean, float scale, float of_gain) {
        return mul(mul(add(x, -mean), scale), of_gain);
    }
    /// Norms elements 4 i to 4 i + 3 of a row; there is a gain.
    KH_FN void apply(HalfPack& half, int i, float mean, float scale) const {
        const HalfPack of_gain = reinterpret_cast<const HalfPack*>(gain)[i];
        for (int j = 0; j < 4; ++j) half.x[j] = applied(half.x[j], mean, scale, of_gain.x[j]);
        if (bias == nullptr) return;
        const HalfPack of_bias = reinterpret_cast<const HalfPack*>(bias)[i];
        for (int j = 0; j < 4; ++j) half.x[j] = add(half.x[j], of_bias.x[j]);
    }
};

/// The means and scales of a product's inputs, which each of its blocks computes anew, in the order of
/// AddNorm with as many threads.
template <int kLanes, int kThreads>
struct InputNorms {
    struct Shared {
        float sum[kLanes][kThreads], squares[kLanes][kThreads];
    };
    struct Local {
        float mean[kLanes], scale[kLanes];
    };
    /// Phases 0 and 1, where there is a norm. x: [n_lanes, cols].
    KH_FN static void measure(int p, const NormRule& norm, const float* x, int cols, int n_lanes,
                              const Block& block, Shared& shared, Local& local) {
        if (norm.gain == nullptr) return;
        for (int b = 0; b < kLanes && b < n_lanes; ++b) {
            const float* lane = x + static_cast<std::int64_t>(b) * cols;
            if (p == 0 && norm.centres != 0) {
                float sum = 0;
                KH_UNROLL_8
                for (int i = block.thread; i < cols; i += block.n_threads) sum = add(sum, lane[i]);
                shared.sum[b][block.thread] = sum;
            } else if (p == 1) {
                local.mean[b] =
                    norm.centres != 0 ? norm.mean_of(BlockSum::total(shared.sum[b], block), cols) : 0.0f;
                float squares = 0;
                KH_UNROLL_8
                for (int i = block.thread; i < cols; i += block.n_threads) {
                    const float value = add(lane[i], -local.mean[b]);
                    squares = add(squares, mul(value, value));
                }
                shared.squares[b][block.thread] = squares;
            }
        }
    }
    /// Once after them.
    KH_FN static void finish(const NormRule& norm, int cols, int n_lanes, const Block& block,
                             const Shared& shared, Local& local) {
        KH_UNROLL
        for (int b = 0; b < kLanes; ++b)
            if (b < n_lanes) local.scale[b] = norm.scale_of(BlockSum::total(shared.squares[b], block), cols);
    }
};

/// x <- x + y + z, where given; out = norm(x), in float; block (lane)
struct AddNorm {
    static constexpr int kPhases = 3;
    struct Shared {
        float sum[kMaxThreads], squares[kMaxThreads];
    };
    struct Local {
        float mean;
    };
    float* x;        ///< [lanes, d]
    const float* y;  ///< [lanes, d] or null
    const float* z;  ///< [lanes, d] or null
    NormRule norm;
    float* out;  ///< [lanes, d]; may be x
    std::int32_t d, unused = 0;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        const std::int64_t at = static_cast<std::int64_t>(block.x) * d;
        if (p == 0) {
            float sum = 0;
            for (int i = block.thread; i < d; i += block.n_threads) {
                float value = x[at + i];
                if (y != nullptr) value = add(value, y[at + i]);
                if (z != nullptr) value = add(value, z[at + i]);
                if (y != nullptr || z != nullptr) x[at + i] = value;
                sum = add(sum, value);
            }
            shared.sum[block.thread] = sum;
        } else if (p == 1) {
            local.mean = norm.mean_of(BlockSum::total(shared.sum, block), d);
            float squares = 0;
            for (int i = block.thread; i < d; i += block.n_threads) {
                const float value = add(x[at + i], -local.mean);
                squares = add(squares, mul(value, value));
            }
            shared.squares[block.thread] = squares;
        } else {
            const float scale = norm.scale_of(BlockSum::total(shared.squares, block), d);
            for (int i = block.thread; i < d; i += block.n_threads) {
                float value = x[at + i];
                if (norm.gain != nullptr) value = NormRule::applied(value, local.mean, scale, norm.gain[i]);
                if (norm.gain != nullptr && norm.bias != nullptr) value = add(value, norm.bias[i]);
                out[at + i] = value;
            }
        }
    }
};

/// y[i, :] += bias, after the executor's products. Grid x covers n = rows * width.
struct AddBias {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    float* y;
    const float* bias;  ///< [width]
    std::int64_t n;
    std::int32_t width, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i < n) y[i] = add(y[i], bias[i % width]);
    }
};

/// Writes rows of a matrix as float, for products that take no other type. For float it is a copy that fits
/// into a list of launches. Grid x covers n.
template <class T>
struct Widen {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const T* from;
    float* to;
    std::int64_t n;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i < n) to[i] = widen(from[i]);
    }
};

/// Does so for a matrix of any type. Grid x covers n_packs.
struct WidenStored {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    Elements<Stored> from;  ///< begins at a row
    float* to;
    std::int64_t n_packs;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i >= n_packs) return;
        with_any_packs(from, [&](const auto& packs) {
            float wide[8];
            packs.widen_pack(packs.load(i), wide);
            for (int j = 0; j < 8; ++j) to[i * 8 + j] = wide[j];
        });
    }
};

/// Writes floats in another type, rounded to nearest even: inputs of products in the type of the weights.
/// Grid x covers n.
template <class T>
struct Narrow {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const float* from;
    T* to;
    std::int64_t n;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i < n) narrow(from[i], to[i]);
    }
};

/// Draws random weights in device memory (seeded_value.h). One thread per pack of values. Grid x covers the
/// packs of n values.
template <class T>
struct MakeWeight {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    T* to;
    std::int64_t n;
    SeededWeight weight;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t pack = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread,
                           first = pack * kSeededPack;
        if (first >= n) return;
        float values[kSeededPack];
        seeded_values(weight, pack, values);
        for (int i = 0; i < kSeededPack; ++i)
            if (first + i < n) narrow(values[i], to[first + i]);
    }
};

enum class ActivationKind : std::int32_t { silu, gelu, gelu_tanh, relu };  ///< in the order of Activation

KH_FN float activated(ActivationKind kind, float v) {
    switch (kind) {
        case ActivationKind::silu:
            return v / add(1.0f, expf(-v));
        case ActivationKind::gelu:
            return mul(mul(0.5f, v), add(1.0f, erff(mul(v, 0.70710678f))));
        case ActivationKind::gelu_tanh: {
            const float cubic = add(v, mul(mul(0.044715f, mul(v, v)), v));
            return mul(mul(0.5f, v), add(1.0f, tanhf(mul(0.79788456f, cubic))));
        }
        case ActivationKind::relu:
            break;
    }
    return v > 0.0f ? v : 0.0f;
}

/// One of the products that a launch computes together, such as q, k and v.
template <class T>
struct Product {
    Elements<T> w;      ///< [rows, cols]; cols is a multiple of 8, so rows are whole packs
    const float* bias;  ///< [rows] or null
    float* y;           ///< [lanes, y_stride]
    std::int32_t rows;
    std::int32_t y_stride;
};

inline constexpr int kMostNormed = 2;

/// What a launch of products does besides, each with the bits of a launch of its own.
struct ProductUse {
    /// x is normed as it is read, for kMostNormed lanes at most; without a gain it is not.
    NormRule norm{};
    std::int32_t adds = 0;       ///< 1: y += the product, instead of y =
    std::int32_t activates = 0;  ///< 1: y = act(product)
    /// 1, with activates: the second product has the same rows, and y = act(first) * second.
    std::int32_t gated = 0;
    ActivationKind kind = ActivationKind::silu;
};

/// A tile of a product's inputs, for up to kBatch lanes, in shared memory. Packs lie in chunks of 32, one for
/// each thread of a warp: first the front halves of the chunk's packs, then the back halves, so that a warp
/// reads 512 neighbouring bytes at once. The gap between keeps the writes, half by half, free of bank
/// conflicts.
template <int kBatch>
struct InputTile {
    static constexpr int kOfChunk = 32, kBack = 4 * kOfChunk + 16, kStride = kBack + 4 * kOfChunk;
    static constexpr int kChunks = kBatch == 1 ? 16 : kBatch <= 4 ? 8 : 4;
    static constexpr int kPacks = kChunks * kOfChunk;
    float x[kBatch][kChunks * kStride];

    /// Where half 0 or 1 of a pack of the tile begins.
    KH_FN static int place(int pack, int half) {
        const auto i = static_cast<unsigned>(pack);  // whose parts are cheap
        return static_cast<int>(i / kOfChunk * kStride + i % kOfChunk * 4) + half * kBack;
    }
};

/// y[b, r] = sum_c w[r, c] * x[b, c] + bias[r], for up to three matrices with the same input. A block puts
/// the inputs into shared memory, tile by tile, normed where there is a norm, whose mean and scale it
/// computes in the order of AddNorm with as many threads. A warp has up to kRows rows, which share each read
/// of an input; its threads share a row, so that a warp reads 512 neighbouring bytes of weights at once, and
/// one read serves up to kBatch lanes. Each thread has kAhead reads of every row under way before it uses the
/// first. Sums have the order of one row alone. Where T is Stored, the matrices may differ in type, and
/// quantised ones are widened in registers. Grid: x = blocks(n_threads).
template <class T, int kBatch>
struct MatrixVector {
    /// Each block computes the norm anew, which is cheap beside the weights for few lanes alone.
    static constexpr bool kNorms = kBatch <= kMostNormed;
    static constexpr int kBefore = kNorms ? 2 : 0;  ///< phases of the norm
    static constexpr int kRepeated = 2, kPhases = kBefore + kRepeated + 2;
    static constexpr int kThreadsPerRow = 32;
    /// Of a warp; gated: half of them of each matrix. Two quantised rows of two lanes with four reads ahead
    /// take so many registers that an SM has room for one block: 1.35 times as long on an H200.
    static constexpr bool kIsStored = std::is_same_v<T, Stored>;
    static constexpr int kRows = kBatch == 1 || (kBatch == 2 && !kIsStored) ? 2 : 4;
    static constexpr int kAhead = kRows == 2 ? 4 : 1;
    /// That registers leave room for: of quantised rows the compiler would take so many that there is one.
    static constexpr int kBlocksOfSm = kIsStored && kBatch > 1 ? 2 : 0;
    static constexpr int kSums = kThreadsPerRow + 1;  ///< room for a row's sums: no bank conflicts
    static constexpr int kMostRows = kMaxThreads / kThreadsPerRow * kRows;  ///< of a block
    using Tile = InputTile<kBatch>;
    using Norms = InputNorms<kBatch, kNorms ? kMaxThreads : 1>;
    struct Shared {
        typename Norms::Shared norms;
        union {
            alignas(16) Tile tile;
            float partial[kMostRows][kBatch][kSums];  // after the last tile
        };
    };
    struct Local {
        typename Norms::Local norms;
        float sum[kRows][kBatch];
    };
    Product<T> product[3];
    const float* x;  ///< [n_lanes, cols]
    std::int32_t n_products, cols;
    std::int32_t n_lanes = kBatch;  ///< at most kBatch
    std::int32_t unused = 0;
    ProductUse use;

    /// Returns whether two gated matrices differ in type: a warp's rows of each are then added apart.
    KH_FN bool differs() const {
        if constexpr (kIsStored) return use.gated != 0 && product[0].w.type != product[1].w.type;
        return false;
    }
    KH_FN int rows_of_warp() const { return use.gated != 0 ? kRows / 2 : kRows; }
    KH_FN int warps_for(int rows) const { return (rows + rows_of_warp() - 1) / rows_of_warp(); }
    KH_FN int n_outputs() const { return use.gated != 0 ? 1 : n_products; }
    int blocks(int n_threads) const {
        int warps = 0;
        for (int i = 0; i < n_outputs(); ++i) warps += warps_for(product[i].rows);
        const int per_block = n_threads / kThreadsPerRow;
        return (warps + per_block - 1) / per_block;
    }
    KH_FN int n_tiles(const Block&) const { return (cols / 8 + Tile::kPacks - 1) / Tile::kPacks; }

    KH_FN void begin(const Block&, Shared&, Local& local) const {
        KH_UNROLL
        for (int r = 0; r < kRows; ++r) {
            KH_UNROLL
            for (int b = 0; b < kBatch; ++b) local.sum[r][b] = 0;
        }
    }

    /// Inlined, as what it calls: otherwise sums would lie in memory.
    KH_INLINE void phase(int p, const Block& block, Shared& shared, Local& local) const {
        if (kNorms && p < kBefore)
            return Norms::measure(p, use.norm, x, cols, n_lanes, block, shared.norms, local.norms);
        if (p == kBefore) return put_inputs(block, shared, local);
        const Place at = place_of(block);
        if (at.which < 0) return;
        if (p == kBefore + 1)
            add_tile(block, at, shared, local);
        else if (p == kBefore + 2)
            keep_sums(block, shared, local);
        else
            write(block, at, shared);
    }

    /// The first of a warp's rows; which: -1 where it has none.
    struct Place {
        int which, row;
    };
    KH_FN Place place_of(const Block& block) const {
        int warp = block.x * (block.n_threads / kThreadsPerRow) + block.thread / kThreadsPerRow;
        for (int which = 0; which < n_outputs(); ++which) {
            const int warps = warps_for(product[which].rows);
            if (warp < warps) return {which, warp * rows_of_warp()};
            warp -= warps;
        }
        return {-1, 0};
    }

    KH_FN void put_inputs(const Block& block, Shared& shared, Local& local) const {
        const bool norms = kNorms && use.norm.gain != nullptr;
        const int first = block.tile * Tile::kPacks, n_halves = 2 * packs_of(block);
        if constexpr (kNorms)
            if (norms && block.tile == 0)
                Norms::finish(use.norm, cols, n_lanes, block, shared.norms, local.norms);
        constexpr int kAtOnce = kBatch <= 2 ? 4 : 8 / kBatch;  // of each lane
        for (int i = block.thread; i < n_halves; i += kAtOnce * block.n_threads) {
            HalfPack half[kBatch][kAtOnce];  // of all lanes, read before the first is written
            const auto visit = [&](auto visit_half) {
                KH_UNROLL
                for (int b = 0; b < kBatch; ++b) {
                    KH_UNROLL
                    for (int k = 0; k < kAtOnce; ++k) {
                        const int at = i + k * block.n_threads;
                        if (at < n_halves) visit_half(b, at, half[b][k]);
                    }
                }
            };
            visit([&](int b, int at, HalfPack& to) {
                if (b >= n_lanes) {  // zeros, so that products need no branch between their reads
                    to = HalfPack{};
                    return;
                }
                const float* of_lane = x + static_cast<std::int64_t>(b) * cols;
                to = reinterpret_cast<const HalfPack*>(of_lane)[2 * first + at];
                if (norms) use.norm.apply(to, 2 * first + at, local.norms.mean[b], local.norms.scale[b]);
            });
            visit([&](int b, int at, const HalfPack& from) {
                Words words;
                std::memcpy(&words, from.x, sizeof(words));
                store_words(words, shared.tile.x[b] + Tile::place(at / 2, at % 2));
            });
        }
    }

    /// Returns how many packs of a row the tile holds.
    KH_FN int packs_of(const Block& block) const {
        const int left = cols / 8 - block.tile * Tile::kPacks;
        return left < Tile::kPacks ? left : Tile::kPacks;
    }

    /// Adds the tile's terms to the sums of the warp's rows.
    KH_INLINE void add_tile(const Block& block, const Place& at, const Shared& shared, Local& local) const {
        constexpr int kHalf = kRows / 2;
        const int first = at.which, second = use.gated != 0 ? 1 : at.which;
        if constexpr (kIsStored)
            if (differs()) {
                KH_NO_UNROLL
                for (int i = 0; i < 2; ++i)
                    add_rows<kHalf>(i, i, at.row, block, shared, &local.sum[i * kHalf]);
                return;
            }
        add_rows<kRows>(first, second, at.row, block, shared, &local.sum[0]);
    }

    /// Adds to the sums of kN rows, from `row` on. Where they are of two products, the second half is of
    /// `second`. Rows past the end are computed as the last one, and never written.
    template <int kN>
    KH_INLINE void add_rows(int first, int second, int row, const Block& block, const Shared& shared,
                            float (*sums)[kBatch]) const {
        const Product<T>&one = product[first], &other = product[second];
        with_packs(one.w, [&]<class Packs>(const Packs& packs) {
            const Packs others(other.w.data);
            const int i = block.thread % kThreadsPerRow;
            typename Packs::Walk at[kN];
            KH_UNROLL
            for (int line = 0; line < kN; ++line) {
                const int of = row + (line >= kN / 2 && first != second ? line - kN / 2 : line);
                at[line] =
                    (line < kN / 2 ? packs : others)
                        .walk(static_cast<std::int64_t>(of < one.rows ? of : one.rows - 1) * (cols / 8) +
                                  block.tile * Tile::kPacks,
                              i);
            }
            float sum[kN][kBatch];  // in registers, also where this function is not inlined
            KH_UNROLL
            for (int line = 0; line < kN; ++line) {
                KH_UNROLL
                for (int b = 0; b < kBatch; ++b) sum[line][b] = sums[line][b];
            }
            add_packs<Packs>(at, packs_of(block), i, shared, sum);
            KH_UNROLL
            for (int line = 0; line < kN; ++line) {
                KH_UNROLL
                for (int b = 0; b < kBatch; ++b) sums[line][b] = sum[line][b];
            }
        });
    }

    /// at: the thread's packs of each row; n: packs of the tile; i: the thread's first.
    template <class Packs, int kN>
    KH_INLINE void add_packs(const typename Packs::Walk (&at)[kN], int n, int i, const Shared& shared,
                             float (&sum)[kN][kBatch]) const {
        // The same terms in the same order as one by one.
        int step = 0;
        const int thread = i;
        for (; i + (kAhead - 1) * kThreadsPerRow < n; i += kAhead * kThreadsPerRow, step += kAhead) {
            typename Packs::Loaded pack[kAhead][kN];
            load_ahead<Packs>(at, step, thread, pack);
            KH_UNROLL
            for (int k = 0; k < kAhead; ++k) add_terms<Packs>(pack[k], i + k * kThreadsPerRow, shared, sum);
        }
        if constexpr (kAhead > 1)
            for (; i < n; i += kThreadsPerRow, ++step) {
                typename Packs::Loaded pack[kN];
                KH_UNROLL
                for (int line = 0; line < kN; ++line) pack[line] = at[line].load(step);
                add_terms<Packs>(pack, i, shared, sum);
            }
    }

    /// Loads kAhead packs of each row, from the thread's pack `step` on.
    template <class Packs, int kN>
    KH_INLINE static void load_ahead(const typename Packs::Walk (&at)[kN], int step,
                                     [[maybe_unused]] int thread,
                                     typename Packs::Loaded (&pack)[kAhead][kN]) {
#ifdef __CUDA_ARCH__
        constexpr bool kShared = Packs::kSharesScales && kAhead * kN % 4 == 0;
#else
        constexpr bool kShared = false;
#endif
        if constexpr (kShared) {
            load_shared<Packs>(at, step, thread, pack);
        } else {
            KH_UNROLL
            for (int k = 0; k < kAhead; ++k) {
                KH_UNROLL
                for (int line = 0; line < kN; ++line) pack[k][line] = at[line].load(step + k);
            }
        }
    }

#ifdef __CUDA_ARCH__
    /// Does so where four threads need one scale of a block, whose arithmetic is long: of four blocks, each
    /// thread computes one of their 32 scales, and gets the others from the threads that have them. Rows are
    /// whole blocks, so that all threads of a warp are here.
    template <class Packs, int kN>
    KH_INLINE static void load_shared(const typename Packs::Walk (&at)[kN], int step, int thread,
                                      typename Packs::Loaded (&pack)[kAhead][kN]) {
        KH_UNROLL
        for (int k = 0; k < kAhead; ++k) {
            KH_UNROLL
            for (int line = 0; line < kN; ++line) pack[k][line].codes = at[line].codes(step + k);
        }
        Scale mine[kAhead * kN / 4];
        KH_UNROLL
        for (int n = 0; n < kAhead * kN / 4; ++n) {
            typename Packs::Walk of = at[kAhead == 4 ? n : 4 * n];
            if constexpr (kAhead == 1) {
                const auto *second = at[4 * n + 1].first, *third = at[4 * n + 2].first,
                           *fourth = at[4 * n + 3].first;
                const bool odd = thread / 8 % 2 != 0;
                of.first = thread / 16 != 0 ? (odd ? fourth : third) : odd ? second : of.first;
            }
            of.pack = thread % 8 * 4;
            mine[n] = of.scale(step + (kAhead == 4 ? thread / 8 : 0));
        }
        KH_UNROLL
        for (int n = 0; n < kAhead * kN; ++n) {
            Scale& of = pack[kAhead == 4 ? n % 4 : 0][kAhead == 4 ? n / 4 : n].of;
            const int from = n % 4 * 8 + thread / 4;
            of.scale = value_of_thread(mine[n / 4].scale, from);
            of.offset = value_of_thread(mine[n / 4].offset, from);
        }
    }
#endif

    /// Adds the terms of one pack of each row.
    template <class Packs, int kN>
    KH_INLINE void add_terms(const typename Packs::Loaded (&pack)[kN], int i, const Shared& shared,
                             float (&sum)[kN][kBatch]) const {
        float wide[kN][8];
        KH_UNROLL
        for (int line = 0; line < kN; ++line) Packs::widen_pack(pack[line], wide[line]);
        KH_UNROLL
        for (int half = 0; half < 2; ++half) {
            KH_UNROLL
            for (int b = 0; b < kBatch; ++b) {
                // Never taken. It changes where the compiler puts the reads of weights: with one lane 7 %
                // faster on an H200, but for quantised weights 12 % slower.
                if (kBatch <= 2 && !kIsStored && b >= n_lanes) break;
                const HalfPack in =
                    *reinterpret_cast<const HalfPack*>(shared.tile.x[b] + Tile::place(i, half));
                KH_UNROLL
                for (int line = 0; line < kN; ++line) {
                    KH_UNROLL
                    for (int j = 0; j < 4; ++j)
                        sum[line][b] = fused(wide[line][half * 4 + j], in.x[j], sum[line][b]);
                }
            }
        }
    }

    KH_FN void keep_sums(const Block& block, Shared& shared, const Local& local) const {
        const int first = block.thread / kThreadsPerRow * kRows;
        KH_DEVICE_ASSERT(first + kRows <= kMostRows);
        KH_UNROLL
        for (int r = 0; r < kRows; ++r) {
            KH_UNROLL
            for (int b = 0; b < kBatch; ++b)
                shared.partial[first + r][b][block.thread % kThreadsPerRow] = local.sum[r][b];
        }
    }

    /// The warp's threads each finish a row of a lane, or two.
    KH_FN void write(const Block& block, const Place& at, const Shared& shared) const {
        const Product<T>& of = product[at.which];
        const auto* sums = shared.partial + block.thread / kThreadsPerRow * kRows;
        for (int i = block.thread % kThreadsPerRow; i < rows_of_warp() * kBatch; i += kThreadsPerRow) {
            const int r = i / kBatch, b = i % kBatch, row = at.row + r;
            if (b >= n_lanes || row >= of.rows) continue;
            float sum = total(sums[r][b], of, row);
            if (use.activates != 0) sum = activated(use.kind, sum);
            if (use.gated != 0) sum = mul(sum, total(sums[rows_of_warp() + r][b], product[1], row));
            float& y = of.y[static_cast<std::int64_t>(b) * of.y_stride + row];
            y = use.adds != 0 ? add(y, sum) : sum;
        }
    }

    KH_FN static float total(const float (&partial)[kSums], const Product<T>& of, int row) {
        float sum = 0;
        for (int i = 0; i < kThreadsPerRow; ++i) sum = add(sum, partial[i]);
        return of.bias != nullptr ? add(sum, of.bias[row]) : sum;
    }
};

/// x <- act(x), or act(x) * up where up is not null; see activate() in backend/common/kernels.h.
/// Grid x covers n.
struct Activate {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    float* x;
    const float* up;  ///< or null
    std::int64_t n;
    ActivationKind kind;
    std::int32_t unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t i = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (i >= n) return;
        const float value = activated(kind, x[i]);
        x[i] = up != nullptr ? mul(value, up[i]) : value;
    }
};

}  // namespace keyhole::cuda
