// Presets, rounding and clamping, the tau schedule, and the rows that evict.
#include "engine/policy/params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace keyhole::test_policy_params {
namespace {

constexpr Preset kAll[] = {Preset::full, Preset::window, Preset::sink,      Preset::dilated, Preset::key,
                           Preset::h2o,  Preset::tova,   Preset::keyformer, Preset::a2sf};

Amount tokens(double value) {
    return {Amount::Unit::tokens, value};
}
Amount percent(double value) {
    return {Amount::Unit::percent, value};
}

PolicyParams with(Preset preset, Amount budget, Amount recent, int sinks = 0) {
    PolicyParams params = preset_params(preset);
    params.budget = budget;
    params.recent = recent;
    params.sinks = sinks;
    return params;
}

// --- presets -----------------------------------------------------------------------------------------------

TEST(Presets, AreValidAndCarryTheirName) {
    for (Preset preset : kAll) {
        EXPECT_EQ(preset_params(preset).preset, preset);
        EXPECT_TRUE(validate(preset_params(preset)).empty());
    }
}

TEST(Presets, HoldHalfOfThePromptExceptFull) {
    for (Preset preset : kAll) {
        const ResolvedPolicy policy = resolve(preset_params(preset), 201, 10);
        EXPECT_EQ(policy.evicts(), preset != Preset::full);
        EXPECT_EQ(policy.budget, preset == Preset::full ? ResolvedPolicy::kUnlimited : 100);
    }
}

TEST(Presets, ProtectWhatTheTableSays) {
    const auto resolved = [](Preset preset) { return resolve(preset_params(preset), 200, 10); };
    EXPECT_EQ(resolved(Preset::window).recent, 100);
    EXPECT_EQ(resolved(Preset::sink).recent, 96);
    EXPECT_EQ(resolved(Preset::sink).sinks, 4);
    EXPECT_EQ(resolved(Preset::key).recent, 0);
    EXPECT_EQ(resolved(Preset::h2o).recent, 50);
    EXPECT_EQ(resolved(Preset::tova).recent, 0);
    EXPECT_EQ(resolved(Preset::keyformer).recent, 30);
    EXPECT_EQ(resolved(Preset::a2sf).recent, 0);
}

TEST(Presets, AreThePointsOfTheirPapers) {
    EXPECT_EQ(preset_params(Preset::tova).alpha, 0);
    EXPECT_EQ(preset_params(Preset::tova).scope, Scope::layer);
    EXPECT_EQ(preset_params(Preset::a2sf).alpha, 0.2);
    EXPECT_EQ(preset_params(Preset::h2o).alpha, 1);
    const PolicyParams keyformer = preset_params(Preset::keyformer);
    EXPECT_EQ(keyformer.noise, NoiseKind::gumbel);
    EXPECT_EQ(keyformer.draw, NoiseDraw::token);
    EXPECT_EQ(keyformer.tau.shape, TauSchedule::Shape::linear);
    EXPECT_EQ(keyformer.tau.begin, 1);
    EXPECT_EQ(keyformer.tau.end, 2);
}

// --- rounding and clamping -------------------------------------------------------------------------------

TEST(Resolve, PercentTruncatesTheProduct) {
    const auto budget = [](int n, double share) {
        return resolve(with(Preset::key, percent(share), tokens(0)), n, 10).budget;
    };
    EXPECT_EQ(budget(100, 29), 29);  // int(0.29 * 100) would be 28
    EXPECT_EQ(budget(100, 57), 57);  // int(0.57 * 100) would be 56
    EXPECT_EQ(budget(199, 50), 99);
    EXPECT_EQ(budget(1000, 12.5), 125);
    EXPECT_EQ(budget(7, 100), 7);
    EXPECT_EQ(budget(10, 150), 15);
    for (int n = 0; n < 400; ++n) {
        for (int share = 1; share <= 100; ++share) {
            ASSERT_EQ(budget(n, share), std::max(1, n * share / 100)) << n << " tokens, " << share << " %";
        }
    }
}

TEST(Resolve, RecentComesFromTheTruncatedBudget) {
    const auto recent = [](int n, double budget, double share) {
        return resolve(with(Preset::h2o, percent(budget), percent(share)), n, 1).recent;
    };
    EXPECT_EQ(recent(3, 50, 70), 0);     // k = 1: 0.7; of the untruncated 1.5 it would be 1
    EXPECT_EQ(recent(199, 50, 51), 50);  // k = 99: 50.49
    EXPECT_EQ(recent(197, 50, 51), 49);  // k = 98: 49.98; of 98.5 it would be 50
    EXPECT_EQ(recent(1000, 60, 30), 180);
}

TEST(Resolve, ClampsWhatDoesNotFit) {
    EXPECT_EQ(resolve(with(Preset::key, tokens(0), tokens(0)), 100, 1).budget, 1);
    EXPECT_EQ(resolve(with(Preset::key, percent(50), tokens(0)), 1, 1).budget, 1);
    EXPECT_EQ(resolve(with(Preset::h2o, tokens(8), tokens(20)), 100, 1).recent, 8);
    EXPECT_EQ(resolve(with(Preset::h2o, tokens(8), percent(300)), 100, 1).recent, 8);
    const ResolvedPolicy sinks = resolve(with(Preset::sink, tokens(3), {Amount::Unit::rest, 0}, 4), 100, 1);
    EXPECT_EQ(sinks.sinks, 3);
    EXPECT_EQ(sinks.recent, 0);
    const ResolvedPolicy both = resolve(with(Preset::h2o, tokens(10), tokens(9), 4), 100, 1);
    EXPECT_EQ(both.sinks, 4);
    EXPECT_EQ(both.recent, 6);
}

TEST(Resolve, AHugeBudgetIsStillABudget) {
    EXPECT_TRUE(resolve(with(Preset::key, tokens(1e30), tokens(0)), 100, 1).evicts());
    EXPECT_EQ(resolve(with(Preset::key, tokens(5000), tokens(0)), 100, 1).budget,
              5000);  // above the prompt: room to grow
}

TEST(Resolve, HorizonIsAskedForOrGeneratedOr256) {
    PolicyParams params = preset_params(Preset::keyformer);
    EXPECT_EQ(resolve(params, 10, 77).horizon, 77);
    EXPECT_EQ(resolve(params, 10, 0).horizon, 256);
    params.horizon = 12;
    EXPECT_EQ(resolve(params, 10, 77).horizon, 12);
}

// --- tau -------------------------------------------------------------------------------------------------

ResolvedPolicy with_tau(TauSchedule::Shape shape, double begin, double end, int horizon = 10) {
    PolicyParams params = preset_params(Preset::keyformer);
    params.tau = {shape, begin, end, {}};
    params.horizon = horizon;
    return resolve(params, 100, 0);
}

TEST(Tau, LinearRunsFromTheFirstDecodeRowAndHolds) {
    const ResolvedPolicy policy = with_tau(TauSchedule::Shape::linear, 1, 2);
    EXPECT_EQ(policy.tau_at(0), 1.0f);
    EXPECT_EQ(policy.tau_at(99), 1.0f);   // last prompt row
    EXPECT_EQ(policy.tau_at(100), 1.1f);  // t = 1
    EXPECT_EQ(policy.tau_at(104), 1.5f);
    EXPECT_EQ(policy.tau_at(109), 2.0f);  // t = T
    EXPECT_EQ(policy.tau_at(500), 2.0f);
}

TEST(Tau, CosineEasesBetweenTheEnds) {
    const ResolvedPolicy policy = with_tau(TauSchedule::Shape::cosine, 2, 1);
    EXPECT_EQ(policy.tau_at(50), 2.0f);
    EXPECT_FLOAT_EQ(policy.tau_at(104), 1.5f);
    EXPECT_FLOAT_EQ(policy.tau_at(109), 1.0f);
    EXPECT_FLOAT_EQ(policy.tau_at(1000), 1.0f);
    EXPECT_GT(policy.tau_at(100), 1.95f);  // flat at first: linear would give 1.9
    for (int row = 100; row < 109; ++row) EXPECT_GT(policy.tau_at(row), policy.tau_at(row + 1));
}

TEST(Tau, PointsAreJoinedByLinesAndHeldOutside) {
    PolicyParams params = preset_params(Preset::keyformer);
    params.tau = {TauSchedule::Shape::points, 1, 1, {{2, 1.5}, {4, 2.5}, {8, 0.5}}};
    const ResolvedPolicy policy = resolve(params, 100, 0);
    EXPECT_EQ(policy.tau_at(10), 1.5f);
    EXPECT_EQ(policy.tau_at(101), 1.5f);  // t = 2
    EXPECT_EQ(policy.tau_at(102), 2.0f);
    EXPECT_EQ(policy.tau_at(103), 2.5f);
    EXPECT_EQ(policy.tau_at(105), 1.5f);
    EXPECT_EQ(policy.tau_at(107), 0.5f);
    EXPECT_EQ(policy.tau_at(900), 0.5f);
}

TEST(Tempers, OnlyWhenScoresDifferFromAttention) {
    EXPECT_FALSE(resolve(preset_params(Preset::h2o), 10, 1).tempers());
    EXPECT_TRUE(resolve(preset_params(Preset::keyformer), 10, 1).tempers());
    EXPECT_TRUE(with_tau(TauSchedule::Shape::constant, 1, 1).tempers());  // keyformer: noise

    PolicyParams params = preset_params(Preset::keyformer);
    params.tau = {};
    params.gain = 0;
    EXPECT_FALSE(resolve(params, 10, 1).tempers());
    params.gain = 1;
    params.noise = NoiseKind::constant;  // a shift of all logits
    EXPECT_FALSE(resolve(params, 10, 1).tempers());
    params.tau.begin = params.tau.end = 1.5;
    EXPECT_TRUE(resolve(params, 10, 1).tempers());
    params.tau = {TauSchedule::Shape::points, 1, 1, {{0, 1}, {5, 1}}};
    EXPECT_FALSE(resolve(params, 10, 1).tempers());
    params.tau.points.back().second = 2;
    EXPECT_TRUE(resolve(params, 10, 1).tempers());
}

// --- rows that evict -------------------------------------------------------------------------------------

TEST(EvictsAfter, OneShotStartsWithTheLastPromptRow) {
    const ResolvedPolicy policy = resolve(preset_params(Preset::h2o), 8, 0);
    for (int row = 0; row < 20; ++row) EXPECT_EQ(policy.evicts_after(row), row >= 7) << row;
}

TEST(EvictsAfter, EveryThirdRowCountsFromThePrompt) {
    PolicyParams params = preset_params(Preset::h2o);
    params.every = 3;
    const ResolvedPolicy policy = resolve(params, 8, 0);
    for (int row = 0; row < 20; ++row) {
        EXPECT_EQ(policy.evicts_after(row), row == 7 || row == 10 || row == 13 || row == 16 || row == 19)
            << row;
    }
}

TEST(EvictsAfter, StepwiseEvictsInThePromptToo) {
    PolicyParams params = preset_params(Preset::tova);
    params.prefill = PrefillMode::stepwise;
    const ResolvedPolicy policy = resolve(params, 8, 0);
    for (int row = 0; row < 20; ++row) EXPECT_TRUE(policy.evicts_after(row)) << row;
}

TEST(EvictsAfter, FullNeverEvicts) {
    const ResolvedPolicy policy = resolve(preset_params(Preset::full), 8, 0);
    for (int row = 0; row < 20; ++row) EXPECT_FALSE(policy.evicts_after(row)) << row;
}

// --- validate --------------------------------------------------------------------------------------------

TEST(Validate, NamesEveryFault) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto faults_of = [](auto change) {
        PolicyParams params = preset_params(Preset::keyformer);
        change(params);
        return validate(params);
    };
    const auto expect_fault = [&](const char* word, auto change) {
        const std::vector<std::string> faults = faults_of(change);
        ASSERT_EQ(faults.size(), 1u) << word;
        EXPECT_NE(faults[0].find(word), std::string::npos) << faults[0];
    };
    expect_fault("budget", [](PolicyParams& p) { p.budget = tokens(-1); });
    expect_fault("budget", [](PolicyParams& p) { p.budget = tokens(1.5); });
    expect_fault("budget", [](PolicyParams& p) { p.budget = {Amount::Unit::rest, 0}; });
    expect_fault("recent", [](PolicyParams& p) { p.recent = percent(-5); });
    expect_fault("recent", [&](PolicyParams& p) { p.recent = percent(nan); });
    expect_fault("recent", [](PolicyParams& p) { p.recent = {Amount::Unit::all, 0}; });
    expect_fault("sinks", [](PolicyParams& p) { p.sinks = -1; });
    expect_fault("alpha", [](PolicyParams& p) { p.alpha = 1.01; });
    expect_fault("alpha", [&](PolicyParams& p) { p.alpha = nan; });
    expect_fault("tau", [](PolicyParams& p) { p.tau.end = 0; });
    expect_fault("tau", [&](PolicyParams& p) { p.tau.begin = nan; });
    expect_fault("tau", [](PolicyParams& p) { p.tau.shape = TauSchedule::Shape::points; });
    expect_fault("ascend", [](PolicyParams& p) {
        p.tau = {TauSchedule::Shape::points, 1, 1, {{3, 1}, {3, 2}}};
    });
    expect_fault("horizon", [](PolicyParams& p) { p.horizon = -1; });
    expect_fault("tau_delta", [](PolicyParams& p) { p.tau_delta = -0.1; });
    expect_fault("gain", [&](PolicyParams& p) { p.gain = nan; });
    expect_fault("every", [](PolicyParams& p) { p.every = 0; });
    expect_fault("damping", [](PolicyParams& p) { p.damping = -0.1; });
    EXPECT_EQ(faults_of([](PolicyParams& p) { p.alpha = 2, p.every = 0; }).size(), 2u);
    // valid, but larger than the budget
    EXPECT_TRUE(faults_of([](PolicyParams& p) { p.recent = tokens(1e9); }).empty());
}

