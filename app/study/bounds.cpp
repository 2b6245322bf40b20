#include "app/study/bounds.h"

#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/eval/sign_flips.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace keyhole {

namespace {

/// The value of a question: right or not, or -ln p.
double value_of(const QuestionSet& set, const Outcome& outcome) {
    return set.is_task ? (outcome.right ? 1.0 : 0.0) : outcome.nats;
}

}  // namespace

std::vector<Floor> compare_with_floor(const QuestionSet& set, std::span<const LaneSpec> lanes,
                                      std::size_t n_own, std::span<const std::vector<Outcome>> outcomes) {
    std::vector<Floor> floors;
    for (std::size_t i = n_own; i < lanes.size(); ++i) {
        if (lanes[i].policy.preset != Preset::random) continue;
        const std::string spec = floor_of(lanes[i]);
        auto floor =
            std::find_if(floors.begin(), floors.end(), [&](const Floor& f) { return f.spec == spec; });
        if (floor == floors.end()) floor = floors.insert(floors.end(), Floor{spec, {}, {}, {}});
        floor->seeds.push_back(i);
    }
    std::vector<Gains> comparisons;
    std::vector<AboveFloor*> compared;
    for (Floor& floor : floors) {
        const std::size_t n = outcomes[floor.seeds.front()].size();
        std::vector<double> mean(n, 0), per_unit(n, 0);
        for (std::size_t q = 0; q < n; ++q) {
            for (const std::size_t lane : floor.seeds) mean[q] += value_of(set, outcomes[lane][q]);
            mean[q] /= static_cast<double>(floor.seeds.size());
            per_unit[q] =
                set.is_task ? mean[q] : mean[q] / std::max(outcomes[floor.seeds.front()][q].n_tokens, 1);
        }
        if (n == 0) continue;
        floor.value = set.is_task ? mean_of_shares(per_unit) : mean_estimate(per_unit);
        floor.value.interval.low = std::max(floor.value.interval.low, 0.0);  // keeps NaN
        for (std::size_t lane = 0; lane < n_own; ++lane) {
            if (!has_floor(lanes[lane]) || floor_of(lanes[lane]) != floor.spec) continue;
            Gains gains;
            for (std::size_t q = 0; q < n; ++q) {
                const double own = value_of(set, outcomes[lane][q]);
                gains.push_back(set.is_task ? own - mean[q] : mean[q] - own);
            }
            floor.lanes.push_back({lane, set.is_task ? mean_of_differences(gains) : mean_estimate(gains)});
            comparisons.push_back(std::move(gains));
        }
    }
    if (comparisons.empty()) return floors;
    const SignFlips flips = sign_flips(comparisons);
    std::size_t next = 0;
    for (Floor& floor : floors)
        for (AboveFloor& lane : floor.lanes) {
            const SignFlips::Comparison& comparison = flips.comparisons[next++];
            lane.p = comparison.p;
            const bool sure = flips.n_telling >= kLeastSamples && comparison.p <= kSureP;
            lane.surely_above = sure && comparison.lead > 0;
            lane.surely_below = sure && comparison.lead < 0;
            if (!sure && comparison.spread > 0)
                lane.needed = samples_needed(comparison.lead / comparison.spread,
                                             static_cast<int>(comparisons.front().size()),
                                             static_cast<int>(comparisons.size()));
        }
    return floors;
}

namespace {

/// Returns what a lane protects, with what single heads protect in its place.
std::string protected_words(const PolicyParams& policy) {
    std::string text = policy.protect.text;
    for (const Override& o : policy.overrides)
        if (o.field == Override::Field::protect)
            text += fmt::format(", @{}={}", format_override_heads(o), o.formula.text);
    return text;
}

}  // namespace

std::string protection_text(std::span<const std::string> labels, std::span<const LaneSpec> lanes,
                            std::size_t n_own) {
    std::vector<std::pair<std::string, std::string>> kinds;  // what is protected, and the lanes
    for (std::size_t i = 0; i < n_own; ++i) {
        if (!has_floor(lanes[i])) continue;
        const std::string what = protected_words(lanes[i].policy);
        auto kind = std::ranges::find(kinds, what, &std::pair<std::string, std::string>::first);
        if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {what, ""});
        kind->second += (kind->second.empty() ? "" : ", ") + labels[i];
    }
    if (kinds.size() < 2) return "";
    std::string text = "lanes protect different tokens, which alone may decide between them:\n";
    for (const auto& [what, of] : kinds) text += fmt::format("  protect={}: {}\n", what, of);
    return text;
}

