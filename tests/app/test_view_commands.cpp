// Actions that change what is shown, on a run without a model.
#include "app/actions/action_table.h"
#include "app/state/app_state.h"
#include "engine/base/error.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

namespace keyhole::test_view_commands {
namespace {

TEST(ViewCommands, WhyNeedsAPick) {
    AppState app({}, {});
    app.show_run(opened_run(testing::synthetic_run({.budgets = {0, 16}}), ""));
    app.refresh();
    app.run.opened_file = "synthetic";
    EXPECT_THROW(run_action(app, "why"), Error);
    run_action(app, "pick 50 12");
    run_action(app, "why");
    EXPECT_EQ(app.dialog, Dialog::why);
    run_action(app, "why");
    EXPECT_EQ(app.dialog, Dialog::none);
    EXPECT_THROW(run_action(app, "why.kept"), Error);  // a trace has no model
    run_action(app, "doctor");
    EXPECT_EQ(app.dialog, Dialog::doctor);
    run_action(app, "bookmarks");
    EXPECT_EQ(app.dialog, Dialog::notes);
}

TEST(ViewCommands, ChooseCurves) {
    AppState app({}, {});
    run_action(app, "curves jaccard");
    EXPECT_EQ(app.view.measure_curve, curve_index("jaccard"));
    run_action(app, "curves scores");
    EXPECT_EQ(app.view.measure_curve, -1);
    run_action(app, "curves");
    EXPECT_EQ(app.view.measure_curve, 0);
    run_action(app, "atlas.color retained_mass");
    EXPECT_EQ(app.view.atlas_measure, curve_index("retained_mass"));
    EXPECT_THROW(run_action(app, "atlas.color kl"), Error) << "a number of the lane, not of a head";
}

TEST(ViewCommands, WatchPicksPositionsAndWords) {
    AppState app({}, {});
    EXPECT_THROW(run_action(app, "watch 1 2"), Error);  // no run
    app.show_run(opened_run(testing::synthetic_run({.budgets = {0, 16}}), "synthetic"));
    app.refresh();
    EXPECT_THROW(run_action(app, "watch"), Error);  // nothing picked
    run_action(app, "pick 50 12");
    run_action(app, "pick 50 15");
    run_action(app, "watch");
    EXPECT_EQ(app.view.watched, (TokenSpan{12, 15}));
    EXPECT_EQ(app.view.measure_curve, ViewState::kWatchedSpan);
    run_action(app, "watch gate code");
    EXPECT_EQ(app.view.watched, (TokenSpan{2, 3}));
    run_action(app, "watch 4 9");
    EXPECT_EQ(app.view.watched, (TokenSpan{4, 9}));
    for (const char* text : {"watch 9 4", "watch 4 900", "watch castle"})
        EXPECT_THROW(run_action(app, text), Error);
    run_action(app, "atlas.color watched");
    EXPECT_EQ(app.view.atlas_measure, ViewState::kWatchedSpan);
    run_action(app, "watch.clear");
    EXPECT_FALSE(app.view.watched);
    EXPECT_EQ(app.view.measure_curve, -1);
    EXPECT_EQ(app.view.atlas_measure, -1);
    // An opened trace cannot be steered.
    for (const char* text : {"candidate 1", "force 3", "say hello", "token.edit 50 hello"})
        EXPECT_THROW(run_action(app, text), Error) << text;
}

}  // namespace
}  // namespace keyhole::test_view_commands
