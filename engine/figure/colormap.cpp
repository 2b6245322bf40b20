#include "engine/figure/colormap.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

#include "engine/figure/colormap_tables.inc"

constexpr std::array kNames = {std::string_view("viridis"), std::string_view("cividis"),
                               std::string_view("rdbu"), std::string_view("rdbu-dark"),
                               std::string_view("gray")};

}  // namespace

const std::array<Rgb8, 256>& colormap_table(Colormap map) {
    switch (map) {
        case Colormap::cividis:
            return kCividis;
        case Colormap::rdbu:
            return kRdbu;
        case Colormap::rdbu_dark:
            return kRdbuDark;
        case Colormap::gray:
            return kGray;
        case Colormap::viridis:
            break;
    }
    return kViridis;
}

std::string_view colormap_name(Colormap map) {
    return kNames[to_index(map)];
}

std::optional<Colormap> colormap_from_name(std::string_view name) {
    const auto it = std::find(kNames.begin(), kNames.end(), name);
    if (it == kNames.end()) return std::nullopt;
    return static_cast<Colormap>(it - kNames.begin());
}

ScaleTerms scale_terms(const ColorScale& scale) {
    ScaleTerms terms;
    terms.logarithmic = scale.logarithmic;
    terms.diverging = scale.diverging;
    terms.gamma = scale.gamma > 0 ? scale.gamma : 1.0f;
    // Limit the ends to a quarter of the largest float, so that neither their difference nor its results
    // are infinite.
    constexpr float kMost = std::numeric_limits<float>::max() / 4, kLeast = std::numeric_limits<float>::min();
    const auto finite = [=](float end) { return std::isnan(end) ? 0.0f : std::clamp(end, -kMost, kMost); };
    float low = scale.diverging && !scale.logarithmic ? 0.0f : finite(scale.low);
    float high = finite(scale.high);
    if (scale.logarithmic) {
        if (!(low >= kLeast)) low = std::max(high > 0 ? high * 1e-6f : 1e-6f, kLeast);
        if (!(high > low)) high = low * 2;
        low = std::log2(low);
        high = std::log2(high);
    }
    if (const float span = std::max(kLeast, std::abs(low) * 1e-6f); !(high - low >= span))
        high = low + (scale.logarithmic ? 1e-4f : std::max(1e-6f, std::abs(low) * 1e-6f));
    terms.offset = low;
    terms.factor = 1.0f / (high - low);
    return terms;
}

int clip_of(const ScaleTerms& terms, float value) {
    const float a = terms.diverging ? std::abs(value) : value;
    if (terms.logarithmic && !(a > 0)) return terms.diverging ? 0 : -1;
    const float u = ((terms.logarithmic ? std::log2(a) : a) - terms.offset) * terms.factor;
    if (u > 1 + kClipSlack) return 1;
    return u < -kClipSlack && !terms.diverging ? -1 : 0;
}

int color_index(const ScaleTerms& terms, float value) {
    const float a = terms.diverging ? std::abs(value) : value;
    float u = terms.logarithmic ? (a > 0 ? std::log2(a) : terms.offset) : a;
    u = (u - terms.offset) * terms.factor;
    u = u > 0 ? std::min(u, 1.0f) : 0.0f;  // NaN gives 0
    if (terms.gamma != 1.0f) u = std::pow(u, terms.gamma);
    if (terms.diverging) {
        const float sign = value > 0 ? 1.0f : value < 0 ? -1.0f : 0.0f;
        u = 0.5f + 0.5f * sign * u;
    }
    return std::min(static_cast<int>(u * 256.0f), 255);
}

Rgb8 color_of(const ColorScale& scale, float value) {
    if (!std::isfinite(value)) return scale.marks_nan ? kNanColor : kMissingColor;
    if (scale.marks_clips)
        if (const int clip = clip_of(scale_terms(scale), value); clip != 0)
            return clip > 0 ? kAboveColor : kBelowColor;
    return colormap_table(scale.map)[to_index(color_index(scale_terms(scale), value))];
}

float value_at(const ColorScale& scale, float u) {
    const ScaleTerms terms = scale_terms(scale);
    float sign = 1;
    if (terms.diverging) {
        sign = u < 0.5f ? -1.0f : 1.0f;
        u = std::abs(u - 0.5f) * 2;
    }
    if (terms.gamma != 1.0f) u = std::pow(u, 1 / terms.gamma);
    const float a = u / terms.factor + terms.offset;
    return sign * (terms.logarithmic ? std::exp2(a) : a);
}

ColorScale attention_scale(float largest) {
    ColorScale scale;
    scale.logarithmic = true;
    if (!(largest > 0) || !std::isfinite(largest)) largest = 1;
    const float power = std::pow(10.0f, std::floor(std::log10(largest)));
    scale.high = 10 * power;
    for (float m : {1.0f, 2.0f, 5.0f})
        if (m * power >= largest * 0.999f) {
            scale.high = m * power;
            break;
        }
    scale.low = std::min(1e-4f, scale.high * 1e-3f);
    return scale;
}

}  // namespace keyhole
