#include "engine/analysis/score_range.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

float ScoreRange::part(float value) const {
    if (std::isnan(value)) return value;
    if (value <= low) return 0;
    return std::min(std::log(value / low) / std::log(high / low), 1.0f);
}

ScoreRange score_range(std::span<const float> threshold,
                       std::initializer_list<std::span<const float>> scores) {
    constexpr float kNone = std::numeric_limits<float>::max();
    float least = kNone, least_threshold = kNone, most = 0;
    const auto extend = [&](std::span<const float> values, float& low) {
        for (const float v : values)
            if (v > 0 && v < kNone) low = std::min(low, v), most = std::max(most, v);
    };
    extend(threshold, least_threshold);
    for (const std::span<const float> values : scores) extend(values, least);
    if (!(most > 0)) return {};
    ScoreRange range{std::max(least, least_threshold < kNone ? least_threshold * 1e-3f : most * 1e-12f),
                     most};
    // Keep the lowest threshold clear of the lower end.
    if (least_threshold < kNone) range.low = std::min(range.low, least_threshold * 0.7f);
    range.low = std::max(range.low, std::numeric_limits<float>::min());
    if (!(range.low < range.high * 0.99f)) range.low = range.high / 10;
    return range;
}

}  // namespace keyhole
