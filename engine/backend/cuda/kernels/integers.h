/// Products of laid quantised matrices in integers, with the bits of the CPU's: backend/common/
/// integer_products.h, whose header has the equation. One column per lane; codes are read once for all lanes.
/// Host and device. Knows no lane.
#pragma once

#include "engine/backend/cuda/kernels/linear.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace keyhole::cuda {

/// Returns c plus the sum of the products of four signed bytes.
KH_FN std::int32_t plus_bytes(std::uint32_t a, std::uint32_t b, std::int32_t c) {
#ifdef __CUDA_ARCH__
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
#else
    for (int i = 0; i < 32; i += 8)
        c += static_cast<std::int8_t>(a >> i & 255u) * static_cast<std::int8_t>(b >> i & 255u);
    return c;
#endif
}

/// Returns the nearest whole number, even where two are as near.
KH_FN std::int32_t nearest_whole(float value) {
#ifdef __CUDA_ARCH__
    return __float2int_rn(value);
#else
    return static_cast<std::int32_t>(std::nearbyint(value));
#endif
}

/// 32 neighbours of an input, as NarrowBlock of the CPU: x(i) = scale q(i), q = 256 u + l, u = 256 v + w,
/// where l, v and w are signed bytes.
struct alignas(16) NarrowCell {
    std::uint32_t first[8], second[8], lower[8];  ///< v, w, l: four columns each
    struct alignas(16) Sums {
        float scale, scaled_sum;          ///< scaled_sum: scale times the sum of q
        std::int32_t upper[2], lower[2];  ///< of u and l, of the first 16 and of the last 16
        std::int32_t all_upper, all_lower;
    } sums;
};

/// Returns a T by reads of 16 bytes; p is aligned to them, and lies in memory that was written as words.
template <class T>
KH_FN T read_words(const void* p) {
#ifdef __CUDA_ARCH__
    return *static_cast<const T*>(p);
#else
    T value{};
    std::memcpy(static_cast<void*>(&value), p, sizeof(value));
    return value;
#endif
}

KH_FN std::uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
#endif
}
KH_FN float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
#endif
}

/// Narrows x [32]. A number that is not finite makes the scale NaN.
KH_FN void narrow_cell(const float* x, NarrowCell& out) {
    constexpr std::uint32_t kInfinity = 0x7f800000u;
    std::uint32_t most_bits = 0;
    KH_UNROLL
    for (int i = 0; i < kCellColumns; ++i) {
        const std::uint32_t bits = bits_of(x[i]) & 0x7fffffffu;
        most_bits = bits > most_bits ? bits : most_bits;
    }
    const float most = float_of(most_bits);
    const bool is_finite = most_bits < kInfinity;
    const float inverse = is_finite && most >= kLeastInput ? kMostNarrow / most : 0.0f;
    out.sums.scale = !is_finite ? float_of(0x7fc00000u) : inverse != 0 ? most / kMostNarrow : 0.0f;
    KH_UNROLL
    for (int part = 0; part < 2; ++part) {
        std::int32_t upper_sum = 0, lower_sum = 0;
        KH_UNROLL
        for (int k = 4 * part; k < 4 * part + 4; ++k) {
            std::uint32_t first = 0, second = 0, lower = 0;
            KH_UNROLL
            for (int i = 0; i < 4; ++i) {
                const std::int32_t q = is_finite ? nearest_whole(mul(x[4 * k + i], inverse)) : 0,
                                   l = static_cast<std::int8_t>(q & 255), u = (q - l) >> 8;
                upper_sum += u;
                lower_sum += l;
                first |= static_cast<std::uint32_t>((u + 128) >> 8 & 255) << 8 * i;
                second |= static_cast<std::uint32_t>(u & 255) << 8 * i;
                lower |= static_cast<std::uint32_t>(l & 255) << 8 * i;
            }
            out.first[k] = first;
            out.second[k] = second;
            out.lower[k] = lower;
        }
        out.sums.upper[part] = upper_sum;
        out.sums.lower[part] = lower_sum;
    }
    out.sums.all_upper = out.sums.upper[0] + out.sums.upper[1];
    out.sums.all_lower = out.sums.lower[0] + out.sums.lower[1];
    out.sums.scaled_sum =
        mul(out.sums.scale, static_cast<float>(256 * out.sums.all_upper + out.sums.all_lower));
}

