// The doctor on presets that evict once after the prompt, or while decoding alone, and on lanes whose heads
// select together or lose blocks of the text.
#include "engine/analysis/doctor.h"
#include "engine/analysis/run_rows.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace reference::test_doctor_presets {
namespace {

using namespace keyhole;

constexpr int kPrompt = 40;

Finding::State state_of(const RunHistory& history, int row, std::string_view name) {
    const std::vector<Finding> findings = examine(history, 1, row);
    const auto found = std::ranges::find(findings, name, &Finding::name);
    EXPECT_NE(found, findings.end());
    return found->state;
}
Finding::State budget_of(const RunHistory& history, int row) {
    return state_of(history, row, "each head holds its budget");
}

SessionRun run_of(const TinyModel& tiny, std::string_view lane,
                  const std::vector<LoggedCommand>& commands = {}) {
    RunSpec spec;
    for (int i = 0; i < kPrompt; ++i) spec.prompt_tokens.push_back(i * 11 % 250);
    spec.lanes = {parse_lane_spec("full"), parse_lane_spec(lane)};
    spec.n_generate = 6;
    spec.ignore_eos = spec.follow = true;
    spec.requested.attention = spec.requested.scores = true;
    spec.requested.form = RowForm::both;
    return run_session(load_model(tiny.folder()), spec, [&](Session& session, int row) {
        for (const LoggedCommand& one : commands)
            if (one.row == row - 1) session.apply(one.command);
    });
}

/// Returns the history of the run with another record of the lane in each row.
RunHistory changed(const SessionRun& run, const std::function<void(int row, LaneRecord&)>& change) {
    StepList steps(run.steps.begin(), run.steps.end());
    for (auto& step : steps) {
        auto other = std::make_shared<StepTrace>(*step);
        change(step->row, other->lanes[1]);
        step = other;
    }
    RunHistory history;
    history.update(steps);
    return history;
}

class DoctorOfPresets : public ::testing::TestWithParam<const char*> {};

TEST_P(DoctorOfPresets, ExaminesTheBudgetAfterThePromptAndWhileDecoding) {
    const TinyModel tiny({});
    const SessionRun run = run_of(tiny, GetParam());
    const RunHistory history = history_of(run);
    const bool evicts_then = std::string_view(GetParam()).find("evict=decode") == std::string_view::npos;
    EXPECT_EQ(budget_of(history, kPrompt - 1), evicts_then ? Finding::State::good : Finding::State::unknown);
    for (int row = kPrompt; row <= history.last_row(); ++row)
        EXPECT_EQ(budget_of(history, row), Finding::State::good) << row;

    // The same run, and nothing leaves.
    const RunHistory more = changed(run, [](int, LaneRecord& record) { record.evictions.clear(); });
    EXPECT_EQ(budget_of(more, more.last_row()), Finding::State::broken);
}

INSTANTIATE_TEST_SUITE_P(EvictOnce, DoctorOfPresets,
                         ::testing::Values("snapkv:budget=12,window=4,recent=4",
                                           "pyramidkv:budget=12,window=4,recent=4",
                                           "adakv:budget=12,window=4,recent=4",
                                           "chunk:budget=12,window=4,recent=4,scope=head",
                                           "critical:budget=12,window=4,recent=4", "kvzip:budget=12",
                                           "expected:budget=12", "random:budget=12,evict=prompt"));
INSTANTIATE_TEST_SUITE_P(EvictWhileDecoding, DoctorOfPresets,
                         ::testing::Values("h2o:budget=12,evict=decode", "tova:budget=12,evict=decode"));
INSTANTIATE_TEST_SUITE_P(SelectTogether, DoctorOfPresets,
                         ::testing::Values("h2o:budget=12,scope=layer", "tova:budget=12,scope=shared",
                                           "h2o:budget=12,scope=column,pool=max",
                                           "h2o:budget=12,scope=layer,every=3",
                                           "snapkv:budget=12,window=4,recent=4,scope=layer"));

// Heads that select together may hold different tokens by a command alone: each one's number says nothing of
// what they hold together.
TEST(DoctorOfUnits, CountsEachTokenOnce) {
    const TinyModel tiny({});
    const SessionRun run = run_of(tiny, "h2o:budget=12,scope=layer");
    const RunHistory history = history_of(run);
    const int row = history.last_row();
    ASSERT_EQ(budget_of(history, row), Finding::State::good);
    // One head of each layer holds what left the others.
    const RunHistory more = changed(run, [&](int, LaneRecord& record) {
        const KvLayout& layout = history.layout(1);
        std::erase_if(record.evictions,
                      [&](const Eviction& e) { return layout.kv_head(e.kv_head).index == 0; });
    });
    EXPECT_EQ(budget_of(more, row), Finding::State::broken);
}

// What a user pins in any head of a unit stays in all of them.
TEST(DoctorOfUnits, KnowsThePinsOfAllItsHeads) {
    const TinyModel tiny({});
    std::vector<LoggedCommand> pins;
    for (int p = kPrompt - 6; p < kPrompt; ++p)
        pins.push_back({kPrompt - 1, parse_command("pin 1 " + std::to_string(p) + " L0.H3")});
    pins.push_back({kPrompt - 1, parse_command("lane 1 h2o:budget=4,recent=1,scope=layer")});
    const SessionRun run = run_of(tiny, "h2o:budget=12,recent=8,scope=layer", pins);
    const RunHistory history = history_of(run);
    for (int row = kPrompt; row <= history.last_row(); ++row)
        EXPECT_EQ(budget_of(history, row), Finding::State::good) << row;
    EXPECT_GE(history.held_positions(1, 0, history.last_row()).size(), 6u) << "more than the budget";
}

class DoctorOfBlocks : public ::testing::TestWithParam<const char*> {};

TEST_P(DoctorOfBlocks, SeesWhenABetterOneLeavesAndWhenPartOfOneStays) {
    constexpr std::string_view kName = "the lowest ranks leave";
    const TinyModel tiny({});
    const SessionRun run = run_of(tiny, GetParam());
    const RunHistory history = history_of(run);
    const int end = kPrompt - 1;
    EXPECT_EQ(state_of(history, end, kName), Finding::State::good);
    const auto in_block = [](const Eviction& e, int block) {
        return e.kv_head == 0 && e.position / 4 == block;
    };
    const LaneRecord& before = *history.lane_record(end, 1);
    const auto first = std::ranges::find(before.evictions, 0, &Eviction::kv_head);
    ASSERT_NE(first, before.evictions.end());
    const int block = first->position / 4;
    const RunHistory part = changed(run, [&](int row, LaneRecord& record) {
        if (row != end) return;
        const auto one =
            std::ranges::find_if(record.evictions, [&](const Eviction& e) { return in_block(e, block); });
        record.evictions.erase(one);
    });
    EXPECT_EQ(state_of(part, end, kName), Finding::State::broken);

    // The worst block stays in place of the best one that stayed.
    std::vector<float> ranks(kPrompt);
    ASSERT_TRUE(score_values(history, 1, end, 0, ranks));
    const auto mean = [&](int b) {
        return ranks[4 * b] + ranks[4 * b + 1] + ranks[4 * b + 2] + ranks[4 * b + 3];
    };
    std::vector<int> left, kept;
    for (int b = 0; b < (kPrompt - 8) / 4; ++b)
        (std::ranges::any_of(before.evictions, [&](const Eviction& e) { return in_block(e, b); }) ? left
                                                                                                  : kept)
            .push_back(b);
    ASSERT_FALSE(left.empty());
    ASSERT_FALSE(kept.empty());
    const int worst = *std::ranges::min_element(left, {}, mean),
              best = *std::ranges::max_element(kept, {}, mean);
    const RunHistory swapped = changed(run, [&](int row, LaneRecord& record) {
        if (row != end) return;
        std::erase_if(record.evictions, [&](const Eviction& e) { return in_block(e, worst); });
        for (int i = 0; i < 4; ++i) record.evictions.push_back({0, 4 * best + i, end});
    });
    EXPECT_EQ(state_of(swapped, end, kName), Finding::State::broken);
}

INSTANTIATE_TEST_SUITE_P(Blocks, DoctorOfBlocks,
                         ::testing::Values("h2o:budget=20,recent=8,unit=4,prefill=oneshot",
                                           "tova:budget=20,recent=8,unit=4,prefill=oneshot"));

bool is_lane(const std::string& text) {
    try {
        parse_lane_spec(text);
        return true;
    } catch (const Error&) {
        return false;
    }
}

// Whatever a lane is, and whatever it becomes in mid-run, no check finds a fault.
TEST(DoctorOfRandomLanes, FindsNoFault) {
    const TinyModel tiny({});
    std::mt19937 random(7);
    const auto one_of = [&](std::initializer_list<const char*> words) {
        return std::string(words.begin()[random() % words.size()]);
    };
    const auto lane = [&] {
        std::string text;
        do {
            text = one_of({"h2o", "tova", "a2sf", "keyformer", "random", "knorm", "window", "sink", "lagkv",
                           "snapkv", "adakv", "chunk"}) +
                   ":budget=" + std::to_string(9 + random() % 16) + one_of({"", ",recent=4"}) +
                   one_of({"", ",scope=layer", ",scope=shared", ",scope=column"}) + one_of({"", ",every=3"}) +
                   one_of({"", ",unit=4"}) + one_of({"", ",buffer=3"}) +
                   one_of({"", ",evict=decode", ",evict=prompt", ",evict=always"});
        } while (!is_lane(text));
        return text;
    };
    int n_known = 0;
    for (int i = 0; i < 400; ++i) {
        const std::string first = lane(), then = lane();
        SCOPED_TRACE(first + ", then " + then);
        const SessionRun run = run_of(tiny, first, {{kPrompt + 1, SetLane{1, parse_lane_spec(then)}}});
        const RunHistory history = history_of(run);
        for (int row = kPrompt - 1; row <= history.last_row(); ++row)
            for (const Finding& finding : examine(history, 1, row)) {
                ASSERT_NE(finding.state, Finding::State::broken)
                    << row << ": " << finding.name << ": " << finding.detail;
                n_known += finding.state == Finding::State::good ? 1 : 0;
            }
    }
    EXPECT_GT(n_known, 400 * 8 * 4);
}

}  // namespace
}  // namespace reference::test_doctor_presets
