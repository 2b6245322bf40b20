// Questions of a user's own files: choices against lm-eval, answers against the lanes' own texts, examples
// before a question, prompts that do not fit, and measures in the file of a sweep's answers.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/eval/answer_file.h"
#include "engine/eval/data_questions.h"
#include "engine/eval/text_scores.h"
#include "engine/eval/two_at_a_time.h"
#include "engine/model/model_identity.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <map>

namespace keyhole {
namespace {

std::vector<LaneSpec> lanes(const std::vector<std::string>& specs) {
    std::vector<LaneSpec> parsed;
    for (const std::string& spec : specs) parsed.push_back(parse_lane_spec(spec));
    return parsed;
}

TEST(DataQuestionsOnTheDemoModel, ChoicesEqualLmEval) {
    const auto model = load_model(reference::source_folder() / "assets/models/keyhole-base");
    std::string notice;
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, &notice);
    DataOptions options;
    options.file = reference::source_folder() / "assets/tasks/data/cause-and-effect.jsonl";
    const QuestionSet set = data_questions(model, options);
    std::ifstream file(reference::source_folder() / "tests/fixtures/data/choices.json");
    const nlohmann::json rows = nlohmann::json::parse(file);
    ASSERT_EQ(set.n_questions, static_cast<int>(rows.size()));
    ASSERT_EQ(set.measures.size(), 3u);
    double right = 0, by_character = 0;
    for (int i = 0; i < set.n_questions; ++i) {
        const nlohmann::json& row = rows.at(to_index(i));
        const Outcome found = ask(model, *backend, lanes({"full"}), set.make(i)).front();
        for (std::size_t m = 0; m < set.measures.size(); ++m)
            EXPECT_EQ(found.measures[m], row.at(set.measures[m].name).get<double>()) << i << row;
        const std::vector<double> expected = row.at("log_likelihoods");
        EXPECT_TRUE(std::any_of(expected.begin(), expected.end(),
                                [&](double ll) { return std::abs(ll + found.nats) < 2e-3; }))
            << i << " " << found.nats << row;
        EXPECT_EQ(found.right, found.measures[0] == 1);
        right += found.measures[0];
        by_character += found.measures[1];
    }
    EXPECT_NE(right, by_character) << "the norm has an effect";
}

class DataQuestions : public ::testing::Test {
  protected:
    DataQuestions() : tiny_(reference::TinyShape{}), model_(load_model(tiny_.folder())) {
        std::string notice;
        backend_ = make_backend(model_, {BackendChoice::cpu, 1, 0}, &notice);
    }
    std::string write(const std::string& name, const std::string& text) const {
        std::ofstream(folder_.path() / name) << text;
        return (folder_.path() / name).string();
    }
    static std::string line(const std::string& prompt, const std::string& reference) {
        return nlohmann::json{{"prompt", prompt}, {"references", {reference}}}.dump() + "\n";
    }
    std::string prompt_of(const QuestionSet& set, int i) const {
        return model_->tokenizer().decode(set.make(i).prompt);
    }
    std::string refusal(const DataOptions& options) const {
        return reference::error_of([&] { (void)data_questions(model_, options); }, ErrorCode::wrong_use);
    }
    reference::TempFolder folder_{"data"};
    reference::TinyModel tiny_;
    std::shared_ptr<const Model> model_;
    std::unique_ptr<Backend> backend_;
};

TEST_F(DataQuestions, AnswersAreTheLanesOwnTexts) {
    const auto model = load_model(reference::source_folder() / "assets/models/keyhole-base");
    std::string notice;
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, &notice);
    DataOptions options;
    options.file =
        write("own.jsonl", line("once there was a hare", "one two") + line("a gate and a fox", "x"));
    options.answer_tokens = 12;
    options.to_end_of_line = false;
    const QuestionSet set = data_questions(model, options);
    EXPECT_EQ(set.name, "own");
    const std::vector<LaneSpec> specs = lanes({"full", "h2o:budget=8"});
    std::vector<std::vector<Outcome>> by_lane(2);
    for (int i = 0; i < 2; ++i) {
        RunSpec run;
        run.prompt = i == 0 ? "once there was a hare" : "a gate and a fox";
        run.lanes = specs;
        run.n_generate = 12;
        const auto texts = PromptedLanes(model, *backend, run).texts({}, {});
        const std::vector<Outcome> found = ask(model, *backend, specs, set.make(i));
        for (std::size_t lane = 0; lane < 2; ++lane) {
            EXPECT_EQ(found[lane].text, texts[lane].text);
            const std::vector<std::string> reference = {i == 0 ? "one two" : "x"};
            const TextScores scores = score_text(texts[lane].text, reference, false);
            EXPECT_EQ(found[lane].measures, (std::vector<double>{scores.rouge1, scores.rouge2, scores.rouge_l,
                                                                 scores.exact, scores.f1}));
            by_lane[lane].push_back(found[lane]);
        }
    }
    // A file whose references are the answers of the first lane: it is right, the other need not be.
    options.file = write("right.jsonl", line("once there was a hare", by_lane[0][0].text) +
                                            line("a gate and a fox", by_lane[0][1].text));
    const QuestionSet right = data_questions(model, options);
    EXPECT_NE(right.identity, set.identity);
    std::vector<std::vector<Outcome>> again(2);
    for (int i = 0; i < 2; ++i) {
        const auto found = ask(model, *backend, specs, right.make(i));
        for (std::size_t lane = 0; lane < 2; ++lane) again[lane].push_back(found[lane]);
    }
    const LaneScore first = score_lane(right, again[0], again[0]),
                    second = score_lane(right, again[1], again[0]);
    EXPECT_EQ(first.measures[3].value.value, 1);
    EXPECT_EQ(first.measures[3].difference.value, 0);
    EXPECT_EQ(second.measures[3].difference.value, second.measures[3].value.value - 1);
    EXPECT_EQ(first.accuracy.value, 1);
}

