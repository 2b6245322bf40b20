// The answers as the window shows them: right or wrong, what differs from lane 0, and the sentence on top.
#include "app/models/catalog.h"
#include "app/state/shown_answers.h"
#include "engine/session/prompt_file.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/window/live_run.h"

#include <gtest/gtest.h>

#include <set>

namespace keyhole::test_shown_answers {
namespace {

using Mark = ShownAnswer::Mark;

/// The story of the demo, with the lanes that the window opens with.
class ShownAnswers : public testing::LiveRun {
  protected:
    ShownAnswers() {
        run_action(app, "open " + (reference::source_folder() / "assets/prompts/garden-gate.txt").string());
        settle();
        run_action(app, "lane 1 h2o:budget=64");
        run_action(app, "add tova:budget=64");
        settle();
    }
};

TEST_F(ShownAnswers, SayWhoIsRightBeforeTheFirstStep) {
    EXPECT_EQ(app.run.n_decoded(), 0);
    EXPECT_EQ(app.run.setup.guide.answer, "4821");
    const auto answers = shown_answers(app);
    ASSERT_EQ(answers.size(), 3u);
    EXPECT_EQ(answers[0].mark, Mark::right);
    EXPECT_EQ(answers[1].mark, Mark::wrong) << answers[1].answer.text;
    EXPECT_EQ(answers[2].mark, Mark::right) << answers[2].answer.text;
    for (const ShownAnswer& shown : answers) {
        ASSERT_EQ(shown.differs.size(), shown.answer.tokens.size());
        const bool any = std::find(shown.differs.begin(), shown.differs.end(), true) != shown.differs.end();
        EXPECT_EQ(any, shown.mark == Mark::wrong) << shown.lane;
    }
    EXPECT_EQ(answers_caption(app, answers), "Lane 1 (h2o) is wrong.");
    run_action(app, "watch 4821");
    const std::string caption = answers_caption(app, answers);
    EXPECT_EQ(caption.rfind("Lane 1 (h2o) is wrong: ", 0), 0u) << caption;
    EXPECT_NE(caption.find("of 48 KV heads"), std::string::npos) << caption;
    run_action(app, "why.answer 1");
    EXPECT_TRUE(app.view.watched->holds(app.view.pick->position));
}

TEST_F(ShownAnswers, FollowASettingOfALane) {
    run_action(app, "lane 1 h2o:budget=400");
    settle();
    const auto answers = shown_answers(app);
    EXPECT_EQ(answers[1].mark, Mark::right) << answers[1].answer.text;
    EXPECT_EQ(answers_caption(app, answers), "All lanes give the same answer.");
}

/// A prompt of the user's own has no known answer, so nothing is right or wrong.
TEST_F(ShownAnswers, OfAnOwnPromptHaveNoMarks) {
    run_action(app, "prompt The dog ran to the gate. Who ran to the gate?");
    settle();
    for (const ShownAnswer& shown : shown_answers(app)) EXPECT_EQ(shown.mark, Mark::none);
}

/// A trace of lanes that chose their own words holds their answers; one of lanes that followed does not.
TEST_F(ShownAnswers, OfATraceAreItsOwnWords) {
    const auto answers = shown_answers(app);
    for (const bool follows : {false, true}) {
        reference::TempFolder folder("answers");
        const std::string file = (folder.path() / "run.keyhole").string();
        run_action(app, follows ? "follow on" : "follow off");
        run_action(app, "run.restart");
        settle();
        run_action(app, "step 12");
        settle();
        run_action(app, "file.save " + file);
        settle();
        run_action(app, "open " + file);
        settle();
        ASSERT_FALSE(app.run.live());
        const auto of_trace = shown_answers(app);
        if (follows) {
            EXPECT_TRUE(of_trace.empty());
            return;
        }
        ASSERT_EQ(of_trace.size(), answers.size());
        for (std::size_t i = 0; i < answers.size(); ++i)
            EXPECT_EQ(of_trace[i].answer.text.rfind(answers[i].answer.text, 0), 0u)
                << of_trace[i].answer.text << "\n"
                << answers[i].answer.text;
        run_action(app, "run.restart");  // a live run again
        settle();
    }
}

/// The prompts and lanes that the catalogue names exist and can be read.
TEST(CatalogStory, NamesAPromptAndLanes) {
    int n_stories = 0;
    for (const CatalogModel& model : own_catalog()) {
        for (const std::string& lane : model.lanes) EXPECT_NO_THROW(parse_lane_spec(lane)) << lane;
        if (model.prompt.empty()) continue;
        ++n_stories;
        EXPECT_FALSE(read_prompt_file(prompt_of(model)).guide.answer.empty());
        EXPECT_EQ(model.lanes.size(), 7u);
    }
    EXPECT_GE(n_stories, 1);
}

}  // namespace
}  // namespace keyhole::test_shown_answers