/// Narrows n_cells times 32 numbers. Grid x covers n_cells.
struct NarrowCells {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const float* x;
    NarrowCell* out;
    std::int64_t n_cells;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const std::int64_t cell = static_cast<std::int64_t>(block.x) * block.n_threads + block.thread;
        if (cell >= n_cells) return;
        float wide[kCellColumns];
        const auto* from = reinterpret_cast<const HalfPack*>(x + cell * kCellColumns);
        KH_UNROLL
        for (int i = 0; i < kCellColumns / 4; ++i) {
            const HalfPack half = from[i];
            for (int j = 0; j < 4; ++j) wide[4 * i + j] = half.x[j];
        }
        NarrowCell narrowed;
        narrow_cell(wide, narrowed);
        out[cell] = narrowed;
    }
};

/// Does what MatrixVector does, for laid matrices: y[b, r] = sum_c w[r, c] * x[b, c] + bias[r], with the same
/// ProductUse. A block has some pairs of groups of 16 rows, one after the other. It narrows the inputs into
/// shared memory, tile by tile, normed where there is a norm. Each thread then multiplies 32 columns of a
/// row, or of two, at a time and puts their sum, scaled, into shared memory; a thread for each row and lane
/// adds these up in the order of the columns, since the CPU has that order.
/// Neighbouring threads have neighbouring rows, so that half a warp reads 64 neighbouring bytes of codes, and
/// the same inputs. Grid: x = blocks(), kMaxThreads threads.
template <int kBatch>
struct LaidProducts {
    static constexpr bool kNorms = kBatch <= kMostNormed;  ///< and narrows; else inputs come narrowed
    static constexpr int kBefore = kNorms ? 2 : 0, kRepeated = kNorms ? 4 : 2,
                         kPhases = kBefore + kRepeated + (kNorms ? 0 : 1);
    static constexpr int kBlocksOfSm = 3;
    static constexpr int kCells = 64 / kBatch;             ///< of a tile, for each lane
    static constexpr int kKept = kNorms ? 2 : 1;           ///< tiles whose inputs are kept
    static constexpr int kPair = 2 * kLaidRows;            ///< rows of two groups
    static constexpr int kOfThread = kBatch == 8 ? 1 : 2;  ///< groups of which a thread has a row
    /// Threads that have the same rows' other columns: so many teams of 16.
    static constexpr int kTeams = kMaxThreads / kLaidRows * kOfThread / 2;
    static constexpr int kOfTeam = kCells / kTeams;           ///< cells of a tile
    static constexpr int kAhead = kOfTeam < 2 ? kOfTeam : 2;  ///< cells whose codes are under way together

    /// Where things of a lane's cell lie in shared memory, in words. Both halves of a warp use other banks.
    KH_FN static int input_place(int lane, int cell) {
        const int i = lane * kKept * kCells + cell;
        return i * 36 + i / kOfTeam * 4;
    }
    KH_FN static int sum_place(int lane, int cell) {
        const int i = lane * kCells + cell;
        return i * kPair + i / kOfTeam * kLaidRows;
    }
    static constexpr int kCellLanes = kBatch * kCells, kInputs = kKept * kCellLanes,
                         kInputWords = kInputs * 36 + kInputs / kOfTeam * 4,
                         kSumWords = kCellLanes * kPair + kCellLanes / kOfTeam * kLaidRows;
    static constexpr int kStagedStride = kCellColumns + 1;  ///< of a cell: no bank conflicts
    using Norms = InputNorms<kBatch, kNorms ? kMaxThreads : 1>;
    struct Shared {
        typename Norms::Shared norms;
        alignas(16) std::uint32_t inputs[kInputWords];
        union {
            float staged[kNorms ? kCellLanes * kStagedStride : 1];  // inputs, until they are narrowed
            float sums[kSumWords];
        };
    };
    struct Local {
        typename Norms::Local norms;
        float total, first;  // first: of the first of two gated products
    };
    Product<Stored> product[3];  ///< laid matrices, which begin at multiples of 64 bytes
    const float* x;              ///< [n_lanes, cols]; where kNorms
    const NarrowCell* narrowed;  ///< [n_lanes, cols / 32]; elsewhere
    std::int32_t n_products, cols;
    std::int32_t n_lanes = kBatch;
    std::int32_t pairs_of_block = 1;
    ProductUse use;

    KH_FN static int n_groups(int rows) { return (rows + kLaidRows - 1) / kLaidRows; }
    KH_FN static int n_pairs(int rows) { return (rows + kPair - 1) / kPair; }
    KH_FN int n_outputs() const { return use.gated != 0 ? 1 : n_products; }
    KH_FN int all_pairs() const {
        int n = 0;
        for (int i = 0; i < n_outputs(); ++i) n += n_pairs(product[i].rows);
        return n;
    }
    KH_FN int blocks() const { return (all_pairs() + pairs_of_block - 1) / pairs_of_block; }
    KH_FN int tiles_of_row() const { return (cols / kCellColumns + kCells - 1) / kCells; }
    KH_FN int tiles_of_pair() const { return tiles_of_row() * (use.gated != 0 ? 2 : 1); }
    KH_FN int n_tiles(const Block& block) const {
        const int left = all_pairs() - block.x * pairs_of_block;
        return (left < pairs_of_block ? left : pairs_of_block) * tiles_of_pair();
    }