TEST_F(DataQuestions, MeasuresArePairedWithTheFirstLane) {
    QuestionSet set;
    set.measures = text_measures();
    std::vector<Outcome> first(3), second(3);
    const std::vector<double> values = {0.5, 0.25, 0.75}, others = {0.25, 0.25, 0.5};
    for (std::size_t i = 0; i < 3; ++i) {
        first[i] = {1, 1, 1, false, {others[i], 0, 0, i == 0 ? 1.0 : 0.0, 0}, ""};
        second[i] = {1, 1, 1, false, {values[i], 0, 0, i != 0 ? 1.0 : 0.0, 0}, ""};
    }
    const LaneScore score = score_lane(set, second, first);
    EXPECT_DOUBLE_EQ(score.measures[0].value.value, 0.5);
    const Estimate expected = mean_estimate(std::vector<double>{0.25, 0, 0.25});
    EXPECT_DOUBLE_EQ(score.measures[0].difference.value, expected.value);
    EXPECT_DOUBLE_EQ(score.measures[0].difference.interval.low, expected.interval.low);
    const Estimate shares = paired_difference(1, 2, 3);
    EXPECT_DOUBLE_EQ(score.measures[3].difference.value, shares.value);
    EXPECT_DOUBLE_EQ(score.measures[3].difference.interval.high, shares.interval.high);
    EXPECT_DOUBLE_EQ(score.measures[3].value.interval.low, wilson_interval(2, 3).low);
}

/// Two equal scores say little of others.
TEST_F(DataQuestions, EqualScoresHaveAnInterval) {
    QuestionSet set;
    set.measures = text_measures();
    const std::vector<Outcome> alike(2, {1, 1, 1, false, {0, 0, 0, 0, 0}, ""});
    for (const LaneScore::Measure& measure : score_lane(set, alike, alike).measures) {
        EXPECT_EQ(measure.value.interval.low, 0);
        EXPECT_GT(measure.value.interval.high, 0.5);
        EXPECT_LT(measure.difference.interval.low, 0);
        EXPECT_GT(measure.difference.interval.high, 0);
    }
}

TEST_F(DataQuestions, ExamplesStandBeforeTheQuestion) {
    DataOptions options;
    options.file = write("asked.jsonl", line("who?", "he") + line("what?", "it"));
    options.few_shot = write("shots.jsonl", line("one:", "1") + line("two: ", "2") + line("three:", "3"));
    options.n_shots = 2;
    options.answer_tokens = 4;
    const QuestionSet set = data_questions(model_, options);
    EXPECT_EQ(prompt_of(set, 1), "one: 1\n\ntwo: 2\n\nwhat?");
    options.few_shot = options.file;
    options.n_shots = 1;
    const QuestionSet own = data_questions(model_, options);
    EXPECT_EQ(own.n_questions, 1) << "an example is not asked";
    EXPECT_EQ(prompt_of(own, 0), "who? he\n\nwhat?");
    EXPECT_NE(own.identity, set.identity);
    options.n_shots = 2;
    EXPECT_NE(refusal(options).find("leaves no question"), std::string::npos);
    options.n_shots = 3;
    EXPECT_NE(refusal(options).find("has 2 examples"), std::string::npos);
}

