// What a lane would rank by formulas that it does not have: against a lane that has them and holds the same,
// on both backends, to the bit; and what the preview of formulas makes of it.
#include "engine/analysis/formula_preview.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/session/session.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/session_run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reference::test_ranks {
namespace {

using namespace keyhole;

constexpr int kPrompt = 20;

RankFormulas by(const std::string& choose, const std::string& protect = "") {
    RankFormulas out;
    FormulaFault fault;
    if (!choose.empty()) out.choose = choose_formula(choose, &fault);
    EXPECT_EQ(fault.what, "");
    if (!protect.empty()) out.protect = protect_formula(protect, &fault);
    EXPECT_EQ(fault.what, "");
    return out;
}

/// Expects a lane that evicts nothing to rank as the recorded row of the lane that has the formula.
void expect_ranks_of(const KvCache& cache, const RowOutput& in_force, const RankFormulas& formulas, int row,
                     int n_kv_heads) {
    for (int g = 0; g < n_kv_heads; ++g) {
        const RankedUnit unit = cache.rank(g, formulas, row);
        ASSERT_EQ(std::ssize(unit.positions), row + 1);
        ASSERT_EQ(unit.values.size(), unit.positions.size());
        const auto first = to_index(in_force.values.offset[to_index(g)]);
        for (std::size_t i = 0; i < unit.values.size(); ++i) {
            ASSERT_EQ(unit.positions[i], static_cast<std::int32_t>(i));
            ASSERT_EQ(unit.values[i], in_force.values.scores[first + i]) << "head " << g << ", token " << i;
        }
    }
}

class RanksBy : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(RanksBy, AFormulaAsALaneThatHasIt) {
    const auto& [formula, more] = GetParam();
    Pair pair(TinyShape{}, kPrompt);
    const std::string rest = ",window=4,recent=2" + std::string(more);
    pair.start({"key:budget=20,choose=(" + std::string(formula) + ")" + rest, "key:budget=100" + rest});
    pair.step();  // the first lane evicts, and so ranks
    const int n = pair.model->layout().n_kv_heads();
    ASSERT_EQ(pair.lanes[0].cpu->stored_positions(0).size(), 20u);
    expect_ranks_of(*pair.lanes[1].cpu, pair.lanes[0].cpu_out, by(formula), kPrompt, n);
    expect_ranks_of(*pair.lanes[1].cuda, pair.lanes[0].cuda_out, by(formula), kPrompt, n);
    pair.compare("ranking changes nothing");
    pair.step();
}

constexpr const char* kFormulas[] = {"knorm+age/9",  "keydiff*vnorm", "redundancy+s",      "wvnorm",
                                     "caote",        "lag",           "smooth(s, avg, 3)", "u+age",
                                     "sqrt(s)-age/9"};
INSTANTIATE_TEST_SUITE_P(Formulas, RanksBy,
                         ::testing::Combine(::testing::ValuesIn(kFormulas),
                                            ::testing::Values("", ",scope=layer", ",scope=column,pool=max")));

TEST(Ranks, KnowPinnedAndProtectedTokens) {
    Pair pair(TinyShape{}, kPrompt);
    pair.start({"key:budget=12,recent=4"});
    const std::int32_t pinned = pair.lanes[0].cpu->stored_positions(0).front();
    ASSERT_LT(pinned, kPrompt - 4);
    pair.pin(0, 0, pinned);
    for (const KvCache* cache : {pair.lanes[0].cpu.get(), pair.lanes[0].cuda.get()}) {
        const RankedUnit unit = cache->rank(0, by("", "age<3"), kPrompt - 1);
        EXPECT_EQ(unit.positions, cache->stored_positions(0));
        EXPECT_EQ(unit.guarded, (std::vector<std::int32_t>{pinned, kPrompt - 3, kPrompt - 2, kPrompt - 1}));
        EXPECT_EQ(cache->rank(0, by(""), kPrompt - 1).guarded, std::vector<std::int32_t>{pinned});
        EXPECT_EQ(cache->rank(1, by(""), kPrompt - 1).guarded.size(), 0u) << "no pin, and nothing protects";
    }
}

TEST(Ranks, TakeWinFromTheAskerWhereNoRowsAreKept) {
    Pair pair(TinyShape{}, kPrompt);
    pair.start({"key:budget=100"});
    RankFormulas formulas = by("win");
    for (int p = 0; p < kPrompt; ++p) formulas.win.push_back(static_cast<float>(p) * 0.5f);
    for (const KvCache* cache : {pair.lanes[0].cpu.get(), pair.lanes[0].cuda.get()}) {
        EXPECT_EQ(cache->rank(0, formulas, kPrompt - 1).values, formulas.win);
        EXPECT_TRUE(std::isnan(cache->rank(0, by("win"), kPrompt - 1).values[3]));
    }
}

/// A session that stands after some rows, and its history.
struct Standing {
    TinyModel tiny{{}};
    std::shared_ptr<const Model> model = load_model(tiny.folder());
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Session> session;
    RunHistory history;

