#include "app/actions/action_table.h"
#include "app/base/assets.h"
#include "app/lessons/lesson_file.h"
#include "app/manual/page.h"
#include "app/state/dialog.h"
#include "app/view/panes.h"

#include "engine/base/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace keyhole::test_panes {
namespace {

TEST(Panes, HaveOneNameEachAndAHome) {
    std::set<std::string_view> names;
    for (const PaneRow& row : kPanes) {
        EXPECT_TRUE(names.insert(row.name).second) << row.name;
        EXPECT_TRUE(row.former.empty() || names.insert(row.former).second) << row.former;
        EXPECT_EQ(pane_row(row.pane), &row) << row.name;
        EXPECT_EQ(find_pane(row.name), &row);
        EXPECT_EQ(home_of(row.home), row.home) << row.name << ": its home has a place of its own";
    }
    EXPECT_EQ(kPanes.size(), static_cast<std::size_t>(Pane::lesson)) << "each pane has a row";
    EXPECT_EQ(find_pane(""), nullptr);
    EXPECT_EQ(find_pane("sky"), nullptr);
    EXPECT_EQ(pane_row(Pane::none), nullptr);
}

TEST(Panes, EachTabIsShownByItsAction) {
    AppState app({}, {});
    int n_tabs = 0;
    for (const PaneRow& row : kPanes) {
        if (!has_tab(row.pane)) {
            EXPECT_THROW(run_action(app, fmt::format("view.side {}", row.name)), Error) << row.name;
            continue;
        }
        ++n_tabs;
        run_action(app, fmt::format("view.side {}", row.name));
        EXPECT_EQ(app.view.side, row.pane) << row.name;
    }
    EXPECT_EQ(n_tabs, 6);
    for (int i = 0; i < n_tabs; ++i) run_action(app, "view.side");
    EXPECT_EQ(app.view.side, Pane::heatmap) << "once around";
    run_action(app, "view.side info");
    EXPECT_EQ(app.view.side, Pane::details);
    run_action(app, "view.side measures");
    EXPECT_EQ(app.view.side, Pane::curves);
}

/// Returns a lesson that looks at a pane, written and read again.
Lesson read_again(const std::string& at) {
    return parse_lesson(
        R"({"version": 1, "title": "A", "question": "B?", "run": {"prompt": "Once", "lanes": ["full"]},
                            "steps": [{"text": "Look.", "look": {"at": ")" +
            at + R"("}}]})",
        "lesson.json");
}

TEST(Panes, LessonsLookAtEachByItsNameOrItsFormerOne) {
    for (const PaneRow& row : kPanes) {
        const Lesson lesson = read_again(std::string(row.name));
        EXPECT_EQ(lesson.steps.front().look.pane, row.pane);
        EXPECT_NE(lesson_text(lesson).find(fmt::format("\"at\": \"{}\"", row.name)), std::string::npos);
        if (row.former.empty()) continue;
        EXPECT_EQ(read_again(std::string(row.former)).steps.front().look.pane, row.pane);
    }
    try {
        (void)read_again("sky");
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("heatmap"), std::string::npos) << error.what();
    }
}

TEST(Panes, TheManualKeyOpensWhatDescribesThePaneUnderThePointer) {
    AppState app({}, {});
    for (const PaneRow& row : kPanes) {
        app.hovered_pane = row.name;
        app.dialog = Dialog::none;
        run_action(app, "help.manual");
        EXPECT_EQ(app.dialog, Dialog::manual);
        EXPECT_EQ(format_manual_place(app.manual.place), row.manual) << row.name;
    }
}

TEST(Dialogs, EachHasARowAndAnAction) {
    std::set<std::string_view> names;
    for (const DialogRow& row : kDialogs) {
        EXPECT_TRUE(names.insert(row.name).second) << row.name;
        EXPECT_EQ(dialog_row(row.dialog), &row);
        EXPECT_FALSE(row.title.empty()) << row.name;
        EXPECT_GE(row.width, 400) << row.name;
        EXPECT_NE(find_action(row.action), nullptr) << row.name;
    }
    EXPECT_EQ(kDialogs.size(), static_cast<std::size_t>(Dialog::attribution)) << "each dialog has a row";
    EXPECT_EQ(dialog_row(Dialog::none), nullptr);
    EXPECT_FALSE(is_in_front(Dialog::none));
}

TEST(Dialogs, MakeTheActionsThatOnlyOpenThem) {
    std::set<std::string_view> made;
    for (const DialogRow& row : kDialogs) {
        if (row.opener.title.empty()) continue;
        made.insert(row.action);
        const UserAction& action = *find_action(row.action);
        EXPECT_EQ(action.title, row.opener.title) << row.name;
        EXPECT_EQ(action.help, row.opener.help) << row.name;
        EXPECT_EQ(action.shortcut, row.opener.shortcut) << row.name;
        EXPECT_EQ(action.traits.menu.group, row.opener.menu.group) << row.name;
        EXPECT_EQ(action.traits.menu.place, row.opener.menu.place) << row.name;
        EXPECT_NE(row.opener.menu.group, MenuGroup::none) << row.name << " stands in no menu";
    }
    EXPECT_EQ(made, (std::set<std::string_view>{"palette", "help.keys", "help.about", "policies", "bookmarks",
                                                "doctor", "attribution"}));
    EXPECT_EQ(find_action(Shortcut{'P', key::kCtrl})->id, "palette");
    EXPECT_EQ(find_action(Shortcut{'M', key::kShift})->id, "bookmarks");
    EXPECT_EQ(find_action("doctor")->title, "Eviction doctor and memory…");
}

TEST(Dialogs, OpenByTheirActionsAndCloseAgain) {
    AppState app({}, {});
    app.run.lane_editor.reset({parse_lane_spec("full")}, true);
    for (const DialogRow& row : kDialogs) {
        if (row.dialog == Dialog::edit_token || row.dialog == Dialog::why) continue;  // they need a pick
        app.dialog = Dialog::none;
        run_action(app, row.action);
        EXPECT_EQ(app.dialog, row.dialog) << row.name;
        run_action(app, "dialog.close");
        EXPECT_EQ(app.dialog, Dialog::none) << row.name;
    }
}

}  // namespace
}  // namespace keyhole::test_panes
