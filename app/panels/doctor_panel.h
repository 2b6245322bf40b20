/// The eviction doctor's findings on the focused lane, and what K and V would take under other schemes of sharing. Window thread.
#pragma once

#include "app/panels/panel.h"
#include "app/window/memory_plan.h"

namespace keyhole {

struct DoctorPanel {
    MemoryWish wish;
};

void draw(DoctorPanel& panel, const PanelContext& context);

}  // namespace keyhole
