// The story of a run: the answer is decoded by itself, belongs to the shown settings, and is told in one
// sentence; an own prompt gets its words watched.
#include "app/state/story.h"
#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "tests/app/live_run.h"

#include <gtest/gtest.h>

namespace keyhole::test_story {
namespace {

using Mark = ShownAnswer::Mark;

/// The demo's story, seen as the window opens.
class StoryOfTheGate : public testing::LiveRun {
  protected:
    StoryOfTheGate() {
        app.run.lane_editor.reset(
            {parse_lane_spec("full"), parse_lane_spec("h2o:budget=64"), parse_lane_spec("tova:budget=64")},
            false);
        app.view.arrangement = Arrangement::story;
        run_action(app, "open " + (reference::source_folder() / "assets/prompts/garden-gate.txt").string());
        watch_guide();
        settle();
    }
    /// Watches the words of the prompt's file, as the window does with the first record.
    void watch_guide() {
        app.view.watched.reset();
        ASSERT_TRUE(wakes.wait_until([&] {
            app.refresh();
            return app.run.recorded();
        }));
        if (!app.run.setup.guide.watch.empty()) run_action(app, "watch " + app.run.setup.guide.watch);
    }
    std::uint64_t run_id() const { return app.run.history.run().id; }
};

TEST_F(StoryOfTheGate, AnswersByItselfAndSaysWhatHappened) {
    EXPECT_GT(app.run.n_decoded(), 3) << "without a key";
    const Story story = story_of(app);
    EXPECT_TRUE(story.complete);
    EXPECT_EQ(story.question, "What is the code of the garden gate?");
    EXPECT_EQ(story.words, "4821");
    EXPECT_EQ(story.text.first, app.view.watched->first - Story::kAround);
    EXPECT_EQ(story.text.last, app.view.watched->last + Story::kAround);
    ASSERT_EQ(story.lanes.size(), 3u);
    EXPECT_EQ(story.lanes[0].name, "Full cache");
    EXPECT_EQ(story.lanes[1].name, "H2O");
    EXPECT_EQ(story.lanes[2].name, "TOVA");
    EXPECT_EQ(story.lanes[0].keeps, "all 370 tokens");
    EXPECT_EQ(story.lanes[1].keeps, "64 of 370 tokens, 17 %");
    EXPECT_EQ(story.lanes[0].shown.mark, Mark::right);
    EXPECT_EQ(story.lanes[1].shown.mark, Mark::wrong);
    EXPECT_EQ(story.lanes[2].shown.mark, Mark::right);
    EXPECT_EQ(story.lanes[0].n_holding, 48);
    EXPECT_EQ(story.lanes[1].n_holding, 1);
    EXPECT_EQ(story.lanes[2].n_holding, 16);
    EXPECT_EQ(story.explained, 1);
    EXPECT_TRUE(story.lanes[1].shown.answer.had_evicted());
    EXPECT_FALSE(story.lanes[0].shown.answer.had_evicted());
    EXPECT_EQ(story.sentence,
              "H2O threw “4821” away: when it answered, 1 of 48 heads had it. Right: TOVA (16 heads).");
}

TEST_F(StoryOfTheGate, GoesOnWithoutTheWordsOnItsPause) {
    EXPECT_EQ(app.notice.text, "the answer is complete; Space continues");
    run_action(app, "story.give 1");  // which clears the engine's message
    settle();
    run_action(app, "step");
    settle();
    EXPECT_EQ(app.notice.text, "");
}

/// A slow speed is for reading along; the answer is there at once, and the speed stays.
TEST_F(StoryOfTheGate, AnswersAtFullSpeed) {
    run_action(app, "run.speed 0.001");
    run_action(app, "run.restart");
    settle();
    EXPECT_GT(app.run.n_decoded(), 3);
    EXPECT_EQ(app.run.speed, 0.001);
}

/// The right answer of an own prompt marks the answers, and they end with its sentence.
TEST_F(StoryOfTheGate, MarksAnAnswerThatTheUserNames) {
    run_action(app, "prompt " + app.run.setup.prompt);
    run_action(app, "prompt.answer 4821");
    settle();
    const Story story = story_of(app);
    EXPECT_EQ(story.lanes[0].shown.mark, Mark::right);
    EXPECT_EQ(story.lanes[1].shown.mark, Mark::wrong);
    EXPECT_EQ(story.lanes[0].shown.answer.text, " 4821");
    EXPECT_EQ(app.run.setup.guide.end.stop, (std::vector<std::string>{".", "\n"}));
    const std::uint64_t before = run_id();
    run_action(app, "prompt.answer 3333");
    settle();
    EXPECT_EQ(run_id(), before) << "only the marks change";
    EXPECT_EQ(story_of(app).lanes[1].shown.mark, Mark::right);
}

/// The window chooses head and words by itself; undo takes back what the user did, also across the new run
/// that a change of a lane begins.
TEST_F(StoryOfTheGate, UndoTakesBackWhatTheUserDid) {
    const auto settle_and_remember = [&] {
        settle();
        app.remember_changes();
    };
    settle_and_remember();
    const HeadPlace first{app.view.layer, app.view.head};
    run_action(app, "prompt Anna has a red hat. Ben has a blue hat. What colour is the hat of Ben? It is");
    settle_and_remember();
    ASSERT_TRUE(app.view.watched) << "chosen by the window";
    EXPECT_NE(app.view.watched->first, 80) << "other words than those of the gate";
    EXPECT_NE((HeadPlace{app.view.layer, app.view.head}), first);
    EXPECT_EQ(app.undo(), "") << "the user has changed no view and no lane";
    run_action(app, "lane 1 tova:budget=64");
    settle_and_remember();
    EXPECT_EQ(app.undo(), "lane 1, h2o → tova");
    settle_and_remember();
    EXPECT_EQ(app.run.history.lane_record(app.run.first_row(), *app.run.history_lane(1))->info->spec,
              "h2o:budget=64")
        << "the run began again";
    EXPECT_EQ(app.redo(), "lane 1, h2o → tova");
    settle_and_remember();
    EXPECT_EQ(app.run.lane_editor.lanes()[1], parse_lane_spec("tova:budget=64"));
}

/// Of an answer that does not stand in the text, the words that the full cache attends to are watched.
TEST_F(StoryOfTheGate, WatchesWhatIsAttendedToWhereTheAnswerIsNotInTheText) {
    std::vector<ShownAnswer> answers = shown_answers(app);
    // The same rows, with words that the text does not have.
    const int absent = app.run.history.run().prompt_tokens.front();
    for (ShownAnswer& shown : answers) shown.answer.tokens.assign(5, absent);
    answers[1].answer.tokens.clear();
    const std::optional<TokenSpan> words = telling_words(app, answers);
    ASSERT_TRUE(words);
    EXPECT_GE(words->first, 4) << "no sink";
    EXPECT_LE(words->size(), 8);
    EXPECT_TRUE(words->first <= app.view.watched->last && words->last >= app.view.watched->first)
        << words->first << " to " << words->last << ": the code is read in these steps";
}

/// Text, map and answer of a lane have the same words.
TEST_F(StoryOfTheGate, RowsAreTheWordsThatTheLaneChose) {
    const Story story = story_of(app);
    EXPECT_EQ(story.first_row, app.run.history.n_prompt() - 1);
    for (const StoryLane& lane : story.lanes) {
        ASSERT_EQ(lane.rows.size(), static_cast<std::size_t>(story.n_rows));
        const std::vector<int>& own = lane.shown.answer.tokens;
        const std::vector<int>& text = app.run.history.lanes()[to_index(lane.lane)].tokens;
        for (std::size_t i = 0; i < own.size() && i < lane.rows.size(); ++i) {
            EXPECT_EQ(lane.rows[i], app.glyphs.token(app.run.history.run(), own[i])) << lane.name;
            if (to_index(story.first_row + 1) + i < text.size()) {
                EXPECT_EQ(text[to_index(story.first_row + 1) + i], own[i]) << lane.name;
            }
        }
    }
}

TEST_F(StoryOfTheGate, TurnsToTheHeadThatTellsMost) {
    const Story story = story_of(app);
    const auto attends = [&](int layer, int head) {
        double sum = 0;
        for (int row = story.first_row; row < story.first_row + story.n_rows; ++row) {
            std::vector<float> values(to_index(row) + 1);
            EXPECT_TRUE(attention_values(app.run.history, 0, row, layer, head, values));
            for (int p = app.view.watched->first; p <= app.view.watched->last; ++p)
                sum += double(values[to_index(p)]);
        }
        return sum;
    };
    const double most = attends(app.view.layer, app.view.head);
    EXPECT_GT(most, 2) << "it reads four digits";
    const ModelConfig& config = app.run.history.run().config;
    for (int layer = 0; layer < config.n_layers; ++layer)
        for (int head = 0; head < config.n_heads; ++head) EXPECT_LE(attends(layer, head), most + 1e-9);
    // Another head that the user chose stays when the lanes answer anew.
    run_action(app, "goto 2 3");
    run_action(app, "lane 1 h2o:budget=96");
    settle();
    EXPECT_EQ(app.view.layer, 2);
    EXPECT_EQ(app.view.head, 3);
}

TEST_F(StoryOfTheGate, BelongsToTheSettingsAfterAChange) {
    const std::uint64_t before = run_id();
    run_action(app, "lane 1 h2o:budget=400");
    settle();
    EXPECT_NE(run_id(), before);
    EXPECT_GT(app.run.n_decoded(), 3);
    Story story = story_of(app);
    EXPECT_EQ(story.lanes[1].mark, "");
    EXPECT_EQ(story.lanes[1].shown.mark, Mark::right);
    EXPECT_EQ(story.explained, -1);
    EXPECT_EQ(story.sentence, "Every lane is right. Heads of 48 that held “4821”: H2O 48, TOVA 16.");
    // A lane that joins answers too; one that leaves changes nothing.
    run_action(app, "add window:budget=64");
    settle();
    story = story_of(app);
    ASSERT_EQ(story.lanes.size(), 4u);
    EXPECT_TRUE(story.lanes[3].shown.answer.complete);
    EXPECT_EQ(story.lanes[3].rows[0].empty(), false) << "it has rows of its own from the first step on";
    const std::uint64_t with_four = run_id();
    run_action(app, "lane.focus 3");
    run_action(app, "remove");
    settle();
    EXPECT_EQ(run_id(), with_four);
    EXPECT_EQ(story_of(app).lanes.size(), 3u);
}

/// Answers and story name the same lane: the focused one, if it is wrong.
TEST_F(StoryOfTheGate, TheAnswersSpeakOfTheSameLane) {
    run_action(app, "add window:budget=64");
    settle();
    for (const auto& [lane, name] : {std::pair(1, "H2O"), {3, "Window"}}) {
        run_action(app, fmt::format("lane.focus {}", lane));
        EXPECT_EQ(story_of(app).sentence.rfind(name, 0), 0u) << story_of(app).sentence;
        const std::string caption = answers_caption(app, shown_answers(app));
        EXPECT_EQ(caption.rfind(fmt::format("{} is wrong", name), 0), 0u) << caption;
        EXPECT_NE(caption.find(" 1 other lane is wrong too."), std::string::npos) << caption;
    }
}

/// While a slider is dragged, answers are of settings that the map does not have.
TEST_F(StoryOfTheGate, MarksAMapOfOtherSettingsThanAreTried) {
    EXPECT_EQ(story_of(app).lanes[1].mark, "");
    run_action(app, "lane.try 1 h2o:budget=400");
    settle();
    EXPECT_EQ(story_of(app).lanes[1].mark, "new settings; map of the old ones");
    run_action(app, "lane.try 1");
    settle();
    EXPECT_EQ(story_of(app).lanes[1].mark, "");
}

/// What the user did to single tokens is not thrown away: no new run, a mark says what has which settings.
TEST_F(StoryOfTheGate, KeepsARunThatTheUserHasTouched) {
    run_action(app, "evict 1 5");
    settle();
    const std::uint64_t before = run_id();
    run_action(app, "lane 2 tova:budget=48");
    settle();
    EXPECT_EQ(run_id(), before);
    const StoryLane lane = story_of(app).lanes[2];
    EXPECT_EQ(lane.mark, "new settings; map of the old ones");
    EXPECT_EQ(lane.shown.answer.spec, "tova:budget=48");
}

/// A start that is stopped leaves the run before as it was, with all that it has decoded.
TEST_F(StoryOfTheGate, AStartThatIsStoppedBringsTheRunBack) {
    run_action(app, "step 20");
    settle();
    const std::uint64_t before = run_id();
    const int last_row = app.run.last_row();
    run_action(app, "lane 1 kvzip:budget=64");
    ASSERT_TRUE(wakes.wait_until([&] {
        app.refresh();
        return app.run.status.phase == EnginePhase::prefill;
    }));
    run_action(app, "run.stop");
    settle();
    EXPECT_EQ(run_id(), before);
    EXPECT_EQ(app.run.last_row(), last_row);
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[1]), "h2o:budget=64");
    EXPECT_NE(app.notice.text.find("the run before it is back"), std::string::npos) << app.notice.text;
    // The next change is the user's again.
    run_action(app, "lane 1 h2o:budget=400");
    settle();
    EXPECT_NE(run_id(), before);
    EXPECT_EQ(story_of(app).lanes[1].shown.mark, Mark::right);
}

