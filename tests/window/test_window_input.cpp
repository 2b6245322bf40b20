// Real pointer and key events in the real window. Popups must close, clicks must act, and typed keys must
// become text. RandomInput acts at random: KEYHOLE_RANDOM_MINUTES=10 makes it longer, KEYHOLE_RANDOM_SEED
// changes it.
#include "engine/base/index.h"
#include "tests/reference/source_folder.h"
#include "tests/window/simulated_user.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

namespace keyhole::test_window_input {
namespace {

using Json = nlohmann::json;

/// Contains every key that is a command by itself, with and without Shift.
constexpr std::array<std::string_view, 8> kMenus = {"File",  "Edit",  "View",    "Run",
                                                    "Lanes", "Token", "Lessons", "Help"};
constexpr std::string_view kEveryLetter =
    "Who? The quick brown fox jumps over 1234567890 lazy dogs, [and] then.../ ABCDEFGHIJKLMNOPQRSTUVWXYZ";

class WindowInput : public testing::SimulatedUser {
  protected:
    int n_commands() { return report()["commands"]["count"]; }
    std::string dialog() { return report()["dialog"]; }

    /// Returns the first visible widget whose name begins so.
    std::string first_item(const std::string& begin) {
        const Json now = report();
        for (const auto& [name, box] : now["items"].items())
            if (name.starts_with(begin)) return name;
        return begin;
    }

    void escape_closes_all(const std::string& what) {
        for (int i = 0; i < 6 && (report()["popups"] > 0 || dialog() != "none" || report()["typing"] == true);
             ++i)
            key("Escape");
        EXPECT_EQ(report()["popups"], 0) << what;
        EXPECT_EQ(dialog(), "none") << what;
    }

    /// Opens a list, a menu or a popup by a click and closes it by one Escape. The Escape must change nothing
    /// else.
    void opens_and_closes(const std::string& item) {
        SCOPED_TRACE(item);
        const Json pick = report()["pick"];
        const int before = n_commands();
        click(item);
        ASSERT_TRUE(wait_until("open " + item, [](const Json& now) { return now["popups"] == 1; }));
        type("kxw");  // these are commands when nothing is open
        key("Escape");
        ASSERT_TRUE(wait_until("closed " + item, [](const Json& now) { return now["popups"] == 0; }));
        EXPECT_EQ(report()["pick"], pick) << "Escape dropped the pick";
        EXPECT_EQ(n_commands(), before) << report()["commands"];
    }

    void decode() {
        key("space");
        ASSERT_TRUE(wait_until("the answer", [](const Json& now) {
            return (now["phase"] != "running" && now["rows"] > 0) || now["rows"] > 10;
        }));
        if (report()["phase"] != "running") key("space");  // it paused where the answer is complete
        ASSERT_TRUE(wait_until(
            "rows", [](const Json& now) { return now["phase"] == "running" && now["rows"] > 10; }));
    }

    /// Copies the demo model with a context that no test fills: a run pauses when the context is full.
    std::string model_of_wide_context() {
        namespace fs = std::filesystem;
        const fs::path from = reference::source_folder() / "assets/models/keyhole-base",
                       to = folder_ / "model";
        fs::create_directories(to);
        for (const fs::directory_entry& file : fs::directory_iterator(from))
            if (file.path().filename() != "config.json")
                fs::copy_file(file.path(), to / file.path().filename());
        Json config = Json::parse(std::ifstream(from / "config.json"));
        config["max_position_embeddings"] = 1 << 20;
        std::ofstream(to / "config.json") << config;
        return to.string();
    }

    void decode_anew() {
        key("space");
        key("Ctrl+R");
        ASSERT_TRUE(
            wait_until("a new run", [](const Json& now) { return now["idle"] == true && now["rows"] == 0; }));
        decode();
    }

    /// Where the lanes' cards need the room of the atlas, it has a tab.
    void show_atlas() {
        if (!report()["items"].contains("side atlas")) return;
        click("side atlas");
        settle();
    }

    void walk_lists() {
        click("lane.advanced");
        for (const char* item : {"curves", "speed", "preset", "kv", "model", "range", "menu File", "menu Run",
                                 "menu View", "menu Edit", "menu Token", "menu Lanes", "menu Help"}) {
            opens_and_closes(item);
            if (HasFatalFailure()) return;
        }
        // Chooses an entry and expects the list to close.
        click("curves");
        click("curves kl");
        ASSERT_TRUE(wait_until("closed list", [](const Json& now) { return now["popups"] == 0; }));
    }

    void prompt_takes_every_letter() {
        const int before = n_commands();
        const Json view = report()["mode"];
        click("prompt");
        ASSERT_TRUE(wait_until("field", [](const Json& now) { return now["typing"] == true; }));
        key("Ctrl+A");
        type(kEveryLetter);
        EXPECT_EQ(n_commands(), before) << "typing ran commands: " << report()["commands"];
        EXPECT_EQ(report()["mode"], view);
        EXPECT_EQ(report()["popups"], 1);
    }

