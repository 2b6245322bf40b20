#include "app/actions/action_areas.h"
#include "app/actions/menus.h"
#include "app/actions/script_step.h"
#include "app/panels/panel.h"

#include "engine/base/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace keyhole::test_action_table {
namespace {

TEST(ActionTable, NoTwoShortcutsClash) {
    std::map<std::pair<int, int>, std::string> taken;
    for (const UserAction& action : action_table()) {
        if (action.shortcut.code == 0) continue;
        const auto [at, fresh] =
            taken.emplace(std::pair(action.shortcut.code, action.shortcut.mods), action.id);
        EXPECT_TRUE(fresh) << shortcut_text(action.shortcut) << " is both " << at->second << " and "
                           << action.id;
    }
    EXPECT_GT(taken.size(), 30u);
}

TEST(ActionTable, IdsAreUniqueAndTitled) {
    std::set<std::string_view> ids;
    for (const UserAction& action : action_table()) {
        EXPECT_TRUE(ids.insert(action.id).second) << action.id;
        EXPECT_FALSE(action.title.empty()) << action.id;
        EXPECT_NE(action.run, nullptr) << action.id;
        EXPECT_EQ(find_action(action.id), &action);
        if (action.shortcut.code != 0) {
            EXPECT_EQ(find_action(action.shortcut), &action);
            EXPECT_FALSE(shortcut_text(action.shortcut).empty());
        }
    }
}

/// A tooltip explains what a click does; the arguments are for scripts.
TEST(ActionTable, TooltipsLeaveArgumentsOut) {
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

/// Returns how an action stands: `id`, or `id arguments` of a choice.
ActionState state_of(const AppState& app, std::string_view text) {
    const UserAction& action = *find_action(text.substr(0, text.find(' ')));
    for (const ActionChoice& choice : action.traits.choices)
        if (const MenuItem item{&action, &choice}; item.text() == text) return action_state(app, item);
    return action_state(app, {&action, nullptr});
}

/// Returns every item of the menu bar as "menu/submenu/item".
std::vector<std::string> menu_lines() {
    std::vector<std::string> lines;
    for (const Menu& menu : menu_bar())
        for (const MenuSection& section : menu.sections)
            for (const MenuItem& item : section.items)
                lines.push_back(fmt::format("{}/{}/{}", menu.title, section.title, item.text()));
    return lines;
}

TEST(MenuBar, ListsActionsOfTheTableOnceEach) {
    std::vector<std::string_view> titles;
    std::set<std::string> listed;
    for (const Menu& menu : menu_bar()) {
        titles.push_back(menu.title);
        for (const MenuSection& section : menu.sections) {
            EXPECT_FALSE(section.items.empty()) << menu.title << ", " << section.title;
            EXPECT_LE(section.items.size(), 10u) << menu.title << ", " << section.title;
            for (const MenuItem& item : section.items) {
                EXPECT_FALSE(item.title().empty()) << item.text();
                EXPECT_TRUE(listed.insert(item.text()).second) << item.text() << " stands twice";
                EXPECT_EQ(menu_of(*item.action), menu.title);
            }
        }
    }
    EXPECT_EQ(titles, (std::vector<std::string_view>{"File", "Edit", "View", "Run", "Lanes", "Token",
                                                     "Lessons", "Help"}));
    EXPECT_EQ(menu_of(*find_action("dump-cells")), "");
}

TEST(MenuBar, KeepsTheOrderThatTheRowsGive) {
    const std::vector<std::string> lines = menu_lines();
    const std::vector<std::string> first = {"File//file.browse open", "File//file.open", "File//recent",
                                            "File//file.last",        "File//file.save", "File//file.export"};
    ASSERT_GT(lines.size(), first.size());
    EXPECT_TRUE(std::equal(first.begin(), first.end(), lines.begin()));
    const auto at = [&](const char* line) { return std::ranges::find(lines, line) - lines.begin(); };
    const auto last = std::ssize(lines) - 1;
    EXPECT_EQ(at("Help//doctor"), last);
    EXPECT_EQ(at("View/Colours of the heat map/colors cividis"),
              at("View/Colours of the heat map/colors viridis") + 1);
    EXPECT_EQ(at("Run/Speed/run.speed9"), at("Run/Speed/run.speed0") + 9);
    EXPECT_LT(at("Token/Evict/evict.all"), at("Token/Pin/pin"));
}

TEST(ActionTable, KnowsWhichActionsNeedArguments) {
    for (const char* id : {"file.browse", "attribution.take", "attribution.files", "goto", "lane"})
        EXPECT_TRUE(find_action(id) != nullptr && needs_arguments(*find_action(id))) << id;
    for (const char* id : {"attribution", "attribution.run", "screenshot", "palette", "mode.mask"})
        EXPECT_TRUE(find_action(id) != nullptr && !needs_arguments(*find_action(id))) << id;
}

// A menu, or another place that the row names, or arguments that only a script or the palette can give.
TEST(MenuBar, EveryActionStandsSomewhere) {
    for (const UserAction& action : action_table()) {
        const bool listed = !menu_of(action).empty();
        EXPECT_TRUE(listed || !action.traits.elsewhere.empty() || needs_arguments(action)) << action.id;
        EXPECT_FALSE(listed && !action.traits.elsewhere.empty()) << action.id << " is in a menu";
        EXPECT_EQ(listed, action.traits.menu.group != MenuGroup::none) << action.id;
        EXPECT_TRUE(listed || action.traits.choices.empty()) << action.id << ": its choices are nowhere";
    }
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
            EXPECT_EQ(state_of(app, action.id).ticked, on) << id;
        }
    }
    EXPECT_GE(n_switches, 8);
    for (const auto& [chosen, other] : {std::pair("mode.mask", "mode.score"),
                                        {"view.teach", "view.explore"},
                                        {"colors gray", "colors viridis"},
                                        {"text.color age", "text.color share"},
                                        {"run.speed3", "run.speed0"}}) {
        run_action(app, chosen);
        EXPECT_TRUE(state_of(app, chosen).ticked) << chosen;
        EXPECT_FALSE(state_of(app, other).ticked) << other;
    }
}

