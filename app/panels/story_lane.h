/// Draws a lane's part of the story: name, budget, answer, strip, map and heads, one below the other. Window
/// thread, within a frame.
#pragma once

#include "app/panels/panel.h"
#include "app/state/story.h"

#include <span>

namespace keyhole {

/// Heights of its parts in pixels; 0: it has no room.
struct StoryHeights {
    float head = 0;   ///< name, budget and answer
    float strip = 0;  ///< answers with other values of an option
    float map = 0;
    float heads = 0;  ///< the grid of heads
};

/// Returns the font size of answers: for a projector at least 1/25 of the window's height.
float answer_font_size(const PanelContext& context);
/// Returns the height of name, budget and answer, which are whole in each of these lanes. width: of a lane.
float story_head_height(const PanelContext& context, const Story& story, std::span<const int> lanes,
                        float width);
/// Returns the height that the grids of heads of all lanes need. side: of a square.
float story_heads_height(const PanelContext& context, float side);

/// Draws it at the cursor, with this width.
void draw_story_lane(const PanelContext& context, const Story& story, const StoryLane& lane, float width,
                     const StoryHeights& heights);

/// Draws the lane's map alone, at the cursor.
void draw_story_map(const PanelContext& context, const Story& story, const StoryLane& lane,
                    const ImVec2& size);

}  // namespace keyhole
