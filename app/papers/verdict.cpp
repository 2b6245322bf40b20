#include "app/papers/figure.h"

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

/// Returns how far a is ahead of b, question by question, over the first n.
std::vector<double> gains_of(const SweepPoint& a, const SweepPoint& b, std::size_t n, const Scale& scale) {
    const auto quality = [&](const Outcome& outcome) {
        if (scale.measure) return outcome.measures.at(*scale.measure);
        return scale.is_task ? (outcome.right ? 1.0 : 0.0) : -outcome.nats / outcome.n_tokens;
    };
    std::vector<double> gains;
    for (std::size_t i = 0; i < n; ++i) gains.push_back(quality(a.outcomes[i]) - quality(b.outcomes[i]));
    return gains;
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

/// Gathers the comparisons of a finding on one result.
class Pairs {
  public:
    Pairs(const SweepResult& result, const Scale& scale) : result_(result), scale_(scale) {
        n_ = result.points.front().outcomes.size();
        // Models with other tokenizers may cut a text into more windows.
        for (const SweepPoint& point : result.points) n_ = std::min(n_, point.outcomes.size());
        several_ = std::ranges::any_of(result.points, [&](const SweepPoint& point) {
            return point.model != result.points.front().model;
        });
    }
    void add(const SweepPoint& first, const SweepPoint& second) {
        found_.push_back({name(first) + " against " + name(second), gains_of(first, second, n_, scale_)});
    }
    /// Adds the mean of several against another.
    void add(const std::vector<const SweepPoint*>& first, std::string_view what, const SweepPoint& second) {
        FigureRecord::Comparison& mean = found_.emplace_back();
        mean.name = fmt::format("{} against {}", what, name(second));
        mean.gains.assign(n_, 0);
        for (const SweepPoint* one : first) {
            const std::vector<double> gains = gains_of(*one, second, n_, scale_);
            for (std::size_t i = 0; i < n_; ++i)
                mean.gains[i] += gains[i] / static_cast<double>(first.size());
        }
    }
    PaperVerdict decided(std::string subject) && {
        return decide({std::move(subject), scale_.is_task || scale_.measure ? "questions" : "windows",
                       std::move(found_)});
    }

  private:
    std::string name(const SweepPoint& point) const {
        const std::string lane = name_of(point, result_);
        return several_ ? fmt::format("{} on {}", lane, point.model) : lane;
    }
    const SweepResult& result_;
    const Scale& scale_;
    std::size_t n_ = 0;
    bool several_ = false;
    std::vector<FigureRecord::Comparison> found_;
};

PaperVerdict judge_ahead(const PaperClaim& claim, const SweepResult& result, const Scale& scale) {
    Pairs pairs(result, scale);
    for (const SweepPoint& mine : result.points) {
        if (mine.lane != claim.lanes.front()) continue;
        for (const SweepPoint& other : result.points) {
            const bool asked =
                claim.lanes.size() == 1 ||
                std::find(claim.lanes.begin() + 1, claim.lanes.end(), other.lane) != claim.lanes.end();
            if (asked && other.lane != mine.lane && other.values == mine.values &&
                other.model == mine.model && !other.values.empty())
                pairs.add(mine, other);
        }
    }
    return std::move(pairs).decided(claim.lanes.front());
}

std::vector<const SweepPoint*> points_of(const std::string& lane, const SweepResult& result) {
    std::vector<const SweepPoint*> points;
    for (const SweepPoint& point : result.points)
        if (point.lane == lane) points.push_back(&point);
    return points;
}

const SweepPoint& best_of(const std::vector<const SweepPoint*>& points, const Scale& scale) {
    return **std::max_element(points.begin(), points.end(), [&](const SweepPoint* a, const SweepPoint* b) {
        return quality(*a, scale) < quality(*b, scale);
    });
}

PaperVerdict judge_below_first(const SweepResult& result, const std::vector<const SweepPoint*>& points,
                               const Scale& scale) {
    Pairs pairs(result, scale);
    const SweepPoint& first = result.points.front();
    for (const SweepPoint* point : points) pairs.add(first, *point);
    PaperVerdict verdict = std::move(pairs).decided(first.lane);
    const SweepPoint& best = best_of(points, scale);
    verdict.why = fmt::format("the best, {}, has {}; {}", name_of(best, result), amount(best, first, scale),
                              verdict.why);
    return verdict;
}

/// Several values of the paper stand for their mean: the best of them would be the best by chance too.
PaperVerdict judge_best(const PaperClaim& claim, const SweepResult& result,
                        const std::vector<const SweepPoint*>& points, const Scale& scale) {
    const auto fits = [&](const SweepPoint& point) {
        if (claim.kind == PaperClaim::Kind::best_value) return point.values.front() == claim.value;
        const double at = value_number(point.values.front());
        return at >= claim.low - 1e-9 && at <= claim.high + 1e-9;
    };
    std::vector<const SweepPoint*> in;
    std::string what;
    for (const SweepPoint* point : points) {
        if (!fits(*point)) continue;
        in.push_back(point);
        what +=
            fmt::format("{}{}", what.empty() ? result.varies.front().key + "=" : ", ", point->values.front());
    }
    if (in.empty()) return {State::open, "the values of the paper were not measured."};
    if (in.size() > 1) what = "the mean of " + what;
    Pairs pairs(result, scale);
    for (const SweepPoint* point : points)
        if (!fits(*point)) pairs.add(in, what, *point);
    PaperVerdict verdict = std::move(pairs).decided(what);
    const SweepPoint& best = best_of(points, scale);
    verdict.why = fmt::format("{}={} is best ({}); {}", result.varies.front().key, best.values.front(),
                              amount(best, result.points.front(), scale), verdict.why);
    return verdict;
}

PaperVerdict judge_ordered(const PaperClaim& claim, const SweepResult& result, const Scale& scale) {
    std::vector<const SweepPoint*> found;
    for (const std::string& lane : claim.lanes)
        for (const SweepPoint& point : result.points)
            if (name_of(point, result) == lane || point.lane == lane) {
                found.push_back(&point);
                break;
            }
    Pairs pairs(result, scale);
    std::string order;
    for (std::size_t i = 0; i < found.size(); ++i) {
        order += fmt::format("{}{} {}", i == 0 ? "" : ", ", name_of(*found[i], result),
                             amount(*found[i], result.points.front(), scale));
        for (std::size_t j = i + 1; j < found.size(); ++j) pairs.add(*found[i], *found[j]);
    }
    PaperVerdict verdict = std::move(pairs).decided("the lane that the paper puts first");
    verdict.why = order + "; " + verdict.why;
    return verdict;
}

PaperVerdict judge_memory(const SweepResult& result, const Scale& scale) {
    Pairs pairs(result, scale);
    for (const SweepPoint& a : result.points)
        for (const SweepPoint& b : result.points)
            if (a.lane == b.lane && a.values == b.values && a.kv_bytes > b.kv_bytes) pairs.add(a, b);
    return std::move(pairs).decided("the model with more memory");
}

}  // namespace

std::optional<std::size_t> measure_of(const PaperClaim& claim, const SweepResult& result) {
    if (result.measures.empty()) return std::nullopt;
    for (std::size_t m = 0; m < result.measures.size(); ++m)
        if (result.measures[m].name == claim.measure) return m;
    return 0;
}

PaperVerdict judge(const PaperClaim& claim, const SweepResult& measured) {
    SweepResult result = measured;
    std::erase_if(result.points, [](const SweepPoint& point) { return point.is_bound; });
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
