// eval's measures: against the double-precision reference, against greedy decoding, and lane by lane.
#include "engine/base/index.h"
#include "tests/reference/reference_model.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/eval/evaluate.h"
#include "engine/eval/two_at_a_time.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keyhole::test_evaluate {
namespace {

class Evaluate : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        folder_ = new reference::TinyModel(reference::TinyShape{});
        model_ = new std::shared_ptr<const Model>(load_model(folder_->folder()));
        std::string notice;
        backend_ = make_backend(*model_, {BackendChoice::cpu, 1, 0}, &notice).release();
    }
    static void TearDownTestSuite() {
        delete backend_;
        delete model_;
        delete folder_;
    }
    static const std::shared_ptr<const Model>& model() { return *model_; }

    static std::vector<LaneSpec> lanes(const std::vector<std::string>& specs) {
        std::vector<LaneSpec> parsed;
        for (const std::string& spec : specs) parsed.push_back(parse_lane_spec(spec));
        return parsed;
    }
    /// Returns the outcomes as [lane][question].
    static std::vector<std::vector<Outcome>> outcomes(const QuestionSet& set,
                                                      const std::vector<LaneSpec>& specs) {
        std::vector<std::vector<Outcome>> all(specs.size());
        for (int i = 0; i < set.n_questions; ++i) {
            const auto answers = ask(model(), *backend_, specs, set.make(i));
            for (std::size_t lane = 0; lane < specs.size(); ++lane) all[lane].push_back(answers[lane]);
        }
        return all;
    }
    /// Returns -sum ln p of the tokens after the prompt, by the reference. A prompt row sees everything
    /// before it, a later row the newest `budget` tokens before it.
    static double reference_nats(const Question& question, int budget) {
        const reference::Weights weights = reference::load_weights(folder_->folder());
        reference::Sequence sequence(weights);
        std::vector<int> tokens = question.prompt;
        tokens.insert(tokens.end(), question.fed.begin(), question.fed.end());
        double nats = 0;
        const auto n_prompt = static_cast<int>(question.prompt.size());
        for (int row = 0; row + 1 < static_cast<int>(tokens.size()); ++row) {
            reference::PositionSets visible = reference::empty_sets(weights);
            const int first = row < n_prompt ? 0 : std::max(0, row - budget);
            for (auto& layer : visible)
                for (auto& head : layer)
                    for (int p = first; p < row; ++p) head.insert(p);
            const reference::Row out = sequence.feed(tokens[to_index(row)], visible);
            if (row + 1 < n_prompt) continue;
            double largest = -1e300, sum = 0;
            for (double logit : out.next_logits) largest = std::max(largest, logit);
            for (double logit : out.next_logits) sum += std::exp(logit - largest);
            nats -= out.next_logits[to_index(tokens[to_index(row) + 1])] - largest - std::log(sum);
        }
        return nats;
    }

    static reference::TinyModel* folder_;
    static std::shared_ptr<const Model>* model_;
    static Backend* backend_;
};
reference::TinyModel* Evaluate::folder_ = nullptr;
std::shared_ptr<const Model>* Evaluate::model_ = nullptr;
Backend* Evaluate::backend_ = nullptr;

TEST_F(Evaluate, PerplexityEqualsTheReferenceWithEviction) {
    const QuestionSet set = text_windows(model(), reference::random_text(200, 3), 48, 20, 3);
    ASSERT_EQ(set.n_questions, 3);
    const auto all = outcomes(set, lanes({"full", "window:budget=8"}));
    const int budgets[] = {1000, 8};
    for (std::size_t lane = 0; lane < 2; ++lane) {
        double nats = 0;
        for (int i = 0; i < 3; ++i) {
            const double expected = reference_nats(set.make(i), budgets[lane]);
            EXPECT_NEAR(all[lane][to_index(i)].nats, expected, 1e-3) << lane << " " << i;
            nats += expected;
        }
        const LaneScore score = score_lane(all[lane], all[0]);
        EXPECT_EQ(score.n_tokens, 3 * 28);
        EXPECT_NEAR(score.perplexity, std::exp(nats / (3 * 28)), 1e-2);
        EXPECT_NEAR(score.bits_per_byte, nats / std::log(2.0) / (3 * 28), 1e-4);  // a token is a byte
        EXPECT_NEAR(score.nats.value, nats / (3 * 28), 1e-4);
    }
    EXPECT_GT(std::abs(all[0][0].nats - all[1][0].nats), 0.01);  // the eviction has an effect
}

