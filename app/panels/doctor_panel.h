/// The eviction doctor's findings on the focused lane, and what K and V would take under other schemes of sharing. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/view/memory_plan.h"

namespace keyhole {

struct DoctorPanel {
    MemoryRequest request;
};

/// The line of the inspector: how many of the invariants hold over all lanes, red where one is broken. Opens the panel.
void draw_doctor_line(const PanelContext& context);
void draw(DoctorPanel& panel, const PanelContext& context);

}  // namespace keyhole