/// A map without rows of the answer says so: a lane whose KV heads changed there and back is a new lane.
TEST_F(StoryOfTheGate, SaysWhyAMapHasNoRows) {
    run_action(app, "view.explore");
    settle();
    app.remember_changes();
    run_action(app, "lane 1 h2o:budget=64,kv=gqa:2");
    settle();
    app.remember_changes();
    EXPECT_NE(app.undo(), "");
    settle();
    run_action(app, "step 2");
    settle();
    const int first = app.run.last_row() - 1;
    run_action(app, "view.story");
    settle();
    const Story story = story_of(app);
    EXPECT_EQ(story.lanes[0].mark, "");
    EXPECT_EQ(story.lanes[1].mark, fmt::format("map: no rows before step {}", first));
}

TEST_F(StoryOfTheGate, RewindsToThePromptAndStaysThere) {
    run_action(app, "rewind.prompt");
    settle();
    EXPECT_EQ(app.run.n_decoded(), 0);
    EXPECT_EQ(story_of(app).n_rows, 1);
    run_action(app, "step 2");
    settle();
    EXPECT_EQ(story_of(app).n_rows, 3);
}

/// What a user evicts is not what a policy threw away, and a full cache that lacks it knows no less.
TEST_F(StoryOfTheGate, TellsWhatWasEvictedByHand) {
    const int first = app.view.watched->first;
    for (const int lane : {2, 0}) {
        run_action(app, "rewind.prompt");
        settle();
        run_action(app, fmt::format("evict {} {}", lane, first));
        run_action(app, fmt::format("lane.focus {}", lane));
        settle();
        run_action(app, "step 6");
        settle();
        const Story story = story_of(app);
        const StoryLane& touched = story.lanes[to_index(lane)];
        EXPECT_EQ(touched.shown.answer.n_by_hand, 1);
        EXPECT_EQ(touched.n_holding, 0);
        EXPECT_EQ(touched.shown.mark, Mark::wrong) << touched.shown.answer.text;
        EXPECT_NE(story.sentence.find("You evicted 1 token from it by hand."), std::string::npos)
            << story.sentence;
        EXPECT_EQ(story.sentence.find("threw"), std::string::npos) << story.sentence;
        EXPECT_EQ(story.sentence.find("not to blame"), std::string::npos) << story.sentence;
    }
}

