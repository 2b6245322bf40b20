// An evicted token put back: the temporary copy replays the lane with the same evictions, except that
// token's.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "tests/reference/reference_model.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace reference::test_token_back {
namespace {

using keyhole::parse_command;

constexpr int kPrompt = 24, kAnswer = 6;

/// Returns the tokens that the lane consumes by its own choices in the next steps.
std::vector<int> tokens_that_follow(keyhole::Session& session, int n, std::size_t lane = 0) {
    std::vector<int> tokens;
    while (std::ssize(tokens) < n) tokens.push_back(session.step()->lanes[lane].token);
    return tokens;
}

class Counterfactual : public ::testing::Test {
  protected:
    Counterfactual()
        : tiny_({.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .seed = 11}),
          model_(keyhole::load_model(tiny_.folder())) {
        std::string notice;
        backend_ = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    }
    keyhole::Session session(const std::vector<std::string>& lanes) const {
        keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 3), lanes, 40);
        spec.ignore_eos = true;
        spec.answer_end = keyhole::AnswerEnd{{}, kAnswer};
        return keyhole::Session(model_, *backend_, spec, nullptr, 0);
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::unique_ptr<keyhole::Backend> backend_;
};

/// A full lane that lost a token by command: with the token back it equals, to the bit, the lane without the
/// eviction.
TEST_F(Counterfactual, GivesTheLaneThatNeverLostIt) {
    for (const char* where : {"", " L1", " L0.H1"}) {
        keyhole::Session bent = session({"full"}), straight = session({"full"});
        bent.prefill();
        straight.prefill();
        std::shared_ptr<const keyhole::StepTrace> as_it_is, without;
        for (int i = 0; i < 8; ++i) {
            // The same text for both, so that only the eviction differs.
            for (keyhole::Session* s : {&bent, &straight})
                s->apply(parse_command(fmt::format("force {}", 3 + i)));
            if (i == 3) bent.apply(parse_command(std::string("evict 0 5") + where));
            without = bent.step();
            as_it_is = straight.step();
        }
        const keyhole::Counterfactual back = bent.counterfactual(0, 5);
        EXPECT_EQ(back.row, kPrompt + 7);
        EXPECT_EQ(back.kv_heads.size(), std::string(where).empty()    ? 4u
                                        : where == std::string(" L1") ? 2u
                                                                      : 1u);
        ASSERT_EQ(back.with.size(), as_it_is->lanes[0].top.size());
        for (std::size_t k = 0; k < back.with.size(); ++k) {
            EXPECT_EQ(back.with[k].id, as_it_is->lanes[0].top[k].id) << where << " " << k;
            EXPECT_EQ(back.with[k].log_prob, as_it_is->lanes[0].top[k].log_prob) << where << " " << k;
        }
        EXPECT_GT(back.kl, 0);
        // Both go on as copies say that they do.
        EXPECT_TRUE(back.answer_with.complete && back.answer_with.cut);
        EXPECT_EQ(back.answer_with.tokens, tokens_that_follow(straight, kAnswer)) << where;
        EXPECT_EQ(back.answer_as_is.tokens, tokens_that_follow(bent, kAnswer)) << where;
        // The same of the earlier step, now that the text is longer.
        const keyhole::Counterfactual later = bent.counterfactual(0, 5, {}, back.row);
        EXPECT_EQ(later.answer_with, back.answer_with) << where;
        EXPECT_EQ(later.answer_as_is.tokens, back.answer_as_is.tokens) << where;
    }
}

/// Tokens that left after the very step that is asked about are gone from the answer too, in both copies.
TEST_F(Counterfactual, RepeatsTheEvictionsOfTheStepItself) {
    keyhole::Session bent = session({"full"}), straight = session({"full"});
    for (keyhole::Session* s : {&bent, &straight}) {
        s->prefill();
        for (int i = 0; i < 2; ++i) s->step();
        for (int p = 6; p < kPrompt; ++p) s->apply(parse_command(fmt::format("evict 0 {}", p)));
    }
    bent.apply(parse_command("evict 0 5"));
    const keyhole::Counterfactual back = bent.counterfactual(0, 5);
    const std::vector<int> with = tokens_that_follow(straight, kAnswer),
                           as_is = tokens_that_follow(bent, kAnswer);
    EXPECT_EQ(back.answer_with.tokens, with);
    EXPECT_EQ(back.answer_as_is.tokens, as_is);
    const keyhole::Counterfactual later = bent.counterfactual(0, 5, {}, back.row);
    EXPECT_EQ(later.answer_with.tokens, with);
    EXPECT_EQ(later.answer_as_is.tokens, as_is);
}

