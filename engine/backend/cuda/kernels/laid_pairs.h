/// What products of laid matrices in integers have in common, whoever multiplies: which rows a block has,
/// what a cell's sum is, and where a row's total goes. Host and device. Knows no lane.
#pragma once

#include "engine/backend/cuda/kernels/linear.h"

#include <cstdint>

namespace keyhole::cuda {

/// Returns what 32 columns add to a row's total: backend/common/integer_products.h has the equation. totals:
/// 65536 v + 256 w + l of each part, summed and rounded as total_of() does.
template <class Of>
KH_INLINE float cell_sum(const Scale (&scales)[Laid<Of>::kParts], float scale, float scaled_sum,
                         const float (&totals)[Laid<Of>::kParts]) {
    static_assert(Laid<Of>::kParts == 1 || !Of::kHasOffset);
    float sum = 0;
    if constexpr (Of::kHasOffset) sum = mul(scales[0].offset, scaled_sum);
    KH_UNROLL
    for (int p = 0; p < Laid<Of>::kParts; ++p) {
        const float scaled = mul(scales[p].scale, scale);
        sum = Of::kHasOffset || p > 0 ? rounded_once(scaled, totals[p], sum) : mul(scaled, totals[p]);
    }
    return sum;
}

/// Returns 256 upper + lower. 256 times a float is exact, so that fused or not the bits are the same.
KH_FN float total_of(float upper, float lower) {
    return fused(upper, 256.0f, lower);
}

/// Matrices whose rows a block takes in pairs of groups, one pair after the other, and their columns in tiles
/// of kTileCells cells.
template <int kTileCells>
struct LaidPairs {
    static constexpr int kCells = kTileCells;
    static constexpr int kPair = 2 * kLaidRows;  ///< rows of two groups

    Product<Stored> product[3];  ///< laid matrices, which begin at multiples of 64 bytes
    std::int32_t n_products, cols;
    std::int32_t n_lanes = 1;
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
    KH_FN Place first_place(const Block& block) const {
        int pair = block.x * pairs_of_block, which = 0;
        while (which + 1 < n_outputs() && pair >= n_pairs(product[which].rows))
            pair -= n_pairs(product[which++].rows);
        return {which, pair, 0};
    }
    /// Returns what the next tile of the block is of, without a division, which costs more than the rest.
    KH_FN Place next_place(Place at) const {
        if (++at.tile < tiles_of_row()) return at;
        at.tile = 0;
        const bool first_of_gated = use.gated != 0 && at.which == 0;
        if (first_of_gated) return {1, at.pair, 0};
        if (use.gated != 0) return {0, at.pair + 1, 0};
        if (++at.pair < n_pairs(product[at.which].rows) || at.which + 1 == n_outputs()) return at;
        return {at.which + 1, 0, 0};
    }

    /// Returns how many cells of a row the tile has.
    KH_FN int cells_of(const Place& at) const {
        const int left = cols / kCellColumns - at.tile * kCells;
        return left < kCells ? left : kCells;
    }

    /// One group of a pair's product. The second group of the last pair may be missing: the first is read
    /// again, and nobody adds it up.
    template <class Of>
    KH_FN const std::byte* group_of(const Place& at, int which) const {
        const int last = n_groups(product[at.which].rows) - 1, group = 2 * at.pair + which;
        return in_device_memory(static_cast<const std::byte*>(product[at.which].w.data)) +
               (group < last ? group : last) * Laid<Of>::group_bytes(cols);
    }

    /// What a thread adds up.
    struct Totals {
        float total, first;  ///< first: of the first of two gated products
    };
    /// Adds the tile's sums to the total of a row and lane, in the order of the columns; sum(cell) returns
    /// one.
    template <class Sum>
    KH_INLINE void add_up(const Place& at, int lane, int row, Totals& totals, Sum sum) const {
        if (lane >= n_lanes) return;
        const int n = cells_of(at);
        float total = at.tile == 0 ? 0.0f : totals.total;
        KH_UNROLL_4
        for (int cell = 0; cell < n; ++cell) total = add(total, sum(cell));
        totals.total = total;
        if (at.tile + 1 == tiles_of_row()) write(at, lane, row, totals);
    }

  private:
    KH_FN void write(const Place& at, int lane, int row_of_pair, Totals& totals) const {
        const Product<Stored>& of = product[at.which];
        const int row = at.pair * kPair + row_of_pair;
        if (row >= of.rows) return;
        float sum = of.bias != nullptr ? add(totals.total, of.bias[row]) : totals.total;
        if (use.gated != 0 && at.which == 1)
            sum = mul(totals.first, sum);
        else if (use.activates != 0)
            sum = activated(use.kind, sum);
        if (use.gated != 0 && at.which == 0) {
            totals.first = sum;
            return;
        }
        const Product<Stored>& out = product[use.gated != 0 ? 0 : at.which];
        float& y = out.y[static_cast<std::int64_t>(lane) * out.y_stride + row];
        y = use.adds != 0 ? add(y, sum) : sum;
    }
};

}  // namespace keyhole::cuda
