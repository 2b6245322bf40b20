// Whether a paper's finding holds: the rule on made-up answers, and how often it errs when lanes are equal.
#include "app/papers/figure.h"
#include "engine/eval/evaluate.h"
#include "engine/eval/sign_flips.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

namespace keyhole::test_figure_verdict {
namespace {

/// Returns a lane that answers `n_right` of 100 questions: always the first ones.
SweepPoint lane_of(const std::string& lane, const std::string& value, int n_right, double bytes = 0) {
    SweepPoint point;
    point.model = bytes > 0 ? fmt::format("m{}", bytes) : "m";
    point.lane = lane;
    point.kv_bytes = bytes;
    if (!value.empty()) point.values = {value};
    for (int i = 0; i < 100; ++i) point.outcomes.push_back({i < n_right ? 0.1 : 2.0, 1, 1, i < n_right});
    return point;
}

SweepResult result_of(std::vector<SweepPoint> points) {
    SweepResult result;
    result.name = "needle";
    result.is_task = true;
    result.varies = {parse_vary("budget=8,16,32,64")};
    for (SweepPoint& point : points) {
        point.score = score_lane(point.outcomes, points.front().outcomes);
        result.points.push_back(point);
    }
    return result;
}

using State = PaperVerdict::State;

TEST(FigureVerdict, AheadNeedsPairsThatAreSure) {
    const PaperClaim claim{.kind = PaperClaim::Kind::ahead, .lanes = {"tova", "h2o"}};
    const SweepPoint full = lane_of("full", "", 100);
    EXPECT_EQ(judge(claim, result_of({full, lane_of("tova", "8", 80), lane_of("h2o", "8", 40)})).state,
              State::holds);
    EXPECT_EQ(judge(claim, result_of({full, lane_of("tova", "8", 40), lane_of("h2o", "8", 80)})).state,
              State::fails);
    // Ahead at one size and surely behind at another.
    EXPECT_EQ(judge(claim, result_of({full, lane_of("tova", "8", 80), lane_of("h2o", "8", 40),
                                      lane_of("tova", "16", 50), lane_of("h2o", "16", 90)}))
                  .state,
              State::mixed);
    // A full cache that cannot answer shows nothing.
    EXPECT_EQ(
        judge(claim, result_of({lane_of("full", "", 5), lane_of("tova", "8", 4), lane_of("h2o", "8", 1)}))
            .state,
        State::unseen);
    EXPECT_EQ(judge(claim, result_of({full, lane_of("tova", "8", 4)})).state, State::open) << "no pair";
}

/// The finding is about all sizes: one pair of three is too few for it, and against it.
TEST(FigureVerdict, OnePairOfSeveralDecidesNothing) {
    const PaperClaim claim{.kind = PaperClaim::Kind::ahead, .lanes = {"tova", "h2o"}};
    const auto at_three = [&](int first, int third) {
        return judge(
            claim, result_of({lane_of("full", "", 100), lane_of("tova", "8", first), lane_of("h2o", "8", 60),
                              lane_of("tova", "16", 60), lane_of("h2o", "16", 60),
                              lane_of("tova", "32", third), lane_of("h2o", "32", 60)}));
    };
    EXPECT_EQ(at_three(90, 60).state, State::open);
    EXPECT_EQ(at_three(30, 60).state, State::open);
    EXPECT_EQ(at_three(90, 95).state, State::holds);
    EXPECT_EQ(at_three(30, 25).state, State::fails);
    EXPECT_NE(at_three(90, 60).why.find("surely ahead (p < 0.001), but not in more than half of the comp"),
              std::string::npos)
        << at_three(90, 60).why;
    EXPECT_EQ(at_three(90, 95).why,
              "tova is surely ahead in 2 of 3 comparisons and surely behind in 0, by 100 questions; its mean "
              "is higher in 2 and lower in 0. All together it is surely ahead (p < 0.001).");
}

/// A pair that is ahead by luck, of many that are equal but for chance.
TEST(FigureVerdict, TooFewSamplesAreSaid) {
    const PaperClaim claim{.kind = PaperClaim::Kind::ahead, .lanes = {"tova", "h2o"}};
    const SweepPoint full = lane_of("full", "", 100);
    const PaperVerdict few =
        judge(claim, result_of({full, lane_of("tova", "8", 63), lane_of("h2o", "8", 60)}));
    EXPECT_EQ(few.state, State::few);
    EXPECT_EQ(
        verdict_text(few),
        "Too few samples: tova is surely ahead in 0 of 1 comparison and surely behind in 0, by 100 "
        "questions; its mean is higher in 1 and lower in 0. They differ in 3 of the questions; at least 6 "
        "are needed to decide anything. About 270 questions would decide it in four of five cases, if the "
        "difference stays as it is.");
    EXPECT_EQ(judge(claim, result_of({full, lane_of("tova", "8", 60), lane_of("h2o", "8", 60)})).state,
              State::open)
        << "equal in all of 100 questions";
    const auto windows = [](int n, double gain) {
        return decide(
            {"tova", "windows", {{"pair", std::vector<double>(static_cast<std::size_t>(n), gain)}}});
    };
    for (const double gain : {-5.0, 5.0}) {
        EXPECT_EQ(windows(5, gain).state, State::few) << "however large the effect";
        EXPECT_EQ(windows(6, gain).state, gain > 0 ? State::holds : State::fails);
    }
    EXPECT_NE(windows(3, 5).why.find("At least 6 windows are needed"), std::string::npos)
        << windows(3, 5).why;
}

/// What stays open says how many more would decide it; what is decided does not.
TEST(FigureVerdict, WhatIsOpenSaysHowManySamplesItWouldTake) {
    const auto why = [](std::vector<double> gains) {
        return decide({"tova", "prompts", {{"pair", std::move(gains)}}}).why;
    };
    // z = 2 / sqrt(8): 8 (2.8016 / 0.7071)^2 = 125.6.
    EXPECT_TRUE(why({1, 1, 1, 1, 1, -1, -1, -1})
                    .ends_with("(p = 0.727). About 130 prompts would decide it in four of five cases, if the "
                               "difference stays as it is."))
        << why({1, 1, 1, 1, 1, -1, -1, -1});
    EXPECT_TRUE(why({1, 1, 1, 1, -1, -1, -1, -1}).ends_with("These prompts show no difference."));
    EXPECT_EQ(why({1, 1, 1, 1, 1, 1, 1, 1}).find("would decide"), std::string::npos);
}

TEST(FigureVerdict, BestIsDecidedAgainstTheValuesOutside) {
    const PaperClaim claim{.kind = PaperClaim::Kind::best_between, .lanes = {"a2sf"}, .low = 16, .high = 32};
    const SweepPoint full = lane_of("full", "", 100);
    const auto with = [&](int a, int b, int c, int d) {
        return judge(claim, result_of({full, lane_of("a2sf", "8", a), lane_of("a2sf", "16", b),
                                       lane_of("a2sf", "32", c), lane_of("a2sf", "64", d)}));
    };
    EXPECT_EQ(with(30, 60, 70, 40).state, State::holds);
    EXPECT_EQ(with(90, 60, 70, 95).state, State::fails);
    EXPECT_EQ(with(30, 60, 70, 95).state, State::mixed);
    EXPECT_EQ(with(70, 70, 70, 70).state, State::open);
    // The two values of the paper stand for their mean: the larger of them alone is 20 ahead.
    const PaperVerdict mean = with(60, 50, 70, 60);
    EXPECT_EQ(mean.state, State::open) << mean.why;
    EXPECT_NE(
        mean.why.find("budget=32 is best (70.0 %); the mean of budget=16, 32 is surely ahead in 0 of 2"),
        std::string::npos)
        << mean.why;
    const PaperClaim value{.kind = PaperClaim::Kind::best_value, .lanes = {"a2sf"}, .value = "64"};
    EXPECT_EQ(judge(value, result_of({full, lane_of("a2sf", "8", 30), lane_of("a2sf", "64", 90)})).state,
              State::holds);
}

TEST(FigureVerdict, RestoringOrderAndMemory) {
    const SweepPoint full = lane_of("full", "", 90);
    const PaperClaim below{.kind = PaperClaim::Kind::below_first, .lanes = {"h2o"}};
    EXPECT_EQ(judge(below, result_of({full, lane_of("h2o", "8", 60)})).state, State::holds);
    EXPECT_EQ(judge(below, result_of({full, lane_of("h2o", "8", 99)})).state, State::fails);
    EXPECT_EQ(judge(below, result_of({full, lane_of("h2o", "8", 60), lane_of("h2o", "16", 90)})).state,
              State::open);
    const PaperClaim order{.kind = PaperClaim::Kind::ordered, .lanes = {"tova", "h2o", "window"}};
    EXPECT_EQ(judge(order, result_of({full, lane_of("window", "8", 10), lane_of("tova", "8", 80),
                                      lane_of("h2o", "8", 50)}))
                  .state,
              State::holds);
    EXPECT_EQ(judge(order, result_of({full, lane_of("window", "8", 80), lane_of("tova", "8", 10),
                                      lane_of("h2o", "8", 50)}))
                  .state,
              State::fails);
    EXPECT_EQ(judge(order, result_of({full, lane_of("window", "8", 70), lane_of("tova", "8", 80),
                                      lane_of("h2o", "8", 50)}))
                  .state,
              State::mixed);
    const PaperClaim memory{.kind = PaperClaim::Kind::memory};
    const auto of_models = [&](int first, int second, int third) {
        return judge(memory, result_of({lane_of("full", "", first, 8), lane_of("full", "", second, 4),
                                        lane_of("full", "", third, 2)}))
            .state;
    };
    EXPECT_EQ(of_models(90, 60, 50), State::holds);
    EXPECT_EQ(of_models(30, 60, 70), State::fails);
    EXPECT_EQ(of_models(60, 60, 60), State::open);
    EXPECT_EQ(of_models(60, 63, 63), State::few) << "three questions";
}

/// What is for a paper in one order of the lanes is against it in the other, by the same numbers.
TEST(FigureVerdict, TheRuleIsTheSameForBothDirections) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    std::map<State, int> seen;
    for (int round = 0; round < 300; ++round) {
        FigureRecord::Evidence evidence{"x", "samples", {}};
        const double effect = (round % 3 - 1) * 0.05 * (round % 17);
        for (int j = 0; j < 1 + round % 9; ++j) {
            FigureRecord::Comparison& one = evidence.comparisons.emplace_back();
            for (int i = 0; i < 4 + round % 11; ++i)
                one.gains.push_back(normal(random) + effect * (round % 5 == 0 && j % 2 == 0 ? -4 : 4));
        }
        FigureRecord::Evidence reverse = evidence;
        for (FigureRecord::Comparison& one : reverse.comparisons)
            for (double& gain : one.gains) gain = -gain;
        const State state = decide(evidence).state, other = decide(reverse).state;
        EXPECT_EQ(other, state == State::holds ? State::fails : state == State::fails ? State::holds : state);
        ++seen[state];
    }
    for (const State state : {State::holds, State::fails, State::mixed, State::open, State::few})
        EXPECT_GT(seen[state], 3) << verdict_word(state);
}

/// With a user's own questions the paper's measure decides, though another one says the reverse.
TEST(FigureVerdict, TheMeasureOfThePaperDecides) {
    const PaperClaim claim{
        .kind = PaperClaim::Kind::ahead, .lanes = {"keyformer", "h2o"}, .measure = "rouge2"};
    SweepResult result;
    result.name = "own";
    result.is_task = true;
    result.measures = {{"rouge1", "ROUGE-1"}, {"rouge2", "ROUGE-2"}};
    result.varies = {parse_vary("budget=8,16")};
    const auto lane = [](const char* name, double rouge1, double rouge2) {
        SweepPoint point;
        point.model = "m";
        point.lane = name;
        point.values = {"8"};
        for (int i = 0; i < 30; ++i) {
            Outcome outcome{1, 1, 1, false};
            outcome.measures = {rouge1 + 0.001 * i, rouge2 + 0.002 * (i % 5)};
            point.outcomes.push_back(outcome);
        }
        return point;
    };
    QuestionSet set;
    set.measures = result.measures;
    result.points = {lane("full", 0.9, 0.9), lane("keyformer", 0.2, 0.6), lane("h2o", 0.4, 0.3)};
    for (SweepPoint& point : result.points)
        point.score = score_lane(set, point.outcomes, result.points.front().outcomes);
    const PaperVerdict verdict = judge(claim, result);
    EXPECT_EQ(verdict.state, State::holds) << verdict.why;
    EXPECT_TRUE(verdict.why.starts_with("by ROUGE-2, keyformer is surely ahead in 1 of 1")) << verdict.why;
    result.measures = {{"f1", "F1"}, {"exact", "exact"}};
    EXPECT_EQ(judge(claim, result).state, State::fails) << "none of the paper's: the first one decides";
}

TEST(FigureVerdict, SpeedIsThatOfThePaperOrSaysWhyNot) {
    const auto ratio = [](double tokens, double by_bytes) {
        return judge_speed(
            "keyformer-table1",
            std::vector<SpeedLine>{{"full", "8.3", 30, 1}, {"Keyformer", "17.0", tokens, by_bytes}});
    };
    EXPECT_EQ(ratio(60, 2.1).state, State::measured);
    EXPECT_EQ(ratio(33, 2.1).state, State::measured) << "one time has no interval";
    EXPECT_EQ(ratio(33, 1.1).state, State::unseen) << "the bytes do not allow it";
    // 17.0 / 8.3 is 2.05; before they were rounded, as little as 16.95 / 8.35.
    EXPECT_EQ(ratio(33, 2.031).state, State::measured);
    EXPECT_EQ(ratio(33, 2.029).state, State::unseen);
    EXPECT_NE(ratio(33, 1.1).why.find("1.10 times the tokens a second of full (paper 2.05)"),
              std::string::npos)
        << ratio(33, 1.1).why;
    EXPECT_EQ(judge_speed("keyformer-table1",
                          std::vector<SpeedLine>{{"full", "OOM", 30, 1}, {"Keyformer", "19.85", 60, 1.2}})
                  .state,
              State::none)
        << "the paper has no ratio";
    const auto sharing = [](double mlkv) {
        return judge_speed("mlkv-figure5",
                           std::vector<SpeedLine>{{"GQA-48", "-", 300, 1}, {"MLKV-48", "-", mlkv, 1}})
            .state;
    };
    EXPECT_EQ(sharing(260), State::measured);
    EXPECT_EQ(sharing(400), State::measured);
    const auto batch = [](double lanes) {
        return judge_speed("mlkv-figure3",
                           std::vector<SpeedLine>{{"MHA", "48", 1, 1, 100}, {"MLKV-1", "1100", 1, 1, lanes}})
            .state;
    };
    EXPECT_EQ(batch(4622), State::holds);
    EXPECT_EQ(batch(2268), State::holds) << "1099.5 / 48.5: a tie within the digits that the paper prints";
    EXPECT_EQ(batch(2266), State::fails);
    EXPECT_EQ(judge_speed("keyformer-figure10", std::vector<SpeedLine>{{"full", "1", 34, 1, 0, 2.7, 30},
                                                                       {"half", "-", 34, 1, 0, 1.3, 30}})
                  .state,
              State::unseen)
        << "attention is 9 % of a step";
}

// --- how often the rule errs -------------------------------------------------------------------------------

/// Lanes on the same samples. A sample is hard or easy for all of them; `shared` is the part of a lane's own
/// luck that it has at every size.
struct Lanes {
    std::string name;
    PaperClaim claim;
    int n_samples = 12;
    std::vector<std::string> lanes;
    std::vector<std::string> values;
    int n_models = 1;
    bool is_task = true;
    double shared = 0;
};

/// Returns made-up answers. better: how much luck the claim's first lane has more, in standard deviations.
SweepResult drawn(const Lanes& what, double better, std::mt19937& random) {
    std::normal_distribution<double> normal;
    SweepResult result;
    result.name = "needle";
    result.is_task = what.is_task;
    result.varies = {parse_vary("alpha=0..0.9+0.1")};
    const auto n = static_cast<std::size_t>(what.n_samples);
    std::vector<double> ease(n);
    for (double& e : ease) e = normal(random);
    const auto add = [&](const std::string& lane, const std::string& value,
                         const std::vector<double>& of_lane, double more, double bytes) {
        SweepPoint point;
        point.model = fmt::format("m{}", bytes);
        point.lane = lane;
        point.kv_bytes = bytes;
        if (!value.empty()) point.values = {value};
        for (std::size_t i = 0; i < n; ++i) {
            const double luck =
                std::sqrt(what.shared) * of_lane[i] + std::sqrt(1 - what.shared) * normal(random) + more;
            Outcome& outcome = point.outcomes.emplace_back();
            outcome.n_tokens = 100;
            outcome.nats = 100 * (3 - 0.3 * ease[i] - 0.05 * luck);
            outcome.right = ease[i] + luck > 0;
        }
        result.points.push_back(std::move(point));
    };
    for (int model = 0; model < what.n_models; ++model)
        for (const std::string& lane : what.lanes) {
            std::vector<double> of_lane(n);
            for (double& luck : of_lane) luck = normal(random);
            const bool is_first = !what.claim.lanes.empty() && lane == what.claim.lanes.front();
            if (what.values.empty()) add(lane, "", of_lane, -better * model, 100.0 - model);
            for (const std::string& value : what.values) {
                const bool is_wanted =
                    what.claim.kind != PaperClaim::Kind::best_between || (value >= "0.1" && value <= "0.3");
                add(lane, value, of_lane, is_first && is_wanted ? better : 0, 100);
            }
        }
    // A reference that is never in the way: judge() looks at its accuracy.
    if (what.n_models == 1) {
        SweepPoint full = result.points.front();
        full.lane = "full";
        full.values.clear();
        for (Outcome& outcome : full.outcomes) outcome.right = true;
        result.points.insert(result.points.begin(), std::move(full));
    }
    result.points.front().score = score_lane(result.points.front().outcomes, result.points.front().outcomes);
    return result;
}

std::vector<Lanes> situations() {
    using Kind = PaperClaim::Kind;
    const std::vector<std::string> sizes = {"0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"},
                                   six(sizes.begin(), sizes.begin() + 6),
                                   four(sizes.begin(), sizes.begin() + 4);
    const PaperClaim two{.kind = Kind::ahead, .lanes = {"a", "b", "c"}},
        three{.kind = Kind::ahead, .lanes = {"a", "b", "c", "d"}}, all{.kind = Kind::ahead, .lanes = {"a"}},
        between{.kind = Kind::best_between, .lanes = {"a"}, .low = 0.1, .high = 0.3},
        memory{.kind = Kind::memory}, ordered{.kind = Kind::ordered, .lanes = {"a", "b", "c", "d", "e"}};
    const std::vector<std::string> abc = {"a", "b", "c"}, abcd = {"a", "b", "c", "d"},
                                   seven = {"a", "b", "c", "d", "e", "f", "g"};
    return {{"8 comparisons, 12 questions", two, 12, abc, four},
            {"24 comparisons, 12 questions", three, 12, abcd, sizes},
            {"24 comparisons, 50 questions, alike at all sizes", three, 50, abcd, sizes, 1, true, 0.9},
            {"36 comparisons, 20 questions", all, 20, seven, six},
            {"36 comparisons, 8 windows, alike at all sizes", all, 8, seven, six, 1, false, 0.9},
            {"18 comparisons, 6 windows", three, 6, abcd, six, 1, false},
            {"best of 8 values, 50 questions", between, 50, {"a"}, sizes},
            {"order of 5 lanes, 12 questions", ordered, 12, {"a", "b", "c", "d", "e"}, {"0"}},
            {"10 pairs of models, 50 questions", memory, 50, {"full"}, {}, 5}};
}

/// Returns how many of n_runs have each verdict.
std::map<State, int> verdicts_of(const Lanes& what, double better, int n_runs) {
    std::mt19937 random(static_cast<unsigned>(1000 * better) + 11);
    std::map<State, int> states;
    for (int i = 0; i < n_runs; ++i) ++states[judge(what.claim, drawn(what, better, random)).state];
    return states;
}

/// KEYHOLE_RUNS=2000 prints the tables of tests/bench/results/2026-11-25-verdict-rule.txt. Returns 0 if
/// unset.
int runs_to_show() {
    const char* runs = std::getenv("KEYHOLE_RUNS");
    return runs == nullptr ? 0 : std::atoi(runs);
}

TEST(FigureVerdict, EqualLanesNeitherConfirmNorRefuteAPaper) {
    const bool show = runs_to_show() > 0;
    const int n_runs = show ? runs_to_show() : 400;
    if (show) fmt::print("{:<50} {:>8} {:>8} {:>8}\n", "equal lanes, % of runs", "holds", "fails", "mixed");
    for (const Lanes& what : situations()) {
        std::map<State, int> seen = verdicts_of(what, 0, n_runs);
        EXPECT_LT(seen[State::holds], 0.05 * n_runs) << what.name;
        EXPECT_LT(seen[State::fails], 0.05 * n_runs) << what.name;
        EXPECT_LT(seen[State::mixed], 0.02 * n_runs) << what.name;
        if (show)
            fmt::print("{:<50} {:>8.1f} {:>8.1f} {:>8.1f}\n", what.name, 100.0 * seen[State::holds] / n_runs,
                       100.0 * seen[State::fails] / n_runs, 100.0 * seen[State::mixed] / n_runs);
    }
}

TEST(FigureVerdict, ALaneThatIsBetterIsFound) {
    const bool show = runs_to_show() > 0;
    const int n_runs = show ? runs_to_show() : 50;
    const std::vector<double> effects =
        show ? std::vector{0.25, 0.5, 1.0, -0.5, -1.0} : std::vector{1.0, -1.0};
    if (show)
        fmt::print("{:<50} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "better by, in standard deviations: holds",
                   "0.25", "0.5", "1", "-0.5 (fails)", "-1 (fails)");
    for (const Lanes& what : situations()) {
        if (what.claim.kind == PaperClaim::Kind::ordered) continue;  // a better first lane is no order
        if (show) fmt::print("{:<50}", what.name);
        for (const double better : effects) {
            std::map<State, int> seen = verdicts_of(what, better, n_runs);
            const State expected = better > 0 ? State::holds : State::fails,
                        wrong = better > 0 ? State::fails : State::holds;
            if (std::abs(better) == 1) {
                EXPECT_GE(seen[expected], 0.5 * n_runs) << what.name << " " << better;
            }
            EXPECT_LE(seen[wrong], 0.025 * n_runs) << what.name << " " << better;
            if (show) fmt::print(" {:>12.0f}", 100.0 * seen[expected] / n_runs);
        }
        if (show) fmt::print("\n");
    }
}

}  // namespace
}  // namespace keyhole::test_figure_verdict