    /// What a tile of the block is of.
    struct Place {
        int which, pair;  ///< product, and pair of groups of its rows
        int tile;         ///< of the row
    };
    KH_FN Place place_of(const Block& block, int tile) const {
        int pair = block.x * pairs_of_block + tile / tiles_of_pair(), which = 0;
        while (which + 1 < n_outputs() && pair >= n_pairs(product[which].rows))
            pair -= n_pairs(product[which++].rows);
        const int rest = tile % tiles_of_pair();
        if (use.gated != 0) which = rest / tiles_of_row();
        return {which, pair, rest % tiles_of_row()};
    }

    KH_FN void begin(const Block& block, Shared&, Local&) const {
        KH_DEVICE_ASSERT(block.n_threads == kMaxThreads);
        static_cast<void>(block);
    }

    KH_INLINE void phase(int p, const Block& block, Shared& shared, Local& local) const {
        if constexpr (kNorms) {
            if (p < kBefore)
                return Norms::measure(p, use.norm, x, cols, n_lanes, block, shared.norms, local.norms);
            const Place at = place_of(block, block.tile);
            // Inputs of short rows stay.
            const bool puts = block.tile < tiles_of_row() || tiles_of_row() > kKept;
            if (p == kBefore && puts) stage_inputs(block, at, shared, local);
            if (p == kBefore + 1 && puts) narrow_inputs(block, at, shared);
            if (p == kBefore + 2) multiply(block, at, shared);
            if (p == kBefore + 3) add_up(block, at, shared, local);
        } else {
            // A tile is added up beside the inputs of the next one, and the last one afterwards.
            if (p != 1 && block.tile > 0) add_up(block, place_of(block, block.tile - 1), shared, local);
            if (p == 0) copy_inputs(block, place_of(block, block.tile), shared);
            if (p == 1) multiply(block, place_of(block, block.tile), shared);
        }
    }

    /// Returns how many cells of a row the tile has.
    KH_FN int cells_of(const Place& at) const {
        const int left = cols / kCellColumns - at.tile * kCells;
        return left < kCells ? left : kCells;
    }
    /// Returns which of the kept inputs is the tile's first.
    KH_FN static int first_input(const Place& at) { return at.tile % kKept * kCells; }

    KH_FN void stage_inputs(const Block& block, const Place& at, Shared& shared, Local& local) const {
        constexpr int kHalves = kCellColumns / 4;
        const bool norms = use.norm.gain != nullptr;
        if (norms && block.tile == 0)
            Norms::finish(use.norm, cols, n_lanes, block, shared.norms, local.norms);
        const int n = cells_of(at) * kHalves, first = at.tile * kCells * kHalves;
        KH_UNROLL
        for (int b = 0; b < kBatch; ++b) {
            if (b >= n_lanes) break;
            const auto* from =
                reinterpret_cast<const HalfPack*>(x + static_cast<std::int64_t>(b) * cols) + first;
            KH_UNROLL_4
            for (int i = block.thread; i < n; i += block.n_threads) {
                HalfPack half = from[i];
                if (norms) use.norm.apply(half, first + i, local.norms.mean[b], local.norms.scale[b]);
                float* to = shared.staged + (b * kCells + i / kHalves) * kStagedStride + i % kHalves * 4;
                for (int j = 0; j < 4; ++j) to[j] = half.x[j];
            }
        }
    }

    // Lanes that are missing get zeros, so that products need no branch between their reads.

    KH_FN void narrow_inputs(const Block& block, const Place& at, Shared& shared) const {
        const int n = cells_of(at);
        for (int i = block.thread; i < kBatch * kCells; i += block.n_threads) {
            const int lane = i / kCells, cell = i % kCells;
            if (cell >= n) continue;
            NarrowCell of_lane{};
            if (lane < n_lanes) narrow_cell(shared.staged + i * kStagedStride, of_lane);
            put_cell(of_lane, shared.inputs + input_place(lane, first_input(at) + cell));
        }
    }

