/// Products of laid quantised matrices in integers for one or two lanes, with the bits of the CPU's:
/// backend/common/integer_products.h, whose header has the equation. Codes are read once for both lanes. Host
/// and device. Knows no lane.
#pragma once

#include "engine/backend/cuda/kernels/laid_pairs.h"
#include "engine/backend/cuda/kernels/narrow.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace keyhole::cuda {

/// Does what MatrixVector does, for laid matrices: y[b, r] = sum_c w[r, c] * x[b, c] + bias[r], with the same
/// ProductUse. A block has some pairs of groups of 16 rows, one after the other. It narrows the inputs into
/// shared memory, tile by tile, a quarter of a cell a thread, normed where there is a norm. Each thread then
/// multiplies 32 columns of two rows at a time and puts their sums, scaled, into shared memory; a thread for
/// each row and lane adds these up in the order of the columns, since the CPU has that order.
/// Neighbouring threads have neighbouring rows, so that half a warp reads 64 neighbouring bytes of codes, and
/// the same inputs. Grid: x = blocks(), kMaxThreads threads.
template <int kBatch>
struct LaidProducts : LaidPairs<64 / kBatch> {
    using Pairs = LaidPairs<64 / kBatch>;
    using Pairs::cells_of, Pairs::cols, Pairs::kCells, Pairs::kPair, Pairs::n_lanes, Pairs::product,
        Pairs::use;
    using typename Pairs::Place;
    static_assert(kBatch <= kMostNormed);  // LaidTiles has more
    static constexpr int kBefore = 2, kRepeated = 3, kPhases = kBefore + kRepeated;
    static constexpr int kBlocksOfSm = 3;
    static constexpr int kLanes = kBatch;
    static constexpr bool kNorms = true;  ///< and narrows its inputs
    static constexpr int kKept = 2;       ///< tiles whose inputs are kept
    static constexpr int kOfThread = 2;   ///< rows
    /// Threads that have the same rows' other columns: so many teams of 16.
    static constexpr int kTeams = kMaxThreads / kLaidRows;
    static constexpr int kOfTeam = kCells / kTeams;  ///< cells of a tile
    static constexpr int kAhead = 2;                 ///< cells whose codes are under way together

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
    static_assert(4 * kBatch * kCells == kMaxThreads);  // quarters of a tile's inputs
    using Norms = InputNorms<kBatch, kMaxThreads>;
    struct Shared {
        typename Norms::Shared norms;
        alignas(16) std::uint32_t inputs[kInputWords];
        float sums[kSumWords];
    };
    struct Local {
        typename Norms::Local norms;
        typename Pairs::Totals totals;
        Place at;
    };
    const float* x;  ///< [n_lanes, cols]

    KH_FN void begin(const Block& block, Shared&, Local& local) const {
        KH_DEVICE_ASSERT(block.n_threads == kMaxThreads);
        local.at = this->first_place(block);
    }

    KH_INLINE void phase(int p, const Block& block, Shared& shared, Local& local) const {
        if (p < kBefore)
            return Norms::measure(p, use.norm, x, cols, n_lanes, block, shared.norms, local.norms);
        const Place at = local.at;
        // Inputs of short rows stay.
        const bool puts = block.tile < this->tiles_of_row() || this->tiles_of_row() > kKept;
        if (p == kBefore && puts) narrow_inputs(block, at, shared, local);
        if (p == kBefore + 1) multiply(block, at, shared);
        if (p == kBefore + 2) {
            const int lane = block.thread / kPair, row = block.thread % kPair;
            this->add_up(at, lane, row, local.totals,
                         [&](int cell) { return shared.sums[sum_place(lane, cell) + row]; });
            local.at = this->next_place(at);
        }
    }

    /// Returns which of the kept inputs is the tile's first.
    KH_FN static int first_input(const Place& at) { return at.tile % kKept * kCells; }

    // Lanes that are missing get zeros, so that products need no branch between their reads.

