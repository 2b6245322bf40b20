#include "app/cli/figures/figure.h"

#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace keyhole {

namespace {

using State = PaperVerdict::State;

/// What the points of a result are compared by.
struct Scale {
    explicit Scale(const PaperClaim& claim, const SweepResult& result)
        : is_task(result.is_task), kinds(result.measures), measure(measure_of(claim, result)) {}
    bool more_is_better() const { return is_task || measure; }
    bool is_task;
    std::vector<MeasureKind> kinds;
    std::optional<std::size_t> measure;  ///< of the user's own questions
};

/// A full cache that answers less than this share cannot show what eviction costs.
constexpr double kLeastAccuracy = 0.2;

/// Returns +1 where a is surely ahead of b, -1 where it is surely behind, 0 where the interval holds 0.
int compare(const SweepPoint& a, const SweepPoint& b, const Scale& scale) {
    QuestionSet set;
    set.measures = scale.kinds;
    const LaneScore pair = score_lane(set, a.outcomes, b.outcomes);
    const Interval& d = scale.measure   ? pair.measures[*scale.measure].difference.interval
                        : scale.is_task ? pair.accuracy_difference.interval
                                        : pair.nats_difference.interval;
    if (!(d.low > 0) && !(d.high < 0)) return 0;  // NaN too
    return (d.low > 0) == scale.more_is_better() ? 1 : -1;
}

const Estimate& estimate_of(const SweepPoint& point, const Scale& scale) {
    if (scale.measure) return point.score.measures[*scale.measure].value;
    return scale.is_task ? point.score.accuracy : point.score.nats;
}

double quality(const SweepPoint& point, const Scale& scale) {
    const double value = estimate_of(point, scale).value;
    return scale.more_is_better() ? value : -value;
}

std::string amount(const SweepPoint& point, const SweepPoint& first, const Scale& scale) {
    if (scale.more_is_better()) return fmt::format("{:.1f} %", 100 * estimate_of(point, scale).value);
    return fmt::format("{:.3f} of the first lane's perplexity",
                       point.score.perplexity / first.score.perplexity);
}

std::string name_of(const SweepPoint& point, const SweepResult& result) {
    return lane_label(point.lane, point.values, result.varies);
}

/// A finding about all pairs needs half of them at least: a few may be sure by chance.
bool enough(int sure, int all) {
    return sure > 0 && 2 * sure >= all;
}

PaperVerdict counted(int ahead, int behind, int open, std::string_view what) {
    const State state = behind > 0 ? State::fails : enough(ahead, ahead + open) ? State::holds : State::open;
    return {state, fmt::format("{} in {} of {} comparisons, behind in {}; {} cannot be decided.", what, ahead,
                               ahead + behind + open, behind, open)};
}

PaperVerdict judge_ahead(const PaperClaim& claim, const SweepResult& result, const Scale& scale) {
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
            const int sign = compare(mine, other, scale);
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

const SweepPoint* best_of(const std::vector<const SweepPoint*>& points, const Scale& scale) {
    return *std::max_element(points.begin(), points.end(), [&](const SweepPoint* a, const SweepPoint* b) {
        return quality(*a, scale) < quality(*b, scale);
    });
}

PaperVerdict judge_below_first(const SweepResult& result, const std::vector<const SweepPoint*>& points,
                               const Scale& scale) {
    int below = 0;
    for (const SweepPoint* point : points) below += compare(*point, result.points.front(), scale) < 0 ? 1 : 0;
    const SweepPoint& best = *best_of(points, scale);
    const auto n = static_cast<int>(points.size());
    const State state = below == n                                        ? State::holds
                        : compare(best, result.points.front(), scale) < 0 ? State::holds
                                                                          : State::open;
    return {state, fmt::format("{} of {} values are surely below the first lane; the best, {}, has {}.",
                               below, n, name_of(best, result), amount(best, result.points.front(), scale))};
}

PaperVerdict judge_best(const PaperClaim& claim, const SweepResult& result,
                        const std::vector<const SweepPoint*>& points, const Scale& scale) {
    const SweepPoint& best = *best_of(points, scale);
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
    const SweepPoint& mine = *best_of(in, scale);
    for (const SweepPoint* point : points) {
        if (fits(*point)) continue;
        const int sign = compare(mine, *point, scale);
        worse += sign > 0 ? 1 : 0;
        better += sign < 0 ? 1 : 0;
    }
    // Another value may be best by chance: then nothing is decided.
    const auto n_others = static_cast<int>(points.size() - in.size());
    const State state = better > 0                              ? State::fails
                        : enough(worse, n_others) && fits(best) ? State::holds
                                                                : State::open;
    return {state,
            fmt::format(
                "{}={} is best ({}); the paper's {} is surely ahead of {} and behind {} of {} others.",
                result.varies.front().key, best.values.front(), amount(best, result.points.front(), scale),
                mine.values.front(), worse, better, n_others)};
}

PaperVerdict judge_ordered(const PaperClaim& claim, const SweepResult& result, const Scale& scale) {
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
                             amount(*found[i], result.points.front(), scale));
        for (std::size_t j = i + 1; j < found.size(); ++j) {
            const int sign = compare(*found[i], *found[j], scale);
            ++(sign > 0 ? ahead : sign < 0 ? behind : open);
        }
    }
    PaperVerdict verdict = counted(ahead, behind, open, "the paper's order holds");
    verdict.why = order + "; " + verdict.why;
    return verdict;
}

