/// Products of laid quantised matrices in integers with up to eight inputs, one of each lane: on a device by
/// tensor cores, on the host by loops, with the bits of the CPU's and of LaidProducts. Knows no cache.
#pragma once

#include "engine/backend/cuda/kernels/laid_pairs.h"
#include "engine/backend/cuda/kernels/warp_bytes.h"

#include <cstddef>
#include <cstdint>

namespace keyhole::cuda {

/// Does what LaidProducts does, for up to eight lanes, whose inputs NarrowTiles has narrowed. A warp has some
/// cells of a tile, of both groups of a pair: it multiplies 16 rows with the inputs of all lanes at once and
/// puts the sums, scaled, into shared memory; a thread for each row and lane adds these up in the order of
/// the columns. What a tile needs of the matrix is under way while its inputs are copied and the sums of the
/// tile before are added up. Grid: x = blocks(), kMaxThreads threads.
struct LaidTiles : LaidPairs<16> {
    static constexpr int kBefore = 0, kRepeated = 2, kPhases = kRepeated + 1;
    static constexpr int kBlocksOfSm = 2;  ///< three would leave 80 registers: a tile's codes take 32
    static constexpr int kLanes = NarrowTile::kLanes;
    static constexpr bool kNorms = false;
    static constexpr int kWarp = 32, kWarps = kMaxThreads / kWarp,
                         kOfWarp = kCells / kWarps;  ///< cells of a tile
    static constexpr int kSumStride = kPair + 4;     ///< of a lane's sums; pairs meet no bank twice
    static_assert(kMaxThreads == kPair * kLanes);

    struct Shared {
        NarrowTile inputs[kCells];
        alignas(16) float sums[kCells][kLanes][kSumStride];
    };
    struct Local {
        std::uint32_t words[kOfWarp][2][kWarpCodeWords];  // in code for devices
        Totals totals;
        Place at;
    };
    const NarrowTile* narrowed;  ///< [cols / 32]

    KH_FN void begin(const Block& block, Shared&, Local& local) const {
        KH_DEVICE_ASSERT(block.n_threads == kMaxThreads);
        local.at = first_place(block);
    }

    KH_INLINE void phase(int p, const Block& block, Shared& shared, Local& local) const {
        if (p == 1) return multiply(block, shared, local);
        const Place before = local.at;
        if (p == 0) {
            if (block.tile > 0) local.at = next_place(before);
            load_codes(block, local);
            copy_inputs(block, local.at, shared);
        }
        // A tile is added up beside the inputs of the next one, and the last one afterwards.
        if (block.tile == 0) return;
        const int lane = block.thread / kPair, row = block.thread % kPair;
        add_up(before, lane, row, local.totals, [&](int cell) { return shared.sums[cell][lane][row]; });
    }

  private:
    /// Where a warp's cells of a group begin.
    struct Cells {
        const std::byte *bits, *head;
        unsigned in_block;
    };
    template <class Of>
    KH_INLINE Cells cells_of_warp(const Block& block, const Place& at, int group) const {
        using L = Laid<Of>;
        const auto first = static_cast<unsigned>(at.tile * kCells + first_cell(block));
        const std::byte* const of_group = group_of<Of>(at, group);
        return {of_group + L::factors_bytes(cols) + first * L::kCellBytes,
                of_group + first / L::kCells * L::kHeadBytes, first % L::kCells};
    }
    /// Those of the i-th, at a constant distance: all cells of a warp are of one block, or each is one.
    template <class Of>
    KH_INLINE static Cells cell_of(const Cells& first, int i) {
        using L = Laid<Of>;
        static_assert(L::kCells == 1 || L::kCells % kOfWarp == 0);
        const bool is_block = L::kCells == 1;
        return {first.bits + i * L::kCellBytes, first.head + (is_block ? i * L::kHeadBytes : 0),
                is_block ? 0 : first.in_block + static_cast<unsigned>(i)};
    }
    /// The warp's first cell of the tile.
    KH_FN static int first_cell(const Block& block) { return block.thread / kWarp * kOfWarp; }