    /// Opens dialogs with a field by their keys: letters become text, one Escape closes.
    void walk_dialogs() {
        constexpr std::array<std::pair<const char*, const char*>, 4> kFields = {
            {{"Ctrl+P", "palette"}, {"Ctrl+G", "go to"}, {"Ctrl+F", "find"}, {"Ctrl+T", "say"}}};
        for (const auto& [keys, name] : kFields) {
            SCOPED_TRACE(name);
            const Json pick = report()["pick"];
            const int before = n_commands();
            strike(keys);  // text typed at once belongs to the field, even before the field is drawn
            type("Who kxw");
            ASSERT_EQ(dialog(), name);
            EXPECT_EQ(report()["typing"], true);
            EXPECT_EQ(n_commands(), before + 1) << report()["commands"];
            key("Escape");
            EXPECT_EQ(dialog(), "none");
            EXPECT_EQ(report()["pick"], pick);
        }
        for (const auto& [keys, name] :
             {std::pair("F1", "manual"), {"F5", "doctor"}, {"Shift+slash", "keys"}}) {
            SCOPED_TRACE(name);
            key(keys);
            EXPECT_EQ(dialog(), name);
            key("Escape");
            EXPECT_EQ(dialog(), "none");
        }
    }

    /// Enter chooses a command whose name fits before one whose help does, and asks for what it needs.
    void palette_asks_for_arguments() {
        key("Ctrl+P");
        type("attrib");
        key("Return");
        EXPECT_EQ(dialog(), "attribution");
        key("Escape");
        key("Ctrl+P");
        type("ui.scale");
        strike("Return");  // what is typed at once belongs to the field
        type("120");
        ASSERT_EQ(dialog(), "palette") << report()["commands"];
        key("Return");
        EXPECT_EQ(dialog(), "none");
        EXPECT_NEAR(report()["scale"].get<double>(), 1.2, 1e-6) << "it took other arguments";
        key("Ctrl+0");
    }

    /// Returns the open menus' entries; `submenus`: the lists in them instead.
    std::vector<std::string> menu_entries(bool submenus) {
        std::vector<std::string> entries;
        const Json now = report();
        for (const auto& [name, box] : now["items"].items()) {
            if (!name.starts_with("menu ") || (name[5] >= 'A' && name[5] <= 'Z') != submenus) continue;
            if (!submenus || std::find(kMenus.begin(), kMenus.end(), name.substr(5)) == kMenus.end())
                entries.push_back(name);
        }
        return entries;
    }

    /// Opens a menu of the bar, and a list in it if one is named.
    void open_menu(const std::string& menu, const std::string& list) {
        click("menu " + menu);
        ASSERT_TRUE(wait_until("menu", [](const Json& now) { return now["popups"] >= 1; }));
        if (list.empty()) return;
        click(list, 0.3);
        ASSERT_TRUE(wait_until(list, [](const Json& now) { return now["popups"] == 2; }));
    }