TEST_F(StoryOfTheGate, BlamesTheMergedHeads) {
    run_action(app, "lane 2 full:kv=gqa:2");
    run_action(app, "lane.focus 2");
    settle();
    const Story story = story_of(app);
    EXPECT_EQ(story.lanes[2].shown.mark, Mark::wrong) << story.lanes[2].shown.answer.text;
    EXPECT_EQ(story.explained, 2);
    EXPECT_NE(story.sentence.find("Its KV heads are merged"), std::string::npos) << story.sentence;
}

TEST_F(StoryOfTheGate, GivesTheWordsBack) {
    EXPECT_EQ(story_of(app).given_back, "");
    run_action(app, "story.give 1");
    settle();
    EXPECT_EQ(story_of(app).given_back, "With “4821” back, H2O answers “4821”.");
    EXPECT_EQ(app.dialog, Dialog::none);
}

/// Of a prompt that says nothing about itself, the words that the answer needs are watched.
TEST_F(StoryOfTheGate, WatchesTheWordsOfAnOwnPrompt) {
    const std::string prompt = app.run.setup.prompt;
    run_action(app, "prompt " + prompt);  // the same text without its guide
    settle();
    app.view.watched.reset();
    run_action(app, "run.restart");
    settle();
    EXPECT_TRUE(app.run.setup.guide.answer.empty());
    ASSERT_TRUE(app.view.watched);
    const Story story = story_of(app);
    EXPECT_EQ(story.words, "4821");
    EXPECT_EQ(story.lanes[1].shown.mark, Mark::none);
    EXPECT_EQ(story.explained, 1);
    EXPECT_NE(story.sentence.find("H2O threw “4821” away"), std::string::npos) << story.sentence;
    // Words that the user chose stay.
    run_action(app, "watch garden gate");
    const TokenSpan chosen = *app.view.watched;
    run_action(app, "run.restart");
    settle();
    EXPECT_EQ(*app.view.watched, chosen);
}

