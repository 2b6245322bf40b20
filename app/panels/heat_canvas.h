/// What all drawings of a head's cells share: the place of the cells on the screen, the quad that the painter
/// draws, marks on it, and the words on a cell. Window thread, within a frame.
#pragma once

#include "app/panels/heat_pane.h"

#include <string>

namespace keyhole {

struct HeatCanvas {
    ImVec2 min, size;
    ImVec2 max() const { return {min.x + size.x, min.y + size.y}; }
    ImVec2 at(const HeatView& view, double position, double row) const {
        const CanvasPoint p = view.pixel_of({position, row});
        return {min.x + static_cast<float>(p.x), min.y + static_cast<float>(p.y)};
    }
};

/// Returns what the painter draws, and keeps it for dump-cells if it is the focused lane.
HeatQuad heat_quad(const PanelContext& context, const HeatPane& pane, const HeatView& heat,
                   const HeatCanvas& canvas);
/// Draws the guides of a cell: thin lines to both axes, and a frame around the cell.
void draw_guides(const HeatView& view, const HeatCanvas& canvas, Pick cell, ImU32 color);
/// Marks the watched words below the map, where their columns end.
void draw_watched(const PanelContext& context, const HeatView& view, const HeatCanvas& canvas);
/// Returns the room that the learned sink's column takes on the left of the canvas; 0: the map has none.
float sink_column_width(const PanelContext& context, const HeatPane& pane);
/// Draws that column: in each row what the sink took, which belongs to no token.
void draw_sink_column(const PanelContext& context, const HeatPane& pane, const HeatView& view,
                      const HeatCanvas& canvas, const ColorScale& scale);
/// Returns what is known of a cell of the focused head. lane: into history.lanes().
std::string cell_caption(const AppState& app, int lane, Pick cell);

}  // namespace keyhole