    /// Runs every command that a menu offers, except those that need a file or end the program.
    void walk_menus() {
        for (const std::string menu : {"Edit", "Run", "View", "Token", "Lanes", "Help"}) {
            if (report()["pick"].is_null()) click("heatmap", 0.1);  // most entries of Token need one
            ASSERT_NO_FATAL_FAILURE(open_menu(menu, ""));
            std::vector<std::string> lists = menu_entries(true);
            escape_closes_all(menu);
            lists.insert(lists.begin(), "");  // entries of the menu itself
            std::vector<std::string> own;
            for (const std::string& list : lists) {
                ASSERT_NO_FATAL_FAILURE(open_menu(menu, list));
                std::vector<std::string> entries = menu_entries(false);
                escape_closes_all(menu);
                EXPECT_FALSE(entries.empty()) << menu << ", " << list;
                if (list.empty()) own = entries;
                if (!list.empty())
                    for (const std::string& entry : own) std::erase(entries, entry);
                for (const std::string& entry : entries) {
                    const std::string id = entry.substr(5, entry.find(' ', 5) - 5);
                    if (id == "run.restart" || id == "run.toggle" || id == "rewind") continue;
                    SCOPED_TRACE(entry);
                    ASSERT_NO_FATAL_FAILURE(open_menu(menu, list));
                    if (!report()["items"].contains(entry)) {  // an earlier entry made it impossible
                        escape_closes_all(entry);
                        continue;
                    }
                    point(entry, 0.3);
                    click(entry, 0.3);
                    // What is pasted is a command of its own, a frame later.
                    const std::string last = report()["commands"]["last"].back();
                    EXPECT_EQ(last == "lane" && id == "lane.paste" ? id : last, id);
                    ASSERT_TRUE(alive());
                    escape_closes_all(entry);
                    if (id.starts_with("view.") || id.starts_with("ui.")) {
                        key("F2");
                        key("Ctrl+0");
                    }
                }
            }
        }
    }
};

TEST_F(WindowInput, OpensAndClosesEverything) {
    width_ = 1600, height_ = 1180;  // a whole card is visible
    start();
    if (HasFatalFailure()) return;
    walk_lists();
    if (HasFatalFailure()) return;
    walk_dialogs();
    palette_asks_for_arguments();

    // Clicks on the large heat map. Escape closes from the inside out.
    click("heatmap", 0.2, 0.8);
    ASSERT_FALSE(report()["pick"].is_null());
    click("heatmap", 0.3, 0.9, 3);
    ASSERT_TRUE(wait_until("menu of the token", [](const Json& now) { return now["popups"] == 1; }));
    key("Escape");
    EXPECT_EQ(report()["popups"], 0);
    EXPECT_FALSE(report()["pick"].is_null()) << "the menu alone closes";
    key("Escape");
    EXPECT_TRUE(report()["pick"].is_null()) << "with nothing open Escape drops the pick";
    const std::string token = first_item("token ");
    click(token);
    EXPECT_EQ(fmt::format("token {}", report()["pick"][1].get<int>()), token);

    // Wheel, and a drag of the picture. Movement just before the button's release counts.
    point("heatmap", 0.5, 0.5);
    wheel(3);
    settle();
    const Json zoomed = report()["zoom"];
    drag("heatmap", 0.5, 0.5, 0.3, 0.3);
    EXPECT_NE(report()["zoom"], zoomed);
    key("Ctrl+0");

    // One click explains a wrong answer. The budget's slider changes the lane.
    click("why 1");
    ASSERT_TRUE(wait_until("why", [](const Json& now) { return now["dialog"] == "why"; }));
    escape_closes_all("why");
    const int changes = n_commands();
    drag("budget slider", 0.2, 0.5, 0.7, 0.5);
    ASSERT_TRUE(wait_until("a budget", [&](const Json& now) {
        return now["idle"] == true && now["commands"]["count"] > changes;
    }));

    // A row on the time bar, a border between panes, a number on the card, a slider in a popup.
    key("Right");
    key("Right");
    ASSERT_TRUE(wait_until("two rows", [](const Json& now) { return now["rows"] == 2; }));
    drag("scrub", 0.99, 0.5, 0.02, 0.5);
    EXPECT_EQ(report()["row"], report()["first_row"]);
    const Json border = report()["items"]["splitter left"];
    drag("splitter left", 0.5, 0.5, 4.5, 0.5);
    ASSERT_TRUE(wait_until("another border",
                           [&](const Json& now) { return now["items"]["splitter left"] != border; }));
    EXPECT_NEAR(report()["items"]["splitter left"][0].get<int>(),
                border[0].get<int>() + 4 * (border[2].get<int>() - border[0].get<int>()), 1);
    drag("alpha", 0.8, 0.5, 0.2, 0.5);
    ASSERT_TRUE(wait_until("the lane as it was set", [](const Json& now) { return now["idle"] == true; }));
    click("range");
    drag("gamma", 0.2, 0.5, 0.5, 0.5);
    EXPECT_EQ(report()["popups"], 1);
    escape_closes_all("range");

    // The grid of heads: a drag paints, the right button clears.
    point("pane lanes", 0.5, 0.6);  // above the strip of new settings
    wheel(-30);                     // the button is near the card's end
    settle();
    click("lane.overrides");
    ASSERT_EQ(dialog(), "overrides");
    drag("override L1 H1", 0.5, 0.5, 3.5, 2.5);
    click("override L1 H1", 0.5, 0.5, 3);
    escape_closes_all("grid");

    // The field on the card: letters become text, Escape leaves the field and changes nothing else.
    const Json pick = report()["pick"];
    int before = n_commands();
    point("pane lanes", 0.5, 0.6);  // above the strip of new settings
    wheel(-30);                     // the field is at the card's end
    settle();
    click("spec");
    ASSERT_EQ(report()["typing"], true);
    type("kxw");
    EXPECT_EQ(n_commands(), before);
    key("Escape");
    EXPECT_EQ(report()["typing"], false);
    EXPECT_EQ(report()["pick"], pick);

    // Unmodified letters are commands again.
    before = n_commands();
    type("k");
    EXPECT_EQ(report()["mode"], "mask");
    EXPECT_EQ(n_commands(), before + 1);

    prompt_takes_every_letter();
    click("prompt.restart");
    ASSERT_TRUE(wait_until("the typed prompt",
                           [](const Json& now) { return now["prompt"] == std::string(kEveryLetter); }));
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, ChoosesFromListsByKeys) {
    start();
    if (HasFatalFailure()) return;
    const auto with_keys = [&](const char* list, std::initializer_list<const char*> keys) {
        click(list);
        ASSERT_TRUE(wait_until("open", [](const Json& now) { return now["popups"] == 1; }));
        for (const char* name : keys) key(name);
        ASSERT_TRUE(wait_until("closed", [](const Json& now) { return now["popups"] == 0; }));
    };
    const Json lane = report()["lane"];
    ASSERT_NO_FATAL_FAILURE(with_keys("speed", {"Home", "Down", "Down", "Return"}));
    EXPECT_EQ(report()["speed"], 3);
    ASSERT_NO_FATAL_FAILURE(with_keys("speed", {"Up", "KP_Enter"}));  // from the one in force
    EXPECT_EQ(report()["speed"], 1);
    ASSERT_NO_FATAL_FAILURE(with_keys("speed", {"End", "Escape"}));
    EXPECT_EQ(report()["speed"], 1);
    const int before = n_commands();
    ASSERT_NO_FATAL_FAILURE(with_keys("preset", {"Down", "Return"}));
    EXPECT_EQ(report()["commands"]["last"].back(), "lane");
    EXPECT_EQ(n_commands(), before + 1);
    EXPECT_EQ(report()["lane"], lane) << "Down is a command outside of lists";
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, TooltipsHideNeitherTheirItemNorItsNeighbours) {
    start();
    if (HasFatalFailure()) return;
    const auto apart = [](const Json& a, const Json& b) {
        return a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
    };
    // In a toolbar, in a narrow pane, and at the right and lower edges of the window.
    for (const auto& [item, neighbours] : {std::pair{"diff", std::vector{"blink", "view.decoded"}},
                                           {"lane.duplicate", std::vector{"add", "remove", "follow"}},
                                           {"budget slider", std::vector{"preset", "recent"}},
                                           {"run.restart", std::vector{"prompt"}},
                                           {"time.follow", std::vector{"fork"}}}) {
        SCOPED_TRACE(item);
        point(item);
        ASSERT_TRUE(wait_until("tooltip", [](const Json& now) { return now["items"].contains("tooltip"); }));
        const Json items = report()["items"];
        EXPECT_TRUE(apart(items["tooltip"], items[item])) << items["tooltip"] << items[item];
        for (const char* neighbour : neighbours)
            EXPECT_TRUE(!items.contains(neighbour) || apart(items["tooltip"], items[neighbour])) << neighbour;
    }
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, RunsEveryCommandOfTheMenus) {
    start();
    if (HasFatalFailure()) return;
    walk_menus();
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, SavesAPictureInTheFormatThatTheDialogNames) {
    start();
    if (HasFatalFailure()) return;
    key("Ctrl+Shift+E");
    ASSERT_EQ(dialog(), "save picture");
    type((folder_ / "hand.png").string());
    click("picture .svg");
    click("picture dark");
    click("picture width 800");
    click("picture.save");
    const std::filesystem::path file = folder_ / "hand.svg";
    ASSERT_TRUE(wait_until("the picture", [&](const Json&) { return std::filesystem::exists(file); }));
    EXPECT_EQ(dialog(), "none");
    EXPECT_EQ(quit(), 0) << output();
    std::string svg(400'000, ' ');
    svg.resize(static_cast<std::size_t>(std::ifstream(file).read(svg.data(), 400'000).gcount()));
    EXPECT_NE(svg.find(" width=\"800\""), std::string::npos);
    EXPECT_EQ(svg.find("fill=\"#ffffff\""), std::string::npos) << "a dark background";
    EXPECT_FALSE(std::filesystem::exists(folder_ / "hand.png"));
}

TEST_F(WindowInput, ReplacesAFileOnlyOnASecondEnter) {
    start();
    if (HasFatalFailure()) return;
    const std::filesystem::path file = folder_ / "shot.png";
    std::ofstream(file) << "mine";
    key("F12");
    ASSERT_EQ(dialog(), "save screenshot");
    type(file.string());
    key("Return");
    EXPECT_EQ(dialog(), "save screenshot") << "it asks";
    EXPECT_EQ(std::filesystem::file_size(file), 4u);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));  // no double click
    key("Return");
    ASSERT_TRUE(
        wait_until("the picture", [&](const Json&) { return std::filesystem::file_size(file) > 1000; }));
    EXPECT_EQ(dialog(), "none");
    // A name that nothing has asks for no second press.
    key("F12");
    ASSERT_EQ(dialog(), "save screenshot");
    const std::filesystem::path other = folder_ / "other.png";
    type(other.string());
    key("Return");
    ASSERT_TRUE(wait_until("the picture", [&](const Json&) { return std::filesystem::exists(other); }));
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, ExportsPicturesAsWideAsTheFieldSays) {
    start();
    if (HasFatalFailure()) return;
    key("Right");
    ASSERT_TRUE(wait_until("a step", [](const Json& now) { return now["rows"] == 1; }));
    key("Ctrl+E");
    ASSERT_EQ(dialog(), "export");
    click("export.folder");
    key("Ctrl+A");
    type((folder_ / "out").string());
    click("export mask");
    click("export picture svg");
    click("export picture width");
    key("Ctrl+A");
    type("640");
    click("export.start");  // no Enter: the field holds what was typed
    const std::filesystem::path file = folder_ / "out/lane1/mask_L0_G0.svg";
    ASSERT_TRUE(wait_until("the picture", [&](const Json& now) {
        return std::filesystem::exists(file) && now["idle"] == true;
    }));
    EXPECT_EQ(quit(), 0) << output();
    std::string svg(400'000, ' ');
    svg.resize(static_cast<std::size_t>(std::ifstream(file).read(svg.data(), 400'000).gcount()));
    EXPECT_NE(svg.find(" width=\"640\""), std::string::npos) << svg.substr(0, 200);
}

TEST_F(WindowInput, EnterStartsTheExport) {
    start();
    if (HasFatalFailure()) return;
    key("Ctrl+E");
    ASSERT_EQ(dialog(), "export");
    click("export.folder");
    key("Ctrl+A");
    type((folder_ / "out").string());
    key("Return");
    EXPECT_TRUE(wait_until("the export", [&](const Json& now) {
        return std::filesystem::exists(folder_ / "out") && now["idle"] == true;
    }));
    EXPECT_EQ(report()["commands"]["last"].back(), "export.start");
}

TEST_F(WindowInput, MakesAndEnlargesAFigureOfAPaper) {
    start();
    if (HasFatalFailure()) return;
    click("menu Help");
    click("menu papers");
    ASSERT_TRUE(wait_until("the page", [](const Json& now) { return now["dialog"] == "papers"; }));
    click("papers.make keyformer-3b keyhole-base");
    ASSERT_TRUE(wait_until(
        "the figure", [](const Json& now) { return now["items"].contains("papers.open keyformer-3b"); }));
    click("papers.open keyformer-3b");
    ASSERT_TRUE(
        wait_until("the picture", [](const Json& now) { return now["items"].contains("paper picture 0"); }));
    // The picture has the shape of the file, and is not the frame with words that stands for a missing one.
    const Json box = report()["items"]["paper picture 0"];
    EXPECT_GT(box[3].get<int>() - box[1].get<int>(), (box[2].get<int>() - box[0].get<int>()) * 0.52);
    click("papers.back");
    ASSERT_TRUE(
        wait_until("the list", [](const Json& now) { return now["items"].contains("paper keyformer-3a"); }));
    key("Escape");
    EXPECT_EQ(dialog(), "none");
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, KeepsATypedPromptUntilItRuns) {
    start();
    if (HasFatalFailure()) return;
    const auto open_field = [&] {
        click("prompt");
        ASSERT_TRUE(wait_until("field", [](const Json& now) { return now["typing"] == true; }));
        settle();
    };
    ASSERT_NO_FATAL_FAILURE(open_field());
    key("Ctrl+A");
    type("The code is 77.");
    escape_closes_all("prompt");
    EXPECT_NE(report()["prompt"], "The code is 77.");
    ASSERT_NO_FATAL_FAILURE(open_field());
    click("prompt.restart");
    ASSERT_TRUE(wait_until("the run", [](const Json& now) {
        return now["prompt"] == "The code is 77." && now["idle"] == true;
    }));
    // The field now begins with the prompt of the run.
    ASSERT_NO_FATAL_FAILURE(open_field());
    key("Ctrl+End");
    type(" Well");
    click("prompt.restart");
    ASSERT_TRUE(wait_until("the longer one",
                           [](const Json& now) { return now["prompt"] == "The code is 77. Well"; }));
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, DragsOverWordsToWatchThem) {
    start();
    point("token 81");  // waits for the text
    ASSERT_EQ(report()["picked"], Json({80, 81, 82, 83}));
    // A menu of one of several picked words keeps the others; that of another word takes their place.
    click("token 81", 0.5, 0.5, 3);
    settle();
    EXPECT_EQ(report()["picked"], Json({80, 81, 82, 83}));
    EXPECT_EQ(report()["pick"][1], 81);
    key("Escape");
    drag("token 80", 0.5, 0.5, 2.4, 0.5);
    // The window may show the events a frame before it has acted on them.
    ASSERT_TRUE(wait_until("words to watch", [](const Json& now) { return now["watched"].is_array(); }));
    const Json watched = report()["watched"];
    EXPECT_EQ(watched[0], 80);
    EXPECT_GT(watched[1].get<int>(), 80);
    EXPECT_LT(watched[1].get<int>(), 84);
    EXPECT_EQ(report()["picked"], Json({80}));
    // From right to left, and a click, which watches nothing.
    drag("token 83", 0.5, 0.5, -1.4, 0.5);
    ASSERT_TRUE(wait_until("other words", [](const Json& now) { return now["watched"][1] == 83; }));
    EXPECT_LT(report()["watched"][0].get<int>(), 83);
    const Json before = report()["watched"];
    click("token 84");
    settle();
    EXPECT_EQ(report()["watched"], before);
    EXPECT_EQ(report()["picked"], Json({84}));
    EXPECT_EQ(quit(), 0) << output();
}

/// The texts of many lanes leave room for the plot that they belong to.
TEST_F(WindowInput, WatchedWordsHaveAPlotHoweverManyLanes) {
    start();
    for (int i = 0; i < 4; ++i) {  // seven lanes
        click("add");
        settle();
    }
    key("Right");
    settle();
    const Json box = report()["items"].value("watched plot", Json::array({0, 0, 0, 0}));
    EXPECT_GT(box[3].get<int>() - box[1].get<int>(), 30) << box;
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, NextTokensAreThoseOfLaneZeroAndOfTheFocus) {
    start();
    for (int i = 0; i < 3; ++i) {  // six lanes
        click("add");
        settle();
    }
    key("Right");  // a step has records of them all
    settle();
    for (const char* arrangement : {"F2", "F3"}) {  // Explore, Compare
        key(arrangement);
        settle();
        for (int i = 0; i < 6; ++i) key("Up");
        for (int lane = 0; lane < 6; ++lane) {
            settle();
            ASSERT_EQ(report()["lane"], lane);
            EXPECT_TRUE(shows("candidate 0 1")) << arrangement << " " << lane;
            EXPECT_TRUE(shows(fmt::format("candidate {} 1", lane))) << arrangement;
            key("Down");
        }
    }
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, OpensTheManualAtThePaneUnderThePointer) {
    start();
    if (HasFatalFailure()) return;
    const auto place = [&] { return report()["manual"].get<std::string>(); };
    point("preset");
    key("F1");
    ASSERT_EQ(dialog(), "manual");
    EXPECT_EQ(place(), "lanes-and-policies");
    key("F1");
    EXPECT_EQ(dialog(), "none");
    point("heatmap", 0.9, 0.9);  // the lanes are left, and so is the manual
    key("F1");
    EXPECT_EQ(place(), "window#panes");

    // A link leads to another page, and Back returns.
    click("manual contents");
    ASSERT_TRUE(wait_until(  // no other page has this link
        "contents", [](const Json& now) { return now["items"].contains("link eval-and-sweep.md"); }));
    click("link glossary.md");
    ASSERT_TRUE(wait_until("glossary", [](const Json& now) { return now["manual"] == "glossary"; }));
    click("manual back");
    ASSERT_TRUE(wait_until("contents", [](const Json& now) { return now["manual"] == "index"; }));
    key("Escape");
    EXPECT_EQ(dialog(), "none");
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(WindowInput, LosesNothingWhileDecoding) {
    width_ = 1600, height_ = 1180;
    start("--model " + model_of_wide_context());
    if (HasFatalFailure()) return;
    key("6");  // 12 steps a second: frames do not wait for the threads that decode
    decode();
    if (HasFatalFailure()) return;

    // A hundred clicks, each followed at once by a move, run a hundred commands and none at the place moved
    // to.
    const int before = n_commands();
    ASSERT_TRUE(shows("mode.mask") && shows("mode.score") && shows("range"));
    for (int i = 0; i < 100; ++i) {
        point(i % 2 == 0 ? "mode.mask" : "mode.attention");
        button(1, true);
        button(1, false);
        move(640, 4);
    }
    settle();
    EXPECT_EQ(n_commands(), before + 100);
    for (int i = 0; i < 16; ++i)
        EXPECT_EQ(report()["commands"]["last"][to_index(i)], i % 2 == 0 ? "mode.mask" : "mode.attention");

    // Chooses heads by clicks on the atlas, each followed at once by a move to another head.
    show_atlas();
    for (const auto& [layer, head] : {std::pair(0, 0), {3, 5}, {5, 7}, {2, 1}}) {
        const double across = (head + 0.5) / 8, down = (layer + 0.5) / 6;
        point("atlas", across, down);
        button(1, true);
        button(1, false);
        point("atlas", 1 - across, 1 - down);
        settle();
        EXPECT_EQ(report()["layer"], layer);
        EXPECT_EQ(report()["head"], head);
    }
    if (report()["items"].contains("side lanes")) click("side lanes");

    // Twenty keys without a pause.
    const int keys_before = n_commands();
    for (int i = 0; i < 20; ++i) strike(i % 2 == 0 ? "k" : "a");
    settle();
    EXPECT_EQ(n_commands(), keys_before + 20);

    decode_anew();  // frames with few rows are fast
    walk_lists();
    if (HasFatalFailure()) return;
    decode_anew();
    walk_dialogs();
    palette_asks_for_arguments();
    EXPECT_EQ(report()["phase"], "running");
    prompt_takes_every_letter();
    EXPECT_EQ(report()["phase"], "running") << "typing stopped the run";
    escape_closes_all("prompt");
    key("space");
    ASSERT_TRUE(wait_until("stop", [](const Json& now) { return now["phase"] != "running"; }));
    EXPECT_EQ(quit(), 0) << output();
}

// A field keeps its row while its text has no effect yet, such as a formula that ranks all tokens alike.
TEST_F(WindowInput, AFieldStaysWhileItsTextDoesNothing) {
    start("--lane full --lane h2o:budget=4");
    ASSERT_TRUE(wait_until("a run", [](const Json& now) { return now["idle"] == true; }));
    click("lane.advanced");
    settle();
    for (const auto& [field, text] : {std::pair{"choose", "1"}, {"spans", "a@0..3"}}) {
        SCOPED_TRACE(field);
        scroll_to("pane lanes", field);
        click(field);
        ASSERT_TRUE(wait_until("the field", [](const Json& now) { return now["typing"] == true; }));
        key("Ctrl+A");
        type(text);
        settle();
        EXPECT_EQ(report()["typing"], true);
        if (std::string(field) == "choose") key("Escape");
    }
    key("Return");
    ASSERT_TRUE(wait_until("the lane's new settings", [](const Json& now) {
        return now["texts"]["lanes"].dump().find("spans=(a@0..3)") != std::string::npos;
    }));
    EXPECT_TRUE(report()["items"].contains("spans"));
}

// What the status line says of a command that failed goes when another does what it should.
TEST_F(WindowInput, AFaultGoesWithTheNextCommand) {
    start();
    ASSERT_TRUE(wait_until("a run", [](const Json& now) { return now["idle"] == true; }));
    key("Ctrl+P");
    type("ui.scale");
    strike("Return");
    type("wide");
    key("Return");
    ASSERT_TRUE(wait_until("a fault", [](const Json& now) { return now["notice"] != ""; })) << report();
    const std::string fault = report()["notice"];
    settle();
    EXPECT_EQ(report()["notice"], fault);
    escape_closes_all("the palette");
    key("Home");
    EXPECT_TRUE(wait_until("no fault", [](const Json& now) { return now["notice"] == ""; })) << report();
}

// The map of what eviction costs lies as the atlas does: six layers down, and eight heads across.
TEST_F(WindowInput, ADialogStaysOpenWhereItsTextIsRefused) {
    start();
    if (HasFatalFailure()) return;
    key("Ctrl+G");
    type("99 1");
    key("Return");
    EXPECT_EQ(dialog(), "go to");
    ASSERT_TRUE(wait_until("the field again", [](const Json& now) { return now["typing"] == true; }));
    key("Ctrl+A");
    type("L3 H2");
    key("Return");
    EXPECT_EQ(dialog(), "none");
    EXPECT_EQ(report()["layer"], 3);
    EXPECT_EQ(report()["head"], 2);
    key("Ctrl+F");
    type("the");
    key("Return");
    const Json first = report()["pick"];
    key("Return");
    EXPECT_EQ(dialog(), "find");
    EXPECT_NE(report()["pick"], first) << "Enter goes on to the next place";
    key("Escape");
    key("Ctrl+O");
    type("/nowhere/run.keyhole");
    key("Return");
    EXPECT_EQ(dialog(), "open trace");
    key("Escape");
}

/// Without a pointer: Tab puts a ring around one widget after the other, and Enter or Space presses it.
TEST_F(WindowInput, TabReachesWhatThePointerReaches) {
    start();
    if (HasFatalFailure()) return;
    const auto ring = [&] { return report()["ring"].get<std::string>(); };
    const auto go_to = [&](const std::string& item) {
        constexpr int kMost = 120;
        for (int i = 0; i < kMost && ring() != item; ++i) key("Tab");
        EXPECT_EQ(ring(), item);
        return ring() == item;
    };
    EXPECT_EQ(ring(), "");
    key("Tab");
    EXPECT_EQ(ring(), "menu File");
    key("Shift+Tab");
    EXPECT_NE(ring(), "menu File");
    key("Tab");
    key("Return");
    ASSERT_TRUE(wait_until("the menu", [](const Json& now) { return now["popups"] == 1; }));
    key("Down");
    key("Escape");
    EXPECT_EQ(report()["popups"], 0);
    ASSERT_TRUE(go_to("mode.mask"));
    const int rows = report()["rows"];
    key("space");
    EXPECT_TRUE(wait_until("the mask", [](const Json& now) { return now["mode"] == "mask"; }));
    EXPECT_EQ(report()["rows"], rows) << "Space pressed the button and did not run";
    key("Right");
    EXPECT_TRUE(wait_until("a step", [&](const Json& now) { return now["rows"] == rows + 1; }))
        << "other keys keep their meaning";
    key("Ctrl+Tab");
    EXPECT_NE(ring(), "mode.mask");
    EXPECT_FALSE(ring().starts_with("mode.")) << "another pane";
    key("Escape");
    EXPECT_EQ(ring(), "");
    ASSERT_TRUE(go_to("lane name"));
    EXPECT_EQ(report()["typing"], true) << "to go to a field is to edit it";
    key("Tab");
    EXPECT_NE(ring(), "lane name");
    ASSERT_TRUE(go_to("mode.score"));
    key("Ctrl+F");
    ASSERT_TRUE(wait_until("the field", [](const Json& now) { return now["typing"] == true; }));
    type("the");
    for (const char* item : {"field.go", "field.previous", "field.cancel", "field"}) {
        key("Tab");
        EXPECT_EQ(ring(), item) << "it stays in the dialog";
    }
    key("Shift+Tab");
    key("Return");
    EXPECT_EQ(dialog(), "none");
    EXPECT_TRUE(
        wait_until("the ring where it was", [](const Json& now) { return now["ring"] == "mode.score"; }));
    click("mode.attention");
    EXPECT_EQ(ring(), "") << "the pointer takes over";
    key("space");
    EXPECT_TRUE(wait_until("a run", [](const Json& now) { return now["phase"] == "running"; }));
}

/// A page beside the panes takes the keys that scroll it, while it has the focus.
TEST_F(WindowInput, KeysScrollThePageThatHasTheFocus) {
    start();
    if (HasFatalFailure()) return;
    for (const char* page : {"F1", "F5"}) {
        SCOPED_TRACE(page);
        key(page);
        const int before = n_commands();
        for (const char* keys : {"Down", "Next", "Left", "End"}) key(keys);
        EXPECT_EQ(n_commands(), before) << report()["commands"];
        key("Escape");
        EXPECT_EQ(dialog(), "none");
    }
    key("Shift+M");
    ASSERT_TRUE(wait_until("the field of the notes", [](const Json& now) { return now["typing"] == true; }));
    type("hello note");
    EXPECT_NE(report()["phase"], "running") << "the blank went to the run";
}

TEST_F(WindowInput, TheMapOfAttributionHasLayersDown) {
    start();
    ASSERT_TRUE(wait_until("a run", [](const Json& now) { return now["idle"] == true; }));
    key("Ctrl+P");
    type("attribution.run");
    strike("Return");
    type("by=head questions=prompt");
    key("Return");
    key("Ctrl+P");
    type("attrib");
    key("Return");
    ASSERT_TRUE(wait_until("the map", [](const Json& now) {
        return now["items"].contains("attribution map") && now["idle"] == true;
    })) << report()["notice"];
    click("attribution map", 7.5 / 8, 0.5 / 6);
    ASSERT_TRUE(wait_until("a head that keeps all", [](const Json& now) {
        return now["notice"].get<std::string>().ends_with("keeps L0.G7");
    })) << report()["notice"];
    click("attribution map", 0.5 / 8, 5.5 / 6);
    ASSERT_TRUE(wait_until("another one", [](const Json& now) {
        return now["notice"].get<std::string>().ends_with("keeps L5.G0");
    })) << report()["notice"];
}

// With many layers the thumbnails stay squares, and the atlas scrolls: by the wheel, and to the head that
// keys choose. Alt and the wheel zoom.
TEST_F(WindowInput, TheAtlasScrollsAndZooms) {
    start();
    show_atlas();
    const auto box = [&](int i) { return report()["items"]["atlas"][to_index(i)].get<int>(); };
    const auto zoom = [&](int turns) {
        point("atlas");
        press_key("Alt_L", true);
        for (int i = 0; i < std::abs(turns); ++i) wheel(turns > 0 ? 1 : -1);
        press_key("Alt_L", false);
        settle();
    };
    const auto choose_at = [&](double across, double down) {
        click("atlas", across, down);
        settle();
    };
    choose_at(0.5, 0.5);  // the first frames find out whether the pane needs a scroll bar
    const int left = box(0), right = box(2);
    ASSERT_GT(right, left);
    zoom(8);
    EXPECT_GT(report()["atlas_zoom"].get<double>(), 4);
    EXPECT_LE(box(2) - box(0), right - left + 20) << "the grid is clipped to its pane";
    choose_at(0.5, 0.5);
    // The head that keys choose is brought into sight, wherever the atlas was scrolled to.
    for (int i = 0; i < 6; ++i) key("bracketleft");
    for (int i = 0; i < 8; ++i) key("comma");
    settle();
    choose_at(0.02, 0.02);
    EXPECT_EQ(report()["layer"], 0);
    EXPECT_EQ(report()["head"], 0);
    point("atlas");
    wheel(-40);
    choose_at(0.02, 0.98);
    EXPECT_EQ(report()["layer"], 5) << "the wheel scrolls";
    EXPECT_EQ(report()["head"], 0);
    for (int i = 0; i < 6; ++i) key("bracketright");
    for (int i = 0; i < 8; ++i) key("period");
    settle();
    choose_at(0.98, 0.98);
    EXPECT_EQ(report()["layer"], 5);
    EXPECT_EQ(report()["head"], 7);
    zoom(-20);
    EXPECT_EQ(report()["atlas_zoom"], 1);
}

/// Random pointer and key actions. Prints its last actions when the program fails.
class RandomInput : public WindowInput {
  protected:
    std::mt19937 random_;
    std::deque<std::string> done_;

    int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
    void note(std::string what) {
        done_.push_back(std::move(what));
        if (done_.size() > 40) done_.pop_front();
    }
    std::string history() const {
        std::string text;
        for (const std::string& what : done_) text += what + "\n";
        return text;
    }

    /// Moves to a random place, or onto a visible widget.
    void go_somewhere() {
        const Json items = report()["items"];
        if (below(3) == 0 || items.empty()) {
            const int x = below(width_), y = below(height_);
            note(fmt::format("move {} {}", x, y));
            return move(x, y);
        }
        auto at = items.begin();
        std::advance(at, below(static_cast<int>(items.size())));
        const double x = at.value()[0], y = at.value()[1], right = at.value()[2], bottom = at.value()[3];
        note("point " + at.key());
        move(static_cast<int>(x + (right - x) * 0.01 * below(100)),
             static_cast<int>(y + (bottom - y) * 0.01 * below(100)));
    }

    void act() {
        static constexpr std::array<const char*, 26> kKeys = {
            "Escape",    "Return",    "Tab",    "space",    "Left",        "Right",  "Up",
            "Down",      "Home",      "End",    "Delete",   "F2",          "F3",     "F4",
            "F5",        "BackSpace", "Ctrl+Z", "Ctrl+Y",   "Ctrl+P",      "Ctrl+A", "Ctrl+V",
            "Shift+Tab", "Ctrl+R",    "Ctrl+C", "Alt+Left", "Ctrl+Shift+C"};
        const int kind = below(20);
        if (kind < 8) {
            go_somewhere();
            const int which = below(5) == 0 ? 3 : 1;
            note(fmt::format("click {}", which));
            button(which, true);
            button(which, false);
        } else if (kind < 11) {
            go_somewhere();
            const int which = below(4) == 0 ? 3 : 1;
            note(fmt::format("press {}", which));
            button(which, true);
            for (int i = below(4); i >= 0; --i) go_somewhere();
            note("release");
            button(which, false);
        } else if (kind < 13) {
            const int turns = below(9) - 4;
            note(fmt::format("wheel {}", turns));
            const bool ctrl = below(6) == 0;
            if (ctrl) press_key("Control_L", true);
            wheel(turns);
            if (ctrl) press_key("Control_L", false);
        } else if (kind < 16) {
            const std::string name = kKeys[to_index(below(static_cast<int>(kKeys.size())))];
            note("key " + name);
            strike(name);
        } else if (kind < 19) {
            std::string text;
            for (int i = below(6); i >= 0; --i) text += static_cast<char>(' ' + below('~' - ' ' + 1));
            note("type " + text);
            write(text);
        } else if (below(4) == 0) {
            const int width = 800 + below(1000), height = 500 + below(600);
            note(fmt::format("resize {} {}", width, height));
            resize(width, height);
        }
    }
};

TEST_F(RandomInput, DoesAnythingAnywhere) {
    const char* minutes = std::getenv("KEYHOLE_RANDOM_MINUTES");
    const char* seed = std::getenv("KEYHOLE_RANDOM_SEED");
    const double seconds = minutes == nullptr ? 12 : 60 * std::stod(minutes);
    const unsigned number = seed == nullptr ? 1 : static_cast<unsigned>(std::stoul(seed));
    random_.seed(number);
    start();
    if (HasFatalFailure()) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    int n = 0, n_starts = 1;
    for (; std::chrono::steady_clock::now() < until; ++n) {
        act();
        const bool hangs = n % 5 == 4 && !catch_up();
        if (alive()) {
            ASSERT_FALSE(hangs) << "seed " << number << ", action " << n << "\n" << history();
            continue;
        }
        // A random action may have quit the program; that is no fault.
        ASSERT_EQ(exit_status(), 0) << "seed " << number << ", action " << n << "\n"
                                    << output() << "\n"
                                    << history();
        start();
        if (HasFatalFailure()) return;
        ++n_starts;
    }
    ASSERT_TRUE(settle()) << history();
    std::printf("%d actions in %.0f s, %d start(s), seed %u\n", n, seconds, n_starts, number);
    // After all actions the window still executes commands.
    escape_closes_all("the monkey");
    const int before = n_commands();
    key("Ctrl+0");
    EXPECT_EQ(n_commands(), before + 1) << history();
    EXPECT_EQ(quit(), 0) << output() << history();
}

}  // namespace
}  // namespace keyhole::test_window_input
