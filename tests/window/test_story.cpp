// The first picture: the window opens on the answers and on what each lane attends to while it answers. Real
// pointer and keys; needs Xvfb.
#include "tests/reference/source_folder.h"
#include "tests/window/simulated_user.h"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <vector>

namespace keyhole::test_story_window {
namespace {

using Json = nlohmann::json;

class StoryWindow : public testing::SimulatedUser {
  protected:
    StoryWindow() { arrangement_.clear(); }

    /// Returns a rectangle on the screen: left, top, right, bottom; empty if it is not in sight.
    Json box(const std::string& item) { return report()["items"].value(item, Json::array({0, 0, 0, 0})); }
    int width_of(const std::string& item) { return box(item)[2].get<int>() - box(item)[0].get<int>(); }
    int height_of(const std::string& item) { return box(item)[3].get<int>() - box(item)[1].get<int>(); }
    /// Returns all that stands in the pane of the story.
    std::string words() {
        std::string all;
        const Json now = report();
        for (const auto& line : now["texts"].value("story", Json::array()))
            all += line.get<std::string>() + "\n";
        return all;
    }
    bool says(const std::string& text) { return words().find(text) != std::string::npos; }
    void expect_no_cut_text(const std::string& where) {
        const Json now = report();
        for (const auto& text : now["short_texts"].value("story", Json::array()))
            ADD_FAILURE() << where << ": " << text;
    }
};

TEST_F(StoryWindow, OpensOnTheAnswersWithoutAKey) {
    width_ = 1600, height_ = 1000;
    start();
    const Json now = report();
    EXPECT_EQ(now["commands"]["count"], 0) << "no key and no click";
    EXPECT_GT(now["rows"].get<int>(), 3) << "the answer is decoded";
    EXPECT_TRUE(says("What is the code of the garden gate?")) << words();
    EXPECT_TRUE(says("Full cache")) << words();
    EXPECT_TRUE(says("4821")) << words();
    EXPECT_TRUE(
        says("H2O threw “4821” away: when it answered, 1 of 48 heads had it. Right: TOVA (16 heads)."))
        << words();
    for (int lane = 0; lane < 3; ++lane) {
        EXPECT_GT(width_of(fmt::format("story map {}", lane)), 250) << lane;
        EXPECT_GT(height_of(fmt::format("story map {}", lane)), 150) << lane;
        EXPECT_GT(height_of(fmt::format("story answer {}", lane)), 20) << lane;
        EXPECT_GT(height_of(fmt::format("story heads {}", lane)), 30) << lane;
        EXPECT_EQ(now["panes"][fmt::format("story map {}", lane)]["mark"], "") << lane;
    }
    EXPECT_LT(box("story map 0")[2], box("story map 1")[0]) << "side by side";
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(StoryWindow, WhyAndGiveItBackExplainTheWrongLane) {
    width_ = 1600, height_ = 1000;
    start();
    const Json before = report()["items"];
    click("story give");
    ASSERT_TRUE(wait_until("answer with the words back",
                           [&](const Json&) { return says("With “4821” back, H2O answers “4821”."); }));
    EXPECT_EQ(report()["dialog"], "none");
    for (const char* item : {"story why", "story give", "rewind.prompt", "story map 0", "story heads 1"})
        EXPECT_EQ(box(item), before[item]) << item << " stays under the pointer";
    EXPECT_FALSE(shows("tooltip")) << "it would hide the answer";
    point("story question");
    settle();
    point("story give");
    EXPECT_TRUE(wait_until("the tooltip once more",
                           [](const Json& now) { return now["items"].contains("tooltip"); }));
    click("story why");
    ASSERT_TRUE(wait_until("page", [](const Json& now) { return now["dialog"] == "why"; }));
    EXPECT_EQ(report()["lane"], 1);
    key("Escape");
    click("story map 2");
    ASSERT_TRUE(wait_until("focus", [](const Json& now) { return now["lane"] == 2; }));
    EXPECT_FALSE(report()["pick"].is_null());
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(StoryWindow, KeysLeadToThePromptAndToTheInstrument) {
    start();
    key("z");
    ASSERT_TRUE(
        wait_until("the prompt", [](const Json& now) { return now["rows"] == 0 && now["idle"] == true; }));
    EXPECT_TRUE(says("H2O threw")) << "the answers are known all the same";
    key("F2");
    ASSERT_TRUE(
        wait_until("the instrument", [](const Json& now) { return now["items"].contains("heatmap"); }));
    EXPECT_FALSE(shows("pane story"));
    key("F6");
    ASSERT_TRUE(
        wait_until("the story", [](const Json& now) { return now["items"].contains("story map 0"); }));
    EXPECT_EQ(quit(), 0) << output();
}

/// The line of the text shows the place that was found beside the watched words, and the whole text scrolls.
TEST_F(StoryWindow, WordsThatWereFoundComeIntoSight) {
    width_ = 1600, height_ = 1000;
    start();
    const auto found = [&] {  // once a frame has shown it
        return wait_until("the word in sight", [](const Json& now) {
            const std::string word = fmt::format("token {}", now["pick"][1].get<int>());
            if (!now["items"].contains(word)) return false;
            const Json place = now["items"][word];
            return place[2].get<int>() - place[0].get<int>() > 5;
        });
    };
    const int watched = 80;
    const auto picks = [](const Json& now, auto where) {
        return now["pick"].is_array() && where(now["pick"][1].get<int>());
    };
    ASSERT_TRUE(shows(fmt::format("token {}", watched)));
    key("Ctrl+F");
    ASSERT_TRUE(wait_until("dialog", [](const Json& now) { return now["dialog"] == "find"; }));
    type("wall");
    key("Return");
    ASSERT_TRUE(wait_until(
        "the first", [&](const Json& now) { return picks(now, [&](int p) { return p < watched - 20; }); }));
    EXPECT_TRUE(found());
    EXPECT_TRUE(shows(fmt::format("token {}", watched))) << "the watched words stay";
    const int first = report()["pick"][1];
    key("Shift+Return");
    ASSERT_TRUE(wait_until("the last",
                           [&](const Json& now) { return picks(now, [&](int p) { return p > watched; }); }));
    EXPECT_TRUE(found());
    key("Return");
    ASSERT_TRUE(
        wait_until("back", [&](const Json& now) { return picks(now, [&](int p) { return p == first; }); }));
    key("Escape");
    key("Ctrl+F");
    ASSERT_TRUE(wait_until("dialog", [](const Json& now) { return now["dialog"] == "find"; }));
    type("carrot");  // in place of the word before
    click("field.go");
    ASSERT_TRUE(wait_until(
        "far", [&](const Json& now) { return picks(now, [&](int p) { return p > watched + 100; }); }));
    EXPECT_TRUE(found());
    EXPECT_TRUE(shows(fmt::format("token {}", watched))) << "the watched words stay";
    key("Escape");
    key("F2");
    ASSERT_TRUE(wait_until("all views", [](const Json& now) { return now["items"].contains("heatmap"); }));
    key("Ctrl+F");
    ASSERT_TRUE(wait_until("dialog", [](const Json& now) { return now["dialog"] == "find"; }));
    type("Once");
    key("Return");
    ASSERT_TRUE(wait_until("the beginning",
                           [&](const Json& now) { return picks(now, [](int p) { return p < 4; }); }));
    settle();
    EXPECT_TRUE(found()) << "the text has scrolled";
    EXPECT_EQ(quit(), 0) << output();
}

/// Beside each answer stands at which budgets it is right; a click on a cell gives the lane that budget.
TEST_F(StoryWindow, AStripSaysAtWhatBudgetTheAnswerIsRight) {
    width_ = 1600, height_ = 1000;
    start();
    EXPECT_FALSE(shows("strip 0")) << "a full cache has no budget";
    EXPECT_GT(width_of("strip 1"), 150);
    EXPECT_TRUE(says("budget 16 to 394")) << words();
    const Json before = report()["run"];
    click("strip 1 320");
    ASSERT_TRUE(wait_until("a new run", [&](const Json& now) {
        return now["run"] != before && now["idle"] == true && now["rows"].get<int>() > 3;
    }));
    EXPECT_TRUE(says("keeps 320 of 370 tokens")) << words();
    click("strips");
    ASSERT_TRUE(wait_until("list", [](const Json& now) { return now["popups"] == 1; }));
    click("strips alpha");
    ASSERT_TRUE(wait_until("other values", [](const Json& now) {
        return now["idle"] == true && now["items"].contains("strip 2 0.99");
    }));
    EXPECT_TRUE(says("alpha 0 to 1")) << words();
    key("Ctrl+Z");
    ASSERT_TRUE(wait_until("the budget before", [&](const Json& now) {
        return now["idle"] == true && now["rows"].get<int>() > 3 && says("keeps 64 of 370 tokens");
    }));
    EXPECT_EQ(quit(), 0) << output();
}

/// The prompt's dialog says what the demo model can answer and what a sample shows; Ctrl+Enter starts.
TEST_F(StoryWindow, AnOwnPromptIsNoDeadEnd) {
    width_ = 1600, height_ = 1000;
    start();
    click("prompt");
    ASSERT_TRUE(wait_until("dialog", [](const Json& now) { return now["items"].contains("prompt.model"); }));
    const auto all = [&] { return report()["texts"].dump(); };
    EXPECT_NE(all().find("The demo model is tiny"), std::string::npos);
    const Json before_typing = box("prompt.restart");
    type("Hello");
    EXPECT_EQ(box("prompt.restart"), before_typing) << "the dialog keeps its size";
    click("prompt dialogue");
    EXPECT_NE(all().find("Who said what"), std::string::npos);
    const Json before = report()["run"];
    key("Ctrl+Return");
    ASSERT_TRUE(wait_until("a new run", [&](const Json& now) {
        return now["run"] != before && now["idle"] == true && now["popups"] == 0;
    }));
    EXPECT_TRUE(says("Rosa")) << words();
    EXPECT_EQ(quit(), 0) << output();
}

/// The right answer of a sample is none to another text; one that the user types stays with the text.
TEST_F(StoryWindow, TheAnswerOfASampleLeavesWithItsText) {
    width_ = 1600, height_ = 1000;
    start();
    EXPECT_TRUE(says("✗")) << "the code of the gate is known";
    const auto open_field = [&] {
        click("prompt");
        ASSERT_TRUE(wait_until("dialog", [](const Json& now) { return now["popups"] == 1; }));
    };
    const auto restart = [&] {
        const Json before = report()["run"];
        key("Ctrl+Return");
        ASSERT_TRUE(wait_until("a new run", [&](const Json& now) {
            return now["run"] != before && now["idle"] == true && now["popups"] == 0;
        }));
    };
    open_field();
    key("Ctrl+A");
    type("The capital of France is");
    restart();
    EXPECT_EQ(report()["prompt"], "The capital of France is");
    EXPECT_FALSE(says("✗")) << words();
    EXPECT_FALSE(says("does not know the answer")) << words();
    open_field();
    click("prompt.answer");
    type("Paris");
    click("prompt.text");
    key("Ctrl+End");
    type(" now");
    restart();
    EXPECT_EQ(report()["prompt"], "The capital of France is now");
    EXPECT_TRUE(says("✗")) << words();
    EXPECT_EQ(quit(), 0) << output();
}

/// After a change of a lane the lanes answer anew, and until then the old picture says that it is old.
TEST_F(StoryWindow, AnswersAnewAfterAChangeOfALane) {
    width_ = 1600, height_ = 1000;
    start();
    const Json before = report()["run"];
    click("preset");
    ASSERT_TRUE(wait_until("list", [](const Json& now) { return now["popups"] == 1; }));
    click("preset tova");
    ASSERT_TRUE(wait_until("a new run", [&](const Json& now) {
        return now["run"] != before && now["idle"] == true && now["rows"].get<int>() > 3;
    }));
    EXPECT_EQ(report()["panes"]["story map 1"]["mark"], "");
    EXPECT_TRUE(says("Every lane is right.")) << words();
    EXPECT_EQ(quit(), 0) << output();
}

/// Long answers are whole in a small window: in smaller lines on the cards; in the pane in several lines as
/// long as all lanes stay in sight, and else in the tooltip.
TEST_F(StoryWindow, LongAnswersAreWholeInASmallWindow) {
    width_ = 900, height_ = 600;
    start("-f " + reference::source_folder().string() + "/assets/prompts/list.txt");
    EXPECT_TRUE(says("basket, apple, candle, horse, button,")) << words();
    for (int lane = 0; lane < 3; ++lane)
        EXPECT_LT(width_of(fmt::format("story answer {}", lane)), width_of("story lane 0")) << lane;
    const Json now = report();
    for (const auto& text : now["short_texts"].value("story", Json::array()))
        EXPECT_EQ(text.get<std::string>().find("basket"), std::string::npos) << text;
    click("first words close");
    key("F2");
    ASSERT_TRUE(wait_until("lanes", [](const Json& of) { return of["items"].contains("answer 2"); }));
    for (const char* item : {"answer 0", "bound random:budget=64"}) {
        point(item);
        EXPECT_TRUE(wait_until(item, [](const Json& of) {
            return of["items"].contains("tooltip") &&
                   of["texts"].dump().find("basket, apple, ") != std::string::npos;
        })) << report()["texts"];
    }
    EXPECT_GT(height_of("answer 0"), 3 * height_of("why 1") / 2) << "several lines";
    EXPECT_EQ(quit(), 0) << output();
}

/// Side by side, the answers of seven lanes leave a small window room for one row of maps that can be read.
TEST_F(StoryWindow, SideBySideHasOneRowOfMapsBelowManyAnswers) {
    struct Case {
        int width, height;
        bool two_rows;
    };
    for (const auto& [width, height, two_rows] : {Case{900, 600, false}, {1600, 1000, true}}) {
        SCOPED_TRACE(fmt::format("{}x{}", width, height));
        width_ = width, height_ = height;
        std::string lanes = "--lane full";
        for (const char* preset : {"h2o", "tova", "window", "sink", "snapkv", "a2sf"})
            lanes += fmt::format(" --lane {}:budget=64", preset);
        start(lanes);
        if (report()["items"].contains("first words close")) click("first words close");  // a first start
        key("F3");
        ASSERT_TRUE(
            wait_until("maps", [](const Json& now) { return now["items"].contains("compare pane0"); }));
        EXPECT_GT(height_of("compare pane0"), 140);
        EXPECT_EQ(report()["items"].contains("compare difference"), two_rows);
        EXPECT_EQ(report()["items"].contains("compare needs height"), !two_rows);
        EXPECT_EQ(quit(), 0) << output();
    }
}

/// Question, answers and text stay at every size and scale; the maps as long as there is room.
TEST_F(StoryWindow, KeepsWhatMattersAtEverySize) {
    struct Size {
        int width, height, percent;
        bool maps;
    };
    for (const Size& size : {Size{1024, 640, 100, true},
                             {1280, 720, 100, true},
                             {1280, 720, 150, true},
                             {1600, 1000, 200, true},
                             {1600, 1000, 300, false},
                             {1900, 1180, 100, true}}) {
        const std::string where = fmt::format("{}x{} at {} %", size.width, size.height, size.percent);
        SCOPED_TRACE(where);
        width_ = size.width, height_ = size.height;
        std::ofstream(folder_ / "settings.json")
            << fmt::format(R"({{"interface_scale": {}}})", size.percent / 100.0);
        start();
        for (const char* item : {"story question", "story text", "story answer 0", "story answer 1"}) {
            const Json at = box(item);
            EXPECT_GT(at[3].get<int>() - at[1].get<int>(), 8) << item;
            EXPECT_LE(at[3].get<int>(), size.height) << item;
        }
        EXPECT_TRUE(says("What is the code of the garden gate?")) << words();
        if (size.maps) {
            EXPECT_GT(height_of("story map 0"), 50 * size.percent / 100);
        }
        if (size.percent == 100 && size.width >= 1280) expect_no_cut_text(where);
        EXPECT_EQ(quit(), 0) << output();
    }
}

/// The instrument keeps text and answers in sight too; where there is no room for both, the head gives way.
TEST_F(StoryWindow, TheInstrumentKeepsTextAndAnswers) {
    arrangement_ = "explore";
    struct Size {
        int width, height, percent;
        bool head;
    };
    for (const Size& size : {Size{1024, 640, 100, true},
                             {1280, 720, 150, true},
                             {1600, 1000, 200, true},
                             {1600, 1000, 300, false}}) {
        SCOPED_TRACE(fmt::format("{}x{} at {} %", size.width, size.height, size.percent));
        width_ = size.width, height_ = size.height;
        std::ofstream(folder_ / "settings.json") << fmt::format(
            R"({{"interface_scale": {}, "arrangement": "explore", "strips": "off"}})", size.percent / 100.0);
        start();
        const int line = 16 * size.percent / 100;
        EXPECT_GT(height_of("pane text"), 3 * line);
        EXPECT_GT(height_of("pane answers"), 3 * line);
        for (int lane = 0; lane < 2; ++lane)
            EXPECT_GT(height_of(fmt::format("answer {}", lane)), line / 2) << lane;
        EXPECT_EQ(shows("heatmap"), size.head);
        EXPECT_EQ(shows("side heatmap"), !size.head) << "a tab";
        EXPECT_EQ(quit(), 0) << output();
    }
}

/// For a projector answers have at least 1/25 of the window's height, and nothing is below 1/45.
TEST_F(StoryWindow, TeachIsReadFromTheBackRow) {
    for (const auto& [width, height] : {std::pair(1280, 720), {1600, 1000}}) {
        SCOPED_TRACE(height);
        width_ = width, height_ = height;
        std::filesystem::remove(folder_ / "settings.json");
        start();
        key("F4");
        settle();
        // The first frame still has the type of the story.
        ASSERT_TRUE(wait_until("type of 1/45 of the height", [high = height](const Json& now) {
            return !now["items"].contains("pane lanes") &&
                   now["smallest_type"].get<double>() >= high / 45.0 - 0.5;
        }));
        for (int lane = 0; lane < 2; ++lane)
            EXPECT_GE(height_of(fmt::format("story answer {}", lane)), height / 25) << lane;
        EXPECT_GT(height_of("story map 0"), height / 8);
        EXPECT_EQ(quit(), 0) << output();
    }
}

}  // namespace
}  // namespace keyhole::test_story_window
