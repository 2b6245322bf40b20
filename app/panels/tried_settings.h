/// Lets a lane's answer follow a slider while it is dragged. The lane itself gets the value on release, since
/// what a smaller budget evicts does not come back. Window thread, within a frame.
#pragma once

#include "app/panels/panel.h"

#include <optional>

namespace keyhole {

struct TriedSettings {
    std::optional<LaneSpec> spec;  ///< that the answer follows; nullopt: the lane's own
    double at = 0;                 ///< seconds of ImGui's clock
};

/// Asks for the answer that the lane gives with these settings: with the newest ones, as soon as the answer
/// with the last ones is there or takes long. Call in every frame of a drag.
void try_settings(TriedSettings& tried, const PanelContext& context, int lane, const LaneSpec& wanted);
/// Call once the drag is over.
void end_trying(TriedSettings& tried, const PanelContext& context, int lane);

}  // namespace keyhole
