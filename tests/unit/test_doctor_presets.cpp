// The doctor on presets that evict once after the prompt.
#include "engine/analysis/doctor.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace reference::test_doctor_presets {
namespace {

using namespace keyhole;

constexpr int kPrompt = 40;

Finding::State budget_of(const RunHistory& history, int row) {
    const std::vector<Finding> findings = examine(history, 1, row);
    const auto found = std::ranges::find(findings, "each head holds its budget", &Finding::name);
    EXPECT_NE(found, findings.end());
    return found->state;
}

class DoctorOfPresets : public ::testing::TestWithParam<const char*> {};

TEST_P(DoctorOfPresets, ExaminesTheBudgetAfterThePromptAndWhileDecoding) {
    const TinyModel tiny({});
    RunSpec spec;
    for (int i = 0; i < kPrompt; ++i) spec.prompt_tokens.push_back(i * 11 % 250);
    spec.lanes = {parse_lane_spec("full"), parse_lane_spec(GetParam())};
    spec.n_generate = 6;
    spec.ignore_eos = spec.follow = true;
    spec.requested.attention = spec.requested.scores = true;
    spec.requested.form = RowForm::both;
    const SessionRun run = run_session(load_model(tiny.folder()), spec);
    const RunHistory history = history_of(run);
    for (int row = kPrompt - 1; row <= history.last_row(); ++row)
        EXPECT_EQ(budget_of(history, row), Finding::State::good) << row;

    // The same run, and nothing leaves.
    StepList steps(run.steps.begin(), run.steps.end());
    for (auto& step : steps) {
        auto changed = std::make_shared<StepTrace>(*step);
        changed->lanes[1].evictions.clear();
        step = changed;
    }
    RunHistory more;
    more.update(steps);
    EXPECT_EQ(budget_of(more, more.last_row()), Finding::State::broken);
}

INSTANTIATE_TEST_SUITE_P(EvictOnce, DoctorOfPresets,
                         ::testing::Values("snapkv:budget=12,window=4,recent=4",
                                           "pyramidkv:budget=12,window=4,recent=4",
                                           "adakv:budget=12,window=4,recent=4",
                                           "chunk:budget=12,window=4,recent=4,scope=head",
                                           "critical:budget=12,window=4,recent=4", "kvzip:budget=12",
                                           "expected:budget=12", "random:budget=12,evict=prompt"));

}  // namespace
}  // namespace reference::test_doctor_presets