TEST_F(Evaluate, WindowsTakeTheTextInTurn) {
    const std::string text = reference::random_text(200, 4);
    const QuestionSet set = text_windows(model(), text, 41, 11, 0);
    ASSERT_EQ(set.n_questions, 5);
    std::string joined;
    for (int i = 0; i < 5; ++i) {
        const Question q = set.make(i);
        EXPECT_EQ(q.prompt.size(), 11u);
        EXPECT_EQ(q.prompt.front(), reference::kBos);
        EXPECT_EQ(q.fed.size(), 30u);
        EXPECT_EQ(q.n_bytes, 30);
        joined += model()->tokenizer().decode(q.prompt) + model()->tokenizer().decode(q.fed);
    }
    EXPECT_EQ(joined, text);
    EXPECT_NE(set.description.find("150 in all"), std::string::npos) << set.description;
}

TEST_F(Evaluate, GreedyDecodingIsRightAndOnlyThat) {
    const auto specs = lanes({"full", "h2o:budget=16", "tova:budget=12"});
    reference::SessionRun run = reference::run_session(
        model(),
        reference::run_spec(reference::random_text(60, 5), {"full", "h2o:budget=16", "tova:budget=12"}, 6));
    for (std::size_t lane = 0; lane < specs.size(); ++lane) {
        Question question{run.steps.front()->run->prompt_tokens, run.tokens(lane), 6, 0};
        double nats = 0;
        for (std::size_t i = 0; i + 1 < run.steps.size(); ++i)
            nats -= static_cast<double>(run.lane(i, lane).top.front().log_prob);
        const Outcome own = ask(model(), *backend_, specs, question)[lane];
        EXPECT_TRUE(own.right);
        EXPECT_NEAR(own.nats, nats, 1e-4);
        for (std::size_t i = 0; i < question.fed.size(); ++i) {
            Question other = question;
            other.fed[i] = (other.fed[i] + 1) % 250;
            EXPECT_FALSE(ask(model(), *backend_, specs, other)[lane].right) << i;
        }
    }
}

TEST_F(Evaluate, LanesDoNotDependOnEachOther) {
    const QuestionSet set = text_windows(model(), reference::random_text(100, 6), 50, 20, 1);
    const auto specs = lanes({"full", "keyformer:budget=10", "a2sf:budget=10,alpha=0.3"});
    const auto together = outcomes(set, specs);
    for (std::size_t lane = 0; lane < specs.size(); ++lane)
        EXPECT_EQ(outcomes(set, {specs[lane]})[0][0].nats, together[lane][0].nats);
}

TEST_F(Evaluate, TaskQuestionsAreTheTasksInTokens) {
    const std::filesystem::path folder = reference::source_folder() / "assets/tasks";
    const auto texts =
        std::make_shared<const TaskTexts>(folder / "words.json", read_text_file(folder / "narrative.txt"),
                                          read_text_file(folder / "passages.txt"));
    TaskOptions options;
    options.n_questions = 3;
    options.context = 500;
    options.distance = {100, 300};
    for (const TaskKind kind : parse_tasks("recall")) {
        const QuestionSet set = task_questions(model(), texts, kind, options);
        for (int i = 0; i < 3; ++i) {
            const Question q = set.make(i);
            const TaskMaterial material{
                &texts->words, &texts->sentences, &texts->passages,
                [](const std::string& text) { return static_cast<int>(text.size()); }};
            const Task task = make_task(kind, 1, static_cast<std::uint32_t>(i), 500, {100, 300}, material);
            EXPECT_EQ(model()->tokenizer().decode(q.prompt), task.prompt);
            EXPECT_EQ(model()->tokenizer().decode(q.fed), task.answer);
            EXPECT_LE(q.prompt.size() + q.fed.size(), 501u);
            EXPECT_EQ(q.distance, task.distance);
        }
    }
    options.context = 1000;
    reference::error_of([&] { task_questions(model(), texts, TaskKind::needle, options); },
                        ErrorCode::wrong_use);
}