    KH_FN void copy_inputs(const Block& block, const Place& at, Shared& shared) const {
        constexpr int kQuarters = sizeof(NarrowCell) / sizeof(Words);
        const int n = cells_of(at);
        KH_UNROLL_4
        for (int i = block.thread; i < kBatch * kCells * kQuarters; i += block.n_threads) {
            const int quarter = i % kQuarters, cell = i / kQuarters % kCells, lane = i / (kQuarters * kCells);
            if (cell >= n) continue;
            Words words{};
            const std::int64_t of_row = std::int64_t{lane} * (cols / kCellColumns) + at.tile * kCells;
            if (lane < n_lanes)
                words = read_words<Words>(reinterpret_cast<const char*>(narrowed + of_row + cell) +
                                          quarter * sizeof(Words));
            store_words(words, shared.inputs + input_place(lane, first_input(at) + cell) + 4 * quarter);
        }
    }

    KH_FN static void put_cell(const NarrowCell& from, std::uint32_t* to) {
        Words words[sizeof(NarrowCell) / sizeof(Words)];
        std::memcpy(words, &from, sizeof(words));
        KH_UNROLL
        for (int i = 0; i < static_cast<int>(sizeof(NarrowCell) / sizeof(Words)); ++i)
            store_words(words[i], to + 4 * i);
    }

    KH_INLINE void multiply(const Block& block, const Place& at, Shared& shared) const {
        const std::byte* groups = in_device_memory(static_cast<const std::byte*>(product[at.which].w.data));
        const int last = n_groups(product[at.which].rows) - 1;
        const int team = block.thread / kLaidRows;
        // The second group of the last pair may be missing: the first is read again, and nobody adds it up.
        const int first = 2 * at.pair + (kOfThread == 1 ? team / kTeams : 0);
        const std::int64_t group = first < last ? first : last, next = first < last ? 1 : 0;
        with_read_block(product[at.which].w.type, [&]<class Of>() {
            const std::int64_t size = Laid<Of>::group_bytes(cols);
            multiply_cells<Of>(groups + group * size, next * size, block, at, shared);
        });
    }

    /// Multiplies the team's cells of a group and, where threads have two rows, of the one `next` bytes on.
    template <class Of>
    KH_INLINE void multiply_cells(const std::byte* group, std::int64_t next, const Block& block,
                                  const Place& at, Shared& shared) const {
        using L = Laid<Of>;
        static_assert(L::kCells == 1 || L::kCells % kAhead == 0);  // those ahead are of one block
        const auto row = static_cast<unsigned>(block.thread % kLaidRows);
        const int team = block.thread / kLaidRows, n = cells_of(at);
        int cell = team % kTeams * kOfTeam;
        const int end = cell + kOfTeam < n ? cell + kOfTeam : n;
        const Rows of{group + L::factors_bytes(cols) + 4 * row, group, next, row,
                      static_cast<unsigned>(at.tile * kCells)};
        const auto to = static_cast<int>(row) + (kOfThread == 1 ? team / kTeams * kLaidRows : 0);
        KH_NO_UNROLL
        for (; cell + kAhead <= end; cell += kAhead)
            multiply_ahead<Of>(of, cell, at, to, shared, std::make_integer_sequence<int, kAhead>());
        if constexpr (kAhead > 1)
            if (cell < end)
                multiply_ahead<Of>(of, cell, at, to, shared, std::make_integer_sequence<int, 1>());
    }

    /// A thread's rows: where codes and factors of the first begin, and how far on the second is.
    struct Rows {
        const std::byte *bits, *heads;
        std::int64_t next;
        unsigned row, first_cell;  ///< first_cell: of the tile
    };
    template <class Of>
    struct CellOfRows {
        LaidCell<Of> of[kOfThread];
    };

    /// Multiplies some cells, from the tile's `cell` on, once the codes of all are under way.
    template <class Of, int... k>
    KH_INLINE static void multiply_ahead(const Rows& rows, int cell, const Place& at, int to, Shared& shared,
                                         std::integer_sequence<int, k...>) {
        using L = Laid<Of>;
        const unsigned first = rows.first_cell + static_cast<unsigned>(cell);
        const std::byte *bits = rows.bits + first * L::kCellBytes,
                        *head = rows.heads + first / L::kCells * L::kHeadBytes;
        const auto load = [&](int ahead) {
            const auto i = static_cast<unsigned>(ahead);
            const auto of_row = [&](std::int64_t next) {
                return LaidCell<Of>(bits + i * L::kCellBytes + next,
                                    head + (L::kCells == 1 ? i * L::kHeadBytes : 0) + next, rows.row,
                                    L::kCells == 1 ? 0 : first % L::kCells + i);
            };
            if constexpr (kOfThread == 2)
                return CellOfRows<Of>{{of_row(0), of_row(rows.next)}};
            else
                return CellOfRows<Of>{{of_row(0)}};
        };
        const CellOfRows<Of> cells[] = {load(k)...};
        (multiply_cell(cells[k], cell + k, first_input(at), to, shared), ...);
    }

