#include "app/actions/action_areas.h"
#include "app/actions/menus.h"
#include "app/actions/script_step.h"
#include "app/panels/panel.h"

#include "engine/base/error.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace keyhole::test_action_table {
namespace {

TEST(CommandTable, NoTwoShortcutsClash) {
    std::map<std::pair<int, int>, std::string> taken;
    for (const UserAction& command : action_table()) {
        if (command.shortcut.code == 0) continue;
        const auto [at, fresh] =
            taken.emplace(std::pair(command.shortcut.code, command.shortcut.mods), command.id);
        EXPECT_TRUE(fresh) << shortcut_text(command.shortcut) << " is both " << at->second << " and "
                           << command.id;
    }
    EXPECT_GT(taken.size(), 30u);
}

TEST(CommandTable, IdsAreUniqueAndTitled) {
    std::set<std::string_view> ids;
    for (const UserAction& command : action_table()) {
        EXPECT_TRUE(ids.insert(command.id).second) << command.id;
        EXPECT_FALSE(command.title.empty()) << command.id;
        EXPECT_NE(command.action, nullptr) << command.id;
        EXPECT_EQ(find_action(command.id), &command);
        if (command.shortcut.code != 0) {
            EXPECT_EQ(find_action(command.shortcut), &command);
            EXPECT_FALSE(shortcut_text(command.shortcut).empty());
        }
    }
}

/// A tooltip explains what a click does; the arguments are for scripts.
TEST(CommandTable, TooltipsLeaveArgumentsOut) {
    const auto words = [](const char* id) { return help_without_arguments(*find_action(id)); };
    EXPECT_EQ(words("follow"), "All lanes read lane 0's tokens; off: each reads its own.");
    EXPECT_EQ(words("rewind").substr(0, 22), "Goes back to this step");
    EXPECT_EQ(words("papers.make").substr(0, 4), "Runs");
    EXPECT_EQ(words("run.play"), "Decodes until the answer ends.");
    for (const UserAction& action : action_table()) {
        const std::string shown = help_without_arguments(action);
        EXPECT_FALSE(shown.starts_with("[")) << action.id << ": " << shown;
    }
}

TEST(MenuBar, ListsActionsOfTheTableOnceEach) {
    std::vector<std::string_view> titles;
    std::set<std::string_view> listed;
    for (const Menu& menu : menu_bar()) {
        titles.push_back(menu.title);
        for (const MenuGroup& group : menu.groups) {
            EXPECT_FALSE(group.items.empty()) << menu.title;
            EXPECT_LE(group.items.size(), 10u) << menu.title << ", " << group.title;
            for (const MenuItem& item : group.items) {
                EXPECT_NE(find_action(item.id()), nullptr) << item.action;
                EXPECT_TRUE(listed.insert(item.action).second) << item.action << " stands twice";
                EXPECT_EQ(menu_of(item.id()), menu.title);
            }
        }
    }
    EXPECT_EQ(titles, (std::vector<std::string_view>{"File", "Edit", "View", "Run", "Lanes", "Token",
                                                     "Lessons", "Help"}));
    EXPECT_EQ(menu_of("dump-cells"), "");
}

// An action whose help begins with [on|off] is a switch, so its menu item has a tick that follows it.
TEST(MenuBar, TicksFollowEverySwitch) {
    AppState app({}, {});
    app.run.lane_editor.reset({parse_lane_spec("full"), parse_lane_spec("h2o:budget=8")}, false);
    int n_switches = 0;
    for (const UserAction& action : action_table()) {
        if (!action.help.starts_with("[on|off]") || action.id == "compare.watched") continue;
        ++n_switches;
        const std::string id(action.id);
        for (const bool on : {true, false, true}) {
            run_action(app, id + (on ? " on" : " off"));
            EXPECT_EQ(action_state(app, {action.id}).ticked, on) << id;
        }
    }
    EXPECT_GE(n_switches, 8);
    for (const auto& [chosen, other] : {std::pair("mode.mask", "mode.score"),
                                        {"view.teach", "view.explore"},
                                        {"colors gray", "colors viridis"},
                                        {"text.color age", "text.color share"},
                                        {"run.speed3", "run.speed0"}}) {
        run_action(app, chosen);
        EXPECT_TRUE(action_state(app, {chosen}).ticked) << chosen;
        EXPECT_FALSE(action_state(app, {other}).ticked) << other;
    }
}

TEST(CommandTable, RunsTheIdsOfEarlierScripts) {
    AppState app({}, {});
    for (const auto& [former, present] : {std::pair("row", "time.show"),
                                          {"strip.color", "text.color"},
                                          {"compare.parting", "compare.first-difference"},
                                          {"why.back", "why.kept"}}) {
        ASSERT_NE(find_action(former), nullptr) << former;
        EXPECT_EQ(find_action(former)->id, present);
    }
    run_action(app, "strip.color age");
    EXPECT_EQ(app.view.text_color, TextColor::age);
    EXPECT_EQ(app.action_log.last_ids.back(), "text.color");
    EXPECT_EQ(parse_script_step("wait rows 3").kind, ScriptStep::Kind::wait_steps);
    EXPECT_EQ(parse_script_step("wait steps 3").n, 3);
}

TEST(MenuBar, GreysWhatCannotBeDoneAndNamesWhatUndoTakesBack) {
    AppState app({}, {});
    app.run.lane_editor.reset({parse_lane_spec("full"), parse_lane_spec("h2o:budget=8")}, true);
    app.remember_changes();
    EXPECT_FALSE(action_state(app, {"undo"}).possible);
    EXPECT_FALSE(action_state(app, {"evict"}).possible);
    EXPECT_FALSE(action_state(app, {"remove"}).possible) << "lane 0 stays";
    run_action(app, "lane 1 h2o:budget=5");
    app.remember_changes();
    EXPECT_TRUE(action_state(app, {"undo"}).possible);
    EXPECT_EQ(action_state(app, {"undo"}).object, "lane 1, budget=8 → budget=5");
    run_action(app, "view.teach");
    app.remember_changes();
    EXPECT_EQ(action_state(app, {"undo"}).object, "arrangement of the panes");
    run_action(app, "undo");
    EXPECT_EQ(app.notice.text, "undone: arrangement of the panes");
    EXPECT_EQ(action_state(app, {"redo"}).object, "arrangement of the panes");
    run_action(app, "undo");
    EXPECT_EQ(app.run.lane_editor.lanes()[1], parse_lane_spec("h2o:budget=8"));
    EXPECT_FALSE(action_state(app, {"undo"}).possible);
    run_action(app, "redo");
    EXPECT_EQ(app.notice.text, "redoing: lane 1, budget=8 → budget=5") << "the engine has not done it yet";
}

TEST(CommandTable, AreasOfThePartsExplainEveryCommand) {
    for (const std::span<const UserAction> area : {steer_actions(), compare_actions(), annotation_actions()})
        for (const UserAction& command : area) EXPECT_FALSE(command.help.empty()) << command.id;
}

TEST(CommandTable, TheKeysThatTheGuidePromises) {
    const auto id_of = [](int code, int mods) {
        const UserAction* command = find_action(Shortcut{code, mods});
        return command == nullptr ? std::string_view("none") : command->id;
    };
    EXPECT_EQ(id_of(' ', 0), "run.toggle");
    EXPECT_EQ(id_of(key::kRight, 0), "run.step");
    EXPECT_EQ(id_of('[', 0), "layer.previous");
    EXPECT_EQ(id_of('.', 0), "head.next");
    EXPECT_EQ(id_of('P', key::kCtrl), "palette");
    EXPECT_EQ(id_of('/', key::kShift), "help.keys");
    EXPECT_EQ(id_of('F', 0), "time.follow");
    EXPECT_EQ(id_of('F', key::kCtrl), "find");
    EXPECT_EQ(id_of('L', 0), "range.log");
    EXPECT_EQ(id_of('7', 0), "run.speed7");
    EXPECT_EQ(id_of('J', key::kAlt), "none");
}

TEST(CommandTable, RunsByTextAndRefusesWhatDoesNotFit) {
    AppState app({}, {});
    run_action(app, "mode.mask");
    EXPECT_EQ(app.view.mode, HeatMode::mask);
    run_action(app, "ui.scale 150");
    EXPECT_FLOAT_EQ(app.view.interface_scale, 1.5f);
    run_action(app, "text.color score");
    run_action(app, "text.color score");
    EXPECT_EQ(app.view.text_color, TextColor::score);
    EXPECT_THROW(run_action(app, "text.color perhaps"), Error);
    EXPECT_THROW(run_action(app, "range.set 3 1"), Error);
    EXPECT_THROW(run_action(app, "layer.next"), Error);  // no run
    EXPECT_THROW(run_action(app, "lane 4 full"), Error);
    try {
        run_action(app, "mode.msak");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        EXPECT_NE(std::string(error.what()).find("mode.mask"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace keyhole::test_action_table
