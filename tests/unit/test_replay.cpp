// Changes in mid-run: their effect on the caches, and bit-exact replay of a logged run.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "tests/reference/reference_policy.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace reference::test_replay {
namespace {

class EngineReplay : public ::testing::Test {
  protected:
    EngineReplay()
        : tiny_({.seed = 14}),
          model_(keyhole::load_model(tiny_.folder())),
          weights_(load_weights(tiny_.folder())) {}

    SessionRun run(const keyhole::RunSpec& spec,
                   const std::map<int, std::vector<std::string>>& script) const {
        return run_session(model_, spec, [&](keyhole::Session& session, int row) {
            const auto at = script.find(row);
            if (at == script.end()) return;
            for (const std::string& command : at->second) session.apply(keyhole::parse_command(command));
        });
    }
    KeepRows replayed(const keyhole::RunSpec& spec, int last_row) const {
        std::string notice;
        const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
        KeepRows sink;
        int expected_row = kPrompt - 1;
        keyhole::replay(
            model_, *backend, spec, last_row, &sink,
            [&](std::shared_ptr<const keyhole::StepTrace> step) { EXPECT_EQ(step->row, expected_row++); });
        return sink;
    }
    std::vector<Gone> evictions(const SessionRun& r, std::size_t step, std::size_t lane) const {
        std::vector<Gone> gone;
        for (const keyhole::Eviction& e : r.lane(step, lane).evictions)
            gone.push_back({e.kv_head / weights_.n_kv_heads, e.kv_head % weights_.n_kv_heads, e.position});
        std::sort(gone.begin(), gone.end());
        return gone;
    }