/// The copies evict nothing more while they answer: the lane as it is goes on like one that became full.
TEST_F(Counterfactual, EvictsNothingMoreWhileItAnswers) {
    const std::vector<std::string> lanes = {"full", "window:budget=8"};
    keyhole::Session asked = session(lanes), evicts = session(lanes), keeps = session(lanes);
    for (keyhole::Session* s : {&asked, &evicts, &keeps}) {
        s->prefill();
        for (int i = 0; i < 4; ++i) s->step();
    }
    const std::vector<int> said = asked.counterfactual(1, 7).answer_as_is.tokens;
    keeps.apply(parse_command("lane 1 full"));
    EXPECT_EQ(said, tokens_that_follow(keeps, kAnswer, 1));
    EXPECT_NE(said, tokens_that_follow(evicts, kAnswer, 1)) << "the two must differ for this test to tell";
}

/// A stop text ends what the copies say, as it ends the lanes' answers; without an end nothing is said.
TEST_F(Counterfactual, AnswersUpToTheEndOfTheAnswer) {
    keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 3), {"full", "h2o:budget=10"}, 40);
    spec.ignore_eos = true;
    keyhole::Session silent(model_, *backend_, spec, nullptr, 0);
    silent.prefill();
    EXPECT_TRUE(silent.counterfactual(1, 7).answer_with.tokens.empty());
    EXPECT_FALSE(silent.counterfactual(1, 7).answer_with.complete);
    spec.answer_end = keyhole::AnswerEnd{{}, kAnswer};
    keyhole::Session whole(model_, *backend_, spec, nullptr, 0);
    whole.prefill();
    const keyhole::LaneAnswer all = whole.counterfactual(1, 7).answer_with;
    ASSERT_EQ(std::ssize(all.tokens), kAnswer);
    const std::string stop = model_->tokenizer().decode(std::span(all.tokens).subspan(2, 1));
    spec.answer_end->stop = {stop};
    keyhole::Session stopped(model_, *backend_, spec, nullptr, 0);
    stopped.prefill();
    const keyhole::LaneAnswer answer = stopped.counterfactual(1, 7).answer_with;
    EXPECT_TRUE(answer.complete && !answer.cut);
    EXPECT_EQ(answer.text, all.text.substr(0, all.text.find(stop)));
}

/// Policies evict in many rows and by many rules. A token that the text no longer attends to changes little,
/// and the question leaves no trace.
TEST_F(Counterfactual, LeavesTheSessionAsItWas) {
    const std::vector<std::string> lanes = {"full", "h2o:budget=10", "window:budget=8,prefill=stepwise",
                                            "tova:budget=9,scope=layer"};
    keyhole::Session asked = session(lanes), plain = session(lanes);
    asked.prefill();
    plain.prefill();
    for (int i = 0; i < 12; ++i) {
        const auto a = asked.step(), b = plain.step();
        for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
            EXPECT_EQ(a->lanes[lane].token, b->lanes[lane].token);
            EXPECT_EQ(a->lanes[lane].entropy, b->lanes[lane].entropy);
            EXPECT_EQ(a->lanes[lane].evictions, b->lanes[lane].evictions);
            EXPECT_EQ(a->lanes[lane].use.stored_tokens, b->lanes[lane].use.stored_tokens);
        }
        for (const int lane : {1, 2, 3})
            for (const keyhole::Eviction& e : a->lanes[keyhole::to_index(lane)].evictions) {
                const keyhole::Counterfactual back = asked.counterfactual(lane, e.position);
                EXPECT_GE(back.kl, 0) << lane;
                EXPECT_TRUE(std::isfinite(back.kl));
                // The token was evicted after this row, which still attended to it, so nothing differs yet if
                // its only KV head held it until now.
                if (back.kv_heads.size() == 1) {
                    EXPECT_NEAR(back.kl, 0, 1e-9) << lane << " " << e.position;
                }
                break;
            }
    }
    EXPECT_EQ(asked.log().size(), 0u);
}

