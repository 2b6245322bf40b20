// Sums over the records of a run: six tokens in two layers, every number computed by hand.
#include "engine/analysis/run_metrics.h"

#include "engine/analysis/measure_table.h"
#include "engine/policy/lane_spec.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keyhole::test_run_metrics {
namespace {

constexpr int kPrompt = 3, kRows = 3;

std::shared_ptr<const RunInfo> make_run() {
    auto run = std::make_shared<RunInfo>();
    run->id = 1;
    run->config.n_layers = 2;
    run->config.n_heads = 2;
    run->config.n_kv_heads = 1;
    run->layout = KvLayout::grouped(2, 2, 1);
    run->prompt_tokens = {0, 1, 2};
    run->token_bytes = {"", " the", "re", ",", "7"};
    run->token_display = run->token_bytes;
    return run;
}

std::shared_ptr<const LaneInfo> make_lane(int id, const std::string& spec) {
    auto lane = std::make_shared<LaneInfo>();
    lane->id = id;
    lane->spec = lane->effective = spec;
    lane->policy = resolve(parse_lane_spec(spec).policy, kPrompt, kRows);
    return lane;
}

/// Lane 0 keeps all. Lane 1 keeps two tokens; after rows 2, 3, 4, 5 it stores
///     layer 0: {0 2} {0 3} {0 4} {4 5}      layer 1: {1 2} {2 3} {3 4} {4 5}
RunHistory six_tokens() {
    const auto run = make_run();
    const auto full = make_lane(0, "full"), h2o = make_lane(1, "h2o:budget=2");
    const int gone[4][2] = {{1, 0}, {2, 1}, {3, 2}, {0, 3}};
    const int tokens[4] = {2, 3, 4, 1};
    StepList steps;
    for (int i = 0; i < 4; ++i) {
        auto step = std::make_shared<StepTrace>();
        step->run = run;
        step->row = kPrompt - 1 + i;
        step->lanes.resize(2);
        LaneRecord &a = step->lanes[0], &b = step->lanes[1];
        a.info = full;
        b.info = h2o;
        a.token = b.token = tokens[i];
        a.predicted = 3;
        b.predicted = i == 2 ? 4 : 3;
        a.entropy = 1;
        b.entropy = static_cast<float>(i);
        for (int g = 0; g < 2; ++g) b.evictions.push_back({g, gone[i][g], step->row});
        if (i < 3) {
            b.kl = i == 0 ? 9.0f : static_cast<float>(i) / 8;
            b.agrees = i != 2;
        }
        if (i > 0) {
            const float x = static_cast<float>(i) / 4;
            b.measures.retained_mass = x;
            b.measures.sink_share = i == 1 ? RowMeasures::kNone : x;
            b.shadow = std::make_shared<const ShadowRow>(
                ShadowRow{{0, x, 1, x}, {x, x, x, x}, {0, 0, 0, 1}, {1, 1, 1, 1}});
        }
        steps.push_back(step);
    }
    RunHistory history;
    history.update(steps);
    return history;
}

TEST(RunMetrics, ScalarsAreMeansOverDecodeRows) {
    const std::vector<LaneMetrics> m = run_metrics(six_tokens());
    ASSERT_EQ(m.size(), 2u);
    EXPECT_EQ(m[1].n_rows, 3);
    EXPECT_EQ(m[1].evictions, 8);
    EXPECT_DOUBLE_EQ(m[0].entropy, 1);
    EXPECT_DOUBLE_EQ(m[1].entropy, 2);
    EXPECT_EQ(m[1].n_compared, 2) << "the prompt's row does not count";
    EXPECT_DOUBLE_EQ(m[1].kl, 1.5 / 8);
    EXPECT_DOUBLE_EQ(m[1].agreement, 0.5);
    EXPECT_EQ(m[1].first_divergence, std::optional(5)) << "row 4 chose another token";
    EXPECT_EQ(m[0].first_divergence, std::nullopt);
    EXPECT_DOUBLE_EQ(m[1].retained_mass, 0.5);
    EXPECT_DOUBLE_EQ(m[1].sink_share, 0.625) << "over the rows that have it";
    EXPECT_TRUE(std::isnan(m[1].cosine_full));
    EXPECT_TRUE(std::isnan(m[0].retained_mass));
}

TEST(RunMetrics, MegabytesOfKeysAndValuesAreThoseOfTheRow) {
    LaneRecord record;
    record.use.stored_bytes = 2'097'152;  // 1,024 tokens of 2,048 bytes
    record.use.allocated_bytes = 9'000'000;
    EXPECT_FLOAT_EQ(measure("kv_megabytes").of_row(record), 2.097152f);
}

// A row of the table with a function of a record has its mean, in a table and in a member, without more code.
TEST(RunMetrics, EveryMeasureOfARecordHasItsMean) {
    const RunHistory history = six_tokens();
    const LaneMetrics m = run_metrics(history)[1];
    int n = 0;
    for (std::size_t i = 0; i < measures().size(); ++i) {
        const Measure& one = measures()[i];
        SCOPED_TRACE(one.name);
        if (one.of_row == nullptr) continue;
        double sum = 0;
        int n_values = 0;
        for (int row = kPrompt; row <= history.last_row(); ++row)
            if (const float value = one.of_row(*history.lane_record(row, 1)); !std::isnan(value)) {
                sum += static_cast<double>(value);
                ++n_values;
            }
        if (n_values == 0) {
            EXPECT_TRUE(std::isnan(m.means[i]));
            continue;
        }
        EXPECT_DOUBLE_EQ(m.means[i], sum / n_values);
        EXPECT_DOUBLE_EQ(one.mean == nullptr ? m.means[i] : m.*one.mean, sum / n_values);
        ++n;
    }
    EXPECT_GT(n, 4);
    std::vector<std::string_view> columns;
    for (const LaneMean& mean : lane_means()) columns.push_back(mean.name);
    EXPECT_EQ(columns, (std::vector<std::string_view>{"kl", "agreement", "entropy", "retained_mass",
                                                      "cosine_ideal", "cosine_full", "output_similarity",
                                                      "sink_share", "recent_share", "lifetime"}));
}

TEST(RunMetrics, ShadowsKeepLayersAndHeadsApart) {
    const LaneMetrics m = run_metrics(six_tokens())[1];
    EXPECT_EQ(m.n_shadow_rows, 3);
    EXPECT_EQ(m.retained_by_head, std::vector<double>({0, 0.5, 1, 0.5}));
    EXPECT_EQ(by_layer(m.retained_by_head, 2), std::vector<double>({0.25, 0.75}));
    EXPECT_EQ(m.cosine_ideal_by_head, std::vector<double>({0.5, 0.5, 0.5, 0.5}));
    EXPECT_EQ(m.cosine_full_by_head, std::vector<double>({0, 0, 0, 1}));
    EXPECT_EQ(m.output_by_head, std::vector<double>({1, 1, 1, 1}));
    EXPECT_TRUE(run_metrics(six_tokens())[0].retained_by_head.empty());
}

TEST(RunMetrics, KeptSetsAgreeWithValuesByHand) {
    const std::vector<LaneMetrics> m = run_metrics(six_tokens());
    // k = 2. Layer 0: {0 3} half, {0 4} half, {4 5} all.
    ASSERT_EQ(m[1].recent_by_layer.size(), 2u);
    EXPECT_DOUBLE_EQ(m[1].recent_by_layer[0], 2.0 / 3);
    EXPECT_DOUBLE_EQ(m[1].recent_by_layer[1], 1.0);
    EXPECT_DOUBLE_EQ(m[1].recent_share, 5.0 / 6);
    EXPECT_TRUE(std::isnan(m[0].recent_share)) << "no budget";
    // Two of three, four, five, six.
    for (std::size_t layer = 0; layer < 2; ++layer) {
        EXPECT_DOUBLE_EQ(m[1].jaccard[0][layer], (2.0 / 3 + 0.5 + 0.4 + 2.0 / 6) / 4);
        EXPECT_EQ(m[0].jaccard[1][layer], m[1].jaccard[0][layer]);
        EXPECT_EQ(m[1].jaccard[1][layer], 1.0);
    }
}

TEST(RunMetrics, LifetimesAgreeWithValuesByHand) {
    const LaneMetrics m = run_metrics(six_tokens())[1];
    // Layer 0: 5 1 1 1 2 1; layer 1: 2 2 2 2 2 1.
    EXPECT_EQ(m.lifetime_by_position, std::vector<double>({3.5, 1.5, 1.5, 1.5, 2, 1}));
    EXPECT_DOUBLE_EQ(m.lifetime, 11.0 / 6);
    // "", " the", "re", ",", "7", " the"
    EXPECT_EQ(m.tokens_by_class, (std::array<int, kTokenClasses>{1, 0, 1, 1, 2, 1}));
    const double expected[] = {3.5, NAN, 1.5, 2, 1.25, 1.5};
    for (std::size_t c = 0; c < kTokenClasses; ++c) {
        if (std::isnan(expected[c]))
            EXPECT_TRUE(std::isnan(m.lifetime_by_class[c]));
        else
            EXPECT_DOUBLE_EQ(m.lifetime_by_class[c], expected[c]) << c;
    }
    // No evictions left: until the end of the text.
    EXPECT_EQ(run_metrics(six_tokens())[0].lifetime_by_position, std::vector<double>({6, 5, 4, 3, 2, 1}));
}

TEST(RunMetrics, OverlapEndsWhereTheTextsPart) {
    const RunHistory same = six_tokens();
    StepList steps;
    for (const auto& step : same.steps()) {
        auto copy = std::make_shared<StepTrace>(*step);
        if (step->row == 4) copy->lanes[1].token = 3;
        steps.push_back(std::move(copy));
    }
    RunHistory history;
    history.update(steps);
    EXPECT_DOUBLE_EQ(run_metrics(history)[1].jaccard[0][0], (2.0 / 3 + 0.5) / 2);
}

TEST(RunMetrics, OverlapLeavesOutStepsAtWhichALaneIsAway) {
    const RunHistory same = six_tokens();
    StepList steps;
    std::vector<Eviction> missed;
    for (const auto& step : same.steps()) {
        auto copy = std::make_shared<StepTrace>(*step);
        if (step->row == 4) {
            missed = copy->lanes[1].evictions;
            copy->lanes.pop_back();
        } else if (step->row == 5) {
            std::vector<Eviction>& evictions = copy->lanes[1].evictions;
            evictions.insert(evictions.begin(), missed.begin(), missed.end());
        }
        steps.push_back(std::move(copy));
    }
    RunHistory history;
    history.update(steps);
    EXPECT_DOUBLE_EQ(run_metrics(history)[1].jaccard[0][0], (2.0 / 3 + 0.5 + 2.0 / 6) / 3) << "without 0.4";
}

}  // namespace
}  // namespace keyhole::test_run_metrics