// --- dialects, dilation, overrides -----------------------------------------------------------------------

ResolvedPolicy released(Preset preset, Amount budget, Amount recent, int n_prompt) {
    PolicyParams params = with(preset, budget, recent);
    params.dialect = Dialect::released;
    return resolve(params, n_prompt, 10);
}

// policies, section 1: what each code stores and attends to.
TEST(Dialects, CountAsTheirCodeCounts) {
    const ResolvedPolicy h2o = released(Preset::h2o, tokens(8), tokens(4), 20);
    EXPECT_EQ(h2o.stored, 8);  // one of them is hidden from the next row
    EXPECT_EQ(h2o.attended_when_full(), 8);
    const ResolvedPolicy keyformer = released(Preset::keyformer, tokens(8), tokens(4), 20);
    EXPECT_EQ(keyformer.stored, 7);
    EXPECT_EQ(keyformer.newest, 3);
    EXPECT_EQ(keyformer.attended_when_full(), 8);
    EXPECT_EQ(keyformer.draw, NoiseDraw::row);
    const ResolvedPolicy window = released(Preset::window, tokens(8), {Amount::Unit::rest, 0}, 20);
    EXPECT_EQ(window.stored, 7);
    EXPECT_EQ(window.attended_when_full(), 8);
    const ResolvedPolicy a2sf = released(Preset::a2sf, tokens(8), tokens(0), 20);
    EXPECT_EQ(a2sf.stored, 8);
    EXPECT_EQ(a2sf.newest, 1);
    EXPECT_EQ(a2sf.attended_when_full(), 9);
    EXPECT_EQ(released(Preset::a2sf, tokens(8), tokens(1), 20).stored, 7);
    EXPECT_EQ(released(Preset::a2sf, tokens(8), tokens(3), 20).stored, 8);
    EXPECT_EQ(released(Preset::tova, tokens(8), tokens(0), 20).attended_when_full(), 9);
    EXPECT_EQ(released(Preset::sink, tokens(8), {Amount::Unit::rest, 0}, 20).positions, Positions::cache);
    EXPECT_EQ(resolve(with(Preset::h2o, tokens(8), tokens(4)), 20, 10).attended_when_full(), 9);
}

