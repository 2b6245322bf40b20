#include "engine/analysis/doctor.h"

#include "engine/analysis/doctor_checks.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"

#include <algorithm>
#include <utility>

namespace keyhole {

using State = Finding::State;

void EvictionOrder::update(const RunHistory& history, int lane) {
    if (generation_ != history.generation() || lane_ != lane) {
        *this = EvictionOrder();
        generation_ = history.generation();
        lane_ = lane;
    }
    const StepList& steps = history.steps();
    gone_.resize(to_index(history.layout(lane).n_kv_heads()));
    for (; n_seen_ < steps.size() && fault_row_ < 0; ++n_seen_) {
        const StepTrace& step = *steps[n_seen_];
        const auto fault = [&](std::string text) {
            if (fault_row_ >= 0) return;
            fault_row_ = step.row;
            fault_ = std::move(text);
        };
        if (step.row <= before_) fault(fmt::format("step {} follows step {}", step.row, before_));
        before_ = step.row;
        const LaneRecord* record = history.lane_record(step.row, lane);
        if (record == nullptr) continue;
        for (const Eviction& e : record->evictions) {
            std::vector<bool>& of_head = gone_[to_index(e.kv_head)];
            const auto p = to_index(e.position);
            if (p >= of_head.size()) of_head.resize(std::max(p + 1, 2 * of_head.size()), false);
            if (e.position > step.row)
                fault(fmt::format("step {} evicted token {}, which came later", step.row, e.position));
            if (of_head[p])
                fault(fmt::format("token {} left {} twice", e.position,
                                  kv_head_text(history.layout(lane), e.kv_head)));
            of_head[p] = true;
        }
    }
}

Finding EvictionOrder::at(const RunHistory& history, int row) const {
    constexpr std::string_view kName = "steps and positions ascend, none twice";
    if (fault_row_ >= 0 && fault_row_ <= row) return {kName, State::broken, fault_};
    return {kName, State::good, fmt::format("{} steps", row - history.steps().front()->row + 1)};
}

std::vector<Finding> examine(const RunHistory& history, int lane, int row, EvictionOrder& order) {
    if (history.lane_record(row, lane) == nullptr) return {};
    // A lane that has ended stays as it was: it has read no token since.
    row = std::min(row, history.lanes()[to_index(lane)].last_row);
    const LaneRecord* record = history.lane_record(row, lane);
    if (record == nullptr) return {};
    order.update(history, lane);
    const CheckedLane x(history, lane, row, *record);
    std::vector<Finding> findings = {check_budget(x),    check_window(x), order.at(history, row),
                                     check_counts(x),    check_sums(x),   check_equals_full(x),
                                     check_lost_mass(x), check_ranks(x)};
    if (record->info->policy.any([](const ResolvedPolicy& one) { return !one.fair.empty(); }))
        findings.push_back(check_shares(x));
    for (int g = 0; g < x.n_kv(); ++g)
        if (x.window_of(g) > 0) {
            findings.push_back(check_sliding_layers(x));
            break;
        }
    return findings;
}

std::vector<Finding> examine(const RunHistory& history, int lane, int row) {
    EvictionOrder order;
    return examine(history, lane, row, order);
}

bool healthy(const std::vector<Finding>& findings) {
    return std::none_of(findings.begin(), findings.end(),
                        [](const Finding& f) { return f.state == State::broken; });
}

void DoctorWatch::update(const RunHistory& history, std::span<const int> lanes, int row, double budget_ms,
                         bool rows_come) {
    using Clock = std::chrono::steady_clock;
    watched_.resize(lanes.size());
    complete_ = true;
    if (history.empty()) return;
    const bool last = row >= history.last_row();
    const auto stale = [&](std::size_t i) {
        const Watched& one = watched_[i];
        return one.generation != history.generation() || one.lane != lanes[i] || one.checked.row != row ||
               one.last != last;
    };
    Clock::time_point begin{};  // the clock is read only if there is work
    for (std::size_t n = 0; n < lanes.size(); ++n) {
        const std::size_t i = next_ % lanes.size();
        if (!stale(i)) {
            ++next_;
            continue;
        }
        if (begin == Clock::time_point{}) {
            begin = Clock::now();
            if (rows_come && begin < not_before_) {
                complete_ = false;
                return;
            }
        } else if (std::chrono::duration<double, std::milli>(Clock::now() - begin).count() >= budget_ms) {
            complete_ = false;
            break;
        }
        Watched& one = watched_[i];
        one.generation = history.generation();
        one.lane = lanes[i];
        one.last = last;
        one.checked.row = row;
        one.checked.findings =
            lanes[i] < 0 ? std::vector<Finding>() : examine(history, lanes[i], row, one.order);
        ++n_examined_;
        ++next_;
    }
    if (begin != Clock::time_point{}) not_before_ = Clock::now() + 19 * (Clock::now() - begin);
}

DoctorWatch::Verdict DoctorWatch::verdict() const {
    Verdict all;
    std::vector<Finding> worst;  // one entry per invariant
    const auto weight = [](State state) { return state == State::broken ? 2 : state == State::good ? 1 : 0; };
    for (std::size_t lane = 0; lane < watched_.size(); ++lane) {
        const std::vector<Finding>& findings = watched_[lane].checked.findings;
        for (const Finding& finding : findings) {
            // Some lanes lack some invariants, so a place in the list says nothing.
            auto same = std::find_if(worst.begin(), worst.end(),
                                     [&](const Finding& known) { return known.name == finding.name; });
            if (same == worst.end()) same = worst.insert(worst.end(), {finding.name, State::unknown, {}});
            if (weight(finding.state) > weight(same->state)) same->state = finding.state;
            if (finding.state != State::broken || all.lane >= 0) continue;
            all.lane = static_cast<int>(lane);
            all.fault = finding;
        }
    }
    for (const Finding& f : worst) {
        (f.state == State::broken ? all.n_broken : f.state == State::good ? all.n_hold : all.n_unknown) += 1;
        all.each += fmt::format("{}{}: {}", all.each.empty() ? "" : "\n", f.name,
                                f.state == State::broken ? "BROKEN"
                                : f.state == State::good ? "holds"
                                                         : "not known");
    }
    return all;
}

}  // namespace keyhole