    static constexpr int kPrompt = 40;
    const std::string prompt_ = random_text(39, 4);
    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    Weights weights_;
};

const std::map<int, std::vector<std::string>> kScript = {
    {40, {"lane 1 h2o:budget=10"}},                          // before the first decode row
    {44, {"lane 1 h2o:budget=6", "lane 2 tova:budget=12"}},  // down; another preset
    {48, {"add keyformer:budget=8"}},                        // prefilled again, with past tokens forced
    {52, {"lane 1 a2sf:budget=20,alpha=0.5"}},               // up, and another preset
    {55, {"sampling temperature=0.7,top_k=20"}},
    {57, {"remove 2", "follow off"}},
    {60, {"lane 1 window:budget=5", "lane 2 keyformer:budget=4,tau=1..3"}},
};

TEST_F(EngineReplay, ALoggedRunReplaysToTheBit) {
    for (const bool follow : {false, true}) {
        keyhole::RunSpec spec = run_spec(prompt_, {"full", "h2o:budget=16", "keyformer:budget=12"}, 30);
        spec.follow = follow;
        spec.sampling = {0.9, 0, 0.95};
        spec.seed = 77;
        spec.ignore_eos = true;
        const SessionRun live = run(spec, kScript);
        ASSERT_EQ(live.steps.size(), 31u);
        EXPECT_EQ(live.as_run.commands.size(), 10u);
        EXPECT_EQ(replayed(live.as_run, 1000).rows, live.sink.rows);

        // Replays to a row in the middle: the same rows and no more.
        std::map<std::pair<int, int>, KeepRows::Kept> first_part;
        for (const auto& [key, kept] : live.sink.rows)
            if (key.first <= 53) first_part.insert({key, kept});
        EXPECT_EQ(replayed(live.as_run, 53).rows, first_part);

        // Checks the comparison: a command one row later gives another run.
        keyhole::RunSpec shifted = live.as_run;
        for (keyhole::LoggedCommand& command : shifted.commands)
            if (command.row == 43) ++command.row;
        EXPECT_NE(replayed(shifted, 1000).rows, live.sink.rows);
    }
}

TEST_F(EngineReplay, CommandsAreLoggedAtTheRowTheyFollow) {
    const SessionRun live = run(run_spec(prompt_, {"full", "h2o:budget=16"}, 8),
                                {{40, {"lane 1 h2o:budget=9"}}, {45, {"follow on"}}});
    ASSERT_EQ(live.as_run.commands.size(), 2u);
    EXPECT_EQ(live.as_run.commands[0].row, 39);
    EXPECT_EQ(live.as_run.commands[1].row, 44);
    EXPECT_EQ(live.steps[1]->commands, (std::vector<std::string>{"lane 1 h2o:budget=9"}));
    EXPECT_EQ(live.steps[2]->commands, (std::vector<std::string>{}));
}

TEST_F(EngineReplay, LessBudgetEvictsAtOnceAndAsTheReferenceDoes) {
    keyhole::RunSpec spec = run_spec(prompt_, {"full", "h2o:budget=20"}, 12);
    spec.follow = true;
    const SessionRun live = run(spec, {{45, {"lane 1 h2o:budget=7"}}});
    Policy policy;
    policy.budget = 20;
    policy.recent = 10;
    Lane lane(weights_, policy, kPrompt);
    std::vector<int> tokens = random_tokens(kPrompt, 4);
    for (int token : live.tokens(0)) tokens.push_back(token);
    for (std::size_t row = 0; row < tokens.size(); ++row) {
        std::vector<Gone> expected;
        if (row == 45) {
            policy.budget = 7;
            policy.recent = 3;
            expected = lane.change(policy);
            EXPECT_EQ(expected.size(), 13u * 4u);
        }
        const LaneRow out = lane.feed(tokens[row]);
        if (row + 1 < keyhole::to_index(kPrompt)) continue;
        expected.insert(expected.end(), out.evictions.begin(), out.evictions.end());
        std::sort(expected.begin(), expected.end());
        ASSERT_TRUE(evictions(live, row + 1 - keyhole::to_index(kPrompt), 1) == expected)
            << "row " << row << ", margin " << out.margin;
    }
    // A command carries the last processed row, so row 45 no longer saw these tokens.
    int n_at_44 = 0;
    for (const keyhole::Eviction& e : live.lane(6, 1).evictions) n_at_44 += e.row == 44;
    EXPECT_EQ(n_at_44, 13 * 4);
    EXPECT_EQ(live.lane(6, 1).attended_tokens, 8 * 4);
    EXPECT_EQ(live.lane(5, 1).use.stored_tokens, 20 * 4);
    EXPECT_EQ(live.lane(6, 1).use.stored_tokens, 7 * 4);
    EXPECT_LT(live.lane(6, 1).use.allocated_bytes, live.lane(5, 1).use.allocated_bytes);
}

TEST_F(EngineReplay, MoreBudgetBringsNothingBack) {
    const SessionRun live =
        run(run_spec(prompt_, {"full", "h2o:budget=6"}, 20), {{44, {"lane 1 h2o:budget=12"}}});
    std::set<Gone> gone;
    for (std::size_t t = 0; t < live.steps.size(); ++t) {
        for (const Gone& g : evictions(live, t, 1)) EXPECT_TRUE(gone.insert(g).second) << "evicted twice";
        const std::int64_t per_head =
            std::min<std::int64_t>(t < 5 ? 6 : 6 + static_cast<std::int64_t>(t) - 4, 12);
        EXPECT_EQ(live.lane(t, 1).use.stored_tokens, per_head * 4) << "decode row " << t;
    }
}

// A policy switched on later finds scores that include all earlier rows. (A forgetting score starts from the
// sum if none was running.)
TEST_F(EngineReplay, ASwitchDoesNotStartFromEmptyScores) {
    struct Switch {
        std::string before, after;
        int recent = 0;
        double alpha_before = 1, alpha_after = 1;
        Unit unit = Unit::head;
    };
    const std::vector<Switch> switches = {{"window:budget=400", "h2o:budget=9", 4},
                                          {"full", "key:budget=9"},
                                          {"tova:budget=400", "h2o:budget=9", 4},
                                          {"a2sf:budget=400", "h2o:budget=9", 4},
                                          {"a2sf:budget=400", "a2sf:budget=9", 0, 0.2, 0.2},
                                          {"h2o:budget=400", "tova:budget=9", 0, 1, 0, Unit::layer}};
    for (const Switch& s : switches) {
        keyhole::RunSpec spec = run_spec(prompt_, {"full", s.before}, 8);
        spec.follow = true;
        const SessionRun live = run(spec, {{45, {"lane 1 " + s.after}}});
        Policy policy;
        policy.unit = s.unit;
        policy.alpha = s.alpha_before;
        Lane lane(weights_, policy, kPrompt);
        std::vector<int> tokens = random_tokens(kPrompt, 4);
        for (int token : live.tokens(0)) tokens.push_back(token);
        for (std::size_t row = 0; row < 45; ++row) lane.feed(tokens[row]);
        policy.budget = 9;
        policy.recent = s.recent;
        policy.alpha = s.alpha_after;
        std::vector<Gone> expected = lane.change(policy);
        const LaneRow next = lane.feed(tokens[45]);
        expected.insert(expected.end(), next.evictions.begin(), next.evictions.end());
        std::sort(expected.begin(), expected.end());
        EXPECT_TRUE(evictions(live, 6, 1) == expected) << s.before << " to " << s.after;
    }
}

TEST_F(EngineReplay, AnAddedLaneIsWhereItWouldBe) {
    keyhole::RunSpec spec = run_spec(prompt_, {"full", "h2o:budget=9"}, 16);
    spec.follow = true;
    const SessionRun both = run(spec, {});
    spec.lanes.pop_back();
    const SessionRun added = run(spec, {{46, {"add h2o:budget=9"}}});
    ASSERT_EQ(added.steps.back()->lanes.size(), 2u);
    const int id = added.steps.back()->lanes[1].info->id, straight = both.steps.back()->lanes[1].info->id;
    for (int row = 46; row < 56; ++row) {
        EXPECT_EQ(added.sink.rows.at({row, id}).next_logits, both.sink.rows.at({row, straight}).next_logits)
            << row;
        EXPECT_EQ(added.sink.rows.at({row, id}).evictions, both.sink.rows.at({row, straight}).evictions)
            << row;
    }
}

TEST_F(EngineReplay, RemovingALaneLeavesTheOthersAlone) {
    const keyhole::RunSpec spec = run_spec(prompt_, {"full", "tova:budget=4", "h2o:budget=9"}, 16);
    const SessionRun all = run(spec, {}), less = run(spec, {{46, {"remove 1"}}});
    ASSERT_EQ(less.steps.back()->lanes.size(), 2u);
    for (std::size_t n : {std::size_t{0}, std::size_t{1}}) {
        const int id = less.steps.back()->lanes[n].info->id;
        EXPECT_EQ(id, all.steps.back()->lanes[n == 0 ? 0 : 2].info->id);
        EXPECT_EQ(less.sink.rows.at({55, id}), all.sink.rows.at({55, id}));
    }
}

TEST_F(EngineReplay, SettingALaneToItselfChangesNothing) {
    const keyhole::RunSpec spec = run_spec(prompt_, {"full", "keyformer:budget=9"}, 16);
    EXPECT_EQ(run(spec, {{46, {"lane 1 keyformer:budget=9"}}}).sink.rows, run(spec, {}).sink.rows);
}

std::string random_command(std::mt19937& random, std::size_t n_lanes) {
    const std::vector<std::string> specs = {"full",
                                            "window:budget=5",
                                            "sink:budget=9",
                                            "key:budget=30%",
                                            "h2o:budget=12",
                                            "h2o:budget=7,scope=layer,pool=max",
                                            "h2o:budget=15,scope=shared",
                                            "tova:budget=6",
                                            "h2o:budget=20,every=4",
                                            "keyformer:budget=8,draw=row",
                                            "keyformer:budget=14,scope=shared,tau=1..3",
                                            "a2sf:budget=10,alpha=0.6",
                                            "keyformer:budget=9,alpha=0.5,seed=4",
                                            "a2sf:budget=11,prefill=stepwise",
                                            "h2o:budget=1",
                                            "h2o:budget=300,score_dtype=bf16"};
    const std::string& spec = specs[random() % specs.size()];
    switch (random() % 8) {
        case 0:
            return n_lanes < 5 ? "add " + spec : "follow on";
        case 1:
            return n_lanes > 2 ? fmt::format("remove {}", 1 + random() % (n_lanes - 1)) : "follow off";
        case 2:
            return random() % 2 == 0 ? "follow on" : "follow off";
        case 3:
            return random() % 2 == 0 ? "sampling temperature=1.1,top_p=0.9" : "sampling temperature=0";
        default:
            return fmt::format("lane {} {}", random() % n_lanes, spec);
    }
}

// Any commands in any order: the cache stores exactly the past positions that were not evicted, and the log
// replays to the bit.
TEST_F(EngineReplay, RandomScriptsStayConsistentAndReplay) {
    for (unsigned seed = 1; seed <= 8; ++seed) {
        std::mt19937 random(seed);
        keyhole::RunSpec spec =
            run_spec(prompt_, {"full", "h2o:budget=16", "tova:budget=9,prefill=stepwise"}, 40);
        spec.ignore_eos = true;
        spec.follow = seed % 2 == 0;
        std::size_t n_lanes = 3;
        const SessionRun live = run_session(model_, spec, [&](keyhole::Session& session, int) {
            for (auto n = random() % 3; n > 0; --n) {
                const std::string command = random_command(random, n_lanes);
                n_lanes += command.starts_with("add") ? 1u : 0u;
                n_lanes -= command.starts_with("remove") ? 1u : 0u;
                session.apply(keyhole::parse_command(command));
            }
        });
        ASSERT_EQ(live.steps.size(), 41u);
        std::map<int, std::set<std::pair<int, int>>> gone;  // by lane id: (KV head, position)
        for (const auto& step : live.steps)
            for (const keyhole::LaneRecord& lane : step->lanes) {
                for (const keyhole::Eviction& e : lane.evictions) {
                    EXPECT_TRUE(gone[lane.info->id].insert({e.kv_head, e.position}).second)
                        << "evicted twice, seed " << seed;
                    EXPECT_LE(e.position, e.row);
                    EXPECT_LE(e.row, step->row);
                }
                const auto n_seen = static_cast<std::int64_t>(4 * (step->row + 1));
                EXPECT_EQ(lane.use.stored_tokens,
                          n_seen - static_cast<std::int64_t>(gone[lane.info->id].size()))
                    << "row " << step->row << " of " << lane.info->spec << ", seed " << seed;
                if (lane.info->policy.evicts() && lane.info->policy.every == 1) {
                    EXPECT_LE(lane.use.stored_tokens, 4 * lane.info->policy.budget)
                        << lane.info->spec << ", seed " << seed;
                }
            }
        EXPECT_EQ(replayed(live.as_run, 1000).rows, live.sink.rows) << "seed " << seed;
    }
}

}  // namespace
}  // namespace reference::test_replay
