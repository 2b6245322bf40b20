#include "app/actions/script.h"
#include "app/state/lane_editor.h"
#include "app/state/undo_history.h"

#include "engine/base/error.h"

#include <gtest/gtest.h>

namespace keyhole::test_lane_editor {
namespace {

TEST(LaneEditor, SendsWhatChangesAndUndoes) {
    std::vector<std::string> sent;
    LaneEditor lane_editor([&](Command command) { sent.push_back(format_command(command)); });
    lane_editor.reset({parse_lane_spec("full"), parse_lane_spec("h2o:budget=64")}, true);
    lane_editor.set(1, parse_lane_spec("h2o:budget=64"));
    EXPECT_TRUE(sent.empty());  // nothing changed
    lane_editor.set(1, parse_lane_spec("h2o:budget=32"));
    lane_editor.add(parse_lane_spec("tova:budget=8"));
    lane_editor.set_follow(false);
    EXPECT_EQ(sent, (std::vector<std::string>{"lane 1 h2o:budget=32", "add tova:budget=8", "follow off"}));
    EXPECT_EQ(lane_editor.next_undo(), "adding lane 2, tova");
    EXPECT_TRUE(lane_editor.undo());
    EXPECT_EQ(sent.back(), "remove 2");
    EXPECT_EQ(lane_editor.next_undo(), "lane 1, budget=64 → budget=32");
    EXPECT_TRUE(lane_editor.undo());
    EXPECT_EQ(lane_editor.lanes()[1], parse_lane_spec("h2o:budget=64"));
    EXPECT_FALSE(lane_editor.undo());
    EXPECT_TRUE(lane_editor.redo());
    EXPECT_EQ(sent.back(), "lane 1 h2o:budget=32");
    EXPECT_TRUE(lane_editor.redo());
    EXPECT_EQ(sent.back(), "restore 2 tova:budget=8");
    EXPECT_FALSE(lane_editor.redo());
    lane_editor.remove(0);
    EXPECT_EQ(lane_editor.n_lanes(), 3);  // the reference stays
    lane_editor.remove(1);
    EXPECT_EQ(lane_editor.n_lanes(), 2);
    EXPECT_THROW(lane_editor.run(SetLane{5, parse_lane_spec("full")}), Error);
}

TEST(LaneEditor, ARemovedLaneComesBackToItsPlace) {
    std::vector<std::string> sent;
    LaneEditor lane_editor([&](Command command) { sent.push_back(format_command(command)); });
    const auto spec = [](const char* text) { return parse_lane_spec(text); };
    lane_editor.reset({spec("full"), spec("h2o:budget=64"), spec("tova:budget=32")}, true);
    lane_editor.set(1, spec("h2o:budget=60"));
    lane_editor.set(2, spec("window:budget=30"));
    EXPECT_EQ(lane_editor.next_undo(), "lane 2, tova → window");
    lane_editor.remove(1);
    EXPECT_TRUE(lane_editor.undo());
    EXPECT_EQ(sent.back(), "restore 1 h2o:budget=60");
    EXPECT_EQ(lane_editor.lanes(),
              (std::vector{spec("full"), spec("h2o:budget=60"), spec("window:budget=30")}));
    EXPECT_TRUE(lane_editor.undo());
    EXPECT_TRUE(lane_editor.undo());
    EXPECT_EQ(lane_editor.lanes(),
              (std::vector{spec("full"), spec("h2o:budget=64"), spec("tova:budget=32")}));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(lane_editor.redo());
    EXPECT_EQ(lane_editor.lanes(), (std::vector{spec("full"), spec("window:budget=30")}));
    EXPECT_FALSE(lane_editor.redo());
}

TEST(LaneEditor, AnUndoneForkComesBack) {
    std::vector<std::string> sent;
    LaneEditor lane_editor([&](Command command) { sent.push_back(format_command(command)); });
    lane_editor.reset({parse_lane_spec("full")}, true);
    lane_editor.run(parse_command("fork 0 tova:budget=16"));
    EXPECT_TRUE(lane_editor.undo());
    EXPECT_EQ(sent.back(), "remove 1");
    EXPECT_TRUE(lane_editor.redo());
    EXPECT_EQ(sent.back(), "restore 1 tova:budget=16");
    EXPECT_THROW(lane_editor.run(parse_command("restore 0 tova")), Error);
    EXPECT_THROW(lane_editor.run(parse_command("restore 3 tova")), Error);
}

TEST(LaneEditor, AdoptsTheLanesOfTheEnginesLog) {
    LaneEditor lane_editor([](Command) {});
    RunSpec run;
    run.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=64")};
    run.follow = true;
    run.commands = {{10, SetLane{1, parse_lane_spec("h2o:budget=16")}},
                    {11, AddLane{parse_lane_spec("tova:budget=9")}},
                    {12, RemoveLane{1}},
                    {13, SetFollow{false}}};
    lane_editor.reset(run.lanes, true);
    lane_editor.set(1, parse_lane_spec("window:budget=5"));
    EXPECT_TRUE(lane_editor.adopt(run));
    ASSERT_EQ(lane_editor.n_lanes(), 2);
    EXPECT_EQ(lane_editor.lanes()[1], parse_lane_spec("tova:budget=9"));
    EXPECT_FALSE(lane_editor.follow());
    EXPECT_FALSE(lane_editor.undo()) << "the change belonged to another lane";
    // What the engine took over as it was asked to stays undoable.
    lane_editor.set(1, parse_lane_spec("window:budget=5"));
    run.commands.push_back({14, SetLane{1, parse_lane_spec("window:budget=5")}});
    EXPECT_FALSE(lane_editor.adopt(run));
    // A change that the engine refused is gone; the one before it can be undone.
    lane_editor.remove(1);
    EXPECT_TRUE(lane_editor.adopt(run));
    EXPECT_EQ(lane_editor.n_lanes(), 2);
    EXPECT_EQ(lane_editor.next_undo(), "lane 1, tova → window");
    EXPECT_TRUE(lane_editor.undo());
}

TEST(LaneEditor, ForksJoinAndARewindForgetsUndo) {
    std::vector<std::string> sent;
    LaneEditor lane_editor([&](Command command) { sent.push_back(format_command(command)); });
    lane_editor.reset({parse_lane_spec("full"), parse_lane_spec("h2o:budget=64")}, true);
    lane_editor.run(parse_command("fork 1"));
    lane_editor.run(parse_command("fork 1 tova:budget=16"));
    ASSERT_EQ(lane_editor.n_lanes(), 4);
    EXPECT_EQ(lane_editor.lanes()[2], lane_editor.lanes()[1]);
    EXPECT_EQ(lane_editor.lanes()[3], parse_lane_spec("tova:budget=16"));
    EXPECT_THROW(lane_editor.run(parse_command("fork 9")), Error);
    EXPECT_THROW(lane_editor.run(parse_command("evict 9 3")), Error);
    lane_editor.run(parse_command("pin 3 5 L1"));
    EXPECT_EQ(sent.back(), "pin 3 5 L1");
    lane_editor.set(1, parse_lane_spec("h2o:budget=32"));
    lane_editor.run(Rewind{12});
    EXPECT_FALSE(lane_editor.undo());
}

TEST(Script, FaultsNameTheLine) {
    AppState app({}, {});
    Script script =
        Script::from_text("s.txt", "# comment\n\nmode.mask\n  mode.score  \nrange.set 5 1\nquit\n");
    script.advance(app);
    EXPECT_EQ(app.view.mode, HeatMode::mask);
    script.advance(app);
    EXPECT_EQ(app.view.mode, HeatMode::score);
    try {
        script.advance(app);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        const std::string text = error.what();
        EXPECT_NE(text.find("line 5"), std::string::npos) << text;
        EXPECT_NE(text.find("range.set 5 1"), std::string::npos) << text;
    }
    EXPECT_FALSE(script.done());
}

TEST(Script, WaitsBlockAndBadWaitsFail) {
    AppState app({}, {});
    Script script = Script::from_text("s.txt", "wait steps 3\nquit");
    script.advance(app);
    script.advance(app);
    EXPECT_FALSE(script.done());
    EXPECT_FALSE(app.requests.quit);
    EXPECT_THROW(Script::from_text("s.txt", "wait for me"), Error) << "read whole before it runs";
    EXPECT_THROW(Script::from_file("/nowhere/script.txt"), Error);
}

/// A view that the window has made equal to the one before is no step of undo.
TEST(UndoHistory, SkipsWhatDiffersNoMore) {
    LaneEditor lanes([](const Command&) {});
    lanes.reset({parse_lane_spec("full"), parse_lane_spec("h2o:budget=64")}, false);
    ViewState view;
    UndoHistory history;
    history.remember(view, lanes);
    lanes.set(1, parse_lane_spec("h2o:budget=32"));
    history.remember(view, lanes);
    view.layer = 3;
    history.remember(view, lanes);
    const ViewState moved = view;
    view.layer = 0;
    history.adopt(moved, view);
    EXPECT_EQ(history.undo(view, lanes), "lane 1, budget=64 → budget=32");
    EXPECT_EQ(lanes.lanes()[1], parse_lane_spec("h2o:budget=64"));
    EXPECT_EQ(history.undo(view, lanes), "");
    EXPECT_EQ(history.next_undo(lanes), "");
    EXPECT_EQ(history.redo(view, lanes), "lane 1, budget=64 → budget=32");
    EXPECT_EQ(lanes.lanes()[1], parse_lane_spec("h2o:budget=32"));
}

/// What the engine refuses cannot be undone; what it took before can.
TEST(UndoHistory, KeepsWhatWasTakenWhenALaterChangeIsRefused) {
    LaneEditor lanes([](const Command&) {});
    RunSpec run;
    run.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=64")};
    lanes.reset(run.lanes, false);
    ViewState view;
    UndoHistory history;
    history.remember(view, lanes);
    for (const char* spec : {"h2o:budget=32", "tova:budget=32"}) {
        lanes.set(1, parse_lane_spec(spec));
        run.commands.push_back({9, SetLane{1, parse_lane_spec(spec)}});
        history.remember(view, lanes);
    }
    view.layer = 3;
    history.remember(view, lanes);
    lanes.remove(1);
    history.remember(view, lanes);
    EXPECT_TRUE(lanes.adopt(run));
    history.remember(view, lanes);
    EXPECT_NE(history.undo(view, lanes), "");
    EXPECT_EQ(view.layer, 0);
    EXPECT_EQ(history.undo(view, lanes), "lane 1, h2o → tova");
    EXPECT_EQ(lanes.lanes()[1], parse_lane_spec("h2o:budget=32"));
    EXPECT_EQ(history.undo(view, lanes), "lane 1, budget=64 → budget=32");
    EXPECT_EQ(history.undo(view, lanes), "");
    lanes.set(1, parse_lane_spec("window:budget=5"));
    history.remember(view, lanes);
    lanes.run(Rewind{9});
    history.remember(view, lanes);
    EXPECT_EQ(history.undo(view, lanes), "") << "the run went back";
}

TEST(LaneEditor, AnOverrideOfManyPlacesIsOneOption) {
    LaneEditor lanes([](const Command&) {});
    lanes.reset({parse_lane_spec("full"), parse_lane_spec("h2o:budget=64")}, false);
    lanes.set(1, parse_lane_spec("h2o:budget=64,budget@L5.G2,L7.G0-1=all"));
    EXPECT_EQ(lanes.next_undo(), "lane 1, default → budget@L5.G2,L7.G0-1=all");
}

/// The run puts positions in place of protect=system: that is the change that was asked for.
TEST(LaneEditor, WhatTheRunResolvesWasNotRefused) {
    std::vector<std::string> sent;
    LaneEditor lanes([&](const Command& command) { sent.push_back(format_command(command)); });
    RunSpec run;
    run.lanes = {parse_lane_spec("full"), parse_lane_spec("key:budget=20,protect=0..4")};
    lanes.reset({parse_lane_spec("full"), parse_lane_spec("key:budget=20,protect=system")}, false);
    EXPECT_FALSE(lanes.adopt(run));
    lanes.set(1, parse_lane_spec("key:budget=18,protect=system"));
    lanes.set(1, parse_lane_spec("key:budget=16"));
    run.commands = {{9, SetLane{1, parse_lane_spec("key:budget=18,protect=0..4")}},
                    {9, SetLane{1, parse_lane_spec("key:budget=16")}}};
    EXPECT_FALSE(lanes.adopt(run));
    EXPECT_EQ(sent, (std::vector<std::string>{"lane 1 key:budget=18,protect=system", "lane 1 key:budget=16"}))
        << "nothing but what the user changed";
    EXPECT_TRUE(lanes.undo());
    EXPECT_EQ(lanes.lanes()[1], parse_lane_spec("key:budget=18,protect=system")) << "as it was asked for";
    EXPECT_TRUE(lanes.undo());
    EXPECT_EQ(lanes.lanes()[1], parse_lane_spec("key:budget=20,protect=system"));
}

}  // namespace
}  // namespace keyhole::test_lane_editor