/// Models may have questions of their own, so that their intervals are compared and not pairs of answers.
PaperVerdict judge_memory(const SweepResult& result, const Scale& scale) {
    int with = 0, against = 0, open = 0;
    for (const SweepPoint& a : result.points)
        for (const SweepPoint& b : result.points) {
            if (a.lane != b.lane || a.values != b.values || !(a.kv_bytes > b.kv_bytes)) continue;
            const Interval &more = estimate_of(a, scale).interval, &less = estimate_of(b, scale).interval;
            const bool above = more.low > less.high, below = more.high < less.low;
            ++(above || below ? (above == scale.more_is_better() ? with : against) : open);
        }
    const State state = against > 0 ? State::fails : with > 0 ? State::holds : State::open;
    return {state,
            fmt::format("of {} pairs of models with unequal memory, the one with more is surely better "
                        "in {}, surely worse in {}; {} cannot be decided.",
                        with + against + open, with, against, open)};
}

}  // namespace

std::optional<std::size_t> measure_of(const PaperClaim& claim, const SweepResult& result) {
    if (result.measures.empty()) return std::nullopt;
    for (std::size_t m = 0; m < result.measures.size(); ++m)
        if (result.measures[m].name == claim.measure) return m;
    return 0;
}

PaperVerdict judge(const PaperClaim& claim, const SweepResult& result) {
    if (claim.kind == PaperClaim::Kind::none || result.points.empty()) return {};
    const Scale scale(claim, result);
    const double full = estimate_of(result.points.front(), scale).value;
    if (!scale.measure && result.is_task && full < kLeastAccuracy)
        return {State::unseen,
                fmt::format("the first lane itself answers {:.1f} % of the questions.", 100 * full)};
    if (scale.measure && full <= 0)
        return {State::unseen,
                fmt::format("the first lane itself has 0 % of {}.", result.measures[*scale.measure].label)};
    const auto verdict = [&]() -> PaperVerdict {
        if (claim.kind == PaperClaim::Kind::memory) return judge_memory(result, scale);
        if (claim.kind == PaperClaim::Kind::ordered) return judge_ordered(claim, result, scale);
        const std::vector<const SweepPoint*> points = points_of(claim.lanes.front(), result);
        if (points.empty())
            return {State::open, fmt::format("lane {} was not measured.", claim.lanes.front())};
        if (claim.kind == PaperClaim::Kind::ahead) return judge_ahead(claim, result, scale);
        if (claim.kind == PaperClaim::Kind::below_first) return judge_below_first(result, points, scale);
        return judge_best(claim, result, points, scale);
    };
    PaperVerdict found = verdict();
    if (scale.measure) found.why = fmt::format("by {}, {}", result.measures[*scale.measure].label, found.why);
    return found;
}

}  // namespace keyhole
