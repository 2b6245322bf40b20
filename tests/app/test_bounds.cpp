// The floor and the ceiling of a table: which lanes they are, and whether a lane is surely above random.
#include "app/study/bounds.h"
#include "engine/base/index.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace keyhole::test_bounds {
namespace {

std::vector<LaneSpec> specs(const std::vector<std::string>& texts) {
    std::vector<LaneSpec> lanes;
    for (const std::string& text : texts) lanes.push_back(parse_lane_spec(text));
    return lanes;
}

std::vector<std::string> bounds_of(const std::vector<std::string>& texts, int n_seeds, bool knows_text) {
    std::vector<std::string> found;
    for (const LaneSpec& lane : bound_lanes(specs(texts), n_seeds, knows_text))
        found.push_back(format_lane_spec(lane));
    return found;
}

TEST(Bounds, EachBudgetHasAFloorAndACeiling) {
    using Texts = std::vector<std::string>;
    EXPECT_EQ(bounds_of({"full", "h2o:budget=64", "tova:budget=64", "h2o:budget=32"}, 2, true),
              (Texts{"random:budget=64", "random:budget=64,seed=2", "oracle:budget=64", "random:budget=32",
                     "random:budget=32,seed=2", "oracle:budget=32"}));
    EXPECT_EQ(bounds_of({"h2o:budget=64", "random:budget=64"}, 1, false), Texts{}) << "it is there already";
    EXPECT_EQ(bounds_of({"full"}, 3, true), Texts{});
}

// A cache that grows after the prompt, or is let to grow by a buffer, holds more than one of the same budget.
TEST(Bounds, AFloorEvictsWhereItsLaneDoes) {
    using Texts = std::vector<std::string>;
    EXPECT_EQ(
        bounds_of({"snapkv:budget=64", "adakv:budget=64", "adakv:budget=64,evict=always", "rkv:budget=64"}, 1,
                  false),
        (Texts{"random:budget=64,evict=prompt", "random:budget=64", "random:budget=64,buffer=128"}));
    EXPECT_EQ(bounds_of({"h2o:budget=prompt+8,protect=prompt"}, 1, false),
              (Texts{"random:budget=prompt+8,protect=prompt"}));
}

// Random with as many tokens in each head as the lane: else it would be compared at other bytes.
TEST(Bounds, AFloorHasTheBudgetsOfItsLanesHeads) {
    EXPECT_EQ(
        bounds_of({"h2o:budget=32,budget@L5.G2=all,alpha@L0=0.5", "tova:budget=32"}, 1, true),
        (std::vector<std::string>{"random:budget=32,budget@L5.G2=all", "oracle:budget=32,budget@L5.G2=all",
                                  "random:budget=32", "oracle:budget=32"}));
}

// Quest stores every token; its floor keeps as many as it reads.
TEST(Bounds, ALaneThatReadsAPartHasTheFloorOfThatSize) {
    EXPECT_EQ(bounds_of({"quest:read=64", "quest:read=all", "h2o:budget=64"}, 1, true),
              (std::vector<std::string>{"random:budget=64", "oracle:budget=64"}));
    QuestionSet set;
    set.is_task = true;
    const std::vector<LaneSpec> lanes = specs({"quest:read=8", "full", "random:budget=8"});
    const std::vector<std::vector<Outcome>> outcomes(3, std::vector<Outcome>(9));
    const std::vector<Floor> floors = compare_with_floor(set, lanes, 2, outcomes);
    ASSERT_EQ(floors.size(), 1u);
    ASSERT_EQ(floors[0].lanes.size(), 1u);
    EXPECT_EQ(floors[0].lanes[0].lane, 0u);
    const std::string text = floor_text(set, std::vector<std::string>{"quest:read=8", "full"}, floors);
    EXPECT_NE(text.find("these questions show no difference"), std::string::npos) << text;
    // One window has no interval.
    set.is_task = false;
    const std::vector<std::vector<Outcome>> one(3, std::vector<Outcome>(1, Outcome{4, 2, 8, false}));
    const std::string window = floor_text(set, std::vector<std::string>{"quest:read=8", "full"},
                                          compare_with_floor(set, lanes, 2, one));
    EXPECT_NE(window.find("mean of 1 seed: perplexity 7.389\n"), std::string::npos) << window;
}

/// Returns right or wrong answers, one letter each.
std::vector<Outcome> answers(const std::string& letters) {
    std::vector<Outcome> outcomes;
    for (const char letter : letters) {
        outcomes.emplace_back();
        outcomes.back().right = letter == 'r';
        outcomes.back().n_tokens = 1;
    }
    return outcomes;
}

TEST(Bounds, AVerdictComparesWithTheMeanOfTheSeedsOfItsBudget) {
    QuestionSet set;
    set.name = "needle";
    set.is_task = true;
    const std::vector<LaneSpec> lanes =
        specs({"tova:budget=8", "h2o:budget=8", "snapkv:budget=8", "random:budget=8",
               "random:budget=8,seed=2", "random:budget=8,evict=prompt"});
    const std::vector<std::vector<Outcome>> outcomes = {answers("rrrrrrrrrrrr"), answers("rwwwwwwwwwww"),
                                                        answers("rrrrrrrrrrrr"), answers("rwwwwwwwwwww"),
                                                        answers("wwwwwwwwwwww"), answers("rrrrrrrrrrrr")};
    const std::vector<Floor> floors = compare_with_floor(set, lanes, 3, outcomes);
    ASSERT_EQ(floors.size(), 2u);
    EXPECT_EQ(floors[0].spec, "random:budget=8");
    EXPECT_EQ(floors[0].seeds, (std::vector<std::size_t>{3, 4}));
    EXPECT_NEAR(floors[0].value.value, 1.0 / 24, 1e-12);
    ASSERT_EQ(floors[0].lanes.size(), 2u) << "snapkv has a floor of its own";
    EXPECT_EQ(floors[0].lanes[0].lane, 0u);
    EXPECT_NEAR(floors[0].lanes[0].gain.value, 23.0 / 24, 1e-12);
    EXPECT_TRUE(floors[0].lanes[0].surely_above);
    EXPECT_FALSE(floors[0].lanes[1].surely_above || floors[0].lanes[1].surely_below);
    EXPECT_EQ(floors[1].spec, "random:budget=8,evict=prompt");
    ASSERT_EQ(floors[1].lanes.size(), 1u);
    EXPECT_FALSE(floors[1].lanes[0].surely_above) << "its floor is as good";
    const std::string text = floor_text(set, std::vector<std::string>{"TOVA", "H2O", "SnapKV"}, floors);
    EXPECT_NE(text.find("floor random:budget=8, mean of 2 seeds: 4.2 % right"), std::string::npos) << text;
    EXPECT_NE(text.find("TOVA: surely above random (+95.8 points"), std::string::npos) << text;
    EXPECT_NE(text.find("H2O: not surely another than random"), std::string::npos) << text;
    // z = 1 of one question in 12; of three comparisons: 12 (2.394 + 0.842)^2 = 125.6.
    EXPECT_EQ(floors[0].lanes[1].needed, 130);
    EXPECT_EQ(floors[0].lanes[0].needed, std::nullopt) << "it is decided";
    EXPECT_NE(text.find("    about 130 questions would decide it"), std::string::npos) << text;
    const nlohmann::json json = floor_json(set, lanes, floors);
    EXPECT_EQ(json[0]["lanes"][0]["spec"], "tova:budget=8");
    EXPECT_EQ(json[0]["lanes"][0]["surely_above_random"], true);
    EXPECT_EQ(json[0]["lanes"][1]["samples_needed"], 130);
    EXPECT_TRUE(json[0]["lanes"][0]["samples_needed"].is_null());
}

// Two tasks with six questions each decide what neither decides alone.
TEST(Bounds, SeveralSetsGiveOneVerdict) {
    QuestionSet set;
    set.is_task = true;
    set.n_questions = 6;
    const std::vector<LaneSpec> lanes = specs({"tova:budget=8", "random:budget=8"});
    const std::vector<std::vector<Outcome>> first = {answers("rrrrrw"), answers("wwwwrw")},
                                            second = {answers("rrrrrr"), answers("wwwwww")};
    JoinedAnswers joined;
    EXPECT_TRUE(joined.floors(lanes, 1).empty());
    EXPECT_EQ(joined.text("all tasks", {}, {}), "");
    joined.add(set, first);
    EXPECT_FALSE(joined.floors(lanes, 1)[0].lanes[0].surely_above) << "4 questions tell";
    joined.add(set, second);
    const std::vector<Floor> floors = joined.floors(lanes, 1);
    ASSERT_EQ(floors.size(), 1u);
    EXPECT_NEAR(floors[0].value.value, 1.0 / 12, 1e-12);
    ASSERT_EQ(floors[0].lanes.size(), 1u);
    EXPECT_NEAR(floors[0].lanes[0].gain.value, 10.0 / 12, 1e-12);
    EXPECT_TRUE(floors[0].lanes[0].surely_above);
    const std::string text = joined.text("all tasks", std::vector<std::string>{"TOVA"}, floors);
    EXPECT_EQ(
        text.find("all tasks together, 12 questions\nfloor random:budget=8, mean of 1 seed: 8.3 % right"), 0u)
        << text;
    EXPECT_NE(text.find("  TOVA: surely above random (+83.3 points"), std::string::npos) << text;
    EXPECT_EQ(joined.json(lanes, floors)[0]["lanes"][0]["surely_above_random"], true);
}

TEST(Bounds, ATableSaysWhereLanesProtectOtherTokens) {
    const std::vector<std::string> labels = {"full", "a", "b", "c", "random"};
    const auto text = [&](const std::vector<std::string>& texts) {
        return protection_text(labels, specs(texts), 4);
    };
    EXPECT_EQ(text({"full", "h2o:budget=8", "tova:budget=8", "snapkv:budget=8", "random"}), "");
    EXPECT_EQ(text({"full", "h2o:budget=8,protect=prompt", "tova:budget=8", "h2o:budget=9,protect=prompt",
                    "random"}),
              "lanes protect different tokens, which alone may decide between them:\n"
              "  protect=prompt: a, c\n  protect=none: b\n");
}

}  // namespace
}  // namespace keyhole::test_bounds
