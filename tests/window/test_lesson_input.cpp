// Three lessons with a real pointer and the keys of a presenter's remote: predictions are clicked, the
// reveal measures, controls are dragged, and a lesson of one's own is edited in place.
#include "engine/base/index.h"
#include "tests/window/simulated_user.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace keyhole::test_lesson_input {
namespace {

using Json = nlohmann::json;

class LessonInput : public testing::SimulatedUser {
  protected:
    LessonInput() { width_ = 1920, height_ = 1080; }
    void open(int number) {
        start(fmt::format("--lesson {}", number));
        if (HasFatalFailure()) return;
        ASSERT_TRUE(wait_until("the lesson", [&](const Json& now) {
            return !now["lesson"].is_null() && now["lesson"]["busy"] == false && now["idle"] == true;
        }));
    }
    Json lesson() { return report()["lesson"]; }
    bool reveals(const std::string& what) {
        return wait_until(what, [](const Json& now) {
            return now["lesson"]["revealed"] == true && now["lesson"]["measured"] > 0 && now["idle"] == true;
        });
    }
    bool comes_to(int step) {
        return wait_until(fmt::format("step {}", step), [&](const Json& now) {
            return now["lesson"]["step"] == step && now["lesson"]["busy"] == false && now["idle"] == true;
        });
    }
};

TEST_F(LessonInput, TheLostNeedleByChoiceAndSlider) {
    open(9);
    if (HasFatalFailure()) return;
    EXPECT_TRUE(shows("lesson.ring of words")) << "the digits are ringed";
    click("lesson.predict 2");
    EXPECT_EQ(lesson()["choice"], 2);
    click("lesson.next");
    ASSERT_TRUE(reveals("the answers"));
    EXPECT_EQ(lesson()["holds"], true);
    key("Next");  // Page Down of a remote
    ASSERT_TRUE(comes_to(2));
    key("Next");
    ASSERT_TRUE(reveals("the heads"));
    key("Prior");
    ASSERT_TRUE(comes_to(1));
    click("lesson.step 3");
    ASSERT_TRUE(comes_to(3));
    key("Next");
    ASSERT_TRUE(reveals("who keeps the digits"));
    drag("lesson.play", 0.02, 0.5, 0.98, 0.5);
    ASSERT_TRUE(wait_until("the dragged budget", [](const Json& now) {
        return now["commands"]["last"].back() == "lesson.play" && now["idle"] == true;
    }));
    EXPECT_EQ(lesson()["holds"], true) << "what was measured at the reveal stays";
    click("lesson.reset");
    ASSERT_TRUE(comes_to(3));
    EXPECT_EQ(lesson()["revealed"], false);
    // Controls of the window stay unlocked: the head is chosen in the atlas while a ring is elsewhere.
    const Json before = report()["head"];
    click("pane atlas", 0.9, 0.85);
    EXPECT_NE(report()["head"], before);
    click("lesson.close");
    EXPECT_TRUE(report()["lesson"].is_null());
    EXPECT_EQ(quit(), 0) << output();
}

/// Before the reveal no other pane gives the answer away; the heads of a step are ringed in the atlas.
TEST_F(LessonInput, OtherPanesAreCoveredAndHeadsAreRinged) {
    open(15);
    if (HasFatalFailure()) return;
    EXPECT_TRUE(shows("lesson.cover of atlas"));
    EXPECT_FALSE(shows("lesson.cover of text")) << "the pane to look at";
    EXPECT_FALSE(shows("lesson.ring of L4.H1"));
    point("pane atlas");
    settle();
    EXPECT_FALSE(shows("tooltip")) << "it says what the cover hides";
    key("Next");
    ASSERT_TRUE(reveals("the answer"));
    EXPECT_FALSE(shows("lesson.cover of atlas"));
    point("pane atlas", 0.51);
    settle();
    EXPECT_TRUE(shows("tooltip"));
    EXPECT_FALSE(report()["texts"].dump().find("expected:") != std::string::npos);
    click("lesson.measured");
    EXPECT_NE(report()["texts"].dump().find("expected:"), std::string::npos);
    click("lesson.step 3");
    ASSERT_TRUE(comes_to(3));
    for (const char* head : {"L4.H1", "L4.H3", "L5.H1", "L5.H6", "L5.H7"})
        EXPECT_TRUE(shows(std::string("lesson.ring of ") + head)) << head;
    EXPECT_FALSE(shows("lesson.ring of answers"));
    key("Next");
    ASSERT_TRUE(reveals("what the head attends to"));
    EXPECT_TRUE(shows("lesson.ring of answers")) << "the buttons change them";
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(LessonInput, ATokenIsClickedInTheText) {
    open(21);
    if (HasFatalFailure()) return;
    EXPECT_FALSE(shows("lesson.ring of words")) << "a ring around the digits would give them away";
    const Json now = report();
    std::string digit;
    for (const auto& [name, box] : now["items"].items())
        if (name == "token 80") digit = name;
    ASSERT_FALSE(digit.empty()) << "the digits are in sight";
    click(digit);
    ASSERT_FALSE(report()["pick"].is_null()) << "the ring's window takes no input";
    key("Next");
    ASSERT_TRUE(reveals("what the token changes"));
    EXPECT_EQ(lesson()["holds"], true);
    EXPECT_EQ(quit(), 0) << output();
}

int size_of(const Json& now, const std::string& item, int axis) {
    const Json box = now["items"].value(item, Json::array({0, 0, 0, 0}));
    return box[to_index(axis + 2)].get<int>() - box[to_index(axis)].get<int>();
}

TEST_F(LessonInput, CompareIsAsLargeAsTeach) {
    open(22);
    if (HasFatalFailure()) return;
    const int teach = size_of(report(), "mode.mask", 1);
    click("lesson.step 3");
    ASSERT_TRUE(comes_to(3));
    key("Next");
    ASSERT_TRUE(reveals("the overlap"));
    EXPECT_TRUE(shows("pane compare"));
    EXPECT_EQ(size_of(report(), "mode.mask", 1), teach);
    click("lesson.close");
    EXPECT_TRUE(
        wait_until("the usual type", [&](const Json& now) { return size_of(now, "mode.mask", 1) < teach; }));
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(LessonInput, WhatAStepLooksAtHasRoom) {
    open(5);
    if (HasFatalFailure()) return;
    const Json before = report();
    click("lesson.step 2");
    ASSERT_TRUE(comes_to(2));
    for (int axis = 0; axis < 2; ++axis)
        EXPECT_GT(size_of(report(), "pane curves", axis), size_of(before, "pane curves", axis) * 5 / 4);
    EXPECT_EQ(quit(), 0) << output();
}

TEST_F(LessonInput, TheDoctorAndALessonOfOnesOwn) {
    open(18);
    if (HasFatalFailure()) return;
    click("lesson.predict 2");
    key("Next");
    ASSERT_TRUE(reveals("an honest loss"));
    key("Next");
    ASSERT_TRUE(comes_to(2));
    key("Next");
    ASSERT_TRUE(reveals("a broken cache"));
    const Json verdict = report()["items"]["doctor verdict"], ring = report()["items"]["lesson.ring"];
    EXPECT_TRUE(ring[0] <= verdict[0] && ring[3] >= verdict[3]) << "all of what the doctor says is ringed";
    EXPECT_EQ(report()["phase"], "trace");
    EXPECT_EQ(lesson()["holds"], true);
    key("Prior");
    ASSERT_TRUE(comes_to(1));
    EXPECT_NE(report()["phase"], "trace");
    // Saves the run as a lesson and edits its text in place.
    click("menu Lessons");
    click("menu lesson.save", 0.3);
    ASSERT_TRUE(wait_until("the saved lesson", [](const Json& now) {
        return now["lesson"]["name"] == "my-lesson" && now["lesson"]["busy"] == false && now["idle"] == true;
    }));
    click("lesson.field text");
    ASSERT_TRUE(wait_until("a field", [](const Json& now) { return now["typing"] == true; }));
    key("Ctrl+A");
    type("Look at lane 1.");
    click("lesson.edit");
    ASSERT_TRUE(wait_until("the text is set", [](const Json& now) { return now["typing"] == false; }));
    std::ifstream file(folder_ / "data/keyhole/lessons/my-lesson.json");
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_NE(text.str().find("Look at lane 1."), std::string::npos) << text.str();
    EXPECT_EQ(quit(), 0) << output();
}

}  // namespace
}  // namespace keyhole::test_lesson_input
