#include "app/view/range_histogram.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace keyhole {

int RangeHistogram::n() const {
    return std::accumulate(bins.begin(), bins.end(), below + above);
}

RangeHistogram histogram_of(const Plane& plane, const ColorScale& scale, int n_bins) {
    RangeHistogram out;
    out.bins.assign(to_index(n_bins), 0);
    const ScaleTerms terms = scale_terms(scale);
    for (const float value : plane.values) {
        if (!std::isfinite(value) || (!scale.diverging && value < 0)) continue;
        const float size = scale.diverging ? std::abs(value) : value;
        if (size < scale.low || (scale.logarithmic && size <= 0)) {
            ++out.below;
        } else if (size > scale.high) {
            ++out.above;
        } else {
            const int index = color_index(terms, value);
            ++out.bins[to_index(index * n_bins / 256)];
        }
    }
    return out;
}

std::optional<std::pair<float, float>> fitted_range(const Plane& plane, bool difference, double share) {
    std::vector<float> values;
    for (const float value : plane.values) {
        const float size = difference ? std::abs(value) : value;
        if (size > 0 && std::isfinite(size)) values.push_back(size);  // NaN is neither
    }
    if (values.empty()) return std::nullopt;
    std::sort(values.begin(), values.end());
    const auto at = [&](double part) {
        return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
    };
    const float low = at(share / 2), high = at(1 - share / 2);
    return std::pair(low < high ? low : high / 2, high);
}

}  // namespace keyhole
