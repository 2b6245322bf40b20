// What a formula would rank, from records: against values by hand, and against what the engine ranked.
#include "engine/analysis/formula_preview.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reference::test_formula_preview {
namespace {

using namespace keyhole;

constexpr int kLast = 19;  // row of the prompt

class FormulaPreviewOf : public ::testing::Test {
  protected:
    void decode(const std::vector<std::string>& lanes) {
        RunSpec spec;
        for (int i = 0; i <= kLast; ++i) spec.prompt_tokens.push_back(i * 11 % 250);
        spec.lanes = {parse_lane_spec("full")};
        for (const std::string& lane : lanes) spec.lanes.push_back(parse_lane_spec(lane));
        spec.n_generate = 6;
        spec.ignore_eos = spec.follow = true;
        spec.requested.attention = spec.requested.scores = true;
        spec.requested.form = RowForm::both;
        history_ = history_of(run_session(load_model(tiny_.folder()), spec));
    }
    FormulaPreview choose(int lane, int g, int row, const std::string& text) {
        FormulaFault fault;
        const FormulaRef typed = choose_formula(text, &fault);
        EXPECT_EQ(fault.what, "");
        return preview_formula(history_, lane, g, row, FormulaUse::choose, typed);
    }
    FormulaPreview score(int lane, int g, int row, const std::string& text) {
        FormulaFault fault;
        const FormulaRef typed = score_formula(text, &fault);
        EXPECT_EQ(fault.what, "");
        return preview_formula(history_, lane, g, row, FormulaUse::score, typed);
    }
    std::vector<float> recorded(int lane, int g, int row) {
        std::vector<float> out(to_index(row) + 1);
        EXPECT_TRUE(history_.score_row(lane, row, g, out));
        return out;
    }
    /// Expects the tokens to stay that stayed in the engine, ranked by these values.
    void expect_of_engine(const FormulaPreview& preview, int lane, int g, int row, float tolerance) {
        ASSERT_EQ(preview.why_not, "");
        const std::vector<float> ranked = recorded(lane, g, row);
        const std::vector<std::int32_t> held = history_.held_positions(lane, g, row);
        ASSERT_EQ(preview.tokens.size(), held.size());
        for (std::size_t i = 0; i < held.size(); ++i) {
            const PreviewedToken& token = preview.tokens[i];
            ASSERT_EQ(token.position, held[i]);
            const float in_engine = ranked[to_index(held[i])];
            const bool is_same = token.value == in_engine,  // infinity too
                is_near = std::abs(token.value - in_engine) <= tolerance * (1e-3f + std::abs(in_engine));
            EXPECT_TRUE(is_same || (tolerance > 0 && is_near))
                << "row " << row << ", head " << g << ", token " << held[i] << ": " << token.value << " for "
                << in_engine;
            EXPECT_EQ(token.stays, history_.evicted_at(lane, g, held[i]) != row)
                << "row " << row << ", head " << g << ", token " << held[i];
        }
    }

