#include "engine/figure/shifted_canvas.h"

namespace keyhole {

void ShiftedCanvas::path(const std::vector<Run>& runs, const Stroke& stroke) {
    std::vector<Run> shifted = runs;
    for (Run& run : shifted)
        for (auto& [x, y] : run) {
            x += x_;
            y += y_;
        }
    whole_.path(shifted, stroke);
}

}  // namespace keyhole