TEST_F(Evaluate, QuestionsByStatementAreOthers) {
    const std::filesystem::path folder = reference::source_folder() / "assets/tasks";
    const std::string narrative = read_text_file(folder / "narrative.txt"),
                      passages = read_text_file(folder / "passages.txt");
    TaskOptions options;
    options.n_questions = 1;
    options.context = 400;
    const auto set_of = [&](TaskKind kind, AskBy ask_by) {
        const auto texts =
            std::make_shared<const TaskTexts>(folder / "words.json", narrative, passages, ask_by);
        return task_questions(model(), texts, kind, options);
    };
    const QuestionSet question = set_of(TaskKind::needle, AskBy::question),
                      statement = set_of(TaskKind::needle, AskBy::statement);
    EXPECT_EQ(statement.identity, question.identity + " ask=statement");
    EXPECT_TRUE(model()->tokenizer().decode(question.make(0).prompt).ends_with("?"));
    EXPECT_TRUE(model()->tokenizer().decode(statement.make(0).prompt).ends_with(" is"));
    EXPECT_EQ(statement.make(0).fed, question.make(0).fed);
    EXPECT_EQ(set_of(TaskKind::passage, AskBy::statement).identity,
              set_of(TaskKind::passage, AskBy::question).identity);
}

/// A lane counts with the tokens of its fullest head after the prompt, and with its shadow.
TEST_F(Evaluate, LanesGoTogetherAsFarAsTheirCachesFit) {
    const double token = static_cast<double>(kv_bytes_per_token(model()->config(), KvType::f32));
    const auto n = [&](const std::vector<std::string>& specs, double tokens) {
        return lanes_that_fit(*model(), lanes(specs), 100, tokens * token);
    };
    const std::vector<std::string> small(5, "h2o:budget=9");
    EXPECT_EQ(n(small, 50), 5u);  // 9 stored and one more before it evicts
    EXPECT_EQ(n(small, 49), 4u);
    EXPECT_EQ(n({"full", "full"}, 200), 2u);
    EXPECT_EQ(n({"full", "full"}, 199), 1u);
    EXPECT_EQ(n({"full"}, 1), 1u);  // one lane always runs
    EXPECT_EQ(n({"full:kv_dtype=f16", "full:kv_dtype=bf16"}, 100), 2u);
    EXPECT_EQ(n({"full:kv_dtype=f16", "full:kv_dtype=bf16"}, 99), 1u);
    EXPECT_EQ(n({"window:budget=200", "window:budget=50%"}, 151), 2u);
    EXPECT_EQ(n({"window:budget=200", "window:budget=50%"}, 150), 1u);
    EXPECT_EQ(n({"tova:budget=9,shadow=on", "tova:budget=9"}, 119), 1u);
    EXPECT_EQ(n({"tova:budget=9,shadow=on", "tova:budget=9"}, 120), 2u);
    EXPECT_EQ(n({"h2o:budget=9,every=5", "h2o:budget=9"}, 23), 1u);
    EXPECT_EQ(n({"h2o:budget=9,budget@L1=29", "h2o:budget=9"}, 39), 1u);
    EXPECT_EQ(n({"h2o:budget=9,budget@L1=29", "h2o:budget=9"}, 40), 2u);
}

/// What the tables say of a lane's bytes, against a run of it.
TEST_F(Evaluate, BytesOfALaneAreThoseOfItsRun) {
    const auto backend = make_backend(model(), {BackendChoice::cpu, 2, 0}, nullptr);
    int n_lanes = 0;
    for (const std::string& lane : std::vector<std::string>{"full",
                                                            "window:budget=9",
                                                            "sink:budget=9",
                                                            "dilated:budget=9",
                                                            "key:budget=9",
                                                            "h2o:budget=9",
                                                            "h2o:budget=9,every=7",
                                                            "h2o:budget=9,prefill=stepwise",
                                                            "tova:budget=40%",
                                                            "keyformer:budget=9",
                                                            "a2sf:budget=9",
                                                            "snapkv:budget=9",
                                                            "snapkv:budget=9,evict=always,buffer=6",
                                                            "chunk:budget=9",
                                                            "knorm:budget=9",
                                                            "keydiff:budget=9",
                                                            "rkv:budget=9",
                                                            "rkv:budget=9,buffer=5",
                                                            "lagkv:budget=9",
                                                            "caote:budget=9",
                                                            "critical:budget=9",
                                                            "kvzip:budget=9",
                                                            "expected:budget=9",
                                                            "tri:budget=9",
                                                            "tri:budget=9,buffer=8",
                                                            "h2o:budget=9,budget@L1=12",
                                                            "quest:read=16"}) {
        SCOPED_TRACE(lane);
        RunSpec spec = reference::run_spec(reference::random_text(29, 5), {lane}, 25);
        spec.ignore_eos = true;
        Session session(model(), *backend, spec);
        std::int64_t stored = 0;
        for (auto step = session.prefill(); step != nullptr; step = session.step())
            stored = step->lanes.front().use.stored_tokens;
        const KvBytes bytes = kv_bytes_of(*model(), *backend, lanes({lane}).front(), 30, 55);
        const double of_token =
            static_cast<double>(kv_bytes_per_token(model()->config(), backend->kv_type(KvType::automatic)));
        const int n_heads = layouts_of(*model(), lanes({lane})).front().n_kv_heads();
        EXPECT_DOUBLE_EQ(bytes.after / of_token * n_heads, static_cast<double>(stored));
        EXPECT_GE(bytes.most, bytes.after);
        ++n_lanes;
    }
    EXPECT_EQ(n_lanes, 27);
}

