/// Reductions of matrices for pictures: a hot cell must never vanish, so values reduce by maximum
/// (differences by largest magnitude) and masks to a kept fraction with an any-evicted flag. Pure functions;
/// any thread.
///
/// Cell (x, y) of level j covers cells [x << j, (x + 1) << j) by [y << j, (y + 1) << j) of level 0; a level
/// has ceil(n / 2) cells a side, so at the edge of odd sizes a cell covers fewer. NaN counts as no value: a
/// cell is NaN only when all it covers is.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace keyhole {

/// In place of a value that is NaN or infinite, since NaN means that there is none: no reduction hides it.
inline constexpr float kNotFinite = std::numeric_limits<float>::infinity();

/// NaN and infinities become kNotFinite at positions that attended(position) has values for; elsewhere NaN stays.
template <class Attended>
void mark_not_finite(std::span<float> values, Attended attended) {
    for (std::size_t p = 0; p < values.size(); ++p)
        if (!std::isfinite(values[p]) && attended(static_cast<int>(p))) values[p] = kNotFinite;
}

/// A matrix of floats, row-major, [height, width].
struct Plane {
    int width = 0;
    int height = 0;
    std::vector<float> values;

    Plane() = default;
    Plane(int w, int h, float value = 0)
        : width(w), height(h), values(static_cast<std::size_t>(w) * static_cast<std::size_t>(h), value) {}
    float& at(int x, int y) {
        return values[static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                      static_cast<std::size_t>(x)];
    }
    float at(int x, int y) const {
        return values[static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                      static_cast<std::size_t>(x)];
    }
    bool operator==(const Plane&) const = default;
};

enum class Reduction {
    max,        ///< largest value
    magnitude,  ///< value of largest magnitude, with its sign; equal magnitudes give the positive one
};

/// Of two cells one; NaN gives way.
float combine(float a, float b, Reduction reduction);
/// One level up: 2 x 2 cells become one.
Plane reduce_by_two(const Plane& plane, Reduction reduction);
/// factor x factor cells become one; the size is ceil(n / factor). factor >= 1.
Plane reduce_by(const Plane& plane, int factor, Reduction reduction);
/// Level 0 (the plane itself) up to 1 x 1.
std::vector<Plane> make_pyramid(Plane plane, Reduction reduction);
/// After rows [first_row, first_row + n_rows) of level 0 changed: recomputes what depends on them.
void update_pyramid(std::vector<Plane>& pyramid, int first_row, int n_rows, Reduction reduction);

/// A cell of a mask figure.
enum class CellState : std::uint8_t {
    kept,       ///< attended, and stored after the row
    last_seen,  ///< attended, evicted by this row
    evicted,    ///< gone before this row
    future,     ///< the token comes later
};

/// A block of mask cells. Unborn cells do not count.
struct MaskCell {
    float kept_fraction = 0;   ///< share of the block's cells that the row attended to
    bool any_evicted = false;  ///< hatch shows through
    bool any_last_seen = false;
    bool future = true;  ///< all cells are
};

/// states [height, width] row-major; the result [ceil(height / factor), ceil(width / factor)].
std::vector<MaskCell> reduce_mask(const std::vector<CellState>& states, int width, int height, int factor);

}  // namespace keyhole
