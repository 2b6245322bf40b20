// The answers as the window shows them: right or wrong, what differs from lane 0, and the sentence on top.
#include "app/models/catalog.h"
#include "app/state/shown_answers.h"
#include "engine/run/prompt_file.h"
#include "engine/trace/trace_file.h"
#include "tests/app/live_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <set>

namespace keyhole::test_shown_answers {
namespace {

using Mark = ShownAnswer::Mark;

std::string text_of(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

/// Returns what the script of a page reads.
nlohmann::json run_of_page(const std::filesystem::path& file) {
    const std::string page = text_of(file);
    const std::string_view begin = "<script type=\"application/json\" id=\"run\">";
    const std::size_t at = page.find(begin) + begin.size();
    return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
}

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
    std::vector<ShownAnswer> silent = answers;
    silent[0].answer.text = "";
    mark_answers(silent, "4821");
    EXPECT_EQ(answers_caption(app, silent).rfind("Full cache says nothing: ", 0), 0u);
    silent[0].answer.text = " 17";
    EXPECT_EQ(answers_caption(app, silent), "Full cache is wrong.");
}

/// What is written of a run has one set of settings: those of its records, whatever the lane is to have next.
TEST_F(ShownAnswers, OnAPageAreOfTheSettingsOfItsRecords) {
    reference::TempFolder folder("page");
    const std::string file = (folder.path() / "page.html").string();
    run_action(app, "follow off");
    run_action(app, "run.restart");
    settle();
    run_action(app, "step 12");
    settle();
    run_action(app, "lane 1 h2o:budget=400");
    run_action(app, "add full");
    settle();
    ASSERT_EQ(shown_answers(app)[1].mark, Mark::right) << "the test needs settings that change the answer";
    const auto write = [&](const std::string& action) {
        run_action(app, action);
        ASSERT_TRUE(wakes.wait_until([&] { return !app.jobs.export_job.running(); }));
        EXPECT_FALSE(app.jobs.export_job.failed()) << app.jobs.export_job.result();
    };
    const auto expect_old = [&](const std::filesystem::path& page, const std::string& how) {
        const nlohmann::json run = run_of_page(page);
        ASSERT_EQ(run.at("lanes").size(), 3u) << how;
        const nlohmann::json& lane = run.at("lanes")[1];
        EXPECT_EQ(lane.at("spec"), "h2o:budget=64,recent=32") << how;
        EXPECT_EQ(lane.at("keeps"), "64 of 370 tokens, 17 %") << how;
        EXPECT_EQ(lane.at("answer").at("mark"), "wrong") << how;
        EXPECT_EQ(run.at("lanes")[2].at("answer").at("mark"), "right") << how;
        EXPECT_EQ(run.at("explained"), 1) << how;
    };
    write("file.page " + file);
    expect_old(file, "the page of the window");
    app.jobs.export_job.request.folder = folder.path() / "out";
    app.jobs.export_job.request.list = "page,answers";
    app.jobs.export_job.request.right = "4821";
    app.jobs.export_job.request.pictures.formats = {PictureFormat::svg};
    write("export.start");
    expect_old(folder.path() / "out" / "page.html", "the export");
    const std::string svg = text_of(folder.path() / "out" / "answers.svg");
    EXPECT_NE(svg.find("h2o:budget=64"), std::string::npos);
    EXPECT_NE(svg.find("✗"), std::string::npos) << svg;
    // Lanes that were fed lane 0's words have not said what they would have with the old settings.
    run_action(app, "follow on");
    run_action(app, "lane 1 h2o:budget=64");
    run_action(app, "run.restart");
    settle();
    run_action(app, "step 12");
    run_action(app, "lane 1 h2o:budget=400");
    settle();
    write("file.page " + file);
    EXPECT_TRUE(run_of_page(file).at("lanes")[1].at("answer").is_null());
    EXPECT_NE(text_of(file).find("Lane 1 has other settings by now, so its answer is not in this page."),
              std::string::npos);
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
        app.view.watched = TokenSpan{5, 9};  // as the user drew them
        run_action(app, "file.save " + file);
        settle();
        run_action(app, "open " + file);
        app.run.setup.prompt += " ";  // what is known about it must come from the trace
        settle();
        ASSERT_FALSE(app.run.live());
        EXPECT_EQ(right_answer(app), right);
        EXPECT_EQ(words_to_watch(app), (TokenSpan{5, 9}));
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

/// Notes and bookmarks of a trace are of its steps.
TEST_F(ShownAnswers, NotesOfATraceStayWithIt) {
    reference::TempFolder folder("notes");
    const std::string file = (folder.path() / "run.keyhole").string();
    run_action(app, "file.save " + file);
    settle();
    run_action(app, "open " + file);
    settle();
    run_action(app, "note of the trace");
    EXPECT_THROW(run_action(app, "prompt "), Error);
    EXPECT_EQ(app.annotations.notes, "of the trace") << "an empty prompt is refused";
    run_action(app, "prompt The garden gate was open.");
    settle();
    EXPECT_EQ(app.annotations, Annotations());
    run_action(app, "note of this run");
    run_action(app, "run.restart");
    settle();
    EXPECT_EQ(app.annotations.notes, "of this run");
    run_action(app, "open " + file);
    settle();
    EXPECT_EQ(app.annotations.notes, "of the trace");
}

/// Records alone are left of a run that crashed: its answers end where they ended on the screen, and have the
/// marks and the watched words that they had there.
TEST_F(ShownAnswers, OfRecordsAloneAreAsTheyWere) {
    ASSERT_NE(app.run.setup.guide.end, AnswerEnd());
    run_action(app, "follow off");
    run_action(app, "run.restart");
    settle();
    run_action(app, "step 16");
    settle();
    const auto answers = shown_answers(app);
    reference::TempFolder folder("answers");
    const std::string file = (folder.path() / "records.keyhole").string();
    const std::optional<TokenSpan> words = words_to_watch(app);
    const std::string prompt = app.run.history.run().prompt;
    ASSERT_TRUE(words);
    write_trace(app.run.history.steps(), file);
    run_action(app, "open " + file);
    app.run.setup = {};  // the next start of the program knows nothing else of the run
    settle();
    ASSERT_FALSE(app.run.live());
    const auto of_records = shown_answers(app);
    ASSERT_EQ(of_records.size(), answers.size());
    for (std::size_t i = 0; i < answers.size(); ++i) {
        EXPECT_EQ(of_records[i].answer.text, answers[i].answer.text);
        EXPECT_EQ(of_records[i].answer.tokens, answers[i].answer.tokens);
        EXPECT_EQ(of_records[i].mark, answers[i].mark);
    }
    EXPECT_EQ(right_answer(app), "4821");
    EXPECT_EQ(words_to_watch(app), words);
    // A new run from there has the trace's model and prompt, and is marked alike.
    EXPECT_EQ(find_action("run.restart")->traits.lacks(app), "");
    run_action(app, "run.restart");
    settle();
    ASSERT_TRUE(app.run.live());
    EXPECT_EQ(app.run.history.run().prompt, prompt);
    EXPECT_EQ(words_to_watch(app), words);
    const auto again = shown_answers(app);
    ASSERT_EQ(again.size(), answers.size());
    for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(again[i].mark, answers[i].mark);
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