namespace {

/// Returns the value of a floor with its interval; one window alone has none.
std::string floor_value(const QuestionSet& set, const Estimate& v) {
    const auto shown = [&](double x) {
        return set.is_task ? fmt::format("{:.1f}", 100 * x) : fmt::format("{:.3f}", std::exp(x));
    };
    const std::string value = set.is_task ? shown(v.value) + " % right" : "perplexity " + shown(v.value);
    if (!std::isfinite(v.interval.low) || !std::isfinite(v.interval.high)) return value;
    return value + fmt::format(" ({} .. {})", shown(v.interval.low), shown(v.interval.high));
}

}  // namespace

std::string floor_text(const QuestionSet& set, std::span<const std::string> labels,
                       std::span<const Floor> floors) {
    std::string text;
    for (const Floor& floor : floors) {
        text += fmt::format("floor {}, mean of {} seed{}: {}\n", floor.spec, floor.seeds.size(),
                            floor.seeds.size() == 1 ? "" : "s", floor_value(set, floor.value));
        for (const AboveFloor& lane : floor.lanes) {
            const char* verdict = lane.surely_above   ? "surely above random"
                                  : lane.surely_below ? "surely below random"
                                                      : "not surely another than random";
            text += set.is_task ? fmt::format("  {}: {} ({:+.1f} points, p = {:.3f})\n", labels[lane.lane],
                                              verdict, 100 * lane.gain.value, lane.p)
                                : fmt::format("  {}: {} ({:+.2f} nats a window, p = {:.3f})\n",
                                              labels[lane.lane], verdict, lane.gain.value, lane.p);
            if (!lane.surely_above && !lane.surely_below)
                text += fmt::format("    {}\n", needed_text(lane.needed, lane.gain.value,
                                                            set.is_task ? "questions" : "windows"));
        }
    }
    return text;
}

nlohmann::json floor_json(const QuestionSet& set, std::span<const LaneSpec> lanes,
                          std::span<const Floor> floors) {
    const auto number = [](double value) {
        return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
    };
    nlohmann::json list = nlohmann::json::array();
    for (const Floor& floor : floors) {
        nlohmann::json one = {
            {"questions", set.name},
            {"spec", floor.spec},
            {"seeds", floor.seeds.size()},
            {set.is_task ? "accuracy" : "nats_per_token", number(floor.value.value)},
            {"interval", {number(floor.value.interval.low), number(floor.value.interval.high)}},
            {"lanes", nlohmann::json::array()}};
        for (const AboveFloor& lane : floor.lanes)
            one["lanes"].push_back(
                {{"spec", format_lane_spec(lanes[lane.lane])},
                 {"gain", number(lane.gain.value)},
                 {"gain_interval", {number(lane.gain.interval.low), number(lane.gain.interval.high)}},
                 {"p", lane.p},
                 {"surely_above_random", lane.surely_above},
                 {"surely_below_random", lane.surely_below},
                 {"samples_needed", lane.needed ? nlohmann::json(*lane.needed) : nlohmann::json(nullptr)}});
        list.push_back(std::move(one));
    }
    return list;
}

JoinedAnswers::JoinedAnswers() {
    set_.name = "all";
    set_.is_task = true;
}

void JoinedAnswers::add(const QuestionSet& set, std::span<const std::vector<Outcome>> outcomes) {
    set_.is_task = set_.is_task && set.is_task;
    set_.n_questions += set.n_questions;
    outcomes_.resize(outcomes.size());
    for (std::size_t lane = 0; lane < outcomes.size(); ++lane)
        outcomes_[lane].insert(outcomes_[lane].end(), outcomes[lane].begin(), outcomes[lane].end());
}

std::vector<Floor> JoinedAnswers::floors(std::span<const LaneSpec> lanes, std::size_t n_own) const {
    if (outcomes_.empty()) return {};
    return compare_with_floor(set_, lanes, n_own, outcomes_);
}

std::string JoinedAnswers::text(std::string_view what, std::span<const std::string> labels,
                                std::span<const Floor> floors) const {
    if (floors.empty()) return "";
    return fmt::format("{} together, {}\n", what, counted(set_.n_questions, "question")) +
           floor_text(set_, labels, floors);
}

nlohmann::json JoinedAnswers::json(std::span<const LaneSpec> lanes, std::span<const Floor> floors) const {
    return floor_json(set_, lanes, floors);
}

}  // namespace keyhole
