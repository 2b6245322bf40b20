/// A lane's attention row against the full one: retained mass, cosine to Ideal and to Full, output similarity, sink share.
/// Pure functions; any thread; knows layout and rows only. The table of measures is in measures.h; letters as there.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/policy/row.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// The ideal set of a row (A2SF, section 2; policies, section 2.10): the row's own position and the k older ones with the largest
/// probability. Of equal ones the older leaves; NaN ranks lowest.
///
/// full  [row + 1], not empty;  k >= 0, above the row: all.  out: ascending, min(k, row) + 1 positions.
void ideal_set(std::span<const float> full, int k, std::vector<std::int32_t>& out);

/// <a, b> / (|a| |b|), sums in double; 0 where either has no length. Equal sizes.
double cosine(std::span<const float> a, std::span<const float> b);

/// cosine(a, r) with r_p = f_p / sum_I f on the ideal set I, 0 elsewhere. Scaling r does not change it.
double cosine_ideal(std::span<const float> a, std::span<const float> full,
                    std::span<const std::int32_t> ideal);

/// sum of full[p] over the attended positions; the lost mass is what is missing to 1.
double retained_mass(std::span<const float> full, std::span<const std::int32_t> attended);

/// How many first tokens sink_share counts: StreamingLLM's default.
inline constexpr int kSinkTokens = 4;

/// Probability on the first kSinkTokens tokens of the text. positions ascending, attention in their order.
double sink_share(std::span<const std::int32_t> positions, std::span<const float> attention);

/// Means over layers and query heads of what a row brought: of its shadow, and of its attention where it is wanted.
RowMeasures mean_measures(const KvLayout& layout, const RowOutput& out);

}  // namespace keyhole
