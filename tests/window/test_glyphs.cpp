// Characters of texts that the fonts may lack.
#include "app/view/glyphs.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

namespace keyhole::test_glyphs {
namespace {

TEST(Glyphs, WhatCannotBeDrawnStandsAsItsNumberOrByte) {
    EXPECT_EQ(legible("caf\u00e9 gate", {}), "caf\u00e9 gate");
    EXPECT_EQ(legible("\u4e2d", {}), "\u4e2d");
    EXPECT_EQ(legible("a\u4e2db", {U'\u4e2d'}), "a\\u{4E2D}b");
    EXPECT_EQ(legible("\U0001f600!", {}), "\\u{1F600}!") << "beyond 16 bits";
    EXPECT_EQ(legible("\xf0\x9f\x98", {}), "<0xF0><0x9F><0x98>") << "a character that is cut off";
    EXPECT_EQ(legible("x\xe4", {}), "x<0xE4>") << "no UTF-8";
    EXPECT_EQ(legible("", {}), "");
}

/// A synthetic run in which token 5 and the most likely next token of the last row belong to other scripts.
StepList run_of_scripts(std::uint64_t id) {
    StepList steps = testing::synthetic_run({.n_prompt = 8, .n_decoded = 1, .budgets = {0, 8}, .run_id = id});
    auto info = std::make_shared<RunInfo>(*steps.front()->run);
    info->prompt = "\u03bb in the prompt alone";
    const int used = info->prompt_tokens.at(3);
    int other = 0;
    while (std::find(info->prompt_tokens.begin(), info->prompt_tokens.end(), other) !=
           info->prompt_tokens.end())
        ++other;
    info->token_display.at(to_index(used)) = "\u4e2d\u6587";
    info->token_display.at(to_index(other)) = "\u0645";
    for (auto& step : steps) {
        auto copy = std::make_shared<StepTrace>(*step);
        copy->run = info;
        for (LaneRecord& lane : copy->lanes) lane.top.clear();
        step = copy;
    }
    auto last = std::make_shared<StepTrace>(*steps.back());
    last->lanes[0].top = {{other, -0.5f}};
    steps.back() = last;
    return steps;
}

TEST(Glyphs, ANoticeInQuotesNeedsNoOtherFonts) {
    const std::string notice = "Step 3 consumes \u201cthe gate\u2019s code\u201d \u2013 then\u2026";
    Glyphs glyphs;
    EXPECT_EQ(glyphs.text(notice), notice);
    EXPECT_FALSE(glyphs.learn(RunHistory()));
    EXPECT_TRUE(glyphs.wanted().empty());
    glyphs.text("\u4e2d");
    EXPECT_TRUE(glyphs.learn(RunHistory()));
}

TEST(Glyphs, LearnsWhatTheTextsAndCandidatesNeedAndNoMore) {
    const StepList steps = run_of_scripts(71);
    RunHistory history;
    history.update(StepList(steps.begin(), steps.end() - 1));
    Glyphs glyphs;
    EXPECT_TRUE(glyphs.learn(history));
    EXPECT_EQ(glyphs.wanted(), (std::set<char32_t>{U'\u03bb', U'\u4e2d', U'\u6587'}));
    EXPECT_FALSE(glyphs.learn(history));
    history.update(steps);
    EXPECT_TRUE(glyphs.learn(history));
    EXPECT_EQ(glyphs.wanted(), (std::set<char32_t>{U'\u03bb', U'\u0645', U'\u4e2d', U'\u6587'}));

    const RunInfo& run = history.run();
    const int id = run.prompt_tokens.at(3);
    EXPECT_EQ(glyphs.token(run, id), "\u4e2d\u6587");
    glyphs.set_missing({U'\u6587'});
    EXPECT_EQ(glyphs.token(run, id), "\u4e2d\\u{6587}");
    glyphs.set_missing({});
    EXPECT_EQ(glyphs.token(run, id), "\u4e2d\u6587");
}

TEST(Glyphs, LearnsCandidatesOfEveryRowOfARunThatIsOpened) {
    StepList steps = run_of_scripts(72);
    ASSERT_GE(steps.size(), 2u);
    auto first = std::make_shared<StepTrace>(*steps.front()),
         last = std::make_shared<StepTrace>(*steps.back());
    std::swap(first->lanes[0].top, last->lanes[0].top);
    steps.front() = first;
    steps.back() = last;
    RunHistory history;
    history.update(steps);
    Glyphs glyphs;
    EXPECT_TRUE(glyphs.learn(history));
    EXPECT_TRUE(glyphs.wanted().contains(U'\u0645'));
}

TEST(Glyphs, LearnsTheTokensOfAnAnswer) {
    StepList steps = run_of_scripts(73);
    const int other = steps.back()->lanes[0].top.front().id;
    auto last = std::make_shared<StepTrace>(*steps.back());
    last->lanes[0].top.clear();
    steps.back() = last;
    RunHistory history;
    history.update(steps);
    Glyphs glyphs;
    EXPECT_TRUE(glyphs.learn(history));
    EXPECT_FALSE(glyphs.wanted().contains(U'\u0645'));
    const std::vector<TopToken> answer = {{history.run().prompt_tokens.at(0), -0.1f}, {other, -2.0f}};
    EXPECT_TRUE(glyphs.learn(history, answer));
    EXPECT_TRUE(glyphs.wanted().contains(U'\u0645'));
    EXPECT_FALSE(glyphs.learn(history, answer));
    const std::vector<TopToken> foreign = {{1 << 20, -0.1f}};  // from another vocabulary
    EXPECT_FALSE(glyphs.learn(history, foreign));
}

TEST(Glyphs, LearnsAnyOtherTextThatIsShown) {
    Glyphs glyphs;
    EXPECT_EQ(glyphs.text("caf\u00e9 \U0001f600"), "caf\u00e9 \\u{1F600}");
    RunHistory history;
    EXPECT_FALSE(glyphs.learn(history)) << "nothing that a font could give";
    EXPECT_EQ(glyphs.text("\u4e2d"), "\u4e2d");
    EXPECT_TRUE(glyphs.learn(history));
    EXPECT_EQ(glyphs.wanted(), (std::set<char32_t>{U'\u4e2d'}));
    EXPECT_FALSE(glyphs.learn(history));
    glyphs.set_missing({U'\u4e2d'});
    EXPECT_EQ(glyphs.text("\u4e2d"), "\\u{4E2D}");
    EXPECT_FALSE(glyphs.learn(history));
}

TEST(Glyphs, FieldsHoldWhatTheyWouldLoseEscaped) {
    const std::string text = "a \U0001f600\U00010000 \u4e2d\u00e9\xe4 b";
    EXPECT_EQ(for_field(text), "a \\u{1F600}\\u{10000} \u4e2d\u00e9\xe4 b");
    EXPECT_EQ(from_field(for_field(text)), text);
    EXPECT_EQ(from_field("\\u{41}\\u{e9}\\u{4E2D}\\u{1f600}"), "A\u00e9\u4e2d\U0001f600");
    for (const char* plain : {"", "\\u{", "\\u{}", "\\u{1F600", "\\u{D800}", "\\u{110000}", "\\u{0}",
                              "\\u{xyz}", "\\n", "\\u{-1}", "\\u{123456789012}"})
        EXPECT_EQ(from_field(plain), plain);
    EXPECT_EQ(from_field("\\u{\\u{41}"), "\\u{A");
    // Source code that contains such escapes stays as it is.
    for (const char* code : {"\\u{41}", "a \\u{1F600}\\u{41} b\\u{", "\\\\u{41}\\u"})
        EXPECT_EQ(from_field(for_field(code)), code);
}

}  // namespace
}  // namespace keyhole::test_glyphs
