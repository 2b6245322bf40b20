/// Reductions of matrices for pictures. A hot cell must never vanish, so values reduce by maximum
/// (differences by largest magnitude), and masks to a kept fraction with an any-evicted flag. Pure
/// functions; any thread. Of the other folders it knows base alone.
///
/// Cell (x, y) of level j covers cells [x << j, (x + 1) << j) by [y << j, (y + 1) << j) of level 0. A level
/// has ceil(n / 2) cells a side, n of the level below, so at the edge of odd sizes a cell covers fewer. NaN
/// means no value: a cell is NaN only when all the cells it covers are.
#pragma once

#include "engine/base/index.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace keyhole {

/// Stands for a value that is NaN or infinite, since NaN in a Plane means no value. No reduction hides it.
inline constexpr float kNotFinite = std::numeric_limits<float>::infinity();

/// Stands for a cell of a row that was not recorded, where NaN would mean that the token was not there. Any
/// value hides it.
inline constexpr float kNotRecorded = -std::numeric_limits<float>::infinity();

/// Sets NaN and infinities to kNotFinite at positions where attended(position) is true. Elsewhere NaN
/// stays.
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
    Plane(int w, int h, float value = 0) : width(w), height(h), values(to_index(w) * to_index(h), value) {}
    float& at(int x, int y) { return values[to_index(y) * to_index(width) + to_index(x)]; }
    float at(int x, int y) const { return values[to_index(y) * to_index(width) + to_index(x)]; }
    bool operator==(const Plane&) const = default;
};

enum class Reduction {
    max,        ///< largest value
    magnitude,  ///< value of largest magnitude, with its sign; of equal magnitudes the positive one
};

/// Reduces two cells to one; a NaN yields to the other value, and so does kNotRecorded to all but NaN.
float combine(float a, float b, Reduction reduction);
/// Reduces 2 x 2 cells to one: one level up.
Plane reduce_by_two(const Plane& plane, Reduction reduction);
/// Reduces factor x factor cells to one; the size is ceil(n / factor). factor >= 1.
Plane reduce_by(const Plane& plane, int factor, Reduction reduction);
/// Returns all levels from 0 (the plane itself) to 1 x 1.
std::vector<Plane> make_pyramid(Plane plane, Reduction reduction);
/// Recomputes the cells that depend on rows [first_row, first_row + n_rows) of level 0.
void update_pyramid(std::vector<Plane>& pyramid, int first_row, int n_rows, Reduction reduction);

/// A cell of a mask figure.
enum class CellState : std::uint8_t {
    kept,       ///< attended, and stored after the row
    last_seen,  ///< attended, evicted by this row
    evicted,    ///< evicted before this row
    hidden,     ///< stored, but not visible to the row
    future,     ///< the token comes later in the text
};

/// A block of mask cells. Future cells do not count.
struct MaskCell {
    float kept_fraction = 0;   ///< share of the block's cells that the row attended to
    bool any_evicted = false;  ///< some cell is evicted
    bool any_last_seen = false;
    bool any_hidden = false;
    bool future = true;  ///< all cells are future
};

/// Reduces states [height, width], row-major, to [ceil(height / factor), ceil(width / factor)].
std::vector<MaskCell> reduce_mask(const std::vector<CellState>& states, int width, int height, int factor);

}  // namespace keyhole