/// Spans are places in the tokens that a lane reads, a byte a token here behind begin-of-text.
TEST_F(DataQuestions, SpansAreTheTokensOfTheirTexts) {
    DataOptions options;
    options.file = write("spans.jsonl",
                         R"({"system": "Be brief.", "context": "A cat sat. ", "prompt": "Who?",)"
                         R"( "references": ["a cat"], "spans": {"animal": "cat"}, "asks_for": "animal"})");
    options.answer_tokens = 4;
    const Question question = data_questions(model_, options).make(0);
    EXPECT_EQ(model_->tokenizer().decode(question.prompt), "Be brief.\n\nA cat sat. Who?");
    std::map<std::string, std::string> found;
    for (const TextSpan& span : question.spans)
        found[span.name] = model_->tokenizer().decode(std::vector<int>(
            question.prompt.begin() + span.place.first, question.prompt.begin() + span.place.last + 1));
    EXPECT_EQ(
        found,
        (std::map<std::string, std::string>{
            {"system", "Be brief."}, {"context", "A cat sat."}, {"prompt", "Who?"}, {"animal", "cat"}}));
    EXPECT_EQ(question.asks_for, "animal");
    EXPECT_EQ(model_->tokenizer().decode(question.fed), " a cat") << "read where spans are measured";
}

TEST_F(DataQuestions, OtherQuestionsFollowThoseBefore) {
    DataOptions options;
    options.file = write("asked.jsonl", line("a", "1") + line("b", "2") + line("c", "3"));
    options.answer_tokens = 4;
    const std::string whole = data_questions(model_, options).identity;
    options.n_before = 1;
    const QuestionSet later = data_questions(model_, options);
    EXPECT_EQ(later.n_questions, 2);
    EXPECT_EQ(prompt_of(later, 0), "b");
    EXPECT_NE(later.identity, whole) << "question 0 is another one";
    options.n_before = 3;
    EXPECT_NE(refusal(options).find("no other questions than its first 3"), std::string::npos);
}

/// The template writes the turns; answers follow it without a blank.
TEST_F(DataQuestions, AChatIsWrittenAsItsTemplateSays) {
    std::ofstream(tiny_.folder() / "tokenizer_config.json")
        << nlohmann::json{{"chat_template",
                           "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '/' }}{% endfor %}"
                           "{{ '<assistant>' }}"}};
    model_ = load_model(tiny_.folder());
    DataOptions options;
    options.file = write("chat.jsonl", R"({"system": "Be brief.", "context": "A cat sat.", "prompt": "Who?",)"
                                       R"( "choices": ["cat", "dog"], "answer": 0})");
    const std::string plain = data_questions(model_, options).identity;
    const std::string named = model_identity(*model_), hash = model_->hash();
    std::ofstream(tiny_.folder() / "chat_template.jinja") << "{{ messages[0].content }}";
    EXPECT_NE(model_identity(*load_model(tiny_.folder())), named) << "another template asks another thing";
    EXPECT_EQ(load_model(tiny_.folder())->hash(), hash);
    std::filesystem::remove(tiny_.folder() / "chat_template.jinja");
    EXPECT_EQ(model_identity(*load_model(tiny_.folder())), named);
    options.chat = true;
    const QuestionSet set = data_questions(model_, options);
    EXPECT_EQ(prompt_of(set, 0), "<system>Be brief./<user>A cat sat. Who?/<assistant>");
    EXPECT_EQ(model_->tokenizer().decode(set.make(0).fed), "cat");
    EXPECT_NE(set.identity, plain);
    options.ask_when = AskWhen::after;
    const Question after = data_questions(model_, options).make(0);
    EXPECT_EQ(model_->tokenizer().decode(after.prompt), "<system>Be brief./<user>A cat sat.");
    EXPECT_EQ(model_->tokenizer().decode(after.asked), " Who?/<assistant>");
    const std::filesystem::path folder = reference::source_folder() / "assets/tasks";
    const auto texts = std::make_shared<const TaskTexts>(folder / "words.json",
                                                         read_text_file(folder / "narrative.txt"), "");
    TaskOptions task;
    task.n_questions = 1;
    task.context = 300;
    task.chat = true;
    const Question needle = task_questions(model_, texts, TaskKind::needle, task).make(0);
    const std::string text = model_->tokenizer().decode(needle.prompt);
    EXPECT_TRUE(text.starts_with("<user>") && text.ends_with("?/<assistant>")) << text;
    EXPECT_NE(model_->tokenizer().decode(needle.fed).front(), ' ');
    EXPECT_LE(needle.prompt.size() + needle.fed.size(), 301u) << "the template counts";
    // By its statement: the assistant's turn has begun with it.
    const auto stated = std::make_shared<const TaskTexts>(
        folder / "words.json", read_text_file(folder / "narrative.txt"), "", AskBy::statement);
    const QuestionSet begun = task_questions(model_, stated, TaskKind::needle, task);
    const Question half = begun.make(0);
    const std::string turns = model_->tokenizer().decode(half.prompt);
    const std::size_t lead = turns.find("/<assistant>");
    ASSERT_NE(lead, std::string::npos) << turns;
    const std::string sentence = turns.substr(lead + 12);
    EXPECT_TRUE(sentence.starts_with("The ") && !sentence.ends_with(" ")) << turns;
    EXPECT_NE(turns.find("\n\nComplete this sentence as the text has it: " + sentence + "/<"),
              std::string::npos)
        << turns;
    EXPECT_NE(turns.find(sentence + model_->tokenizer().decode(half.fed) + "."), std::string::npos)
        << "the text states it: " << turns;
    EXPECT_LE(half.prompt.size() + half.fed.size(), 300u) << "the question counts twice";
    EXPECT_NE(begun.identity, task_questions(model_, texts, TaskKind::needle, task).identity);
    task.ask_when = AskWhen::after;
    const Question later = task_questions(model_, texts, TaskKind::needle, task).make(0);
    EXPECT_EQ(model_->tokenizer().decode(later.prompt) + model_->tokenizer().decode(later.asked), text);
    EXPECT_TRUE(model_->tokenizer().decode(later.asked).starts_with(" What is")) << text;
}

