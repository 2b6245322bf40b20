/// Lays out the panels: the arrangements, and the borders between the panes.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/answers_panel.h"
#include "app/panels/atlas_panel.h"
#include "app/panels/compare_panel.h"
#include "app/panels/curves_panel.h"
#include "app/panels/details_panel.h"
#include "app/panels/dialogs.h"
#include "app/panels/heatmap_panel.h"
#include "app/panels/lanes_panel.h"
#include "app/panels/lesson_panel.h"
#include "app/panels/status_line.h"
#include "app/panels/story_panel.h"
#include "app/panels/text_panel.h"
#include "app/panels/time_bar.h"
#include "app/panels/top_bar.h"

namespace keyhole {

struct Panels {
    TopBar top;
    LanesPanel lanes;
    AtlasPanel atlas;
    HeatmapPanel heatmap;
    ComparePanel compare;
    DetailsPanel details;
    CurvesPanel curves;
    TextPanel text;
    AnswersPanel answers;
    StoryPanel story;
    TimeBar time;
    LessonPanel lesson;
    Dialogs dialogs;
};

/// Draws the whole window for one frame. Pane sizes are the user's, or fractions of the window.
void lay_out(Panels& panels, const PanelContext& context);

}  // namespace keyhole