TEST_F(Evaluate, QuestionsSideBySideHaveTheSameAnswersInOrder) {
    const QuestionSet set = text_windows(model(), reference::random_text(200, 8), 40, 20, 5);
    const auto specs = lanes({"full", "h2o:budget=8", "window:kv=mqa,budget=6"});
    std::vector<Asked> asked;
    for (int i = 0; i < 5; ++i) asked.push_back({i, specs});
    asked[1].lanes.pop_back();  // one is known already
    const auto expected = outcomes(set, specs);
    for (const int n_threads : {1, 2, 3}) {
        const auto backend = make_backend(model(), {BackendChoice::cpu, n_threads, 0}, nullptr);
        TwoAtATime side_by_side(model(), *backend, n_threads);
        EXPECT_EQ(side_by_side.n_at_a_time(), n_threads == 1 ? 1 : 2);
        side_by_side.hold(specs);
        int n = 0;
        side_by_side.ask(set, asked, [&](const Asked& one, const std::vector<Outcome>& found) {
            EXPECT_EQ(one.question, n++);
            ASSERT_EQ(found.size(), one.lanes.size());
            for (std::size_t lane = 0; lane < found.size(); ++lane)
                EXPECT_EQ(found[lane].nats, expected[lane][to_index(one.question)].nats) << n_threads;
        });
        EXPECT_EQ(n, 5);
    }
    // An error of the second question comes out like one of the first.
    const auto backend = make_backend(model(), {BackendChoice::cpu, 2, 0}, nullptr);
    TwoAtATime side_by_side(model(), *backend, 2);
    for (const std::size_t wrong : {0, 1}) {
        std::vector<Asked> broken = asked;
        broken[wrong].lanes.clear();
        EXPECT_THROW(side_by_side.ask(set, broken, [](const Asked&, const std::vector<Outcome>&) {}), Error);
    }
}

TEST_F(Evaluate, ReportsTheNatsOfEveryToken) {
    const QuestionSet set = text_windows(model(), reference::random_text(60, 7), 40, 30, 1);
    const auto specs = lanes({"full", "window:budget=4"});
    std::vector<std::vector<double>> nats(2);
    const auto outcomes =
        ask(model(), *backend_, specs, set.make(0), [&](std::size_t lane, std::size_t token, double of_it) {
            EXPECT_EQ(token, nats[lane].size());
            nats[lane].push_back(of_it);
        });
    for (std::size_t lane = 0; lane < 2; ++lane) {
        ASSERT_EQ(nats[lane].size(), 10u);
        double sum = 0;
        for (const double of_it : nats[lane]) sum += of_it;
        EXPECT_DOUBLE_EQ(sum, outcomes[lane].nats);
    }
    EXPECT_NE(nats[0].back(), nats[1].back());
}

TEST(AnswerPlace, IsTheAnswerWithinWhatStatesIt) {
    const Tokenizer bytes = Tokenizer::of_bytes(256);
    const std::vector<int> prompt = bytes.encode("A 7. The code is 7. End.", false);
    const AnswerPlace place = find_answer(bytes, prompt, "The code is 7.", "7");
    EXPECT_EQ(place, (AnswerPlace{17, 17}));
    EXPECT_EQ(find_answer(bytes, prompt, "The code is 7.", "9"), (AnswerPlace{5, 18}));
    EXPECT_FALSE(find_answer(bytes, prompt, "Another", "7"));
    // Two KV heads and two tokens: one of the four is gone, and a token beside them.
    const std::vector<Eviction> gone = {{0, 6, 9}, {1, 8, 9}};
    EXPECT_DOUBLE_EQ(held_share({5, 6}, gone, 2), 0.75);
    EXPECT_DOUBLE_EQ(held_share({5, 6}, {}, 2), 1);
}

