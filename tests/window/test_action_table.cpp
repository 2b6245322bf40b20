#include "app/actions/action_areas.h"

#include "engine/base/error.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace keyhole {
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
    const std::set<std::string_view> menus = {"", "File", "Run", "View", "Time", "Token", "Lanes", "Help"};
    std::set<std::string_view> ids;
    for (const UserAction& command : action_table()) {
        EXPECT_TRUE(ids.insert(command.id).second) << command.id;
        EXPECT_FALSE(command.title.empty()) << command.id;
        EXPECT_TRUE(menus.contains(command.menu)) << command.id << ": menu " << command.menu;
        EXPECT_NE(command.action, nullptr) << command.id;
        EXPECT_EQ(find_action(command.id), &command);
        if (command.shortcut.code != 0) {
            EXPECT_EQ(find_action(command.shortcut), &command);
            EXPECT_FALSE(shortcut_text(command.shortcut).empty());
        }
    }
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
    run_action(app, "strip.color score");
    run_action(app, "strip.color score");
    EXPECT_EQ(app.view.strip, StripColor::score);
    EXPECT_THROW(run_action(app, "strip.color perhaps"), Error);
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
}  // namespace keyhole