TEST(Dialects, TruncateTheirRatios) {
    // int(29 * 100 / 100) = 29, int(0.29 * 100) = 28: the percent and the ratio form.
    EXPECT_EQ(released(Preset::keyformer, percent(29), tokens(1), 100).budget, 29);
    EXPECT_EQ(released(Preset::a2sf, percent(29), tokens(0), 100).budget, 28);
    // heavy and recent ratios 0.1 each of 105 tokens: 10 + 10, not int(21) = 21 with 10 of them recent
    const ResolvedPolicy h2o = released(Preset::h2o, percent(20), percent(50), 105);
    EXPECT_EQ(h2o.budget, 20);
    EXPECT_EQ(h2o.recent, 10);
    EXPECT_EQ(resolve(with(Preset::h2o, percent(20), percent(50)), 105, 10).budget, 21);
}

TEST(Dialects, KeyformerWithoutAWindowNeverEvicts) {
    EXPECT_FALSE(released(Preset::keyformer, tokens(8), tokens(0), 20).evicts());
    EXPECT_TRUE(resolve(with(Preset::keyformer, tokens(8), tokens(0)), 20, 10).evicts());
}

TEST(Dialects, MasksCountColumnsNotTheCache) {
    const ResolvedPolicy keyformer = released(Preset::keyformer, tokens(8), tokens(4), 8);
    EXPECT_FALSE(keyformer.exceeded(8, 7)) << "a prompt of k tokens is kept whole";
    EXPECT_TRUE(keyformer.exceeded(9, 8));
    // Recent 1 stores k - 1, but a text of k tokens is kept whole (policies, section 1: length <= k, keep
    // all).
    const ResolvedPolicy a2sf = released(Preset::a2sf, tokens(8), tokens(1), 8);
    EXPECT_FALSE(a2sf.exceeded(8, 7));
    EXPECT_TRUE(a2sf.exceeded(9, 8));
}

