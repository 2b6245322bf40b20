#include "app/actions/action_table.h"
#include "app/gl/heat_painter.h"
#include "app/view/heat_data.h"
#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keyhole::test_compare {
namespace {

constexpr CellColors kBackground = cell_colors(Background::dark);

constexpr int kRow = 60;

RunHistory history_of(std::vector<int> budgets) {
    RunHistory history;
    history.update(testing::synthetic_run({.budgets = std::move(budgets)}));
    return history;
}

TEST(Compare, EveryTokenIsHeldByOneOfFour) {
    const RunHistory history = history_of({0, 16, 24});
    int differing = 0;
    for (int g = 0; g < history.run().layout.n_kv_heads(); ++g) {
        const HeldBy held = held_by(history, 1, 2, g, kRow);
        EXPECT_EQ(held.both + held.only_a + held.only_b + held.neither, kRow + 1);
        EXPECT_EQ(held.both + held.only_a, 16);
        EXPECT_EQ(held.both + held.only_b, 24);
        const HeldBy turned = held_by(history, 2, 1, g, kRow);
        EXPECT_EQ(turned, (HeldBy{held.both, held.only_b, held.only_a, held.neither}));
        EXPECT_DOUBLE_EQ(held.overlap(), double(held.both) / (16 + 24 - held.both));
        differing += held.only_b;
    }
    EXPECT_GT(differing, 0);
    EXPECT_EQ(held_by(history, 0, 0, 0, kRow), (HeldBy{kRow + 1, 0, 0, 0}));
    EXPECT_DOUBLE_EQ(HeldBy{}.overlap(), 1);
}

TEST(Compare, MaskDifferencesNameWhoHolds) {
    const RunHistory history = history_of({0, 16, 24});
    std::vector<float> values(kRow + 1);
    ASSERT_TRUE(difference_values(history, 1, 2, kRow, 2, 3, HeatMode::mask, values));
    const int g = history.run().layout.kv_head_from_head(2, 3);
    for (int p = 0; p <= kRow; ++p) {
        const bool a = history.stored(1, g, p, kRow), b = history.stored(2, g, p, kRow);
        const float v = values[to_index(p)];
        if (!a && !b)
            EXPECT_TRUE(std::isnan(v)) << p;
        else
            EXPECT_EQ(v, float(a) - float(b)) << p;
    }
}

TEST(Compare, DifferencesCountWhatIsGoneAsZero) {
    const RunHistory history = history_of({0, 16});
    std::vector<float> values(kRow + 1), full(kRow + 1);
    for (const HeatMode mode : {HeatMode::attention, HeatMode::score}) {
        ASSERT_TRUE(difference_values(history, 0, 1, kRow, 1, 2, mode, values));
        const int g = history.run().layout.kv_head_from_head(1, 2);
        ASSERT_TRUE(mode == HeatMode::score ? score_values(history, 0, kRow, g, full)
                                            : attention_values(history, 0, kRow, 1, 2, full));
        int gone = 0;
        for (int p = 0; p <= kRow; ++p) {
            if (history.attended(1, g, p, kRow)) continue;
            ++gone;
            EXPECT_EQ(values[to_index(p)], full[to_index(p)]) << p;
        }
        EXPECT_GT(gone, 20);
    }
    ASSERT_TRUE(difference_values(history, 0, 0, kRow, 1, 2, HeatMode::attention, values));
    for (const float v : values) EXPECT_EQ(v, 0);
    EXPECT_FALSE(difference_values(history, 0, 1, 10, 1, 2, HeatMode::score, values));  // a prompt row
}

TEST(Compare, AHotDifferenceSurvivesEveryLevel) {
    const RunHistory history = history_of({0, 16});
    HeatData data(HeatData::Kind::difference);
    ViewState view;
    view.mode = HeatMode::mask;
    while (!data.update(history, 0, view, 1000, 1)) {
    }
    // Wherever the base has a difference, each block above it has one too.
    const std::vector<Plane>& pyramid = data.focus().pyramid();
    for (int y = 0; y < pyramid[0].height; ++y)
        for (int x = 0; x < pyramid[0].width; ++x) {
            if (!(std::abs(pyramid[0].at(x, y)) == 1)) continue;
            for (std::size_t level = 1; level < pyramid.size(); ++level)
                ASSERT_EQ(std::abs(pyramid[level].at(x >> level, y >> level)), 1) << x << " " << y;
        }
    EXPECT_EQ(data.focus().largest(true), 1);
}

TEST(Compare, TextsDifferWhereChoicesDo) {
    StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    RunHistory same;
    same.update(steps);
    EXPECT_EQ(first_divergence(same, 0, 1), std::nullopt);
    auto changed = std::make_shared<StepTrace>(*steps[12]);
    changed->lanes[1].predicted = (changed->lanes[1].predicted + 1) % 12;
    steps[12] = changed;
    RunHistory parted;
    parted.update(steps);
    EXPECT_EQ(first_divergence(parted, 0, 1), changed->row + 1);
    EXPECT_EQ(own_choice(parted, 1, changed->row + 1), changed->lanes[1].predicted);
    EXPECT_EQ(own_choice(parted, 1, 3), -1);  // inside the prompt
}

TEST(Compare, WhoHoldsStandsOutFromTheBackground) {
    ViewState view;
    view.mode = HeatMode::mask;
    const ColorScale scale = difference_scale(view, 1, Background::dark);
    const auto brightness = [](Rgb8 c) { return 0.3 * c.r + 0.59 * c.g + 0.11 * c.b; };
    for (const float value : {1.0f, -1.0f, 0.0f}) {
        EXPECT_GT(brightness(color_of(scale, value)), brightness(kBackground.hatch) + 25) << value;
        EXPECT_EQ(color_of(scale, value), color_of(difference_scale(view, 0.1f, Background::dark), value));
    }
}

TEST(Compare, TextsDifferFromTheFirstTokenReadOtherwise) {
    StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    RunHistory same;
    same.update(steps);
    EXPECT_EQ(first_other_token(same, 0, 1), std::nullopt);
    auto changed = std::make_shared<StepTrace>(*steps[12]);
    changed->lanes[1].token = (changed->lanes[1].token + 1) % 12;
    steps[12] = changed;
    RunHistory parted;
    parted.update(steps);
    EXPECT_EQ(first_other_token(parted, 0, 1), changed->row);
    EXPECT_EQ(first_other_token(parted, 1, 0), changed->row);
}

class CompareCommands : public ::testing::Test {
  protected:
    CompareCommands() : app({}, {}) {
        StepList steps = testing::synthetic_run({.budgets = {0, 16, 24}});
        auto changed = std::make_shared<StepTrace>(*steps[12]);
        changed->lanes[1].predicted = (changed->lanes[1].predicted + 1) % 12;
        steps[12] = changed;
        parting = changed->row;
        app.show_run(opened_run(steps, "synthetic"));
        app.refresh();
        app.view.lane = 1;
    }
    AppState app;
    int parting = 0;
};

TEST_F(CompareCommands, ChangeTheView) {
    run_action(app, "view.compare");
    EXPECT_EQ(app.view.arrangement, Arrangement::compare);
    EXPECT_EQ(app.compared_lanes(), (std::vector<int>{2}));
    run_action(app, "compare.next");
    EXPECT_EQ(app.other_lane(), 0);
    run_action(app, "compare.next");
    EXPECT_EQ(app.other_lane(), 2);
    run_action(app, "compare.with 2");
    EXPECT_EQ(app.other_lane(), 2);
    EXPECT_THROW(run_action(app, "compare.with 1"), Error);
    EXPECT_THROW(run_action(app, "compare.with 3"), Error);
    run_action(app, "compare.all on");
    EXPECT_EQ(app.compared_lanes(), (std::vector<int>{2, 0}));
    app.update_maps(1e6);
    EXPECT_EQ(app.maps.others.size(), 2u);
    EXPECT_TRUE(app.maps.complete);
    EXPECT_GT(app.maps.difference.focus().largest(true), 0);
    run_action(app, "view.explore");
    EXPECT_TRUE(app.compared_lanes().empty());
    run_action(app, "blink on");
    EXPECT_EQ(app.compared_lanes(), (std::vector<int>{2}));
    run_action(app, "blink off");
    run_action(app, "diff");
    EXPECT_TRUE(app.view.difference && app.shows_difference());
    run_action(app, "view.teach");
    EXPECT_EQ(app.view.arrangement, Arrangement::teach);
    run_action(app, "view.arrange explore");
    EXPECT_EQ(app.view.arrangement, Arrangement::explore);
    EXPECT_THROW(run_action(app, "view.arrange sideways"), Error);
}

TEST_F(CompareCommands, AFullLaneStepsBackForTwoPolicies) {
    app.view.lane = 0;
    run_action(app, "view.compare");
    EXPECT_EQ(std::pair(app.view.lane, app.other_lane()), std::pair(1, 2));
    app.update_maps(1e6);
    run_action(app, "compare.with 0");
    run_action(app, "view.explore");
    run_action(app, "view.compare");
    EXPECT_EQ(std::pair(app.view.lane, app.other_lane()), std::pair(1, 0));  // the user's choice
}

TEST_F(CompareCommands, WatchedWordsTakeThePlaceOfOverlap) {
    EXPECT_FALSE(app.compares_watched());
    EXPECT_THROW(run_action(app, "compare.watched on"), Error);
    run_action(app, "watch 12 15");
    EXPECT_TRUE(app.compares_watched());
    run_action(app, "compare.watched off");
    EXPECT_FALSE(app.compares_watched());
    run_action(app, "compare.watched");
    EXPECT_TRUE(app.compares_watched());
    run_action(app, "watch.clear");
    EXPECT_FALSE(app.compares_watched());
}

TEST_F(CompareCommands, APairAgreesWhereItsOwnChoicesDo) {
    const std::vector<float> share = agreement_so_far(app.run.history, 1, 2);
    ASSERT_EQ(share.size(), app.run.history.steps().size());
    int n = 0, n_same = 0;
    for (std::size_t i = 0; i < share.size(); ++i) {
        const auto& lanes = app.run.history.steps()[i]->lanes;
        ++n;
        n_same += lanes[1].predicted == lanes[2].predicted ? 1 : 0;
        EXPECT_FLOAT_EQ(share[i], static_cast<float>(n_same) / static_cast<float>(n)) << i;
    }
    EXPECT_LT(share.back(), 1);
    EXPECT_EQ(agreement_so_far(app.run.history, 0, 2).back(), 1);
}

TEST_F(CompareCommands, WhatLanesDifferByIsFitted) {
    const int from_prompt = app.run.history.n_prompt() - 1;
    for (const char* mode : {"mode.attention", "mode.mask", "mode.score"}) {
        run_action(app, mode);
        EXPECT_EQ(app.first_fitted_row(), from_prompt) << mode;
    }
    run_action(app, "mode.attention");
    run_action(app, "view.compare");
    EXPECT_EQ(app.first_fitted_row(), from_prompt);

    run_action(app, "view.zoom 9 50 20");
    run_action(app, "mode.mask");
    EXPECT_FALSE(app.view.heat.fitted);  // keeps the user's zoom
    run_action(app, "view.fit");
    EXPECT_TRUE(app.view.heat.fitted);
    EXPECT_EQ(app.first_fitted_row(), 0);
    run_action(app, "mode.score");
    EXPECT_EQ(app.first_fitted_row(), 0);  // a choice holds in every mode
    run_action(app, "view.decoded");
    EXPECT_EQ(app.first_fitted_row(), from_prompt);
    run_action(app, "view.explore");
    run_action(app, "mode.attention");
    EXPECT_EQ(app.first_fitted_row(), from_prompt);
    app.remember_changes();
    run_action(app, "view.fit");
    EXPECT_EQ(app.undo(), "zoom of the heat map");
    EXPECT_EQ(app.first_fitted_row(), from_prompt);
}

TEST_F(CompareCommands, TheWholeIsFittedWhereLanesDifferInThePrompt) {
    run_action(app, "mode.mask");
    app.show_run(opened_run(testing::synthetic_run({.n_decoded = 3}), "short"));
    app.refresh();
    EXPECT_EQ(app.first_fitted_row(), 0);
    StepList steps = testing::synthetic_run({.budgets = {0, 16}, .run_id = 2});
    auto info = std::make_shared<LaneInfo>(*steps.front()->lanes[1].info);
    info->policy.prefill = PrefillMode::stepwise;
    for (auto& step : steps) {
        auto changed = std::make_shared<StepTrace>(*step);
        changed->lanes[1].info = info;
        step = changed;
    }
    app.show_run(opened_run(steps, "stepwise"));
    app.refresh();
    app.view.lane = 1;
    EXPECT_EQ(app.first_fitted_row(), 0);  // this lane evicts in the prompt
    app.view.lane = 0;
    EXPECT_GT(app.first_fitted_row(), 0);
}

TEST_F(CompareCommands, TheFirstDifferenceIsShownAtItsRow) {
    run_action(app, "compare.first-difference");
    EXPECT_EQ(app.view.row, parting);
}

TEST_F(CompareCommands, AgreementIsTheShareOfRowsSoFar) {
    const std::span<const float> curve = app.run.curves.curve(curve_index("agreement"), 1);
    ASSERT_EQ(curve.size(), app.run.history.steps().size());
    EXPECT_EQ(curve.back(), 1);  // the synthetic lanes agree in every record
}

TEST(Compare, WordsThatALaneWasFedDifferFromItsOwn) {
    StepList steps = testing::synthetic_run({.n_prompt = 40, .n_decoded = 10, .budgets = {0, 16}});
    RunHistory history;
    history.update(steps);
    for (int p = 0; p < 55; ++p) EXPECT_EQ(choice_passed_over(history, 1, p), -1) << p;
    const int fed = history.lanes()[1].tokens[45];
    auto changed = std::make_shared<StepTrace>(history.at_row(44));
    changed->lanes[1].predicted = fed + 1;
    steps[44 - 39] = changed;
    RunHistory parted;
    parted.update(steps);
    for (int p = 0; p < 55; ++p) EXPECT_EQ(choice_passed_over(parted, 1, p), p == 45 ? fed + 1 : -1) << p;
    EXPECT_EQ(choice_passed_over(parted, 0, 45), -1);
}

}  // namespace
}  // namespace keyhole::test_compare
