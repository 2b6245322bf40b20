// Sessions: content of records, follow and free modes, sampling, ends, and refusals.
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "tests/reference/reference_policy.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

namespace reference::test_session {
namespace {

using keyhole::ErrorCode;

Vector probabilities(const std::vector<float>& logits) {
    return softmax(Vector(logits.begin(), logits.end()));
}

int best(const std::vector<float>& logits) {
    return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class EngineSession : public ::testing::Test {
  protected:
    EngineSession() : tiny_({.n_ctx = 128, .seed = 8}), model_(keyhole::load_model(tiny_.folder())) {}
    SessionRun run(const keyhole::RunSpec& spec,
                   const std::function<void(keyhole::Session&, int)>& before = {}) const {
        return run_session(model_, spec, before);
    }
    static constexpr int kPrompt = 30;  // bos and 29 bytes
    const std::string prompt_ = random_text(29, 9);
    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
};

TEST_F(EngineSession, RowsArePositionsAndTokensAreFed) {
    const SessionRun r = run(run_spec(prompt_, {"full", "h2o:budget=6"}, 12));
    ASSERT_EQ(r.steps.size(), 13u);  // the prompt's record and N decode rows
    EXPECT_EQ(r.steps[0]->row, kPrompt - 1);
    EXPECT_EQ(r.steps[0]->run->prompt_tokens, random_tokens(kPrompt, 9));
    EXPECT_TRUE(std::isnan(r.lane(0, 0).log_prob));
    for (std::size_t t = 1; t < r.steps.size(); ++t)
        EXPECT_EQ(r.steps[t]->row, kPrompt - 1 + static_cast<int>(t));
    EXPECT_FALSE(r.finish_reason.empty());
    EXPECT_NE(r.lane(0, 0).info->id, r.lane(0, 1).info->id);
}

TEST_F(EngineSession, FreeLanesFeedThemselves) {
    const SessionRun r = run(run_spec(prompt_, {"full", "window:budget=2", "tova:budget=3"}, 20));
    for (std::size_t t = 1; t < r.steps.size(); ++t)
        for (std::size_t n = 0; n < 3; ++n) EXPECT_EQ(r.lane(t, n).token, r.lane(t - 1, n).predicted);
    EXPECT_NE(r.tokens(0), r.tokens(1));
}

TEST_F(EngineSession, FollowingLanesAreFedTheReference) {
    keyhole::RunSpec spec = run_spec(prompt_, {"full", "window:budget=2", "tova:budget=3"}, 20);
    spec.follow = true;
    const SessionRun r = run(spec);
    bool other_choice = false;
    for (std::size_t t = 1; t < r.steps.size(); ++t)
        for (std::size_t n = 0; n < 3; ++n) {
            EXPECT_EQ(r.lane(t, n).token, r.lane(t - 1, 0).predicted);
            EXPECT_TRUE(r.lane(t, n).kl.has_value());
            other_choice |= r.lane(t, n).predicted != r.lane(t, 0).predicted;
        }
    EXPECT_TRUE(other_choice);
}

TEST_F(EngineSession, ScalarsAreThoseOfTheDistributions) {
    keyhole::RunSpec spec = run_spec(prompt_, {"full", "h2o:budget=4"}, 15);
    spec.follow = true;
    const SessionRun r = run(spec);
    for (std::size_t t = 0; t < r.steps.size(); ++t) {
        const Vector reference =
            probabilities(r.sink.rows.at({r.steps[t]->row, r.lane(t, 0).info->id}).next_logits);
        for (std::size_t n = 0; n < 2; ++n) {
            const keyhole::LaneRecord& record = r.lane(t, n);
            const std::vector<float>& logits = r.sink.rows.at({r.steps[t]->row, record.info->id}).next_logits;
            const Vector p = probabilities(logits);
            double entropy = 0, kl = 0;
            for (std::size_t v = 0; v < p.size(); ++v) {
                if (p[v] > 0) entropy -= p[v] * std::log(p[v]);
                if (reference[v] > 0) kl += reference[v] * (std::log(reference[v]) - std::log(p[v]));
            }
            EXPECT_NEAR(record.entropy, entropy, 1e-4);
            EXPECT_NEAR(record.kl.value(), kl, 1e-4);
            EXPECT_EQ(record.agrees.value(),
                      best(logits) == static_cast<int>(std::max_element(reference.begin(), reference.end()) -
                                                       reference.begin()));
            EXPECT_EQ(record.predicted, best(logits));
            ASSERT_GE(record.top.size(), 5u);
            EXPECT_EQ(record.top[0].id, best(logits));
            for (std::size_t i = 0; i < record.top.size(); ++i) {
                EXPECT_NEAR(record.top[i].log_prob, std::log(p[keyhole::to_index(record.top[i].id)]), 1e-4);
                if (i > 0) {
                    EXPECT_LE(record.top[i].log_prob, record.top[i - 1].log_prob);
                }
            }
            if (t > 0) {
                const Vector before =
                    probabilities(r.sink.rows.at({r.steps[t]->row - 1, record.info->id}).next_logits);
                EXPECT_NEAR(record.log_prob, std::log(before[keyhole::to_index(record.token)]), 1e-4);
            }
        }
    }
}

TEST_F(EngineSession, FreeLanesHaveNoKlAfterTheyDiverge) {
    const SessionRun r = run(run_spec(prompt_, {"full", "window:budget=2"}, 20));
    bool parted = false;
    for (std::size_t t = 0; t < r.steps.size(); ++t) {
        parted |= t > 0 && r.lane(t, 0).token != r.lane(t, 1).token;
        EXPECT_EQ(r.lane(t, 1).kl.has_value(), !parted) << t;
        EXPECT_EQ(r.lane(t, 1).agrees.has_value(), !parted) << t;
    }
    EXPECT_TRUE(parted);
}

TEST_F(EngineSession, SizesAreWhatTheBudgetSays) {
    const SessionRun r = run(run_spec(prompt_, {"full", "h2o:budget=6", "window:budget=50%"}, 10));
    const std::int64_t n_kv = model_->layout().n_kv_heads(), token_bytes = 2 * 4 * model_->config().head_dim;
    for (std::size_t t = 0; t < r.steps.size(); ++t) {
        EXPECT_EQ(r.lane(t, 0).use.stored_tokens, n_kv * (kPrompt + static_cast<int>(t)));
        EXPECT_EQ(r.lane(t, 1).use.stored_tokens, n_kv * 6);
        EXPECT_EQ(r.lane(t, 1).use.stored_bytes, n_kv * 6 * token_bytes);
        EXPECT_EQ(r.lane(t, 2).use.stored_tokens, n_kv * 15);
        EXPECT_GE(r.lane(t, 1).use.allocated_bytes, r.lane(t, 1).use.stored_bytes);
        if (t > 0) {
            EXPECT_EQ(r.lane(t, 1).attended_tokens, n_kv * 7);
        }
        if (t > 0) {
            EXPECT_EQ(r.lane(t, 1).evictions.size(), keyhole::to_index(n_kv));
        }
    }
    EXPECT_NE(r.lane(1, 2).info->effective.find("15"), std::string::npos) << r.lane(1, 2).info->effective;
}

TEST_F(EngineSession, TauInForceIsRecorded) {
    const SessionRun r = run(run_spec(prompt_, {"full", "keyformer:budget=6,horizon=8"}, 12));
    EXPECT_FLOAT_EQ(r.lane(0, 1).tau, 1.0f);
    EXPECT_FLOAT_EQ(r.lane(1, 1).tau, 1.125f);
    EXPECT_FLOAT_EQ(r.lane(8, 1).tau, 2.0f);
    EXPECT_FLOAT_EQ(r.lane(12, 1).tau, 2.0f);
}

TEST_F(EngineSession, TheFirstRecordHoldsThePromptsAttention) {
    keyhole::RunSpec spec = run_spec(prompt_, {"full", "h2o:budget=6"}, 1);
    spec.requested.attention = true;
    const SessionRun r = run(spec);
    ASSERT_NE(r.steps[0]->prompt_rows, nullptr);
    const keyhole::PromptRows& rows = *r.steps[0]->prompt_rows;
    EXPECT_EQ(rows.reduction, 1);
    ASSERT_EQ(rows.size, kPrompt);
    const Weights weights = load_weights(tiny_.folder());
    Lane lane(weights, {}, kPrompt);
    for (int row = 0; row < kPrompt; ++row) {
        const LaneRow expected = lane.feed(r.steps[0]->run->prompt_tokens[keyhole::to_index(row)]);
        for (int l = 0; l < weights.n_layers; ++l)
            for (int h = 0; h < weights.n_heads; ++h)
                for (int p = 0; p < kPrompt; ++p) {
                    const auto at =
                        keyhole::to_index(((l * weights.n_heads + h) * kPrompt + row) * kPrompt + p);
                    const double value = static_cast<double>(keyhole::float_from_fp16(rows.attention[at]));
                    const double wanted =
                        p > row ? 0
                                : expected.model.attention[keyhole::to_index(l)][keyhole::to_index(h)]
                                                          [keyhole::to_index(p)];
                    ASSERT_NEAR(value, wanted, 6e-4) << l << " " << h << " " << row << " " << p;
                }
    }
    EXPECT_EQ(r.steps[1]->prompt_rows, nullptr);
}

// A prompt too large for the record is reduced by maxima, in rows and columns.
TEST_F(EngineSession, LargePromptsKeepMaximaOfTheirAttention) {
    const TinyModel deep(
        {.n_layers = 32, .n_heads = 8, .n_kv_heads = 8, .head_dim = 4, .d_ff = 8, .seed = 3});
    constexpr int kLong = 401, kHalf = 201;
    struct Maxima : keyhole::RowSink, keyhole::PrefillSink {
        std::vector<float> cells = std::vector<float>(32 * 8 * kHalf * kHalf, 0.0f);
        keyhole::PrefillSink* prefill() override { return this; }
        keyhole::RowRequest requested() const override { return {true, false, false, false}; }
        void attention(const keyhole::PrefillTile& tile) override {
            for (int r = 0; r < tile.n_rows; ++r)
                for (int c = 0; c <= tile.first_row + r; ++c) {
                    const int row = (tile.layer * 8 + tile.head) * kHalf + (tile.first_row + r) / 2;
                    float& cell = cells[keyhole::to_index(row * kHalf + c / 2)];
                    cell = std::max(cell, tile.values[r * tile.n_columns + c]);
                }
        }
        void row(const keyhole::StepTrace&, int, const keyhole::RowOutput&) override {}
    } maxima;
    keyhole::RunSpec spec = run_spec(random_text(kLong - 1, 6), {"full"}, 1);
    spec.requested.attention = true;
    std::string notice;
    const auto model = keyhole::load_model(deep.folder());
    const auto backend = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    keyhole::Session session(model, *backend, spec, &maxima);
    const auto rows = session.prefill()->prompt_rows;
    ASSERT_NE(rows, nullptr);
    EXPECT_EQ(rows->reduction, 2);
    ASSERT_EQ(rows->size, kHalf);
    ASSERT_EQ(rows->attention.size(), maxima.cells.size());
    for (std::size_t i = 0; i < maxima.cells.size(); ++i)
        ASSERT_NEAR(keyhole::float_from_fp16(rows->attention[i]), maxima.cells[i], 6e-4) << i;
}

// Lanes of one-shot and stepwise prefill together: tiles and rows carry the session's lane numbers.
TEST_F(EngineSession, PromptRowsComeUnderTheirLanes) {
    struct Sink : keyhole::RowSink, keyhole::PrefillSink {
        std::mutex mutex;
        bool stepwise = false;
        std::set<int> attention_lanes, score_lanes;
        std::vector<std::pair<int, int>> rows;
        keyhole::PrefillSink* prefill() override { return this; }
        keyhole::RowRequest requested() const override { return {true, false, false, true}; }
        void attention(const keyhole::PrefillTile& tile) override {
            const std::lock_guard lock(mutex);
            attention_lanes.insert(tile.lane);
        }
        void scores(const keyhole::PrefillTile& tile) override {
            const std::lock_guard lock(mutex);
            score_lanes.insert(tile.lane);
        }
        void row(const keyhole::StepTrace& step, int lane, const keyhole::RowOutput& out) override {
            rows.emplace_back(lane, step.row);
            if (stepwise && lane == 1) {
                EXPECT_EQ(attended(out), std::min(step.row + 1, 7));
            }
        }
        static int attended(const keyhole::RowOutput& out) { return out.values.offset[1]; }
    };
    for (const bool mixed : {true, false}) {
        Sink sink;
        sink.stepwise = mixed;
        std::string notice;
        const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
        keyhole::RunSpec spec =
            run_spec(prompt_, {"full", mixed ? "tova:budget=6,prefill=stepwise" : "full", "h2o:budget=6"}, 2);
        spec.requested = {true, false, false, true};
        if (!mixed) spec.lanes.erase(spec.lanes.begin() + 1);
        keyhole::Session session(model_, *backend, spec, &sink);
        session.prefill();
        EXPECT_EQ(sink.attention_lanes, mixed ? (std::set<int>{0, 2}) : (std::set<int>{-1}));
        EXPECT_EQ(sink.score_lanes, mixed ? (std::set<int>{0, 2}) : (std::set<int>{0, 1}));
        std::vector<std::pair<int, int>> expected;
        for (int row = 0; mixed && row < kPrompt - 1; ++row) expected.emplace_back(1, row);
        for (int lane = 0; lane < (mixed ? 3 : 2); ++lane) expected.emplace_back(lane, kPrompt - 1);
        EXPECT_EQ(sink.rows, expected);
    }
}

// --- sampling

keyhole::RunSpec sampled(keyhole::RunSpec spec, double temperature, int top_k, double top_p,
                         std::uint64_t seed) {
    spec.sampling = {temperature, top_k, top_p};
    spec.seed = seed;
    spec.ignore_eos = true;
    return spec;
}

TEST_F(EngineSession, EqualLogitsGiveEqualSampledTokens) {
    const SessionRun r =
        run(sampled(run_spec(prompt_, {"full", "h2o:budget=500", "tova:budget=500"}, 60), 1.5, 0, 1, 3));
    EXPECT_EQ(r.tokens(0), r.tokens(1));
    EXPECT_EQ(r.tokens(0), r.tokens(2));
    const std::vector<int> tokens = r.tokens(0);
    EXPECT_GT(std::set<int>(tokens.begin(), tokens.end()).size(), 20u);
}

TEST_F(EngineSession, TheSeedDecides) {
    const auto tokens = [&](std::uint64_t seed) {
        return run(sampled(run_spec(prompt_, {"full"}, 30), 1, 0, 1, seed)).tokens(0);
    };
    EXPECT_EQ(tokens(3), tokens(3));
    EXPECT_NE(tokens(3), tokens(4));
}

TEST_F(EngineSession, OneCandidateIsGreedy) {
    const std::vector<int> greedy = run(sampled(run_spec(prompt_, {"full"}, 30), 0, 0, 1, 1)).tokens(0);
    EXPECT_EQ(run(sampled(run_spec(prompt_, {"full"}, 30), 2, 1, 1, 5)).tokens(0), greedy);
    EXPECT_EQ(run(sampled(run_spec(prompt_, {"full"}, 30), 2, 0, 1e-6, 5)).tokens(0), greedy);
}

TEST_F(EngineSession, CandidatesAreThoseOfTopKAndTopP) {
    for (const auto& [top_k, top_p] : {std::pair{3, 1.0}, {0, 0.4}, {6, 0.6}}) {
        const SessionRun r = run(sampled(run_spec(prompt_, {"full"}, 90), 1.3, top_k, top_p, 17));
        std::set<int> ranks;
        for (std::size_t t = 1; t < r.steps.size(); ++t) {
            Vector logits;
            for (float logit : r.sink.rows.at({r.steps[t]->row - 1, r.lane(t, 0).info->id}).next_logits)
                logits.push_back(static_cast<double>(logit) / 1.3);
            const Vector p = softmax(logits);
            const double chosen = p[keyhole::to_index(r.lane(t, 0).token)];
            int rank = 0;
            double above = 0;  // mass of the more likely tokens
            for (double other : p)
                if (other > chosen) ++rank, above += other;
            if (top_k > 0) {
                EXPECT_LT(rank, top_k);
            }
            if (top_k == 0) {
                EXPECT_LT(above, top_p + 1e-5);  // the nucleus: the fewest whose mass reaches top_p
            }
            ranks.insert(rank);
        }
        EXPECT_GT(ranks.size(), 1u) << "never sampled anything but the best";
    }
}

// Over many rows the mean surprise of sampled tokens equals the entropy of their distributions.
TEST_F(EngineSession, SampledTokensFollowTheirDistribution) {
    double difference = 0, variance = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        const SessionRun r = run(sampled(run_spec(prompt_, {"full"}, 90), 1, 0, 1, seed));
        for (std::size_t t = 1; t < r.steps.size(); ++t) {
            const Vector p =
                probabilities(r.sink.rows.at({r.steps[t]->row - 1, r.lane(t, 0).info->id}).next_logits);
            double mean = 0, squares = 0;
            for (double share : p) {
                mean += share * std::log(share);
                squares += share * std::log(share) * std::log(share);
            }
            difference += static_cast<double>(r.lane(t, 0).log_prob) - mean;
            variance += squares - mean * mean;
        }
    }
    EXPECT_LT(std::abs(difference), 4 * std::sqrt(variance));
}

// --- ends

TEST_F(EngineSession, EndOfTextEndsALane) {
    keyhole::RunSpec spec = run_spec(prompt_, {"full", "window:budget=2"}, 20);
    const std::vector<int> tokens = run(spec).tokens(0);
    TinyShape shape = tiny_.shape();
    shape.eos = tokens[4];
    const TinyModel same_with_eos(shape);
    const auto model = keyhole::load_model(same_with_eos.folder());
    const auto first = std::find(tokens.begin(), tokens.end(), shape.eos) - tokens.begin();

    spec = run_spec(prompt_, {"full"}, 20);
    const SessionRun ended = run_session(model, spec);
    ASSERT_EQ(ended.steps.size(), keyhole::to_index(first) + 2);  // the end token is consumed
    EXPECT_TRUE(ended.steps.back()->lanes[0].ended);
    EXPECT_EQ(ended.steps.back()->lanes[0].token, shape.eos);
    EXPECT_FALSE(ended.finish_reason.empty());

    spec.ignore_eos = true;
    EXPECT_EQ(run_session(model, spec).steps.size(), 21u);

    // The other lane continues. A lane added then would have no past text to read.
    spec = run_spec(prompt_, {"full", "window:budget=2"}, 20);
    spec.commands.clear();
    int n_refused = 0;
    const int after_end = 30 + static_cast<int>(first) + 2;
    spec.lanes.push_back(keyhole::parse_lane_spec("sink:budget=8"));
    run_session(model, spec, [&](keyhole::Session& session, int row) {
        const auto refuses = [&](const char* command) {
            const std::string why = reference::error_of(
                [&] { session.apply(keyhole::parse_command(command)); }, keyhole::ErrorCode::wrong_use);
            n_refused += why.find("lane 0 ended its text at step") != std::string::npos ? 1 : 0;
        };
        if (row == after_end - 4) session.apply(keyhole::parse_command("remove 2"));
        if (row != after_end) return;
        refuses("add sink:budget=8");
        refuses("restore 2 sink:budget=8");  // nor a lane that comes back
    });
    EXPECT_EQ(n_refused, 2);
}

TEST_F(EngineSession, DecodesBeyondTheContext) {
    const SessionRun r = run(run_spec(prompt_, {"full", "h2o:budget=5"}, 120));
    EXPECT_EQ(r.steps.back()->row, 149);  // n_ctx = 128
}

TEST_F(EngineSession, FinishesOnlyOnce) {
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    keyhole::Session session(model_, *backend, run_spec(prompt_, {"full"}, 1));
    session.prefill();
    EXPECT_FALSE(session.finished());
    EXPECT_EQ(session.finish_reason(), "");
    EXPECT_NE(session.step(), nullptr);
    EXPECT_TRUE(session.finished());
    EXPECT_EQ(session.step(), nullptr);
    EXPECT_EQ(session.step(), nullptr);
}

// --- refusals

TEST_F(EngineSession, BadPromptsAreRefusedInOneLine) {
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    const auto start = [&](const keyhole::RunSpec& spec) {
        return [&] { keyhole::Session session(model_, *backend, spec); };
    };
    error_of(start(run_spec(prompt_, {}, 5)), ErrorCode::wrong_use);
    const std::string too_long =
        error_of(start(run_spec(random_text(128, 1), {"full"}, 5)), ErrorCode::wrong_use);
    EXPECT_NE(too_long.find("128"), std::string::npos) << "names the context: " << too_long;
    EXPECT_NE(too_long.find("129"), std::string::npos) << "names the prompt's length: " << too_long;
}

TEST_F(EngineSession, ALongestPromptFits) {
    const SessionRun r = run(run_spec(random_text(126, 1), {"full", "h2o:budget=9"}, 1));
    EXPECT_EQ(r.steps.back()->row, 127);
}

// --- settings that change no result, and lanes that run again

/// A name and a shadow evict nothing, also between two evictions of a policy that has not evicted lately.
TEST_F(EngineSession, NamesAndShadowsEvictNothing) {
    for (const std::string& lane :
         std::vector<std::string>{"h2o:budget=8,every=6", "lagkv:budget=12,sinks=2"}) {
        const keyhole::RunSpec spec = run_spec(prompt_, {"full", lane}, 24);
        const SessionRun plain = run(spec);
        for (const std::string& setting : {"nick=" + lane, lane + ",shadow=on"}) {
            const SessionRun changed = run(spec, [&](keyhole::Session& session, int row) {
                if (row == kPrompt + 9) session.apply(keyhole::parse_command("lane 1 " + setting));
            });
            ASSERT_EQ(changed.steps.back()->lanes[1].info->policy.shadow, setting.ends_with("shadow=on"));
            EXPECT_EQ(plain.sink.rows, changed.sink.rows) << setting;
        }
        EXPECT_NE(plain.sink.rows, run(spec, [&](keyhole::Session& session, int row) {
                                       if (row == kPrompt + 9)
                                           session.apply(keyhole::parse_command("lane 1 h2o:budget=4"));
                                   }).sink.rows);
    }
}

/// The first part of the progress is the prompt with the new KV heads, the second the pass of kvzip.
TEST_F(EngineSession, ALaneWhoseChangeIsStoppedStaysAsItWas) {
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, nullptr);
    keyhole::Session session(model_, *backend, run_spec(prompt_, {"full", "full"}, 8));
    session.prefill();
    const auto before = session.step()->lanes[1].info;
    double last = 0;
    bool second = false;
    const auto stop_in_second = [&](double done) {
        second = second || done < last;
        last = done;
        return !second;
    };
    error_of([&] { session.apply(keyhole::parse_command("lane 1 kvzip:kv=mqa,budget=8"), stop_in_second); },
             ErrorCode::cancelled);
    EXPECT_TRUE(second);
    EXPECT_EQ(session.step()->lanes[1].info, before);
    EXPECT_TRUE(session.log().empty());
}

/// What a lane is forced to read is part of what an oracle knows, also when it runs again.
TEST_F(EngineSession, AnOracleComesBackWithTheFutureThatItHad) {
    keyhole::RunSpec spec = run_spec(prompt_, {"full", "oracle:budget=8"}, 24);
    spec.follow = true;
    const auto forced = [&](keyhole::Session& session, int row) {
        if (row == kPrompt + 2) session.apply(keyhole::parse_command("force 40,41,42,43,44,45,46,47,48"));
        if (row == kPrompt + 6) session.apply(keyhole::parse_command("force! 50,51,52,53,54,55"));
    };
    const SessionRun plain = run(spec, forced);
    EXPECT_NE(plain.sink.rows, run(spec).sink.rows);
    const SessionRun came_back = run(spec, [&](keyhole::Session& session, int row) {
        forced(session, row);
        if (row != kPrompt + 9) return;
        session.apply(keyhole::RemoveLane{1});
        session.apply(keyhole::parse_command("restore 1 oracle:budget=8"));
    });
    EXPECT_EQ(plain.sink.rows, came_back.sink.rows);
    // One that joins ranks as if it had been there, too.
    spec.lanes.resize(1);
    const SessionRun joined = run(spec, [&](keyhole::Session& session, int row) {
        forced(session, row);
        if (row == kPrompt + 9) session.apply(keyhole::parse_command("add oracle:budget=8"));
    });
    for (int row = kPrompt + 9; row < kPrompt + 24; ++row)
        EXPECT_EQ(plain.sink.rows.at({row, 1}).next_logits, joined.sink.rows.at({row, 1}).next_logits) << row;
}

TEST_F(EngineSession, AShadowStaysWhereALaneRunsAgain) {
    const auto measured = [&](const std::vector<std::string>& commands) {
        const SessionRun r =
            run(run_spec(prompt_, {"full", "h2o:budget=8"}, 12), [&](keyhole::Session& session, int row) {
                if (row == kPrompt + 4)
                    for (const std::string& command : commands)
                        session.apply(keyhole::parse_command(command));
            });
        return r.steps.back()->lanes.back().shadow != nullptr;
    };
    EXPECT_FALSE(measured({"lane 1 h2o:budget=8"}));
    EXPECT_TRUE(measured({"lane 1 h2o:budget=8,shadow=on"}));
    EXPECT_TRUE(measured({"lane 1 h2o:budget=8,shadow=on", "remove 1", "restore 1 h2o:budget=8,shadow=on"}));
    EXPECT_TRUE(measured({"lane 1 h2o:budget=8,shadow=on,kv=mqa"}));
    EXPECT_TRUE(measured({"fork 1 h2o:budget=8,shadow=on,kv=mqa"}));
}

/// A trace holds kMostLanes, so a run has no more: else what is saved could not be read.
TEST_F(EngineSession, MoreLanesThanATraceHoldsAreRefused) {
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, nullptr);
    keyhole::RunSpec spec = run_spec(prompt_, {"full"}, 4);
    const keyhole::LaneSpec more = keyhole::parse_lane_spec("window:budget=2");
    spec.lanes.resize(keyhole::kMostLanes + 1, more);
    const auto start = [&] { keyhole::Session session(model_, *backend, spec); };
    EXPECT_NE(error_of(start, ErrorCode::wrong_use).find("1024 lanes, not 1025"), std::string::npos);