TEST(Dialects, TauRunsPastItsEndInTheReleasedKeyformer) {
    PolicyParams params = preset_params(Preset::keyformer);
    EXPECT_FLOAT_EQ(resolve(params, 20, 10).tau_at(20 + 19), 2.0f);
    params.dialect = Dialect::released;
    EXPECT_FLOAT_EQ(resolve(params, 20, 10).tau_at(20 + 19), 3.0f);  // 1 + 20 * (2 - 1) / 10
}

TEST(Tau, DeltaSaysWhatItGainsInEveryRow) {
    PolicyParams params = preset_params(Preset::keyformer);
    params.tau_delta = 0.03;  // no whole number of rows
    const auto at = [&](int t) { return resolve(params, 20, 10).tau_at(19 + t); };
    EXPECT_EQ(at(0), 1.0f);
    for (int t = 1; t <= 33; ++t) EXPECT_FLOAT_EQ(at(t), 1.0f + 0.03f * static_cast<float>(t)) << t;
    EXPECT_FLOAT_EQ(at(34), 2.0f);
    EXPECT_FLOAT_EQ(at(5000), 2.0f);
    params.dialect = Dialect::released;
    EXPECT_FLOAT_EQ(at(100), 4.0f);  // 1 + 100 * 0.03: it runs on
    params.tau.begin = 2;
    params.tau.end = 1;
    EXPECT_FLOAT_EQ(at(10), 1.7f);
    params.tau.shape = TauSchedule::Shape::cosine;
    const ResolvedPolicy with = resolve(params, 20, 10);
    params.tau_delta = 0;
    EXPECT_EQ(with, resolve(params, 20, 10)) << "only a line has a slope";
}

