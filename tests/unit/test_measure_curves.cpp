// Curves of measures against the means in run.json, which other code computes, and against plain sets.
#include "engine/analysis/measure_curves.h"

#include "engine/analysis/run_metrics.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace keyhole::test_measure_curves {
namespace {

using testing::synthetic_run;
using testing::SyntheticSpec;

std::span<const float> curve(const MeasureCurves& curves, std::string_view measure, int lane) {
    return curves.curve(curve_index(measure), lane);
}

TEST(MeasureCurves, EveryKindIsAMeasure) {
    for (const CurveKind& kind : curve_kinds()) EXPECT_EQ(measure(kind.measure).name, kind.measure);
    EXPECT_EQ(curve_index("lifetime"), -1);
}

TEST(MeasureTable, EveryCurveHasOneFunctionOfItsRows) {
    for (const Measure* one : measures_by(&Measure::curve))
        EXPECT_NE(one->of_row != nullptr, one->so_far != nullptr) << one->name;
}

TEST(MeasureTable, PlacesAreDifferentAndWithoutGaps) {
    for (int Measure::*place : {&Measure::column, &Measure::curve}) {
        const std::vector<const Measure*> placed = measures_by(place);
        for (std::size_t i = 0; i < placed.size(); ++i)
            EXPECT_EQ(placed[i]->*place, static_cast<int>(i) + 1) << placed[i]->name;
    }
}

// What the atlas shows by head is what the same measure's curve averages.
TEST(MeasureTable, AMeasureByHeadAveragesToItsRow) {
    LaneRecord record;
    auto shadow = std::make_shared<ShadowRow>();
    shadow->retained_mass = {0.25f, 0.75f};
    shadow->cosine_ideal = {0.5f, 0.25f};
    shadow->cosine_full = {1.0f, 0.5f};
    shadow->output_similarity = {0.5f, 0.0f};
    record.measures = {0.5f, 0.375f, 0.75f, 0.25f, 0.125f};
    record.shadow = shadow;
    int n = 0;
    for (const Measure& one : measures()) {
        if (one.of_head == nullptr) continue;
        EXPECT_TRUE(one.needs_shadow) << one.name;
        EXPECT_FLOAT_EQ((one.of_head(*shadow, 0) + one.of_head(*shadow, 1)) / 2, one.of_row(record))
            << one.name;
        EXPECT_TRUE(std::isnan(one.of_head(*shadow, 2))) << one.name;
        ++n;
    }
    EXPECT_EQ(n, 5);
}

TEST(MeasureCurves, OverlapIsThatOfTheSetsRowByRow) {
    RunHistory history;
    history.update(synthetic_run({.n_prompt = 40, .n_decoded = 30, .budgets = {24, 16, 0}}));
    MeasureCurves curves;
    curves.update(history);
    const int n_kv = history.run().layout.n_kv_heads();
    for (int lane = 0; lane < 3; ++lane) {
        const auto values = curve(curves, "jaccard", lane);
        ASSERT_EQ(values.size(), history.steps().size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const int row = history.steps()[i]->row;
            double sum = 0;
            for (int g = 0; g < n_kv; ++g) {
                std::set<int> both, any;
                for (int p = 0; p <= row; ++p) {
                    const bool a = history.stored(0, g, p, row), b = history.stored(lane, g, p, row);
                    if (a && b) both.insert(p);
                    if (a || b) any.insert(p);
                }
                sum += double(both.size()) / double(any.size());
            }
            EXPECT_NEAR(values[i], sum / n_kv, 1e-6) << lane << " row " << row;
        }
    }
    EXPECT_LT(curve(curves, "jaccard", 1).back(), 0.8f);
}

TEST(MeasureCurves, MeansAreThoseOfRunJson) {
    RunHistory history;
    history.update(synthetic_run({.n_prompt = 40, .n_decoded = 30, .budgets = {0, 16}}));
    MeasureCurves curves;
    curves.update(history);
    const LaneMetrics metrics = run_metrics(history)[1];
    const auto mean = [&](std::string_view name, std::size_t first) {
        const auto values = curve(curves, name, 1);
        double sum = 0;
        for (std::size_t i = first; i < values.size(); ++i) sum += double(values[i]);
        return sum / double(values.size() - first);
    };
    EXPECT_NEAR(mean("kl", 1), metrics.kl, 1e-6);
    EXPECT_NEAR(mean("recent_share", 1), metrics.recent_share,
                0.02);  // the two sums may or may not count the prompt's last row
    EXPECT_TRUE(std::isnan(curve(curves, "recent_share", 0).back()));   // full: no budget
    EXPECT_TRUE(std::isnan(curve(curves, "retained_mass", 1).back()));  // no shadow
}

TEST(MeasureCurves, GrowingEqualsAllAtOnceAndARewoundRunStartsOver) {
    const StepList steps = synthetic_run({.n_prompt = 40, .n_decoded = 30, .budgets = {0, 16}});
    RunHistory growing, whole;
    MeasureCurves one, all;
    for (std::size_t n = 1; n <= steps.size(); ++n) {
        growing.update(StepList(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(n)));
        one.update(growing);
    }
    whole.update(steps);
    all.update(whole);
    const auto a = curve(one, "jaccard", 1), b = curve(all, "jaccard", 1);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
    growing.update(StepList(steps.begin(), steps.begin() + 5));  // after a rewind
    one.update(growing);
    EXPECT_EQ(curve(one, "jaccard", 1).size(), 5u);
    EXPECT_EQ(curve(one, "jaccard", 1).back(), b[4]);
}

/// A token takes 100 bytes over all KV heads, 10 in each of ten. The prompt in one piece is stored whole
/// before the lane evicts; a step stores its own token before it evicts.
TEST(MeasureCurves, PeakHasThePromptAndTheRowsBeforeTheyEvict) {
    const auto peaks = [](const std::string& spec, std::int64_t stored_per_head) {
        SyntheticSpec wanted{.n_layers = 5, .n_heads = 2, .n_kv_heads = 2, .n_prompt = 40, .n_decoded = 6};
        wanted.budgets = {0};
        StepList steps = synthetic_run(wanted);
        for (auto& step : steps) {
            auto copy = std::make_shared<StepTrace>(*step);
            LaneRecord& record = copy->lanes.front();
            auto info = std::make_shared<LaneInfo>(*record.info);
            info->policy = resolve(parse_lane_spec(spec).policy, 40, 6);
            info->token_bytes = 100;
            record.info = info;
            const std::int64_t all = step->row + 1;
            const std::int64_t stored = stored_per_head == 0 ? all : std::min(all, stored_per_head);
            record.use.stored_tokens = 10 * stored;
            record.use.stored_bytes = 100 * stored;
            record.evictions.clear();
            for (int g = 0; g < 10 && stored < all; ++g)
                record.evictions.push_back({g, step->row - 1, step->row});
            step = copy;
        }
        RunHistory history;
        history.update(steps);
        MeasureCurves curves;
        curves.update(history);
        const auto peak = curve(curves, "kv_peak_megabytes", 0);
        return std::vector<float>(peak.begin(), peak.end());
    };
    const std::vector<float> full = peaks("full", 0);
    ASSERT_EQ(full.size(), 7u);
    EXPECT_FLOAT_EQ(full.front(), 40 * 100e-6f);
    EXPECT_FLOAT_EQ(full.back(), 46 * 100e-6f);
    for (const float value : peaks("h2o:budget=8", 8)) EXPECT_FLOAT_EQ(value, 40 * 100e-6f);
    for (const float value : peaks("h2o:budget=8,prefill=stepwise", 8)) EXPECT_FLOAT_EQ(value, 9 * 100e-6f);
}

/// Returns the steps with lanes whose tokens take so many bytes over all KV heads.
StepList with_token_bytes(StepList steps, std::int64_t n_bytes) {
    for (auto& step : steps) {
        auto copy = std::make_shared<StepTrace>(*step);
        for (LaneRecord& record : copy->lanes) {
            auto info = std::make_shared<LaneInfo>(*record.info);
            info->token_bytes = n_bytes;
            record.info = info;
        }
        step = copy;
    }
    return steps;
}

// A page of a layer stays while one of its KV heads stores one of its 16 tokens, and counts for all of them.
TEST(MeasureCurves, PagesStayWhileAnyHeadOfTheLayerStoresOneOfTheirTokens) {
    StepList steps = synthetic_run(
        {.n_layers = 3, .n_heads = 2, .n_kv_heads = 2, .n_prompt = 70, .n_decoded = 30, .budgets = {0, 12}});
    RunHistory history;
    history.update(with_token_bytes(steps, 600));
    MeasureCurves curves;
    curves.update(history);
    bool some_left = false, some_stay = false;
    for (int lane = 0; lane < 2; ++lane) {
        const auto values = curve(curves, "kv_paged_megabytes", lane);
        ASSERT_EQ(values.size(), history.steps().size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const int row = history.steps()[i]->row;
            std::set<std::pair<int, int>> pages;  // layer, page
            for (int g = 0; g < 6; ++g)
                for (int p = 0; p <= row; ++p)
                    if (history.stored(lane, g, p, row)) pages.insert({g / 2, p / 16});
            EXPECT_FLOAT_EQ(values[i], 1e-6f * 16 * 200 * float(pages.size())) << lane << " row " << row;
            const std::size_t all = 3 * to_index(row / 16 + 1);
            some_left = some_left || pages.size() < all;
            some_stay = some_stay || (lane == 1 && pages.size() * 16 > 3 * 12 * 2);
        }
    }
    EXPECT_TRUE(some_left && some_stay);
}

// A lane that was removed and came back has read the rows between.
TEST(MeasureCurves, RowsThatALaneMissedAreInItsSets) {
    StepList steps = synthetic_run({.n_prompt = 40, .n_decoded = 60, .budgets = {0, 0}});
    for (std::size_t i = 8; i < 45; ++i) {  // whole pages
        auto copy = std::make_shared<StepTrace>(*steps[i]);
        copy->lanes.pop_back();
        steps[i] = copy;
    }
    RunHistory history;
    history.update(with_token_bytes(steps, 600));
    MeasureCurves curves;
    curves.update(history);
    const auto full = curve(curves, "kv_paged_megabytes", 0), back = curve(curves, "kv_paged_megabytes", 1);
    EXPECT_TRUE(std::isnan(back[10]));
    EXPECT_FLOAT_EQ(back.back(), full.back());
}

// Layers that borrow KV heads have no pages of their own.
TEST(MeasureCurves, PagesBelongToTheLayerThatOwnsTheHeads) {
    const KvLayout layout = KvLayout::shared(6, 6, 2, 3);  // 2 layers own 3 KV heads each
    ASSERT_EQ(layout.n_kv_heads(), 6);
    std::vector<KeptSet> stored(6);
    stored[0].insert(0);
    stored[2].insert(40);
    stored[5].insert(15);
    EXPECT_DOUBLE_EQ(paged_bytes(layout, stored, 60), 10.0 * 16 * 3 * (2 + 1));
    EXPECT_DOUBLE_EQ(paged_bytes(layout, std::vector<KeptSet>(6), 60), 0);
}

TEST(MeasureCurves, MeasuresOfHeadsComeFromTheShadow) {
    LaneRecord record;
    EXPECT_TRUE(std::isnan(head_measure(record, "retained_mass", 2, 0, 0)));
    auto shadow = std::make_shared<ShadowRow>();
    shadow->retained_mass = {0.1f, 0.2f, 0.3f, 0.4f};
    shadow->cosine_full = {1, 2, 3, 4};
    record.shadow = shadow;
    EXPECT_FLOAT_EQ(head_measure(record, "retained_mass", 2, 1, 0), 0.3f);
    EXPECT_FLOAT_EQ(head_measure(record, "lost_mass", 2, 1, 1), 0.6f);
    EXPECT_FLOAT_EQ(head_measure(record, "cosine_full", 2, 0, 1), 2);
}

}  // namespace
}  // namespace keyhole::test_measure_curves
