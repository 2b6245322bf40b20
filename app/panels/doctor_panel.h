/// Draws the eviction doctor's findings on the focused lane, and the memory that K and V would need under
/// other sharing schemes. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/view/memory_plan.h"

namespace keyhole {

struct DoctorPanel {
    MemoryRequest request;
};

/// Draws the doctor's line in the details: how many invariants hold over all lanes, red if one is broken.
/// A click opens the panel.
void draw_doctor_line(const PanelContext& context);
void draw(DoctorPanel& panel, const PanelContext& context);

}  // namespace keyhole