TEST(Dialects, TheBlinkHidesTheColumnThatLeavesTheWindow) {
    const ResolvedPolicy h2o = released(Preset::h2o, tokens(8), tokens(4), 20);
    EXPECT_TRUE(h2o.hides(20, 16));
    EXPECT_FALSE(h2o.hides(20, 17));
    EXPECT_FALSE(h2o.hides(20, 15));
    EXPECT_FALSE(h2o.hides(19, 15)) << "prompt rows see all";
    EXPECT_TRUE(released(Preset::h2o, tokens(8), tokens(0), 20).hides(20, 20)) << "a row blind to itself";
    EXPECT_FALSE(released(Preset::h2o, tokens(40), tokens(4), 20).hides(30, 26)) << "the budget is not full";
}

// policies, section 2.4: w = 4, d = 1 attends i, i-2, i-4, i-6 and stores the span of 4 * 2 - 1.
TEST(Dilated, AttendsEveryOtherAndStoresTheSpan) {
    PolicyParams params = with(Preset::dilated, tokens(4), {Amount::Unit::rest, 0});
    const ResolvedPolicy dilated = resolve(params, 20, 10);
    EXPECT_EQ(dilated.stored, 7);
    EXPECT_EQ(dilated.attended_when_full(), 4);
    for (int position = 0; position <= 30; ++position)
        EXPECT_EQ(dilated.hides(30, position),
                  position != 30 && position != 28 && position != 26 && position != 24)
            << position;
}