TEST_F(StoryOfTheGate, TheInstrumentDecodesNothingByItself) {
    run_action(app, "view.explore");
    run_action(app, "run.restart");
    settle();
    EXPECT_EQ(app.run.n_decoded(), 0);
    run_action(app, "view.story");
    settle();
    EXPECT_GT(app.run.n_decoded(), 3) << "the answer is decoded when the story comes on show";
}

/// A model that ends its text at once has not shown that it does not know the answer.
TEST(StoryWords, AModelThatSaysNothing) {
    Story story;
    story.lanes.resize(2);
    for (StoryLane& lane : story.lanes) {
        lane.name = "Full cache";
        lane.keeps = "all 370 tokens";
        lane.shown.answer.complete = true;
        lane.shown.mark = Mark::wrong;
    }
    EXPECT_EQ(story_sentence(story, true),
              "Full cache says nothing: the model ended its text at once, as models do that were not trained "
              "on questions. Give it a sentence to finish or, if it is made for chat, a chat turn.");
    story.lanes[0].shown.answer.text = " 4";
    EXPECT_NE(story_sentence(story, true).find("does not know the answer"), std::string::npos);
}

TEST(StoryWords, LastSentence) {
    EXPECT_EQ(last_sentence("A dog ran. What ran?"), "What ran?");
    EXPECT_EQ(last_sentence("A dog ran.\nQ: What ran?\nA:"), "Q: What ran?") << "a label asks nothing";
    EXPECT_EQ(last_sentence("The name of the girl is"), "The name of the girl is");
    EXPECT_EQ(last_sentence("He said \"go.\" Where? "), "Where?");
    EXPECT_EQ(last_sentence(""), "");
}

TEST(StoryWords, NamesAsPapersWriteThem) {
    EXPECT_EQ(paper_name("h2o"), "H2O");
    EXPECT_EQ(paper_name("a2sf alpha=0.2"), "A2SF alpha=0.2");
    EXPECT_EQ(paper_name("full"), "Full cache");
    EXPECT_EQ(paper_name("sink"), "StreamingLLM");
    EXPECT_EQ(paper_name("keyformer tau=1"), "Keyformer tau=1");
    EXPECT_EQ(paper_name("other"), "other");
}

}  // namespace
}  // namespace keyhole::test_story
