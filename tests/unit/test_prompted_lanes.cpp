// What lanes say after a prompt without a session: against transformers' generate(), against a session, and
// beams whose scores are shared against a slow sum over all beams.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/eval/prompted_lanes.h"
#include "engine/eval/shared_scores.h"
#include "engine/policy/selection.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

namespace reference {
namespace {

using namespace keyhole;

BeamSettings beams(int n, BeamScores scores = BeamScores::apart) {
    BeamSettings settings;
    settings.n_beams = n;
    settings.scores = scores;
    return settings;
}

class PromptedLanes : public ::testing::Test {
  protected:
    PromptedLanes() : tiny_({.n_ctx = 4096, .seed = 5}), model_(load_model(tiny_.folder())) {
        std::string notice;
        backend_ = make_backend(model_, {BackendChoice::cpu, 1, 0}, &notice);
    }
    RunSpec spec(const std::vector<std::string>& lanes, int n_generate) const {
        RunSpec run = run_spec(random_text(40, 9), lanes, n_generate);
        run.requested.scores = true;
        return run;
    }
    std::vector<OwnText> texts(const RunSpec& run, const BeamSettings& settings) const {
        return keyhole::PromptedLanes(model_, *backend_, run).texts(settings, {});
    }
    TinyModel tiny_;
    std::shared_ptr<const Model> model_;
    std::unique_ptr<Backend> backend_;
};

/// The demo model with other ends of text, since it seldom ends one.
std::shared_ptr<const Model> with_ends(const std::filesystem::path& folder, const nlohmann::json& ends) {
    const std::filesystem::path from = source_folder() / "assets/models/keyhole-base";
    for (const char* name : {"model.safetensors", "tokenizer.json", "tokenizer_config.json"})
        std::filesystem::create_symlink(from / name, folder / name);
    std::ifstream in(from / "config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    config["eos_token_id"] = ends;
    std::ofstream(folder / "config.json") << config;
    return load_model(folder);
}

TEST(Generate, EqualsTransformers) {
    const TempFolder folder("ends");
    const auto usual = load_model(source_folder() / "assets/models/keyhole-base");
    std::shared_ptr<const Model> other;
    std::ifstream file(source_folder() / "tests/fixtures/data/generate.json");
    const nlohmann::json cases = nlohmann::json::parse(file);
    EXPECT_GT(cases.size(), 100u);
    int n_ended = 0;
    for (const nlohmann::json& row : cases) {
        const bool is_usual = row.at("eos") == nlohmann::json::array({0});
        if (!is_usual && other == nullptr) other = with_ends(folder.path(), row.at("eos"));
        const std::shared_ptr<const Model>& model = is_usual ? usual : other;
        std::string notice;
        const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, &notice);
        const nlohmann::json& settings = row.at("settings");
        RunSpec run;
        run.prompt = row.at("prompt");
        run.lanes = {parse_lane_spec("full:kv_dtype=f32")};
        run.n_generate = row.at("max_new_tokens");
        run.sampling.repetition_penalty = settings.value("repetition_penalty", 1.0);
        run.sampling.no_repeat_ngram = settings.value("no_repeat_ngram_size", 0);
        run.sampling.min_tokens = settings.value("min_new_tokens", 0);
        BeamSettings search;
        search.n_beams = settings.value("num_beams", 1);
        search.length_penalty = settings.value("length_penalty", 1.0);
        search.early_stopping = settings.value("early_stopping", false);
        const OwnText found = keyhole::PromptedLanes(model, *backend, run).texts(search, {}).front();
        EXPECT_EQ(found.tokens, row.at("tokens").get<std::vector<int>>()) << row;
        EXPECT_EQ(found.complete, row.at("ended").get<bool>()) << row;
        n_ended += found.complete ? 1 : 0;
        if (row.contains("score")) {
            EXPECT_NEAR(found.score, row.at("score").get<double>(), 2e-3) << row;
        }
    }
    EXPECT_GT(n_ended, 10);
}

TEST_F(PromptedLanes, GreedyTextsAreThoseOfASession) {
    const std::vector<std::string> lanes = {"full", "h2o:budget=12", "tova:budget=9",
                                            "h2o:budget=9,prefill=stepwise"};
    RunSpec run = spec(lanes, 15);
    run.sampling.no_repeat_ngram = 2;
    const SessionRun session = run_session(model_, run);
    const std::vector<OwnText> found = texts(run, {});
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        std::vector<int> expected = session.tokens(i);
        const auto end = std::find(expected.begin(), expected.end(), kEos);  // other lanes may go on
        const bool ended = end != expected.end();
        expected.erase(end, expected.end());
        EXPECT_EQ(found[i].tokens, expected) << lanes[i];
        EXPECT_EQ(found[i].complete, ended);
    }
}

TEST_F(PromptedLanes, ATextEndsBehindItsFirstLine) {
    const Tokenizer& tokenizer = model_->tokenizer();
    const std::vector<std::string> stop = {"\n", "##"};
    const auto cut = [&](const std::string& text) {
        return text_until(tokenizer, tokenizer.encode(text, false), stop);
    };
    EXPECT_EQ(cut("\n \n one\ntwo").text, "\n \n one");
    EXPECT_TRUE(cut("\n \n one\ntwo").complete);
    EXPECT_EQ(cut(" a ## b\n").text, " a ");
    EXPECT_FALSE(cut("\n\n").complete);
    EXPECT_FALSE(cut("one #").complete);
    EXPECT_TRUE(cut("##").complete);
    // A search and greedy decoding stop there too.
    const RunSpec run = spec({"full"}, 40);
    for (const int n_beams : {1, 3}) {
        const OwnText whole = texts(run, beams(n_beams)).front();
        ASSERT_GT(whole.text.size(), 12u);
        const std::vector<std::string> at = {whole.text.substr(4, 2)};
        const OwnText part = keyhole::PromptedLanes(model_, *backend_, run).texts(beams(n_beams), at).front();
        EXPECT_TRUE(part.complete);
        EXPECT_LT(part.tokens.size(), whole.tokens.size());
        EXPECT_EQ(part.text.find(at.front()), std::string::npos);
    }
}

TEST_F(PromptedLanes, NatsAreThoseOfTheRecords) {
    const std::vector<std::string> lanes = {"full", "h2o:budget=12", "window:budget=9"};
    RunSpec run = spec(lanes, 8);
    const std::vector<int> tokens = random_tokens(8, 77);
    const std::vector<double> found = keyhole::PromptedLanes(model_, *backend_, run).nats_of(tokens);
    run.forced = tokens;
    run.ignore_eos = true;
    const SessionRun session = run_session(model_, run);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        double nats = 0;
        for (std::size_t t = 1; t < session.steps.size(); ++t)
            nats -= static_cast<double>(session.lane(t, i).log_prob);
        EXPECT_NEAR(found[i], nats, 1e-5) << lanes[i];
    }
    EXPECT_EQ(keyhole::PromptedLanes(model_, *backend_, spec(lanes, 8)).nats_of({}),
              std::vector<double>(lanes.size(), 0));
}

