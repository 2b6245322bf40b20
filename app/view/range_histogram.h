/// How the values on show are spread over the range of colours. Pure functions; window thread.
#pragma once

#include "engine/figure/colormap.h"
#include "engine/figure/reduce.h"

#include <optional>
#include <utility>
#include <vector>

namespace keyhole {

struct RangeHistogram {
    std::vector<int> bins;     ///< along the colour bar, low to high
    int below = 0, above = 0;  ///< values that the range clips
    int n() const;
};

/// Values of a plane; NaN, infinities and negative marks (of a plane that is no difference) do not count.
RangeHistogram histogram_of(const Plane& plane, const ColorScale& scale, int n_bins);
/// The values between which all but `share` of the positive ones (of differences: magnitudes) lie, half of it at each end: a range that
/// neither a sink nor dust decides. nullopt: no such values.
std::optional<std::pair<float, float>> fitted_range(const Plane& plane, bool difference, double share);

}  // namespace keyhole
