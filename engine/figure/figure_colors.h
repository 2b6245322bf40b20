/// The colours of pictures for files, by background. Text has a contrast of 4.5 and more to the paper, marks
/// of 3 and more. Plain values; any thread.
#pragma once

#include "engine/figure/colormap.h"

namespace keyhole {

struct FigureColors {
    Rgb8 paper;
    Rgb8 ink, soft;              ///< text: what is said, and what explains it
    Rgb8 line;                   ///< outlines and ticks of matrices
    Rgb8 axis;                   ///< axes and thresholds of curves
    Rgb8 grid;                   ///< behind curves
    Rgb8 right, wrong, differs;  ///< marks of answers, and the frame of words that differ
    CellColors cells;
};

constexpr FigureColors figure_colors(Background background) {
    if (background == Background::light)
        return {{255, 255, 255}, {32, 32, 36},  {104, 104, 112}, {150, 150, 156}, {140, 140, 148},
                {226, 226, 230}, {18, 112, 60}, {190, 30, 30},   {176, 88, 0},    cell_colors(background)};
    return {{20, 22, 27}, {230, 232, 238}, {164, 168, 180}, {98, 102, 114}, {138, 142, 154},
            {46, 49, 58}, {110, 210, 140}, {255, 128, 120}, {240, 170, 70}, cell_colors(background)};
}

}  // namespace keyhole
