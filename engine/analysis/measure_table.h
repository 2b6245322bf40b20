/// The measures of Keyhole, each defined once: name, unit, equation and one sentence. run.json and tooltips
/// read this table. Constant; any thread; knows no run.
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

#include <span>
#include <string_view>

namespace keyhole {

struct Measure {
    std::string_view name;  ///< as in run.json and metrics.csv
    std::string_view label;
    std::string_view unit;  ///< "1": a share or a cosine
    std::string_view equation;
    std::string_view help;  ///< one sentence
};

std::span<const Measure> measures();

/// Returns the measure of this name, which must be in the table (asserted).
const Measure& measure(std::string_view name);

}  // namespace keyhole
