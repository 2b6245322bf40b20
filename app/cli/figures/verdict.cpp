#include "app/cli/figures/figure.h"

#include "app/base/figure_record.h"
#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

using State = PaperVerdict::State;

/// A full cache that answers less than this share cannot show what eviction costs.
constexpr double kLeastAccuracy = 0.2;

/// Returns +1 where a is surely ahead of b, -1 where it is surely behind, 0 where the interval holds 0.
int compare(const SweepPoint& a, const SweepPoint& b, bool is_task) {
    const LaneScore pair = score_lane(a.outcomes, b.outcomes);
    const Interval& d = is_task ? pair.accuracy_difference.interval : pair.nats_difference.interval;
    if (!(d.low > 0) && !(d.high < 0)) return 0;  // NaN too
    return (d.low > 0) == is_task ? 1 : -1;
}

double quality(const SweepPoint& point, bool is_task) {
    return is_task ? point.score.accuracy.value : -point.score.nats.value;
}

std::string amount(const SweepPoint& point, const SweepPoint& first, bool is_task) {
    if (is_task) return fmt::format("{:.1f} %", 100 * point.score.accuracy.value);
    return fmt::format("{:.3f} of the first lane's perplexity",
                       point.score.perplexity / first.score.perplexity);
}

std::string joined(const std::vector<std::string>& values) {
    std::string text;
    for (const std::string& value : values)
        if (!value.empty()) text += (text.empty() ? "" : ", ") + value;
    return text;
}

std::string name_of(const SweepPoint& point, const SweepResult& result) {
    return lane_label(point.lane, point.values, result.varies);
}

PaperVerdict counted(int ahead, int behind, int open, std::string_view what) {
    const State state = behind > 0 ? State::fails : ahead > 0 ? State::holds : State::open;
    return {state, fmt::format("{} in {} of {} comparisons, behind in {}; {} cannot be decided.", what, ahead,
                               ahead + behind + open, behind, open)};
}

PaperVerdict judge_ahead(const PaperClaim& claim, const SweepResult& result) {
    int ahead = 0, behind = 0, open = 0;
    for (const SweepPoint& mine : result.points) {
        if (mine.lane != claim.lanes.front()) continue;
        for (const SweepPoint& other : result.points) {
            const bool asked =
                claim.lanes.size() == 1 ||
                std::find(claim.lanes.begin() + 1, claim.lanes.end(), other.lane) != claim.lanes.end();
            if (!asked || other.lane == mine.lane || other.values != mine.values ||
                other.model != mine.model || other.values.empty())
                continue;
            const int sign = compare(mine, other, result.is_task);
            ++(sign > 0 ? ahead : sign < 0 ? behind : open);
        }
    }
    return counted(ahead, behind, open, claim.lanes.front() + " is ahead");
}

std::vector<const SweepPoint*> points_of(const std::string& lane, const SweepResult& result) {
    std::vector<const SweepPoint*> points;
    for (const SweepPoint& point : result.points)
        if (point.lane == lane) points.push_back(&point);
    return points;
}

const SweepPoint* best_of(const std::vector<const SweepPoint*>& points, bool is_task) {
    return *std::max_element(points.begin(), points.end(), [&](const SweepPoint* a, const SweepPoint* b) {
        return quality(*a, is_task) < quality(*b, is_task);
    });
}

PaperVerdict judge_below_first(const SweepResult& result, const std::vector<const SweepPoint*>& points) {
    int below = 0;
    for (const SweepPoint* point : points)
        below += compare(*point, result.points.front(), result.is_task) < 0 ? 1 : 0;
    const SweepPoint& best = *best_of(points, result.is_task);
    const auto n = static_cast<int>(points.size());
    const State state = below == n                                                 ? State::holds
                        : compare(best, result.points.front(), result.is_task) < 0 ? State::holds
                                                                                   : State::open;
    return {state,
            fmt::format("{} of {} values are surely below the first lane; the best, {}, has {}.", below, n,
                        joined(best.values), amount(best, result.points.front(), result.is_task))};
}