    spec.lanes.resize(1);
    keyhole::Session session(model_, *backend, spec);
    session.prefill();
    const auto add_and_remove = [&] {
        session.apply(keyhole::AddLane{more});
        session.apply(keyhole::RemoveLane{1});
    };
    for (int id = 1; id < keyhole::kMostLanes; ++id) add_and_remove();
    EXPECT_NE(error_of(add_and_remove, ErrorCode::wrong_use).find("this run has had 1024"),
              std::string::npos);
    error_of([&] { session.apply(keyhole::ForkLane{0, std::nullopt}); }, ErrorCode::wrong_use);
    EXPECT_EQ(session.step()->lanes.size(), 1u);
}

TEST_F(EngineSession, ARefusedCommandChangesNothing) {
    const keyhole::RunSpec spec = run_spec(prompt_, {"full", "h2o:budget=8"}, 16);
    const SessionRun plain = run(spec);
    const SessionRun tried = run(spec, [&](keyhole::Session& session, int row) {
        if (row != kPrompt + 5) return;
        for (const char* text : {"lane 2 full", "lane 7 h2o:budget=4", "remove 0", "remove 2", "remove -1"})
            error_of([&] { session.apply(keyhole::parse_command(text)); }, ErrorCode::wrong_use);
        keyhole::LaneSpec wrong = keyhole::parse_lane_spec("h2o:budget=4");
        wrong.policy.alpha = 7;
        error_of([&] { session.apply(keyhole::SetLane{1, wrong}); }, ErrorCode::wrong_use);
        EXPECT_TRUE(session.log().empty());
    });
    EXPECT_EQ(plain.sink.rows, tried.sink.rows);
}

}  // namespace
}  // namespace reference::test_session