TEST_F(DataQuestions, ALongPromptIsRefusedOrCut) {
    DataOptions options;
    options.file = write("long.jsonl", line("short", "x") + line("abcdefghijklmnopqrstuvwxyz", "x"));
    options.answer_tokens = 5;
    options.context = 16;
    const std::string why = refusal(options);
    EXPECT_NE(why.find("long.jsonl:2: prompt"), std::string::npos) << why;
    EXPECT_NE(why.find("27 tokens and 5"), std::string::npos) << why;
    options.cut = true;
    const QuestionSet set = data_questions(model_, options);
    EXPECT_EQ(set.make(1).prompt.size(), 11u);
    EXPECT_EQ(set.make(1).prompt.front(), reference::kBos);
    EXPECT_EQ(prompt_of(set, 1), "qrstuvwxyz");
    options.context = 6;
    EXPECT_NE(refusal(options).find("do not fit into 6"), std::string::npos);
}

TEST_F(DataQuestions, BlanksBeforeAChoiceBelongToIt) {
    DataOptions options;
    options.file = write("c.jsonl", R"({"prompt": "a: ", "choices": ["xx", "yyy"], "answer": 0}
{"prompt": "a:", "choices": ["xx", "yyy"], "answer": 0})");
    const QuestionSet set = data_questions(model_, options);
    EXPECT_EQ(prompt_of(set, 0), "a:");
    const auto specs = lanes({"full", "window:budget=2"});
    const auto with = ask(model_, *backend_, specs, set.make(0)),
               without = ask(model_, *backend_, specs, set.make(1));
    for (std::size_t lane = 0; lane < 2; ++lane) EXPECT_EQ(with[lane].nats, without[lane].nats);
    EXPECT_EQ(with[0].n_tokens, 3);  // the blank and two letters
    EXPECT_NE(with[0].nats, with[1].nats);
}

