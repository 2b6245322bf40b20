/// Plots the scores of the picked tokens over the steps, with the eviction threshold and tau.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/panel.h"
#include "engine/analysis/score_curves.h"

namespace keyhole {

struct CurvesPanel {
    ScoreCurves scores;
};

void draw(CurvesPanel& panel, const PanelContext& context);

}  // namespace keyhole