    explicit Standing(const std::vector<std::string>& lanes, int n_rows = 3) {
        RunSpec spec;
        for (int i = 0; i < kPrompt; ++i) spec.prompt_tokens.push_back(i * 11 % 250);
        for (const std::string& lane : lanes) spec.lanes.push_back(parse_lane_spec(lane));
        spec.ignore_eos = spec.follow = true;
        spec.requested.attention = spec.requested.scores = true;
        spec.requested.form = RowForm::both;
        std::string notice;
        backend = make_backend(model, {BackendChoice::cpu, 2, 0}, &notice);
        session = std::make_unique<Session>(model, *backend, spec);
        StepList steps = {session->prefill()};
        for (int i = 0; i < n_rows; ++i) steps.push_back(session->step());
        history.update(steps);
    }
    FormulaPreview preview(int lane, int g, FormulaUse use, const std::string& text,
                           const Ranks* ranks = nullptr) const {
        FormulaFault fault;
        const FormulaRef typed = use == FormulaUse::choose    ? choose_formula(text, &fault)
                                 : use == FormulaUse::protect ? protect_formula(text, &fault)
                                                              : score_formula(text, &fault);
        EXPECT_EQ(fault.what, "");
        return preview_formula(history, lane, g, history.last_row(), use, typed, ranks);
    }
    /// Asks the session for what the record lacks.
    FormulaPreview asked(int lane, int g, FormulaUse use, const std::string& text) const {
        const FormulaPreview before = preview(lane, g, use, text);
        EXPECT_NE(before.why_not, "");
        if (!before.asks) return before;
        const Ranks ranks = session->ranks({lane, g, *before.asks});
        EXPECT_EQ(ranks.row, history.last_row());
        return preview(lane, g, use, text, &ranks);
    }
};

TEST(RanksInAPreview, ShowWhatTheLaneStores) {
    const Standing now({"full", "h2o:budget=8"});
    const FormulaPreview preview = now.asked(1, 2, FormulaUse::choose, "-knorm");
    ASSERT_EQ(preview.why_not, "");
    ASSERT_EQ(preview.tokens.size(), 8u);
    std::vector<float> lengths;
    for (const PreviewedToken& token : preview.tokens) {
        EXPECT_LT(token.value, 0);
        EXPECT_EQ(now.history.evicted_at(1, 2, token.position), -1);
        EXPECT_TRUE(token.stays);
        if (token.rank == 0) continue;  // among the newest
        EXPECT_EQ(token.rank, 1 + std::ranges::count_if(preview.tokens, [&](const PreviewedToken& other) {
                                  return other.rank > 0 && other.value > token.value;
                              }));
    }
    EXPECT_EQ(preview.n_competing, 4);
    const FormulaPreview guards = now.asked(1, 2, FormulaUse::protect, "knorm>0");
    EXPECT_EQ(guards.why_not, "");
    EXPECT_EQ(guards.n_competing, 0) << "all keys have a length";
}

TEST(RanksInAPreview, AreOfTheLengthThatAScoreNames) {
    const Standing now({"full", "key:budget=100", "key:budget=100,score=(p/knorm)"});
    const FormulaPreview preview = now.asked(1, 3, FormulaUse::score, "p/knorm");
    ASSERT_EQ(preview.why_not, "");
    std::vector<float> in_force(to_index(now.history.last_row()) + 1);
    ASSERT_TRUE(now.history.score_row(2, now.history.last_row(), 3, in_force));
    ASSERT_EQ(preview.tokens.size(), in_force.size());
    for (std::size_t i = 0; i < in_force.size(); ++i)
        EXPECT_NEAR(preview.tokens[i].value, in_force[i], 1e-3 * (1e-3 + in_force[i])) << i;
    EXPECT_FALSE(now.preview(1, 3, FormulaUse::score, "p*knorm*vnorm").asks) << "two lengths";
    EXPECT_FALSE(now.preview(1, 3, FormulaUse::score, "logit").asks);
}

TEST(RanksInAPreview, SayWhatTheLaneDoesNotKnow) {
    const Standing now({"full", "h2o:budget=8"});
    for (const auto& [text, name] :
         {std::pair("expected", "expected"), {"tri+s", "tri"}, {"future", "future"}, {"repeat", "repeat"}}) {
        const FormulaPreview before = now.preview(1, 0, FormulaUse::choose, text);
        ASSERT_TRUE(before.asks) << text;
        EXPECT_TRUE(now.session->ranks({1, 0, *before.asks}).missing) << text;
        const FormulaPreview preview = now.asked(1, 0, FormulaUse::choose, text);
        EXPECT_TRUE(preview.tokens.empty());
        EXPECT_NE(preview.why_not.find(name), std::string::npos) << preview.why_not;
    }
    EXPECT_EQ(now.session->ranks({1, 0, by("win")}).missing, Quantity::win);
    EXPECT_NE(error_of(
                  [&] {
                      now.session->ranks({5, 0, {}});
                  },
                  ErrorCode::wrong_use)
                  .find("lane"),
              std::string::npos);
    EXPECT_EQ(error_of(
                  [&] {
                      now.session->ranks({1, 99, {}});
                  },
                  ErrorCode::wrong_use),
              "lane 1 has no KV head 99");
}

// The record is of the settings before, and the cache has the new ones.
TEST(RanksInAPreview, WaitForTheStepThatHasTheSettings) {
    const Standing now({"full", "key:budget=100"});
    now.session->apply(parse_command("lane 1 key:budget=100,scope=layer"));
    const FormulaPreview preview = now.asked(1, 2, FormulaUse::choose, "-knorm");
    EXPECT_TRUE(preview.tokens.empty());
    EXPECT_NE(preview.why_not.find("next step"), std::string::npos) << preview.why_not;
}

TEST(RanksInAPreview, SayThatALaneHasEnded) {
    Standing now({"full", "key:budget=100"});
    const int last = now.history.last_row();
    StepList steps = now.history.steps();
    auto more = std::make_shared<StepTrace>(*now.session->step());
    more->lanes.pop_back();
    steps.push_back(more);
    now.history.update(steps);
    ASSERT_GT(now.history.last_row(), last);
    EXPECT_NE(now.preview(1, 0, FormulaUse::choose, "-knorm").why_not.find("ended"), std::string::npos);
}

// `win` comes from the record's rows of attention, which are fp16 there.
TEST(WinOfARecord, IsNearTheEngines) {
    const Standing now({"full", "key:budget=100,window=3", "key:budget=100,choose=(win),window=3",
                        "key:budget=100,window=3,scope=layer",
                        "key:budget=100,choose=(win),window=3,scope=layer"});
    const int row = now.history.last_row();  // the window holds decoded rows alone
    std::vector<float> in_force(to_index(row) + 1);
    for (const int lane : {1, 3}) {
        for (int g = 0; g < 4; ++g) {
            FormulaFault fault;
            ASSERT_TRUE(now.history.score_row(lane + 1, row, g, in_force));
            ASSERT_FALSE(std::isnan(in_force[0]));

            const FormulaPreview preview = now.preview(lane, g, FormulaUse::choose, "win");
            ASSERT_EQ(preview.why_not, "") << lane;
            ASSERT_EQ(preview.tokens.size(), in_force.size());
            for (std::size_t i = 0; i < in_force.size(); ++i)
                EXPECT_NEAR(preview.tokens[i].value, in_force[i], 1e-3 * (1e-3 + in_force[i]))
                    << "lane " << lane << ", head " << g << ", token " << i;
        }
    }
}

}  // namespace
}  // namespace reference::test_ranks