// A text of a beam search is as likely as the lane says that it is: its cache holds what a lane holds that
// is fed the same tokens.
TEST_F(PromptedLanes, ABeamsOwnCacheIsThatOfALaneWithItsText) {
    const std::vector<std::string> lanes = {"h2o:budget=10", "tova:budget=8", "keyformer:budget=10,seed=3"};
    const RunSpec run = spec(lanes, 14);
    const keyhole::PromptedLanes prompted(model_, *backend_, run);
    const std::vector<OwnText> found = prompted.texts(beams(4), {});
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        EXPECT_NEAR(prompted.nats_of(found[i].tokens)[i], found[i].nats, 1e-4) << lanes[i];
        const std::vector<OwnText> alone = texts(spec({lanes[i]}, 14), beams(4));
        EXPECT_EQ(alone.front().tokens, found[i].tokens) << "lanes do not depend on each other";
    }
    const auto score = [&](int n) { return texts(spec({"full"}, 14), beams(n)).front().score; };
    EXPECT_GE(score(8), score(2) - 1e-6);
}

TEST_F(PromptedLanes, SharedScoresChangeOnlyWhatScoresDecide) {
    for (const char* lane : {"full", "window:budget=9", "sink:budget=9"}) {
        const RunSpec run = spec({lane}, 12);
        EXPECT_EQ(texts(run, beams(4)).front().tokens,
                  texts(run, beams(4, BeamScores::shared)).front().tokens)
            << lane;
    }
    const auto nats = [&](BeamScores scores) {
        double sum = 0;
        for (const OwnText& text :
             texts(spec({"h2o:budget=6,recent=1", "a2sf:budget=5", "tova:budget=5"}, 20), beams(4, scores)))
            sum += text.nats;
        return sum;
    };
    EXPECT_NE(nats(BeamScores::apart), nats(BeamScores::shared));
}

TEST_F(PromptedLanes, DamagedWeightsAreSaidAndForbiddenTokensEndATextEarly) {
    const TinyModel damaged({.seed = 5});
    put_nan(damaged.folder(), "model.norm.weight");
    const auto model = load_model(damaged.folder());
    std::string notice;
    const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, &notice);
    EXPECT_NE(
        error_of(
            [&] { (void)keyhole::PromptedLanes(model, *backend, spec({"full"}, 5)).texts(beams(2), {}); },
            ErrorCode::unsupported)
            .find("not finite"),
        std::string::npos);
    // 258 tokens, none of which may come twice, and no end before all of them have come.
    RunSpec once = spec({"full"}, 300);
    once.sampling.no_repeat_ngram = 1;
    once.ignore_eos = true;
    const OwnText text = texts(once, beams(2)).front();
    EXPECT_FALSE(text.complete);
    const std::set<int> used(text.tokens.begin(), text.tokens.end());
    EXPECT_EQ(used.size(), text.tokens.size());
    EXPECT_GT(used.size(), 200u);
}

