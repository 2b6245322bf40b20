#include "app/view/view_state.h"

#include "engine/base/index.h"
#include "engine/figure/heatmap.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

std::string_view arrangement_name(Arrangement arrangement) {
    switch (arrangement) {
        case Arrangement::explore:
            return "explore";
        case Arrangement::compare:
            return "compare";
        case Arrangement::teach:
            return "teach";
        case Arrangement::story:
            return "story";
    }
    return "";
}

std::string_view text_color_name(TextColor color) {
    constexpr std::array<std::string_view, 3> kNames = {"share", "score", "age"};
    return kNames[to_index(color)];
}

void ViewState::move_row(int by, int first_row, int last_row) {
    row = std::clamp(row + by, first_row, std::max(first_row, last_row));
    follows_newest = row >= last_row;
}

void ViewState::move_layer(int by, int n_layers) {
    layer = std::clamp(layer + by, 0, std::max(n_layers - 1, 0));
}

void ViewState::move_head(int by, int n_heads) {
    head = std::clamp(head + by, 0, std::max(n_heads - 1, 0));
}

void ViewState::move_pick(int by_row, int by_position, int last_row) {
    if (!pick) return;
    pick_cell({std::clamp(pick->row + by_row, 0, last_row),
               std::clamp(pick->position + by_position, 0, std::clamp(pick->row + by_row, 0, last_row))},
              false);
}

void ViewState::pick_cell(Pick cell, bool adds) {
    pick = cell;
    if (!adds) curve_positions.clear();
    if (has_picked(cell.position)) return;
    if (curve_positions.size() >= kMaxCurves) curve_positions.erase(curve_positions.begin());
    curve_positions.push_back(cell.position);
}

bool ViewState::has_picked(int position) const {
    return std::find(curve_positions.begin(), curve_positions.end(), position) != curve_positions.end();
}

void ViewState::fit_to(int n_lanes, int n_layers, int n_heads, int first_row, int last_row) {
    lane = std::clamp(lane, 0, std::max(n_lanes - 1, 0));
    other = std::clamp(other, 0, std::max(n_lanes - 1, 0));
    layer = std::clamp(layer, 0, std::max(n_layers - 1, 0));
    head = std::clamp(head, 0, std::max(n_heads - 1, 0));
    if (follows_newest) row = last_row;
    row = std::clamp(row, first_row, std::max(first_row, last_row));
    if (pick && (pick->row > last_row || pick->position > pick->row)) pick.reset();
    if (watched && watched->last > last_row) watched.reset();
    std::erase_if(curve_positions, [&](int p) { return p > last_row; });
}

ColorScale color_scale(const ViewState& view, float largest) {
    const RangeChoice& range = view.range();
    ColorScale scale;
    scale.marks_clips = view.marks_clips;
    scale.marks_nan = view.marks_nan;
    scale.map = view.colors;
    scale.gamma = range.gamma;
    if (!(largest > 0)) largest = 1;
    if (!range.automatic) {
        scale.low = range.low;
        scale.high = range.high;
    } else if (view.mode == HeatMode::score) {
        scale.high = largest;
        scale.low = largest * 1e-4f;
    } else {
        const ColorScale automatic = attention_scale(largest);
        scale.low = automatic.low;
        scale.high = automatic.high;
    }
    scale.logarithmic = range.logarithmic;
    if (!range.logarithmic && range.automatic) scale.low = 0;
    return scale;
}

ColorScale difference_scale(const ViewState& view, float largest, Background background) {
    const RangeChoice& range = view.range();
    ColorScale scale;
    scale.marks_clips = view.marks_clips;
    scale.marks_nan = view.marks_nan;
    scale.map = difference_map(background);
    scale.diverging = true;
    if (view.mode == HeatMode::mask) {  // 1, 0, -1: avoids the dark ends, which the hatch would hide
        scale.high = 1.5f;
        scale.marks_clips = false;
        return scale;
    }
    scale.gamma = range.gamma;
    scale.high = !range.automatic ? range.high : largest > 0 ? largest : 1;
    scale.logarithmic = range.logarithmic;
    if (range.logarithmic) scale.low = range.automatic ? scale.high * 1e-3f : range.low;
    return scale;
}

}  // namespace keyhole