TEST(ActionTable, RunsTheIdsOfEarlierScripts) {
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
    EXPECT_FALSE(state_of(app, "undo").possible());
    EXPECT_FALSE(state_of(app, "evict").possible());
    EXPECT_FALSE(state_of(app, "remove").possible()) << "lane 0 stays";
    run_action(app, "lane 1 h2o:budget=5");
    app.remember_changes();
    EXPECT_TRUE(state_of(app, "undo").possible());
    EXPECT_EQ(state_of(app, "undo").object, "lane 1, budget=8 → budget=5");
    run_action(app, "view.teach");
    app.remember_changes();
    EXPECT_EQ(state_of(app, "undo").object, "arrangement of the panes");
    run_action(app, "undo");
    EXPECT_EQ(app.notice.text, "undone: arrangement of the panes");
    EXPECT_EQ(state_of(app, "redo").object, "arrangement of the panes");
    run_action(app, "undo");
    EXPECT_EQ(app.run.lane_editor.lanes()[1], parse_lane_spec("h2o:budget=8"));
    EXPECT_FALSE(state_of(app, "undo").possible());
    run_action(app, "redo");
    EXPECT_EQ(app.notice.text, "redoing: lane 1, budget=8 → budget=5") << "the engine has not done it yet";
}

// What an action lacks is a sentence without a full stop, such as errors use.
TEST(ActionTable, SaysWhyAnActionCannotRun) {
    const AppState app({}, {});
    int n_lacking = 0;
    for (const UserAction& action : action_table()) {
        const std::string_view lacks = action_state(app, {&action, nullptr}).lacks;
        if (lacks.empty()) continue;
        ++n_lacking;
        EXPECT_FALSE(lacks.ends_with('.')) << action.id;
        EXPECT_GT(lacks.size(), 7u) << action.id;
    }
    EXPECT_GT(n_lacking, 40);
    EXPECT_EQ(state_of(app, "evict").lacks,
              "pick a token first: a cell of a heat map, or a word of the text");
    EXPECT_EQ(state_of(app, "quit").lacks, "");
}

// Numbers, places, options of lanes and names of the program are plain; texts, words and paths are not.
TEST(ActionTable, CrashReportsGetNoTextOfTheUser) {
    for (const char* id :
         {"prompt",       "say",           "force",       "find",         "watch",        "note",
          "notes.set",    "bookmark",      "copy",        "file.open",    "file.save",    "file.export",
          "file.picture", "file.curves",   "file.atlas",  "file.answers", "file.overlap", "file.frames",
          "file.page",    "export.folder", "export.list", "screenshot",   "dump-cells",   "open",
          "model",        "model.get",     "lesson",      "lesson.save",  "lesson.set",   "lesson.add",
          "lesson.print", "token.edit",    "measure.end", "restore",      "papers.make",  "find.previous"})
        EXPECT_FALSE(find_action(id)->traits.arguments_are_plain) << id;
    for (const char* id : {"lane", "lane.set", "evict", "pick", "time.show", "run.speed", "colors"})
        EXPECT_TRUE(find_action(id)->traits.arguments_are_plain) << id;
    for (const UserAction& action : action_table()) {
        if (!action.traits.arguments_are_plain) continue;
        for (const char* word : {"TEXT", "FILE", "FOLDER", "PATH", "WORDS", "TITLE", "FIELD"})
            EXPECT_EQ(action.help.find(word), std::string_view::npos) << action.id << ": " << word;
    }
}

TEST(ActionTable, AreasOfThePartsExplainEveryAction) {
    for (const std::span<const UserAction> area : {steer_actions(), compare_actions(), annotation_actions()})
        for (const UserAction& action : area) EXPECT_FALSE(action.help.empty()) << action.id;
}

TEST(ActionTable, TheKeysThatTheGuidePromises) {
    const auto id_of = [](int code, int mods) {
        const UserAction* action = find_action(Shortcut{code, mods});
        return action == nullptr ? std::string_view("none") : action->id;
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

TEST(ActionTable, RunsByTextAndRefusesWhatDoesNotFit) {
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
