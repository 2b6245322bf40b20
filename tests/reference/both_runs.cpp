#include "tests/reference/both_runs.h"

#include "engine/base/index.h"
#include "engine/run/command.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace reference {
namespace {

using keyhole::to_index;

std::vector<std::shared_ptr<Lane>> copies_of(const std::vector<std::shared_ptr<Lane>>& lanes) {
    std::vector<std::shared_ptr<Lane>> copies;
    for (const auto& lane : lanes) copies.push_back(std::make_shared<Lane>(*lane));
    return copies;
}

/// The reference rounds nothing.
keyhole::LaneSpec lane_of(const Case& lane) {
    return keyhole::changed_lane_spec(keyhole::parse_lane_spec(lane.spec), "kv_dtype=f32");
}

}  // namespace

BothRuns::BothRuns(const ComparedText& text, keyhole::Backend& backend, const std::vector<Case>& lanes)
    : text_(text) {
    keyhole::RunSpec spec;
    const int n_prompt = static_cast<int>(text.prompt().size());
    spec.prompt_tokens.assign(text.prompt().begin(), text.prompt().end());
    spec.forced.assign(text.decode().begin(), text.decode().end());
    spec.n_generate = static_cast<int>(spec.forced.size());
    spec.ignore_eos = true;
    for (const Case& lane : lanes) {
        spec.lanes.push_back(lane_of(lane));
        lanes_.push_back(std::make_shared<Lane>(text.weights, lane.policy, n_prompt));
    }
    pending_.resize(lanes_.size());
    session_.emplace(text.model, backend, spec);
    for (row_ = 0; row_ < n_prompt - 1; ++row_)
        for (const auto& lane : lanes_) (void)lane->feed(text.tokens()[to_index(row_)]);
    compare(session_->prefill());
}

void BothRuns::step(int n) {
    for (int i = 0; i < n; ++i) {
        ++row_;
        compare(session_->step());
    }
}

void BothRuns::change(std::size_t lane, const Case& to) {
    session_->apply(
        keyhole::parse_command(fmt::format("lane {} {}", lane, keyhole::format_lane_spec(lane_of(to)))));
    for (const Gone& gone : lanes_[lane]->change(to.policy)) pending_[lane].push_back(gone);
}

void BothRuns::fork(std::size_t lane) {
    session_->apply(keyhole::parse_command(fmt::format("fork {}", lane)));
    lanes_.push_back(std::make_shared<Lane>(*lanes_[lane]));
    pending_.push_back(pending_[lane]);
}

void BothRuns::rewind(int row) {
    session_->apply(keyhole::parse_command(fmt::format("rewind {}", row)));
    lanes_ = copies_of(after_.at(row));
    pending_.assign(lanes_.size(), {});
    row_ = row;
}

void BothRuns::compare(const std::shared_ptr<const keyhole::StepTrace>& step) {
    ASSERT_NE(step, nullptr);
    ASSERT_EQ(step->row, row_);
    ASSERT_EQ(step->lanes.size(), lanes_.size());
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        const LaneRow out = lanes_[i]->feed(text_.tokens()[to_index(row_)]);
        std::vector<Gone> expected = std::exchange(pending_[i], {}), found;
        expected.insert(expected.end(), out.evictions.begin(), out.evictions.end());
        const int n_kv = text_.weights.n_kv_heads;
        for (const keyhole::Eviction& e : step->lanes[i].evictions)
            found.push_back({e.kv_head / n_kv, e.kv_head % n_kv, e.position});
        std::sort(expected.begin(), expected.end());
        std::sort(found.begin(), found.end());
        EXPECT_TRUE(found == expected) << "row " << row_ << ", lane " << i << ", "
                                       << step->lanes[i].info->spec << ", margin " << out.margin;
        n_gone += static_cast<int>(found.size());
    }
    after_[row_] = copies_of(lanes_);
}

}  // namespace reference