    template <class Of>
    KH_INLINE static void multiply_cell(const CellOfRows<Of>& rows, int cell, int input, int to,
                                        Shared& shared) {
        using L = Laid<Of>;
        constexpr bool kSigned = L::kCodes.bits == 8;  // bytes, whose zero is in the middle
        constexpr int kZero = kSigned ? 0 : L::kCodes.zero;
        std::uint32_t codes[kOfThread][8];
        Scale scales[kOfThread][L::kParts];
        KH_UNROLL
        for (int r = 0; r < kOfThread; ++r) {
            KH_UNROLL
            for (int k = 0; k < 8; ++k) codes[r][k] = rows.of[r].codes(k) ^ (kSigned ? 0x80808080u : 0u);
            KH_UNROLL
            for (int p = 0; p < L::kParts; ++p) scales[r][p] = rows.of[r].scale(p);
        }
        KH_UNROLL
        for (int b = 0; b < kBatch; ++b) {
            // A copy, since the compiler does not see that sums lie elsewhere.
            const auto in = read_words<NarrowCell>(shared.inputs + input_place(b, input + cell));
            KH_UNROLL
            for (int r = 0; r < kOfThread; ++r)
                shared.sums[sum_place(b, cell) + to + r * kLaidRows] =
                    sum_of_cell<Of, kZero>(codes[r], scales[r], in);
        }
    }

    template <class Of, int kZero>
    KH_INLINE static float sum_of_cell(const std::uint32_t (&codes)[8],
                                       const Scale (&scales)[Laid<Of>::kParts], const NarrowCell& in) {
        constexpr int kParts = Laid<Of>::kParts;
        static_assert(kParts == 1 || !Of::kHasOffset);
        float of_cell = 0;
        if constexpr (Of::kHasOffset) of_cell = mul(scales[0].offset, in.sums.scaled_sum);
        KH_UNROLL
        for (int p = 0; p < kParts; ++p) {
            std::int32_t first = 0, second = 0,
                         lower = -kZero * (kParts == 2 ? in.sums.lower[p] : in.sums.all_lower);
            KH_UNROLL
            for (int k = p * 8 / kParts; k < (p + 1) * 8 / kParts; ++k) {
                first = plus_bytes(codes[k], in.first[k], first);
                second = plus_bytes(codes[k], in.second[k], second);
                lower = plus_bytes(codes[k], in.lower[k], lower);
            }
            const std::int32_t upper =
                256 * first + second - kZero * (kParts == 2 ? in.sums.upper[p] : in.sums.all_upper);
            // 256 times a float is exact, so that fused or not the bits are the same.
            const float total = fused(static_cast<float>(upper), 256.0f, static_cast<float>(lower));
            const float scaled = mul(scales[p].scale, in.sums.scale);
            of_cell = Of::kHasOffset || p > 0 ? rounded_once(scaled, total, of_cell) : mul(scaled, total);
        }
        return of_cell;
    }

    /// Adds the tile's sums to each row's total, in the order of the columns.
    KH_FN void add_up(const Block& block, const Place& at, const Shared& shared, Local& local) const {
        const int lane = block.thread / kPair, row = block.thread % kPair, n = cells_of(at);
        if (lane >= n_lanes) return;
        float total = at.tile == 0 ? 0.0f : local.total;
        KH_UNROLL_4
        for (int cell = 0; cell < n; ++cell) total = add(total, shared.sums[sum_place(lane, cell) + row]);
        local.total = total;
        if (at.tile + 1 == tiles_of_row()) write(at, lane, row, local);
    }
    KH_FN void write(const Place& at, int lane, int row_of_pair, Local& local) const {
        const Product<Stored>& of = product[at.which];
        const int row = at.pair * kPair + row_of_pair;
        if (row >= of.rows) return;
        float sum = of.bias != nullptr ? add(local.total, of.bias[row]) : local.total;
        if (use.gated != 0 && at.which == 1)
            sum = mul(local.first, sum);
        else if (use.activates != 0)
            sum = activated(use.kind, sum);
        if (use.gated != 0 && at.which == 0) {
            local.first = sum;
            return;
        }
        const Product<Stored>& out = product[use.gated != 0 ? 0 : at.which];
        float& y = out.y[static_cast<std::int64_t>(lane) * out.y_stride + row];
        y = use.adds != 0 ? add(y, sum) : sum;
    }
};

}  // namespace keyhole::cuda
