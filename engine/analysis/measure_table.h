/// The measures of Keyhole, each defined once: name, unit, equation, one sentence, and the functions that
/// read its value from a record. run.json, curves, tables of lanes, lessons and tooltips read this table.
/// Constant; any thread.
///
/// Letters of the equations, at row t of a lane, for one layer and query head:
///     a_p  probability that the lane's row gives to position p, 0 where p is hidden or evicted;
///          A = the positions that the row attends to
///     f_p  the same without any eviction: softmax over all p <= t of the lane's own query and keys, at
///          original positions
///     I    the ideal set: t and the k positions below t with the largest f, the newer of equal ones; k = the
///          head's budget
///     S_t  positions stored after row t and its eviction
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

struct LaneMetrics;
struct LaneRecord;
struct RowSoFar;
struct ShadowRow;

struct Measure {
    std::string_view name;  ///< as in run.json and metrics.csv
    std::string_view label;
    std::string_view unit;  ///< "1": a share or a cosine
    std::string_view equation;
    std::string_view help;  ///< one sentence

    /// Returns its value in a row, NaN where there is none. null: one record does not tell it.
    float (*of_row)(const LaneRecord&) = nullptr;
    /// Returns its value in a row whose record does not tell it, of the lane's rows so far (lane_so_far.h).
    float (*so_far)(const RowSoFar&) = nullptr;
    /// Returns its value for layer * n_heads + query head, NaN where there is none. null: not by head.
    float (*of_head)(const ShadowRow&, std::size_t) = nullptr;
    /// Its mean over a lane's decode rows, where LaneMetrics has a member for it; null: LaneMetrics::means.
    double LaneMetrics::*mean = nullptr;

    int column = 0;             ///< its place in tables of lanes, from 1; 0: not there
    int curve = 0;              ///< its place among the curves, from 1; 0: no curve
    bool needs_shadow = false;  ///< lanes without shadow=on have no values
    bool logarithmic = false;   ///< of the curve's axis
    bool needs_sinks = false;   ///< only of models with learned sinks
};

std::span<const Measure> measures();

/// Returns the measures that have a place, in its order. place: &Measure::column or &Measure::curve.
std::vector<const Measure*> measures_by(int Measure::*place);

/// Returns the measure of this name, which must be in the table (asserted).
const Measure& measure(std::string_view name);

}  // namespace keyhole
