/// Compares a lane's attention row with the full one: retained mass, cosine to Ideal and to Full, output
/// similarity, sink share. Pure functions; any thread; knows layout and rows only.
/// engine/analysis/measure_table.h defines the measures and the letters.
#pragma once

#include "engine/model/kv_layout.h"
#include "engine/policy/row.h"

#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Computes the ideal set of a row (A2SF, section 2; policies, section 2.10): the row's own position and
/// the k older positions with the largest probability. Of equal ones the newer stays; NaN ranks lowest.
///
/// full  [row + 1], not empty
/// k     >= 0; above the row: all older positions
/// out   min(k, row) + 1 positions, ascending
void ideal_set(std::span<const float> full, int k, std::vector<std::int32_t>& out);

/// Returns <a, b> / (|a| |b|), summed in double; 0 where either length is 0. Sizes must be equal.
double cosine(std::span<const float> a, std::span<const float> b);

/// Returns cosine(a, r) with r_p = f_p / sum_I f on the ideal set I, 0 elsewhere. Scaling r has no effect.
double cosine_ideal(std::span<const float> a, std::span<const float> full,
                    std::span<const std::int32_t> ideal);

/// Returns the sum of full[p] over the attended positions. The lost mass is 1 minus it.
double retained_mass(std::span<const float> full, std::span<const std::int32_t> attended);

/// Number of first tokens that sink_share() counts: StreamingLLM's default.
inline constexpr int kSinkTokens = 4;

/// Returns the probability on the first kSinkTokens tokens of the text. positions: ascending; attention:
/// same order.
double sink_share(std::span<const std::int32_t> positions, std::span<const float> attention);

/// Returns the means over layers and query heads of the row's shadow measures, and of its sink share when
/// the row's attention was recorded. has_sinks: what the tokens leave to 1 is the learned sink's.
RowMeasures mean_measures(const KvLayout& layout, const RowOutput& out, bool has_sinks = false);

}  // namespace keyhole
