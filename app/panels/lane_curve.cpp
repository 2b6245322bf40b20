#include "app/panels/lane_curve.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

LaneCurve::LaneCurve(const PanelContext& context, ImDrawList& list, int lane, float width)
    : list_(list),
      color_(lane_ink(context, lane)),
      width_(width),
      dash_(theme::lane_dash(context.app.shown().at(lane).look)),
      scale_(context.scale) {}

void LaneCurve::to(ImVec2 point) {
    const std::optional<ImVec2> from = std::exchange(last_, point);
    alone_ = !from;
    if (!from) return;
    if (dash_.empty()) return list_.AddLine(*from, point, color_, width_);
    const float length = std::hypot(point.x - from->x, point.y - from->y);
    const auto at = [&](float distance) {
        const float part = length > 0 ? distance / length : 0;
        return ImVec2(from->x + (point.x - from->x) * part, from->y + (point.y - from->y) * part);
    };
    float done = 0;
    while (done < length) {
        const float left = std::max(dash_[piece_] * scale_ - used_, 0.1f);
        const float end = std::min(done + left, length);
        if (piece_ % 2 == 0) list_.AddLine(at(done), at(end), color_, width_);
        used_ += end - done;
        if (end < length || used_ >= dash_[piece_] * scale_) {
            piece_ = (piece_ + 1) % dash_.size();
            used_ = 0;
        }
        done = end;
    }
}

void LaneCurve::lift() {
    if (last_ && alone_) list_.AddCircleFilled(*last_, 2, color_);
    last_.reset();
    piece_ = 0;
    used_ = 0;
}

void label_line_ends(const PanelContext& context, ImDrawList& list, std::vector<LineEnd> ends, ImVec2 at,
                     float height) {
    std::stable_sort(ends.begin(), ends.end(), [](const LineEnd& a, const LineEnd& b) { return a.y < b.y; });
    const float line = ImGui::GetFontSize();
    const auto n = static_cast<float>(ends.size());
    // Labels that would run past the lower end move up together.
    float next = at.y - line;
    for (LineEnd& end : ends) next = end.y = std::max(end.y - line / 2, next + line);
    const float most = std::max(at.y + height - line, at.y + (n - 1) * line);
    for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
        const auto below = static_cast<float>(end - ends.rbegin());
        end->y = std::min(end->y, most - below * line);
        list.AddText({at.x, end->y}, lane_ink(context, end->lane), fmt::format("{}", end->lane).c_str());
    }
}

void draw_lane_sample(const PanelContext& context, ImDrawList& list, int lane, ImVec2 at, float length) {
    LaneCurve line(context, list, lane, 2);
    line.to(at);
    line.to({at.x + length, at.y});
}

}  // namespace keyhole