    KH_INLINE void load_codes(const Block& block, Local& local) const {
#ifdef __CUDA_ARCH__
        const int left = cells_of(local.at) - first_cell(block), in_warp = block.thread % kWarp;
        with_read_block(product[local.at.which].w.type, [&]<class Of>() {
            KH_UNROLL
            for (int group = 0; group < 2; ++group) {
                const Cells first = cells_of_warp<Of>(block, local.at, group);
                KH_UNROLL
                for (int i = 0; i < kOfWarp; ++i) {
                    if (i >= left) continue;
                    const Cells of = cell_of<Of>(first, i);
                    WarpCodes<Of>::load(of.bits, of.head, in_warp, of.in_block, local.words[i][group]);
                }
            }
        });
#else
        static_cast<void>(block), static_cast<void>(local);
#endif
    }

    KH_FN void copy_inputs(const Block& block, const Place& at, Shared& shared) const {
        constexpr int kQuarters = sizeof(NarrowTile) / sizeof(Words);
        const auto* from = reinterpret_cast<const char*>(narrowed + at.tile * kCells);
        auto* to = reinterpret_cast<char*>(shared.inputs);
        const int n = cells_of(at) * kQuarters;
        // All reads come before the first store: the compiler moves no read across it.
        constexpr int kOfThread = (kCells * kQuarters + kMaxThreads - 1) / kMaxThreads;
        Words words[kOfThread];
        KH_UNROLL
        for (int k = 0; k < kOfThread; ++k)
            if (const int i = block.thread + k * kMaxThreads; i < n)
                words[k] = read_words<Words>(from + i * sizeof(Words));
        KH_UNROLL
        for (int k = 0; k < kOfThread; ++k)
            if (const int i = block.thread + k * kMaxThreads; i < n)
                store_words(words[k], to + i * sizeof(Words));
    }

    KH_INLINE void multiply(const Block& block, Shared& shared, const Local& local) const {
        const int left = cells_of(local.at) - first_cell(block), in_warp = block.thread % kWarp;
        with_read_block(product[local.at.which].w.type, [&]<class Of>() {
            KH_UNROLL
            for (int i = 0; i < kOfWarp; ++i) {
                if (i >= left) continue;
                const int cell = first_cell(block) + i;
                const WarpInputs inputs(shared.inputs[cell], in_warp);
                KH_UNROLL
                for (int group = 0; group < 2; ++group) {
#ifdef __CUDA_ARCH__
                    const WarpCodes<Of> codes(local.words[i][group]);
#else
                    const Cells of = cell_of<Of>(cells_of_warp<Of>(block, local.at, group), i);
                    const WarpCodes<Of> codes(of.bits, of.head, in_warp, of.in_block);
#endif
                    put_sums(codes, inputs, in_warp, group, shared.sums[cell]);
                }
            }
        });
    }

    /// Multiplies a group's cell and puts the sums of its rows, for each lane.
    template <class Of>
    KH_INLINE static void put_sums(const WarpCodes<Of>& codes, const WarpInputs& inputs, int in_warp,
                                   int group, float (&sums)[kLanes][kSumStride]) {
        constexpr int kParts = Laid<Of>::kParts;
        std::int32_t sum[3][kParts][4];
        multiply_bytes(codes, inputs, in_warp, sum);
        const WarpPlace place(in_warp);
        Pair of_lane[2];  // of its two rows
        KH_UNROLL
        for (int r = 0; r < 2; ++r) {
            Scale scales[kParts];
            KH_UNROLL
            for (int p = 0; p < kParts; ++p) scales[p] = codes.scale(r, p);
            KH_UNROLL
            for (int c = 0; c < 2; ++c) {
                const int i = WarpPlace::element(r, c);
                float totals[kParts];
                KH_UNROLL
                for (int p = 0; p < kParts; ++p) {
                    const float upper = fused(float_of_sum(sum[0][p][i]), 256.0f, float_of_sum(sum[1][p][i]));
                    totals[p] = total_of(upper, float_of_sum(sum[2][p][i]));
                }
                of_lane[c].x[r] = cell_sum<Of>(scales, inputs.scale.x[c], inputs.scaled_sum.x[c], totals);
            }
        }
        KH_UNROLL
        for (int c = 0; c < 2; ++c)
            store_pair(of_lane[c], &sums[place.column + c][group * kLaidRows + place.row]);
    }
};

}  // namespace keyhole::cuda