/// A later question about an earlier row gives the earlier answer; the part with the token back is equal to
/// the bit.
TEST_F(Counterfactual, OfAnEarlierRowIsWhatItWasThere) {
    const std::vector<std::string> lanes = {"full", "h2o:budget=10", "window:budget=8,prefill=stepwise"};
    for (const int lane : {1, 2}) {
        keyhole::Session s = session(lanes);
        s.prefill();
        std::vector<keyhole::Counterfactual> there;
        for (int i = 0; i < 10; ++i) {
            s.step();
            there.push_back(s.counterfactual(lane, 7));
        }
        double largest = 0;
        for (std::size_t i = 0; i < there.size(); ++i) {
            const keyhole::Counterfactual later =
                s.counterfactual(lane, 7, {}, kPrompt + static_cast<int>(i));
            EXPECT_EQ(later.row, there[i].row);
            EXPECT_EQ(later.kv_heads, there[i].kv_heads) << i;
            // The lane itself sums its slots in another order than a copy.
            EXPECT_NEAR(later.kl, there[i].kl, 1e-5 + 1e-3 * there[i].kl) << i;
            EXPECT_NEAR(later.log_prob_as_is, there[i].log_prob_as_is, 1e-4) << i;
            ASSERT_EQ(later.with.size(), there[i].with.size());
            for (std::size_t k = 0; k < later.with.size(); ++k) {
                EXPECT_EQ(later.with[k].id, there[i].with[k].id);
                EXPECT_EQ(later.with[k].log_prob, there[i].with[k].log_prob);
            }
            largest = std::max(largest, later.kl);
        }
        EXPECT_GT(largest, 0);
        // Both passes report as one progress, and both stop.
        std::vector<double> reported;
        const auto progress = [&](double done) {
            reported.push_back(done);
            return true;
        };
        s.counterfactual(lane, 7, progress, kPrompt + 4);
        EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
        EXPECT_GT(reported.back(), 0.9);
        EXPECT_LE(reported.back(), 1);
        for (const double until : {0.3, 0.7})
            error_of(
                [&] {
                    s.counterfactual(
                        lane, 7, [&](double done) { return done < until; }, kPrompt + 4);
                },
                keyhole::ErrorCode::cancelled);
        EXPECT_EQ(s.counterfactual(lane, 7).kl, there.back().kl);
    }
}

/// A lane that gets back all its lost tokens equals the full lane.
TEST_F(Counterfactual, OfAllTokensGivesTheFullLane) {
    for (const char* spec : {"h2o:budget=10", "window:budget=8", "tova:budget=9,scope=layer"}) {
        keyhole::RunSpec run = run_spec(random_text(kPrompt - 1, 3), {"full", spec}, 40);
        run.follow = true;
        keyhole::Session s(model_, *backend_, run, nullptr, 0);
        s.prefill();
        std::shared_ptr<const keyhole::StepTrace> step;
        for (int i = 0; i < 10; ++i) step = s.step();
        const std::vector<keyhole::TopToken>& full = step->lanes[0].top;
        const auto expect_full = [&](const keyhole::Counterfactual& back, bool same) {
            ASSERT_EQ(back.with.size(), full.size());
            double apart = 0;
            for (std::size_t k = 0; k < full.size(); ++k)
                apart = std::max<double>(apart, std::abs(back.with[k].log_prob - full[k].log_prob));
            EXPECT_EQ(apart < 1e-5, same) << spec << " " << apart;
            EXPECT_EQ(back.kv_heads.size(), 4u);
        };
        const keyhole::Counterfactual all = s.counterfactual(1, 0, {}, -1, step->row + 1);
        expect_full(all, true);
        EXPECT_EQ(all.position, 0);
        EXPECT_EQ(all.n_tokens, step->row + 1);
        expect_full(s.counterfactual(1, 0, {}, -1, 6), false);
    }
}

double rounded(double x, int n_bits) {
    int exponent = 0;
    const double fraction = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, n_bits)), exponent - n_bits);
}

/// Rounds a head as the type stores it. q8: one block, since heads are short here.
void round_as(const std::string& type, Vector& head) {
    if (type == "f32") return;
    if (type != "q8") {
        for (double& x : head) x = rounded(x, type == "f16" ? 11 : 8);
        return;
    }
    double most = 0;
    for (const double x : head) most = std::max(most, std::abs(x));
    const double scale = rounded(most / 127, 11);
    for (double& x : head) x = scale * std::round(x * 127 / most);
}

