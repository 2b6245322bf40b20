#include "engine/figure/reduce.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

int ceil_div(int n, int d) {
    return (n + d - 1) / d;
}

/// Returns the larger value; a NaN yields to the other value.
float larger(float a, float b) {
    return b > a || std::isnan(a) ? b : a;
}

/// reduce_row() for maxima of 2 x 2 cells: the window computes millions of them.
void halve_row(const Plane& in, Plane& out, int y) {
    const std::size_t width = to_index(in.width);
    const float* a = in.values.data() + to_index(2 * y) * width;
    const float* b = 2 * y + 1 < in.height ? a + width : a;
    float* to = out.values.data() + to_index(y) * to_index(out.width);
    const int pairs = in.width / 2;
    for (int x = 0; x < pairs; ++x)
        to[x] = larger(larger(a[2 * x], a[2 * x + 1]), larger(b[2 * x], b[2 * x + 1]));
    if (in.width % 2 != 0) to[pairs] = larger(a[2 * pairs], b[2 * pairs]);
}

/// Computes row y of `out` from its rows of `in`.
void reduce_row(const Plane& in, Plane& out, int y, int factor, Reduction reduction) {
    if (factor == 2 && reduction == Reduction::max) return halve_row(in, out, y);
    for (int x = 0; x < out.width; ++x) {
        float value = std::numeric_limits<float>::quiet_NaN();
        for (int v = y * factor; v < std::min((y + 1) * factor, in.height); ++v)
            for (int u = x * factor; u < std::min((x + 1) * factor, in.width); ++u)
                value = combine(value, in.at(u, v), reduction);
        out.at(x, y) = value;
    }
}

}  // namespace

float combine(float a, float b, Reduction reduction) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (reduction == Reduction::max) return std::max(a, b);
    if (a == kNotRecorded) return b;
    if (b == kNotRecorded) return a;
    const float x = std::abs(a), y = std::abs(b);
    return x != y ? (x > y ? a : b) : std::max(a, b);
}

Plane reduce_by(const Plane& plane, int factor, Reduction reduction) {
    KH_ASSERT(factor >= 1, "factor {}", factor);
    if (factor == 1) return plane;
    Plane out(ceil_div(plane.width, factor), ceil_div(plane.height, factor));
    for (int y = 0; y < out.height; ++y) reduce_row(plane, out, y, factor, reduction);
    return out;
}

Plane reduce_by_two(const Plane& plane, Reduction reduction) {
    return reduce_by(plane, 2, reduction);
}

std::vector<Plane> make_pyramid(Plane plane, Reduction reduction) {
    std::vector<Plane> levels;
    levels.push_back(std::move(plane));
    while (levels.back().width > 1 || levels.back().height > 1)
        levels.push_back(reduce_by_two(levels.back(), reduction));
    return levels;
}

void update_pyramid(std::vector<Plane>& pyramid, int first_row, int n_rows, Reduction reduction) {
    int begin = first_row, end = first_row + n_rows;
    for (std::size_t j = 1; j < pyramid.size(); ++j) {
        begin /= 2;
        end = ceil_div(end, 2);
        for (int y = begin; y < std::min(end, pyramid[j].height); ++y)
            reduce_row(pyramid[j - 1], pyramid[j], y, 2, reduction);
    }
}

std::vector<MaskCell> reduce_mask(const std::vector<CellState>& states, int width, int height, int factor) {
    KH_ASSERT(factor >= 1, "factor {}", factor);
    const int out_width = ceil_div(width, factor), out_height = ceil_div(height, factor);
    std::vector<MaskCell> out(to_index(out_width) * to_index(out_height));
    std::vector<int> n_existing(out.size()), n_kept(out.size());
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            const CellState state = states[to_index(y) * to_index(width) + to_index(x)];
            const std::size_t i = to_index(y / factor) * to_index(out_width) + to_index(x / factor);
            if (state == CellState::future) continue;
            out[i].future = false;
            ++n_existing[i];
            if (state != CellState::evicted && state != CellState::hidden) ++n_kept[i];
            out[i].any_hidden = out[i].any_hidden || state == CellState::hidden;
            out[i].any_evicted = out[i].any_evicted || state == CellState::evicted;
            out[i].any_last_seen = out[i].any_last_seen || state == CellState::last_seen;
        }
    }
    for (std::size_t i = 0; i < out.size(); ++i)
        if (n_existing[i])
            out[i].kept_fraction = static_cast<float>(n_kept[i]) / static_cast<float>(n_existing[i]);
    return out;
}

}  // namespace keyhole