TEST(Overrides, TheLaterOneHolds) {
    PolicyParams params = with(Preset::a2sf, tokens(8), tokens(0));
    using Field = Override::Field;
    params.overrides = {{Field::alpha, 0, 1, 0, Override::kAll, {}, 0.5, {}},
                        {Field::alpha, 1, 1, 2, 3, {}, 0.25, {}},
                        {Field::budget, 2, 2, 0, Override::kAll, tokens(4), 0, {}}};
    const HeadGrid heads{3, 4, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}};
    EXPECT_TRUE(check_overrides(params, heads).empty());
    const ResolvedPolicy policy = resolve(params, 20, 10, heads);
    EXPECT_FLOAT_EQ(policy.at(0, 3).alpha, 0.5f);
    EXPECT_FLOAT_EQ(policy.at(1, 1).alpha, 0.5f);
    EXPECT_FLOAT_EQ(policy.at(1, 2).alpha, 0.25f);
    EXPECT_FLOAT_EQ(policy.at(2, 0).alpha, 0.2f);
    EXPECT_EQ(policy.at(2, 0).stored, 4);
    EXPECT_EQ(policy.at(1, 2).stored, 8);
    EXPECT_EQ(policy.variants.size(), 3u);
}

/// Two KV heads a layer, each read by two query heads; layer 2 borrows those of layer 1.
TEST(Overrides, NameKvHeadsOfTheirLayer) {
    PolicyParams params = with(Preset::h2o, tokens(8), tokens(0));
    using Field = Override::Field;
    const HeadGrid heads{3, 4, {0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3}};
    params.overrides = {{Field::budget, 1, 1, 1, 1, tokens(3), 0, {}, true}};
    EXPECT_TRUE(check_overrides(params, heads).empty());
    const ResolvedPolicy policy = resolve(params, 20, 10, heads);
    for (const int layer : {1, 2}) {
        EXPECT_EQ(policy.at(layer, 1).stored, 8);
        EXPECT_EQ(policy.at(layer, 2).stored, 3);
        EXPECT_EQ(policy.at(layer, 3).stored, 3);
    }
    EXPECT_EQ(policy.at(0, 2).stored, 8);
    params.overrides.front().last_head = 2;
    EXPECT_EQ(check_overrides(params, heads).front(),
              "an override names KV head 2 (G2); the layers have KV heads 0 to 1");
}

TEST(Overrides, AreRefusedWhereTheModelHasNoSuchHeadOrSelectsItWithOthers) {
    PolicyParams params = with(Preset::a2sf, tokens(8), tokens(0));
    const HeadGrid heads{2, 4, {0, 0, 1, 1, 2, 2, 3, 3}};
    const auto fault = [&](Override o, Scope scope) {
        params.overrides = {o};
        params.scope = scope;
        const std::vector<std::string> faults = check_overrides(params, heads);
        return faults.empty() ? std::string() : faults.front();
    };
    using Field = Override::Field;
    const Override one_head{Field::alpha, 0, 0, 1, 1, {}, 0.5, {}};
    const Override group{Field::alpha, 0, 0, 0, 1, {}, 0.5, {}};
    const Override layer{Field::alpha, 0, 0, 0, Override::kAll, {}, 0.5, {}};
    EXPECT_EQ(
        fault(one_head, Scope::head),
        "an override sets some query heads of layer 0 apart from others that read the same KV head; name "
        "all of them, L0.H0-1, or the KV head, L0.G0");
    EXPECT_NE(
        fault({Field::alpha, 1, 1, 3, 3, {}, 0.5, {}}, Scope::head).find("L1.H2-3, or the KV head, L1.G1"),
        std::string::npos);
    EXPECT_EQ(fault(group, Scope::head), "");
    EXPECT_NE(fault(group, Scope::layer), "");
    EXPECT_EQ(fault(layer, Scope::layer), "");
    EXPECT_NE(fault(layer, Scope::shared), "");
    EXPECT_NE(fault({Field::alpha, 0, 2, 0, 3, {}, 0.5, {}}, Scope::head).find("layers 0 to 1"),
              std::string::npos);
    EXPECT_NE(fault({Field::alpha, 0, 1, 0, 4, {}, 0.5, {}}, Scope::head).find("heads 0 to 3"),
              std::string::npos);
}

}  // namespace
}  // namespace keyhole::test_policy_params