    TinyModel tiny_{{}};
    RunHistory history_;
};

TEST_F(FormulaPreviewOf, RanksAsByHand) {
    decode({"key:budget=8"});
    // 4 tokens have 1, 16 have 0; of equal ones the newer stay.
    const FormulaPreview preview = choose(1, 0, kLast, "position<4 ? 1 : 0");
    ASSERT_EQ(preview.tokens.size(), 20u);
    EXPECT_EQ(preview.n_competing, 20);
    EXPECT_EQ(preview.n_leaving, 12);
    for (int p = 0; p < 20; ++p) {
        const PreviewedToken expected =
            p < 4 ? PreviewedToken{p, 1, 4 - p, true} : PreviewedToken{p, 0, 24 - p, p >= 16};
        EXPECT_EQ(preview.tokens[to_index(p)], expected) << p;
    }
    // Ages 19 to 0: 1/(age+1) is largest for the newest.
    const FormulaPreview young = choose(1, 2, kLast, "1/(age+1)");
    EXPECT_EQ(young.tokens[19], (PreviewedToken{19, 1, 1, true}));
    EXPECT_EQ(young.tokens[16], (PreviewedToken{16, 0.25f, 4, true}));
    EXPECT_EQ(young.tokens[0], (PreviewedToken{0, 1 / 20.0f, 20, false}));
}

TEST_F(FormulaPreviewOf, WhatIsInForceRanksAsTheEngine) {
    decode({"key:budget=8,choose=(u)", "key:budget=8,score=(s+p),recent=2", "knorm:budget=8,scope=layer",
            "key:budget=8,score=(position),sinks=1"});
    for (int row = kLast; row <= history_.last_row(); ++row)
        for (int g = 0; g < 4; ++g) {
            expect_of_engine(choose(1, g, row, "u"), 1, g, row, 0);
            expect_of_engine(choose(1, g, row, "u+0"), 1, g, row, 0);  // another formula of the same value
            expect_of_engine(score(2, g, row, "s+p"), 2, g, row, 0);
            expect_of_engine(choose(2, g, row, "s"), 2, g, row, 0);
            expect_of_engine(choose(2, g, row, "s*2/2"), 2, g, row, 0);
            expect_of_engine(choose(3, g, row, "-knorm"), 3, g, row, 0);
            expect_of_engine(score(4, g, row, "position"), 4, g, row, 0);
            expect_of_engine(score(4, g, row, "position+0"), 4, g, row, 0);
        }
}

// After the prompt two lanes have the same scores: one ranks by a choice, of which the other is asked.
TEST_F(FormulaPreviewOf, AnotherLaneRanksWhatIsTyped) {
    decode({"key:budget=8,score=(s+p)", "key:budget=8,score=(s+p),choose=(s/(age+1))",
            "key:budget=8,score=(s+p),choose=(first(50%, smooth(s, max, 3), -age))"});
    for (int g = 0; g < 4; ++g) {
        expect_of_engine(choose(1, g, kLast, "s/(age+1)"), 2, g, kLast, 0);
        expect_of_engine(choose(1, g, kLast, "first(50%, smooth(s, max, 3), -age)"), 3, g, kLast, 0);
    }
}

// Of a row: probabilities are recorded as fp16.
TEST_F(FormulaPreviewOf, ScoresOfARowAreNearTheEngines) {
    decode({"key:budget=8,score=(p)", "key:budget=8,score=(s+p),pool=max",
            "key:budget=8,score=(p),scope=layer", "key:budget=8,score=(p),scope=column,pool=sum"});
    constexpr float kHalf = 1.0f / 1024;
    for (int row = kLast; row <= history_.last_row(); ++row)
        for (int g = 0; g < 4; ++g) {
            for (const int lane : {1, 3, 4})
                expect_of_engine(score(lane, g, row, "p*1"), lane, g, row, kHalf);
            const FormulaPreview sum = score(2, g, row, "p+s");
            if (row == kLast)
                EXPECT_NE(sum.why_not.find("not known"), std::string::npos) << sum.why_not;
            else
                EXPECT_EQ(sum.why_not, "");
        }
}

TEST_F(FormulaPreviewOf, SaysWhatTheRecordLacks) {
    decode({"key:budget=8,choose=(u)", "h2o:budget=8,protect=(knorm<0)"});
    EXPECT_EQ(choose(1, 0, kLast, "-knorm").why_not,
              "The record does not hold knorm (length of its stored key): once in force, it is ranked.");
    EXPECT_NE(choose(1, 0, kLast, "s+u").why_not.find("not s"), std::string::npos);
    EXPECT_NE(choose(2, 0, kLast, "position").why_not.find("protects"), std::string::npos);
    EXPECT_NE(choose(1, 0, 99, "position").why_not.find("no record"), std::string::npos);
    EXPECT_TRUE(choose(1, 0, kLast, "-knorm").tokens.empty());
    EXPECT_EQ(choose(0, 0, kLast, "position").n_leaving, 0) << "a full lane never selects";
}

TEST_F(FormulaPreviewOf, ProtectedTokensDoNotCompete) {
    decode({"key:budget=8,choose=(position)"});
    FormulaFault fault;
    const FormulaPreview preview =
        preview_formula(history_, 1, 0, kLast, FormulaUse::protect, protect_formula("position<2", &fault));
    ASSERT_EQ(preview.tokens.size(), 20u);
    for (int p = 0; p < 20; ++p) {
        EXPECT_EQ(preview.tokens[to_index(p)].rank, p < 2 ? 0 : 20 - p);
        EXPECT_EQ(preview.tokens[to_index(p)].stays, p < 2 || p >= 14) << p;
    }
}

}  // namespace
}  // namespace reference::test_formula_preview
