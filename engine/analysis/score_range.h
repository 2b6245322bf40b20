/// The logarithmic axis on which scores are drawn against the eviction threshold. Knows no GL.
#pragma once

#include <initializer_list>
#include <span>

namespace keyhole {

/// Both positive, low < high.
struct ScoreRange {
    float low = 0.1f, high = 1;
    /// Place of a value on the axis, 0..1; what is below (0, too) lies on its lower end. NaN stays.
    float part(float value) const;
};

/// Every threshold lies within it, above the lower end, and scores to a thousandth of the lowest threshold: whether a score was
/// below it can always be seen, and how far it had decayed beyond that says no more. Without thresholds: 12 decades. Values that are
/// not positive are passed over.
ScoreRange score_range(std::span<const float> threshold,
                       std::initializer_list<std::span<const float>> scores);

}  // namespace keyhole