PaperVerdict judge_best(const PaperClaim& claim, const SweepResult& result,
                        const std::vector<const SweepPoint*>& points) {
    const SweepPoint& best = *best_of(points, result.is_task);
    const auto fits = [&](const SweepPoint& point) {
        if (claim.kind == PaperClaim::Kind::best_value) return point.values.front() == claim.value;
        const double at = value_number(point.values.front());
        return at >= claim.low - 1e-9 && at <= claim.high + 1e-9;
    };
    int worse = 0, better = 0;
    std::vector<const SweepPoint*> in;
    for (const SweepPoint* point : points)
        if (fits(*point)) in.push_back(point);
    if (in.empty()) return {State::open, "the values of the paper were not measured."};
    const SweepPoint& mine = *best_of(in, result.is_task);
    for (const SweepPoint* point : points) {
        if (fits(*point)) continue;
        const int sign = compare(mine, *point, result.is_task);
        worse += sign > 0 ? 1 : 0;
        better += sign < 0 ? 1 : 0;
    }
    // Another value may be best by chance: then nothing is decided.
    const State state = better > 0 ? State::fails : worse > 0 && fits(best) ? State::holds : State::open;
    return {state, fmt::format(
                       "{}={} is best ({}); the paper's {} is surely ahead of {} and behind {} of {} others.",
                       result.varies.front().key, best.values.front(),
                       amount(best, result.points.front(), result.is_task), mine.values.front(), worse,
                       better, points.size() - in.size())};
}

PaperVerdict judge_ordered(const PaperClaim& claim, const SweepResult& result) {
    std::vector<const SweepPoint*> found;
    for (const std::string& lane : claim.lanes)
        for (const SweepPoint& point : result.points)
            if (name_of(point, result) == lane || point.lane == lane) {
                found.push_back(&point);
                break;
            }
    int ahead = 0, behind = 0, open = 0;
    std::string order;
    for (std::size_t i = 0; i < found.size(); ++i) {
        order += fmt::format("{}{} {}", i == 0 ? "" : ", ", name_of(*found[i], result),
                             amount(*found[i], result.points.front(), result.is_task));
        for (std::size_t j = i + 1; j < found.size(); ++j) {
            const int sign = compare(*found[i], *found[j], result.is_task);
            ++(sign > 0 ? ahead : sign < 0 ? behind : open);
        }
    }
    PaperVerdict verdict = counted(ahead, behind, open, "the paper's order holds");
    verdict.why = order + "; " + verdict.why;
    return verdict;
}

PaperVerdict judge_memory(const SweepResult& result) {
    int with = 0, against = 0;
    for (const SweepPoint& a : result.points)
        for (const SweepPoint& b : result.points) {
            if (a.lane != b.lane || a.values != b.values || !(a.kv_bytes > b.kv_bytes)) continue;
            const double d = quality(a, result.is_task) - quality(b, result.is_task);
            ++(d >= 0 ? with : against);
        }
    const State state = with + against == 0 ? State::open
                        : against == 0      ? State::holds
                        : against > with    ? State::fails
                                            : State::open;
    return {state, fmt::format("of {} pairs of models with unequal memory, the one with more is at least as "
                               "good in {}.",
                               with + against, with)};
}

}  // namespace

std::string verdict_text(const PaperVerdict& verdict) {
    const std::string_view label = verdict_label(verdict_word(verdict.state));
    return label.empty() ? "" : fmt::format("{}: {}", label, verdict.why);
}

std::string verdict_word(State state) {
    switch (state) {
        case State::none:
            break;
        case State::holds:
            return "holds";
        case State::fails:
            return "fails";
        case State::open:
            return "open";
        case State::unseen:
            return "unseen";
    }
    return "none";
}

PaperVerdict judge(const PaperClaim& claim, const SweepResult& result) {
    if (claim.kind == PaperClaim::Kind::none || result.points.empty()) return {};
    const double full = result.points.front().score.accuracy.value;
    if (result.is_task && full < kLeastAccuracy)
        return {State::unseen,
                fmt::format("the first lane itself answers {:.1f} % of the questions.", 100 * full)};
    if (claim.kind == PaperClaim::Kind::memory) return judge_memory(result);
    if (claim.kind == PaperClaim::Kind::ordered) return judge_ordered(claim, result);
    const std::vector<const SweepPoint*> points = points_of(claim.lanes.front(), result);
    if (points.empty()) return {State::open, fmt::format("lane {} was not measured.", claim.lanes.front())};
    if (claim.kind == PaperClaim::Kind::ahead) return judge_ahead(claim, result);
    if (claim.kind == PaperClaim::Kind::below_first) return judge_below_first(result, points);
    return judge_best(claim, result, points);
}

}  // namespace keyhole
