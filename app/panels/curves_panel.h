/// Scores of the picked tokens against the row, with the eviction threshold and tau. Window thread.
#pragma once

#include "app/panels/panel.h"

namespace keyhole {

struct CurvesPanel {};

void draw(CurvesPanel& panel, const PanelContext& context);

}  // namespace keyhole