TEST_F(PromptedLanes, RefusesWhatDoesNotFit) {
    RunSpec hot = spec({"full"}, 5);
    hot.sampling.temperature = 1;
    EXPECT_NE(error_of([&] { (void)texts(hot, beams(2)); }, ErrorCode::wrong_use).find("temperature"),
              std::string::npos);
    const RunSpec most = spec({"h2o:budget=8,pool=max"}, 5);
    EXPECT_NE(error_of([&] { (void)texts(most, beams(2, BeamScores::shared)); }, ErrorCode::wrong_use)
                  .find("pool=mean"),
              std::string::npos);
    EXPECT_EQ(texts(most, beams(2)).size(), 1u);
    EXPECT_THROW((void)texts(spec({"full"}, 5), beams(65)), Error);
    EXPECT_THROW(
        (void)keyhole::PromptedLanes(model_, *backend_, spec({"full"}, 5)).nats_of(std::vector{9999}), Error);
}

// Two beams that read different tokens. The slow twin sums the attention of both by position, as the
// released code sums over the batch, and keeps the newest and the best.
TEST_F(PromptedLanes, SharedScoresAreTheSumOverAllBeams) {
    for (const std::string text : {"h2o:budget=10,recent=3", "a2sf:budget=9,alpha=0.5"}) {
        RunSpec run = spec({text}, 20);
        run.requested.attention = run.requested.scores = true;
        const RunContext context(model_, *backend_, run, nullptr);
        const LaneRunner runner(context, run.requested);
        std::vector<keyhole::Lane> lanes = std::move(runner.first_state().lanes);
        runner.prefill(lanes, {}, {}, false);
        const int n_prompt = context.n_prompt(), n_heads = model_->layout().n_heads();
        SharedScores shared(*backend_, lanes.front(), 2, run.n_generate);
        std::vector<keyhole::Lane> both;
        both.push_back(lanes.front().copy());
        both.push_back(lanes.front().copy());
        std::vector<KvScores> own;
        for (keyhole::Lane& lane : both) own.push_back(shared.begin(*lane.cache, n_prompt - 1));
        const ResolvedPolicy policy = lanes.front().policy();

        std::vector<std::map<int, double>> sums;  // [kv_head], of what is stored
        for (int g = 0; g < model_->layout().n_kv_heads(); ++g) {
            const RowValues& values = lanes.front().out.values;
            std::map<int, double>& sum = sums.emplace_back();
            const auto stored = lanes.front().cache->stored_positions(g);
            for (int i = values.offset[to_index(g)]; i < values.offset[to_index(g) + 1]; ++i)
                if (std::count(stored.begin(), stored.end(), values.positions[to_index(i)]) > 0)
                    sum[values.positions[to_index(i)]] = 2 * static_cast<double>(values.scores[to_index(i)]);
        }
        for (int t = 0; t < 12; ++t) {
            std::vector<keyhole::Lane*> fed;
            for (std::size_t b = 0; b < 2; ++b) {
                both[b].token = (17 * t + 91 * static_cast<int>(b)) % 250;
                fed.push_back(&both[b]);
            }
            const int row = n_prompt + t;
            runner.feed(fed, row);
            for (int g = 0; g < model_->layout().n_kv_heads(); ++g) {
                std::map<int, double>& sum = sums[to_index(g)];
                for (auto& [position, score] : sum) score *= static_cast<double>(policy.alpha);
                const auto& readers = model_->layout().kv_head(g).readers;
                for (const keyhole::Lane& lane : both)
                    for (const HeadRef& head : readers) {
                        const RowValues& v = lane.out.values;
                        const auto first = v.head_offset[to_index(head.layer * n_heads + head.head)];
                        for (int i = v.offset[to_index(g)]; i < v.offset[to_index(g) + 1]; ++i)
                            sum[v.positions[to_index(i)]] +=
                                static_cast<double>(
                                    v.attention[to_index(first + i - v.offset[to_index(g)])]) /
                                static_cast<double>(readers.size());
                    }
                while (static_cast<int>(sum.size()) > policy.stored) {
                    auto worst = sum.begin();
                    for (auto at = sum.begin(); at != sum.end(); ++at)
                        if (at->first <= row - policy.newest && at->second < worst->second) worst = at;
                    sum.erase(worst);
                }
            }
            std::vector<SharedScores::Of> of;
            for (std::size_t b = 0; b < 2; ++b)
                of.push_back({both[b].cache.get(), &both[b].out.values, &own[b]});
            shared.evict(of, row);
            for (int g = 0; g < model_->layout().n_kv_heads(); ++g) {
                std::vector<std::int32_t> expected;
                for (const auto& [position, score] : sums[to_index(g)]) expected.push_back(position);
                for (const keyhole::Lane& lane : both)
                    EXPECT_EQ(lane.cache->stored_positions(g), expected) << text << " row " << row;
            }
        }
    }
}

}  // namespace
}  // namespace reference
