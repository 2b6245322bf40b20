// The field of a formula on a policy card, by real keys: the fault at its place, completion, what is in force
// meanwhile, and the picture of what the formula would rank.
#include "tests/window/simulated_user.h"

namespace keyhole::test_formula_field {
namespace {

class FormulaFieldInput : public testing::SimulatedUser {
  protected:
    void open_field() {
        start("--lane full --lane h2o:budget=8");
        click("lane.advanced");
        settle();
        scroll_to("pane lanes", "choose");
        ASSERT_TRUE(has("choose")) << report()["texts"]["lanes"];
        click("choose");
        ASSERT_TRUE(wait_until("the field", [](const Json& now) { return now["typing"] == true; }));
        key("Ctrl+A");
    }
    bool has(const std::string& item) { return report()["items"].contains(item); }
    bool says(const std::string& words) {
        return report()["texts"]["lanes"].dump().find(words) != std::string::npos;
    }
    bool has_spec(const std::string& part) {
        return wait_until("the lane with " + part, [&](const Json& now) {
            return now["texts"]["lanes"].dump().find(part) != std::string::npos;
        });
    }
    double left_of(const std::string& item) { return report()["items"][item][0]; }
};

TEST_F(FormulaFieldInput, TypedKeysAreCompletedMarkedAndDrawn) {
    open_field();
    if (HasFatalFailure()) return;
    type("knrom");
    settle();
    EXPECT_TRUE(has("formula fault") && has("formula fault mark"));
    EXPECT_TRUE(says("unknown name 'knrom'")) << report()["texts"]["lanes"];
    const double at_first = left_of("formula fault mark");
    key("Return");  // a text with a fault stays, and is not applied
    settle();
    EXPECT_EQ(report()["notice"].dump().find("knrom"), std::string::npos) << report()["notice"];
    EXPECT_TRUE(has("formula fault"));
    EXPECT_EQ(report()["typing"], true) << "what is typed next mends the fault";
    const Json commands = report()["commands"];
    type("k");
    settle();
    EXPECT_EQ(report()["commands"], commands) << "a key of the window";
    EXPECT_TRUE(says("unknown name 'knromk'")) << report()["texts"]["lanes"];

    key("Ctrl+A");
    type("s/ag+knrom");
    settle();
    EXPECT_GT(left_of("formula fault mark"), at_first + 5) << "the mark stands at the word";
    for (int i = 0; i < 6; ++i) key("BackSpace");
    settle();
    EXPECT_TRUE(has("formula word age"));
    key("Tab");
    type("+1");
    settle();
    EXPECT_FALSE(has("formula fault")) << report()["texts"]["lanes"];
    EXPECT_TRUE(has("formula preview")) << "s/age+1 is known from the record";
    EXPECT_TRUE(says("tokens would")) << report()["texts"]["lanes"];
    EXPECT_EQ(report()["typing"], true);

    // Records hold no keys: the engine ranks by their lengths, while the field is still edited.
    const Json lanes = report()["lanes"];
    key("Ctrl+A");
    type("s/knorm");
    ASSERT_TRUE(wait_until("the engine's ranks", [](const Json& now) {
        return now["texts"]["lanes"].dump().find("as the engine ranks them") != std::string::npos;
    })) << report()["texts"]["lanes"];
    EXPECT_TRUE(has("formula preview"));
    EXPECT_EQ(report()["typing"], true);
    EXPECT_EQ(report()["lanes"], lanes) << "what is typed is not in force";

    key("Ctrl+A");
    type("s");
    settle();
    EXPECT_TRUE(has("formula word s") && has("formula word slot") && has("formula word sqrt("));
    key("Down");
    key("Down");
    key("Tab");
    type("s)");
    settle();
    EXPECT_FALSE(has("formula word s"));
    key("Return");
    EXPECT_TRUE(has_spec("choose=(sqrt(s))"));
}

TEST_F(FormulaFieldInput, EscapeClosesTheListAloneAndAClickInserts) {
    open_field();
    if (HasFatalFailure()) return;
    type("kno");
    settle();
    ASSERT_TRUE(has("formula word knorm"));
    key("Escape");
    settle();
    EXPECT_FALSE(has("formula word knorm"));
    EXPECT_EQ(report()["typing"], true) << "Escape left the field";
    type("r");
    settle();
    ASSERT_TRUE(has("formula word knorm"));
    click("formula word knorm");
    // The list goes in the frame of the click; the field has the keyboard again once the button is up.
    ASSERT_TRUE(wait_until("the field again", [](const Json& now) {
        return now["typing"] == true && !now["items"].contains("formula word knorm");
    }));
    settle();
    type("*2");
    key("Return");
    EXPECT_TRUE(has_spec("choose=(knorm*2)"));
}

}  // namespace
}  // namespace keyhole::test_formula_field