/// The lane's past and the copy's were computed through keys and values of one type, each at the rows at
/// which the lane had it. The difference is then what double arithmetic says, and not the types' own.
TEST_F(Counterfactual, StoresKeysAndValuesAsTheLaneDid) {
    constexpr int kSteps = 9, kChange = 4, kToken = 7;
    const Weights weights = load_weights(tiny_.folder());
    for (const auto& [type, later] : std::vector<std::pair<std::string, std::string>>{
             {"f32", "f32"}, {"f16", "f16"}, {"bf16", "bf16"}, {"q8", "q8"}, {"f32", "q8"}, {"q8", "f32"}}) {
        SCOPED_TRACE(type + " " + later);
        keyhole::Session s = session({"full", "h2o:budget=10,kv_dtype=" + type});
        std::vector<int> tokens = s.prefill()->run->prompt_tokens;
        std::map<std::pair<int, int>, int> gone;  // [KV head, position] -> row
        const auto note = [&](const keyhole::StepTrace& step) {
            if (step.row >= kPrompt) tokens.push_back(step.lanes[1].token);
            for (const keyhole::Eviction& e : step.lanes[1].evictions) gone[{e.kv_head, e.position}] = e.row;
        };
        keyhole::Session again = session({"full", "h2o:budget=10,kv_dtype=" + type});
        note(*again.prefill());
        for (int i = 0; i < kSteps; ++i) {
            if (i == kChange && type != later) {
                s.apply(parse_command("lane 1 h2o:budget=10,kv_dtype=" + later));
                again.apply(parse_command("lane 1 h2o:budget=10,kv_dtype=" + later));
            }
            s.step();
            note(*again.step());
        }
        const auto twin = [&](bool with, bool same_type) {
            Sequence sequence(weights);
            Vector logits;
            for (int row = 0; row < static_cast<int>(tokens.size()); ++row) {
                const auto store_as = [&](const std::string& as) {
                    sequence.store_as([as](Vector& head) { round_as(as, head); });
                };
                if (row == kPrompt) store_as(same_type ? type : "f32");
                if (row == kPrompt + kChange && type != later) store_as(same_type ? later : "f32");
                PositionSets seen = empty_sets(weights);
                for (int l = 0; l < 2; ++l)
                    for (int g = 0; g < 2; ++g)
                        for (int p = 0; p < row; ++p) {
                            const auto left = gone.find({2 * l + g, p});
                            if (left == gone.end() || left->second >= row || (with && p == kToken))
                                seen[keyhole::to_index(l)][keyhole::to_index(g)].insert(p);
                        }
                logits = sequence.feed(tokens[keyhole::to_index(row)], seen).next_logits;
            }
            return softmax(logits);
        };
        const auto kl = [](const Vector& p, const Vector& q) {
            double sum = 0;
            for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] * std::log(p[i] / q[i]);
            return sum;
        };
        const Vector as_is = twin(false, true);
        const double wanted = kl(as_is, twin(true, true)), in_floats = kl(as_is, twin(true, false));
        EXPECT_NEAR(s.counterfactual(1, kToken).kl, wanted, 0.002 * wanted);
        if (type == "q8" && later == "q8") {
            EXPECT_GT(std::abs(in_floats - wanted), 0.01 * wanted);
        }
        EXPECT_NEAR(s.counterfactual(1, kToken, {}, kPrompt + kSteps - 1).kl, wanted, 0.002 * wanted);
    }
}

TEST_F(Counterfactual, SaysWhatItCannot) {
    keyhole::Session s = session({"full", "sink:budget=8,positions=cache", "sink:budget=8", "sink:budget=8"});
    s.prefill();
    s.step();
    const auto refused = [&](int lane, int position, keyhole::ErrorCode code) {
        return error_of([&] { s.counterfactual(lane, position); }, code);
    };
    EXPECT_NE(refused(0, 3, keyhole::ErrorCode::wrong_use).find("held everywhere"), std::string::npos);
    EXPECT_NE(refused(0, 300, keyhole::ErrorCode::wrong_use).find("no token 300"), std::string::npos);
    EXPECT_NE(error_of([&] { s.counterfactual(0, 3, {}, -1, 4); }, keyhole::ErrorCode::wrong_use)
                  .find("tokens 3 to 6 of lane 0 are held everywhere"),
              std::string::npos);
    EXPECT_NE(error_of([&] { s.counterfactual(0, kPrompt, {}, -1, 2); }, keyhole::ErrorCode::wrong_use)
                  .find(fmt::format("no token {}", kPrompt + 1)),
              std::string::npos);
    EXPECT_THROW(s.counterfactual(2, 3, {}, -1, 0), keyhole::Error);
    for (const int row : {kPrompt - 2, kPrompt + 1})
        EXPECT_NE(error_of([&] { s.counterfactual(0, 3, {}, row); }, keyhole::ErrorCode::wrong_use)
                      .find("is out of range; choose"),
                  std::string::npos);
    EXPECT_NE(refused(7, 3, keyhole::ErrorCode::wrong_use).find("lane 7"), std::string::npos);
    EXPECT_NE(refused(1, 6, keyhole::ErrorCode::unsupported).find("lane 1 hides"), std::string::npos);
    // Lanes that are plain now: one was not at its start, one was not in between, one always was.
    for (const char* spec : {"lane 1 sink:budget=8", "lane 2 sink:budget=8,positions=cache"})
        s.apply(parse_command(spec));
    s.step();
    for (const char* spec : {"lane 2 sink:budget=8", "lane 3 sink:budget=6"}) s.apply(parse_command(spec));
    s.step();
    for (const int lane : {1, 2})
        EXPECT_NE(refused(lane, 6, keyhole::ErrorCode::unsupported).find("hid tokens or moved"),
                  std::string::npos)
            << lane;
    EXPECT_FALSE(s.counterfactual(3, 6).kv_heads.empty());
}

}  // namespace
}  // namespace reference::test_token_back
