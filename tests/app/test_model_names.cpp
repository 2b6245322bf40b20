// Every picture of a run names its model, also where the user's path ends in a slash, as shell completion has
// it.
#include "app/papers/run_parts.h"
#include "app/view/focus_picture.h"
#include "app/view/lane_answers.h"
#include "app/view/view_files.h"
#include "app/view/view_state.h"
#include "engine/export/figures.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

namespace keyhole::test_model_names {
namespace {

RunHistory run_of(const std::string& model_path) {
    RunHistory history;
    history.update(testing::synthetic_run({.n_prompt = 12, .n_decoded = 4, .model_path = model_path}));
    return history;
}

/// Returns the texts that name the model.
std::vector<std::string> texts_of(const RunHistory& history) {
    ViewState view;
    view.row = history.last_row();
    MeasureCurves measures;
    measures.update(history);
    const ShownLane lane{1, 1, "1 h2o"};
    std::vector<std::string> texts = {figure_parts::run_subtitle(history),
                                      figure_subtitle(LaneRows(history, 1, {}, {})),
                                      focus_picture(history, 1, view, color_scale(view, 1)).svg(),
                                      difference_picture(history, 0, 1, view, color_scale(view, 1)).svg(),
                                      atlas_picture(history, view, lane).svg(),
                                      answers_figure(history.run(), {}, {}, "").texts.subtitle};
    view.measure_curve = curve_index("entropy");
    texts.push_back(curve_figure(history, measures, view, {lane}).subtitle);
    return texts;
}

TEST(ModelNames, ATrailingSlashChangesNoText) {
    const std::vector<std::string> plain = texts_of(run_of("models/garden-model")),
                                   slash = texts_of(run_of("models/garden-model/"));
    for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_NE(plain[i].find("garden-model"), std::string::npos) << i << " " << plain[i].substr(0, 400);
        EXPECT_TRUE(plain[i] == slash[i]) << i;
    }
}

/// A curve is a lane's by its number among all, also where it is plotted alone.
TEST(CurvesOfLanes, AreNumberedAsInTheWindow) {
    const RunHistory history = run_of("models/garden-model");
    ViewState view;
    view.row = history.last_row();
    MeasureCurves measures;
    measures.update(history);
    view.measure_curve = curve_index("entropy");
    const CurvePlot alone = curve_figure(history, measures, view, {{1, 1, "1 h2o", 1}});
    ASSERT_EQ(alone.curves.size(), 1u);
    EXPECT_EQ(alone.curves[0].look, 1);
    view.measure_curve = ViewState::kWatchedSpan;
    view.watched = TokenSpan{0, 1};
    EXPECT_EQ(curve_figure(history, measures, view, {{1, 1, "1 h2o", 1}}).curves[0].look, 1);
}

}  // namespace
}  // namespace keyhole::test_model_names