/// A target is read as a task's answer is, so that it has KL; its likelihood is that of the same text as a
/// choice.
TEST_F(DataQuestions, ATargetIsReadTokenByToken) {
    DataOptions options;
    options.file = write("choices.jsonl", R"({"prompt": "abcd:", "choices": ["xx", "yyy"], "answer": 0})");
    const auto specs = lanes({"full", "window:budget=2"});
    const auto chosen = ask(model_, *backend_, specs, data_questions(model_, options).make(0));
    options.file = write("targets.jsonl", R"({"prompt": "abcd:", "target": "xx", "spans": {"letter": "a"},)"
                                          R"( "asks_for": "letter"}
{"prompt": "abcd: ", "target": "xx"}
{"prompt": "abcd:", "target": " xx"})");
    const QuestionSet set = data_questions(model_, options);
    EXPECT_FALSE(set.in_own_words);
    EXPECT_TRUE(set.measures.empty());
    const auto read = ask(model_, *backend_, specs, set.make(0));
    for (std::size_t lane = 0; lane < 2; ++lane) EXPECT_NEAR(read[lane].nats, chosen[lane].nats, 1e-5);
    EXPECT_NEAR(read[0].kl, 0, 1e-6);
    EXPECT_GT(read[1].kl, 0);
    EXPECT_EQ(read[0].n_bytes, 2);
    EXPECT_EQ(read[0].held, 1) << "the span that is asked for";
    EXPECT_LT(read[1].held, 1);
    // The prompt stays as it is.
    EXPECT_EQ(prompt_of(set, 1), "abcd: ");
    EXPECT_EQ(model_->tokenizer().decode(set.make(1).fed), "xx");
    EXPECT_EQ(model_->tokenizer().decode(set.make(2).fed), " xx");
    EXPECT_EQ(set.make(2).fed, set.make(0).fed);
    options.last_number = true;
    EXPECT_NE(refusal(options).find("has targets"), std::string::npos);
}

TEST_F(DataQuestions, SideBySideAndAloneAgree) {
    DataOptions options;
    options.file = write("s.jsonl", line("a hare", "x") + line("a fox", "x") + line("an owl", "x"));
    options.answer_tokens = 5;
    options.beams.n_beams = 2;
    const QuestionSet set = data_questions(model_, options);
    const auto specs = lanes({"full", "tova:budget=4"});
    TwoAtATime two(model_, *backend_, 2);
    std::vector<Asked> asked;
    for (int i = 0; i < 3; ++i) asked.push_back({i, specs});
    two.ask(set, asked, [&](const Asked& one, const std::vector<Outcome>& found) {
        const auto alone = ask(model_, *backend_, specs, set.make(one.question));
        for (std::size_t lane = 0; lane < 2; ++lane) EXPECT_EQ(found[lane].text, alone[lane].text);
    });
}

TEST_F(DataQuestions, AnswersOfASweepKeepTheirMeasures) {
    const auto path = folder_.path() / "answers.csv";
    const Outcome outcome{1.5, 3, 7, true, {0.125, 1, 0}, "text"};
    {
        AnswerFile file(path);
        file.add("set", "full", 0, outcome);
        file.add("set", "full", 1, {2, 1, 1, false});
        file.flush();
    }
    const AnswerFile again(path);
    EXPECT_EQ(again.find("set", "full", 0)->measures, outcome.measures);
    EXPECT_TRUE(again.find("set", "full", 1)->measures.empty());
    EXPECT_EQ(read_text_file(path),
              "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl,made_by\n"
              "set,full,0,1,1.5,3,7,0.125;1;0,,,,,\nset,full,1,0,2,1,1,,,,,,\n");
    // A file from before there were measures is continued. Then keys and values were f32.
    write_text_file(path, "questions,lane,question,right,nats,tokens,bytes\nset,full,0,1,1.5,3,7\nset,fu");
    AnswerFile old(path);
    EXPECT_EQ(old.find("set", "full:kv_dtype=f32", 0)->nats, 1.5);
    EXPECT_FALSE(old.find("set", "full", 0));
    old.add("set", "full", 1, outcome);
    old.flush();
    EXPECT_EQ(read_text_file(path),
              "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl,made_by\n"
              "set,full:kv_dtype=f32,0,1,1.5,3,7,,,,,,\nset,full,1,1,1.5,3,7,0.125;1;0,,,,,\n");
    write_text_file(path,
                    "questions,lane,question,right,nats,tokens,bytes,measures\nset,full,0,1,1.5,3,7,2\n");
    EXPECT_NE(reference::error_of([&] { AnswerFile bad(path); }, ErrorCode::bad_file).find("measure"),
              std::string::npos);
}

// Answers of another backend, or of other products, are not those of a run that goes on.
TEST(AnswerFile, KeepsBackendsAndPrecisionsApart) {
    EXPECT_EQ(asked_on("set", "cpu, 2 threads, AVX3"), "set");
    EXPECT_EQ(asked_on("set", "cpu, 2 threads, AVX3, integers"), "set backend=cpu integers");
    EXPECT_EQ(asked_on("set", "cuda, NVIDIA H200"), "set backend=cuda");
    EXPECT_EQ(asked_on("set", "cuda, NVIDIA H200, f16 precision"), "set backend=cuda f16 precision");
}

}  // namespace
}  // namespace keyhole
