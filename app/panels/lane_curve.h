/// Draws the line of a lane in its colour and dashes, point by point, so that lanes differ without colour
/// too. Window thread, within a frame.
#pragma once

#include "app/panels/panel.h"

#include <optional>
#include <vector>

namespace keyhole {

class LaneCurve {
  public:
    LaneCurve(const PanelContext& context, ImDrawList& list, int lane, float width);
    LaneCurve(ImDrawList& list, ImU32 color, float width) : list_(list), color_(color), width_(width) {}

    /// Draws from the last point to this one; the first point only begins the line. The dashes continue
    /// over points.
    void to(ImVec2 point);
    /// Ends the line: the next point begins another. A point that stood alone becomes a dot.
    void lift();
    std::optional<ImVec2> end() const { return last_; }

  private:
    ImDrawList& list_;
    ImU32 color_;
    float width_;
    std::span<const float> dash_;
    float scale_ = 1;
    std::optional<ImVec2> last_;
    bool alone_ = false;
    std::size_t piece_ = 0;  // of the dashes
    float used_ = 0;         // pixels of this piece that are drawn
};

/// Where a lane's line ends.
struct LineEnd {
    int lane = 0;
    float y = 0;
};
inline constexpr float kLineEndRoom = 16;  ///< room for labels right of a plot, in unscaled pixels
/// Writes the lanes' numbers beside the ends of their lines, one below the other where they are close. at:
/// upper end of the labels' column; height: of the plot.
void label_line_ends(const PanelContext& context, ImDrawList& list, std::vector<LineEnd> ends, ImVec2 at,
                     float height);

/// Draws a short sample of a lane's line, for legends.
void draw_lane_sample(const PanelContext& context, ImDrawList& list, int lane, ImVec2 at, float length);

}  // namespace keyhole
