#include "app/panels/tried_settings.h"

#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"

#include <utility>

namespace keyhole {

void try_settings(TriedSettings& tried, const PanelContext& context, int lane, const LaneSpec& wanted) {
    const AppState& app = context.app;
    constexpr double kLong = 0.4;  // seconds
    const LaneSpec& known = tried.spec ? *tried.spec : app.run.lane_editor.lanes()[to_index(lane)];
    const bool waits =
        !app.run.has_taken_requests() || (app.run.status.answering && ImGui::GetTime() - tried.at < kLong);
    if (wanted == known || waits || !app.run.live() || app.run.stoppable() ||
        !validate(wanted.policy).empty())
        return;
    run(context, fmt::format("lane.try {} {}", lane, format_lane_spec(wanted)));
    tried = {wanted, ImGui::GetTime()};
}

void end_trying(TriedSettings& tried, const PanelContext& context, int lane) {
    if (std::exchange(tried.spec, std::nullopt)) run(context, fmt::format("lane.try {}", lane));
}

}  // namespace keyhole
