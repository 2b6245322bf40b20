/// The colour, in a difference of masks, of what both lanes store: the middle of the colour map would look
/// like cells that are not there yet. In files and in the window. Plain values; any thread.
#pragma once

#include "engine/figure/colormap.h"

namespace keyhole {

constexpr Rgb8 both_color(Background background) {
    return background == Background::light ? Rgb8{150, 152, 160} : Rgb8{120, 124, 136};
}

}  // namespace keyhole
