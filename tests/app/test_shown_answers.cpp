// The answers as the window shows them: right or wrong, what differs from lane 0, and the sentence on top.
#include "app/models/catalog.h"
#include "app/state/shown_answers.h"
#include "engine/run/prompt_file.h"
#include "tests/app/live_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"

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
    EXPECT_EQ(answers_caption(app, answers), "H2O is wrong.");
    EXPECT_TRUE(has_other_answer(answers));
    run_action(app, "watch 4821");
    const std::string caption = answers_caption(app, answers);
    EXPECT_EQ(caption.rfind("H2O is wrong: when it answered, ", 0), 0u) << caption;
    EXPECT_NE(caption.find("of 48 heads still had “4821” (TOVA: "), std::string::npos) << caption;
    const std::vector<int> plotted = app.view.curve_positions;
    run_action(app, "why.answer 1");
    EXPECT_TRUE(app.view.watched->holds(app.view.pick->position));
    EXPECT_EQ(app.view.curve_positions, plotted);
    // The page asks by itself what the lane had answered with the watched words kept.
    settle();
    const auto& back = app.run.status.counterfactual;
    ASSERT_NE(back, nullptr);
    EXPECT_EQ(back->position, app.view.watched->first);
    EXPECT_EQ(back->n_tokens, app.view.watched->size());
    EXPECT_FALSE(answer_holds(back->answer_as_is.text, "4821")) << back->answer_as_is.text;
    EXPECT_TRUE(answer_holds(back->answer_with.text, "4821")) << back->answer_with.text;
    // It does not ask about a lane that the answer cannot be computed for: no refusal.
    run_action(app, "lane 1 sink:budget=64,positions=cache");
    run_action(app, "run.restart");
    settle();
    run_action(app, "watch 4821");
    run_action(app, "why.answer 1");
    settle();
    EXPECT_EQ(app.run.status.counterfactual, nullptr);
    EXPECT_EQ(app.refusal, "");
}

/// A lane with other settings than those of the prompt is marked until the run starts again.
TEST_F(ShownAnswers, NewSettingsAreNamedUntilTheRestart) {
    run_action(app, "run.restart");
    settle();
    EXPECT_FALSE(app.run.new_settings(1));
    run_action(app, "lane 1 h2o:budget=96");
    settle();
    auto change = app.run.new_settings(1);
    ASSERT_TRUE(change);
    EXPECT_EQ(change->from, -1);
    EXPECT_EQ(change->before, "h2o:budget=64");
    const int last = app.run.last_row();
    run_action(app, "step 3");
    settle();
    change = app.run.new_settings(1);
    ASSERT_TRUE(change);
    EXPECT_EQ(change->from, last + 1);
    EXPECT_FALSE(app.run.new_settings(0));
    run_action(app, "add sink:budget=64");
    run_action(app, "step");
    settle();
    EXPECT_FALSE(app.run.new_settings(3)) << "a lane that joined has no other settings";
    run_action(app, "run.restart");
    settle();
    EXPECT_FALSE(app.run.new_settings(1));
}

TEST_F(ShownAnswers, FollowASettingOfALane) {
    run_action(app, "lane 1 h2o:budget=400");
    settle();
    const auto answers = shown_answers(app);
    EXPECT_EQ(answers[1].mark, Mark::right) << answers[1].answer.text;
    EXPECT_EQ(answers_caption(app, answers), "All lanes give the same answer.");
    EXPECT_FALSE(has_other_answer(answers));
    std::vector<ShownAnswer> failed = answers;  // a lane 0 that failed has no answer to differ from
    failed[0].answer.failure = "V of token 3 in layer 0 is beyond 65504";
    failed[0].answer.tokens.clear();
    mark_answers(failed, "");
    EXPECT_EQ(answers_caption(app, failed), "Lane 0 gives no answer, so none is compared with it.");
}

/// A prompt of the user's own has no known answer, so nothing is right or wrong.
TEST_F(ShownAnswers, OfAnOwnPromptHaveNoMarks) {
    run_action(app, "prompt The dog ran to the gate. Who ran to the gate?");
    settle();
    for (const ShownAnswer& shown : shown_answers(app)) EXPECT_EQ(shown.mark, Mark::none);
}

/// A trace keeps the answers that were on the screen, and their marks, also where the lanes followed lane 0.
TEST_F(ShownAnswers, StayInATrace) {
    for (const bool follows : {false, true}) {
        reference::TempFolder folder("answers");
        const std::string file = (folder.path() / "run.keyhole").string();
        run_action(app, follows ? "follow on" : "follow off");
        run_action(app, "run.restart");
        settle();
        run_action(app, "step 12");
        settle();
        const auto answers = shown_answers(app);
        const std::string right = right_answer(app);
        ASSERT_TRUE(answers[1].answer.complete);
        run_action(app, "file.save " + file);
        settle();
        run_action(app, "open " + file);
        app.run.setup.prompt += " ";  // what is known about it must come from the trace
        settle();
        ASSERT_FALSE(app.run.live());
        EXPECT_EQ(right_answer(app), right);
        const auto of_trace = shown_answers(app);
        ASSERT_EQ(of_trace.size(), answers.size());
        for (std::size_t i = 0; i < answers.size(); ++i) {
            EXPECT_EQ(of_trace[i].answer.text, answers[i].answer.text);
            EXPECT_EQ(of_trace[i].answer.tokens, answers[i].answer.tokens);
            EXPECT_EQ(of_trace[i].answer.spec, answers[i].answer.spec);
            EXPECT_EQ(of_trace[i].mark, answers[i].mark);
        }
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