/// A question that comes after the eviction is fed to what was kept, and is not scored: the same as if it
/// were scored text, less its own likelihood. Lanes that evict have not seen it.
TEST_F(Evaluate, AQuestionMayComeAfterTheEviction) {
    const std::string text = reference::random_text(60, 5);
    const std::vector<int> tokens = model()->tokenizer().encode(text);
    Question after;
    after.prompt.assign(tokens.begin(), tokens.begin() + 40);
    after.asked.assign(tokens.begin() + 40, tokens.begin() + 50);
    after.fed.assign(tokens.begin() + 50, tokens.end());
    after.place = {3, 6};
    after.distance = 33;
    Question all = after, before = after;
    all.fed.insert(all.fed.begin(), after.asked.begin(), after.asked.end());
    all.asked.clear();
    before.prompt.insert(before.prompt.end(), after.asked.begin(), after.asked.end());
    before.asked.clear();
    const auto specs = lanes({"full", "h2o:budget=8", "window:budget=8"});
    for (const double until : {0.0, 0.5, 0.95}) {
        double last = -1;
        const auto stop = [&](double share) {
            last = share;
            return share < until;
        };
        reference::error_of([&] { ask(model(), *backend_, specs, after, {}, stop); }, ErrorCode::cancelled);
        EXPECT_GE(last, until);
    }
    const auto found = ask(model(), *backend_, specs, after);
    std::vector<double> asked_nats(specs.size(), 0);
    const auto whole = ask(model(), *backend_, specs, all, [&](std::size_t lane, std::size_t t, double nats) {
        if (t < after.asked.size()) asked_nats[lane] += nats;
    });
    const auto seen = ask(model(), *backend_, specs, before);
    for (std::size_t lane = 0; lane < specs.size(); ++lane) {
        EXPECT_NEAR(found[lane].nats, whole[lane].nats - asked_nats[lane], 1e-9) << lane;
        EXPECT_EQ(found[lane].n_tokens, static_cast<int>(after.fed.size()));
        EXPECT_EQ(found[lane].distance, 33);
        EXPECT_DOUBLE_EQ(found[lane].depth, 3 / 40.0);
    }
    EXPECT_NEAR(found[0].nats, seen[0].nats, 1e-3) << "nothing is evicted";
    EXPECT_NE(found[1].nats, seen[1].nats) << "h2o has seen other rows";
    EXPECT_DOUBLE_EQ(found[0].held, 1);
    EXPECT_DOUBLE_EQ(found[2].held, 0) << "a window of 8 holds the end of 40 tokens";
    EXPECT_NEAR(reference_nats(all, 8), whole[2].nats, 1e-3);
}

TEST_F(Evaluate, PairsLanesQuestionByQuestion) {
    const auto answer = [](bool right, double nats) { return Outcome{nats, 2, 4, right}; };
    const std::vector<Outcome> first{answer(true, 1), answer(true, 2), answer(false, 3), answer(true, 4)},
        second{answer(true, 2), answer(false, 3), answer(true, 3), answer(false, 6)};
    const LaneScore score = score_lane(second, first);
    EXPECT_DOUBLE_EQ(score.accuracy.value, 0.5);
    EXPECT_DOUBLE_EQ(score.accuracy_difference.value, -0.25);
    EXPECT_DOUBLE_EQ(score.nats_difference.value, (0.5 + 0.5 + 0 + 1) / 4);
    EXPECT_DOUBLE_EQ(score.perplexity, std::exp(14.0 / 8));
    EXPECT_DOUBLE_EQ(score.accuracy_difference.interval.low, paired_difference(2, 1, 4).interval.low);
}

TEST_F(Evaluate, FaultsAreOneLine) {
    const auto windows = [&](int context, int prefill) {
        return reference::error_of([&] { text_windows(model(), "short", context, prefill, 0); },
                                   ErrorCode::wrong_use);
    };
    EXPECT_NE(windows(40, 20).find("5 tokens"), std::string::npos);
    EXPECT_NE(windows(40, 40).find("--prefill 40"), std::string::npos);
}

}  // namespace
}  // namespace keyhole::test_evaluate
