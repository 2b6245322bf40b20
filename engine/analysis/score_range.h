/// The logarithmic axis on which scores are drawn against the eviction threshold.
/// Plain values, for any thread; knows neither GL nor the run.
#pragma once

#include <initializer_list>
#include <span>

namespace keyhole {

/// Both positive, low < high.
struct ScoreRange {
    float low = 0.1f, high = 1;
    /// Returns the place of a value on the axis, 0..1. Values below the axis, including 0, lie at its lower
    /// end. NaN stays.
    float part(float value) const;
};

/// Returns a range that contains every threshold, above its lower end, and scores down to a thousandth of the
/// lowest threshold. A score below the threshold is then always visible; how far it has decayed beyond that
/// adds nothing. Without thresholds the range has at most 12 decades. Values that are not positive are
/// ignored.
ScoreRange score_range(std::span<const float> threshold,
                       std::initializer_list<std::span<const float>> scores);

}  // namespace keyhole
