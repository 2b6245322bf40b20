/// Computes how the shown values are distributed over the colour range.
/// Pure functions; window thread; knows neither GL nor ImGui.
#pragma once

#include "engine/figure/colormap.h"
#include "engine/figure/reduce.h"

#include <optional>
#include <utility>
#include <vector>

namespace keyhole {

struct RangeHistogram {
    std::vector<int> bins;     ///< along the colour bar, low to high
    int below = 0, above = 0;  ///< values outside the range
    int n() const;
};

/// Counts the values of a plane. Leaves out NaN, infinities and, unless the plane is a difference, negative
/// marks.
RangeHistogram histogram_of(const Plane& plane, const ColorScale& scale, int n_bins);
/// Returns the range of the positive values (for differences: of the magnitudes) without the share/2
/// smallest and the share/2 largest, so that neither a sink nor tiny values decide it. nullopt: there are no
/// such values.
std::optional<std::pair<float, float>> fitted_range(const Plane& plane, bool difference, double share);

}  // namespace keyhole