    KH_INLINE void narrow_inputs(const Block& block, const Place& at, Shared& shared, Local& local) const {
        const bool norms = use.norm.gain != nullptr;
        if (norms && block.tile == 0)
            Norms::finish(use.norm, cols, n_lanes, block, shared.norms, local.norms);
        const int i = block.thread / 4, quarter = block.thread % 4, lane = kBatch == 1 ? 0 : i / kCells,
                  cell = i % kCells, first = (at.tile * kCells + cell) * (kCellColumns / 4);
        const bool is_there = cell < cells_of(at) && lane < n_lanes;
        const auto* from =
            reinterpret_cast<const HalfPack*>(x + static_cast<std::int64_t>(lane) * cols) + first;
        const NarrowQuarter narrowed = narrow_quarter(quarter, [&](int of) {
            HalfPack half{};
            if (!is_there) return half;
            half = from[of];
            if (norms)
                use.norm.apply(half, first + of, of_lane(local.norms.mean, lane),
                               of_lane(local.norms.scale, lane));
            return half;
        });
        put_quarter(narrowed, quarter, shared.inputs + input_place(lane, first_input(at) + cell));
    }

    /// Returns a lane's number. An index would put the array into memory.
    KH_FN static float of_lane(const float (&numbers)[kBatch], int lane) {
        return lane == 0 ? numbers[0] : numbers[kBatch - 1];
    }

    /// to: a NarrowCell in shared memory.
    KH_FN static void put_quarter(const NarrowQuarter& from, int quarter, std::uint32_t* to) {
        KH_UNROLL
        for (int k = 0; k < 2; ++k) {
            to[2 * quarter + k] = from.first[k];
            to[8 + 2 * quarter + k] = from.second[k];
            to[16 + 2 * quarter + k] = from.lower[k];
        }
        if (quarter != 0) return;
        Words words[sizeof(from.sums) / sizeof(Words)];
        std::memcpy(words, &from.sums, sizeof(words));
        KH_UNROLL
        for (int i = 0; i < static_cast<int>(sizeof(words) / sizeof(Words)); ++i)
            store_words(words[i], to + 24 + 4 * i);
    }

    KH_INLINE void multiply(const Block& block, const Place& at, Shared& shared) const {
        with_read_block(product[at.which].w.type, [&]<class Of>() {
            const std::byte* const group = this->template group_of<Of>(at, 0);
            multiply_cells<Of>(group, this->template group_of<Of>(at, 1) - group, block, at, shared);
        });
    }

    /// Multiplies the team's cells of a group and of the one `next` bytes on.
    template <class Of>
    KH_INLINE void multiply_cells(const std::byte* group, std::int64_t next, const Block& block,
                                  const Place& at, Shared& shared) const {
        using L = Laid<Of>;
        static_assert(L::kCells == 1 || L::kCells % kAhead == 0);  // those ahead are of one block
        const auto row = static_cast<unsigned>(block.thread % kLaidRows);
        const int n = cells_of(at);
        int cell = block.thread / kLaidRows * kOfTeam;
        const int end = cell + kOfTeam < n ? cell + kOfTeam : n;
        const Rows of{group + L::factors_bytes(cols) + 4 * row, group, next, row,
                      static_cast<unsigned>(at.tile * kCells)};
        const auto to = static_cast<int>(row);
        KH_NO_UNROLL
        for (; cell + kAhead <= end; cell += kAhead)
            multiply_ahead<Of>(of, cell, at, to, shared, std::make_integer_sequence<int, kAhead>());
        if (cell < end) multiply_ahead<Of>(of, cell, at, to, shared, std::make_integer_sequence<int, 1>());
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
            return CellOfRows<Of>{{of_row(0), of_row(rows.next)}};
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
        float totals[kParts];
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
            totals[p] = total_of(static_cast<float>(upper), static_cast<float>(lower));
        }
        return cell_sum<Of>(scales, in.sums.scale, in.sums.scaled_sum, totals);
    }
};

}  // namespace keyhole::cuda
