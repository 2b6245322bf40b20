#include "app/study/lane_search.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/eval/sweep_grid.h"
#include "engine/policy/option_help.h"
#include "engine/policy/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

namespace {

/// Returns the n-th number of Halton's sequence in this base, 0 to 1.
double halton(int n, int base) {
    double value = 0, part = 1;
    for (; n > 0; n /= base) {
        part /= base;
        value += part * (n % base);
    }
    return value;
}

/// Returns the value of a key or of an override in a lane; empty if it has none.
std::string setting_of(const LaneSpec& lane, const std::string& key) {
    for (const LaneSetting& setting : lane_settings(lane))
        if (setting.key == key) return setting.value;
    return {};
}

}  // namespace

SearchRange parse_search_range(std::string_view text) {
    const auto refuse = [&](std::string_view why) {
        fail(ErrorCode::wrong_use, "--vary '{}': {}; write alpha=0..1, recent=8..64 or recent=10%..50%",
             shown_text(text), why);
    };
    const std::size_t equals = text.rfind('='), dots = text.find("..", equals + 1);
    if (equals == std::string_view::npos || equals == 0 || dots == std::string_view::npos)
        refuse("it is no range");
    SearchRange range;
    range.name = text.substr(0, equals);
    std::string_view low = text.substr(equals + 1, dots - equals - 1), high = text.substr(dots + 2);
    if (high.ends_with('%')) {
        range.unit = "%";
        high.remove_suffix(1);
        if (low.ends_with('%')) low.remove_suffix(1);
    }
    const auto from = number_from_text<double>(low, -1e9), to = number_from_text<double>(high, -1e9);
    for (const auto& [end, number] : {std::pair{low, from}, std::pair{high, to}})
        if (!number || *number > 1e9)
            refuse(fmt::format("'{}' is no number; a range has two ends and no step", shown_text(end)));
    if (*from >= *to) refuse(*from > *to ? "the lower end comes first" : "both ends are the same");
    range.low = *from;
    range.high = *to;
    return range;
}

SearchSpace::SearchSpace(std::string text, std::vector<SearchRange> ranges)
    : text_(std::move(text)), ranges_(std::move(ranges)) {
    if (ranges_.empty() || ranges_.size() > kMostRanges)
        fail(ErrorCode::wrong_use, "a search varies 1 to {} numbers; give --vary KEY=LOW..HIGH", kMostRanges);
    const std::vector<double> middle(ranges_.size(), 0.5);
    for (std::size_t i = 0; i < ranges_.size(); ++i)
        for (std::size_t other = 0; other < i; ++other)
            if (ranges_[i].name == ranges_[other].name)
                fail(ErrorCode::wrong_use, "--vary {} is given twice", shown_text(ranges_[i].name));
    for (std::size_t i = 0; i < ranges_.size(); ++i)
        if (!is_in_braces(i)) check_key(i);
    const std::string filled = text_at(middle);
    if (const std::size_t open = filled.find('{'); open != std::string::npos)
        fail(ErrorCode::wrong_use, "the lane has {}, and no --vary says between which values it may be",
             shown_text(filled.substr(open, filled.find('}', open) - open + 1)));
    const LaneSpec lane = parse_lane_spec(filled);
    if (lane.policy.preset == Preset::full)
        fail(ErrorCode::wrong_use,
             "the lane '{}' evicts nothing, so no number of it can be searched; give one with a budget, such "
             "as h2o:budget=64",
             shown_text(filled));
    // A number is whole where the spec refuses another.
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
        SearchRange& range = ranges_[i];
        if (is_in_braces(i)) continue;
        const double inside = std::floor((range.low + range.high) / 2);
        try {
            (void)changed_lane_spec(lane, fmt::format("{}={}{}", range.name, inside + 0.5, range.unit));
        } catch (const Error&) {
            range.is_whole = true;
            (void)changed_lane_spec(lane, fmt::format("{}={}{}", range.name, inside, range.unit));
        }
    }
    for (std::size_t i = 0; i < ranges_.size(); ++i)
        if (!is_in_braces(i)) check_effect(i);
}

bool SearchSpace::is_in_braces(std::size_t range) const {
    return text_.find("{" + ranges_[range].name + "}") != std::string::npos;
}

/// Refuses a range of something that the lane does not have, and values that its key never takes.
void SearchSpace::check_key(std::size_t i) const {
    const SearchRange& range = ranges_[i];
    const std::string key = range.name.substr(0, range.name.find('@'));
    const auto known = std::ranges::find(lane_keys(), key, &LaneOption::name);
    if (known == lane_keys().end())
        fail(ErrorCode::wrong_use, "--vary {0}: the lane has no {{{0}}}, and {0} is no key of a lane",
             shown_text(range.name));
    if (range.unit.empty() && known->bounds &&
        (range.low < known->bounds->low || range.high > known->bounds->high))
        fail(ErrorCode::wrong_use, "--vary {}={:g}..{:g}: {} is a number from {:g} to {:g}",
             shown_text(range.name), range.low, range.high, key, known->bounds->low, known->bounds->high);
}

/// Refuses a range of which no value changes what the lane does.
void SearchSpace::check_effect(std::size_t range) const {
    const std::string& name = ranges_[range].name;
    std::string reason;
    for (const double end : {0.0, 0.5, 1.0}) {
        std::vector<double> place(ranges_.size(), 0.5);
        place[range] = end;
        try {
            LaneSpec lane = at(std::move(place)).lane;
            // The search gives the lane a budget of its bytes.
            if (lane.policy.budget.unit == Amount::Unit::all)
                lane = changed_lane_spec(std::move(lane), "budget=64");
            reason = no_effect_reason(lane.policy, name.substr(0, name.find('@')));
        } catch (const Error&) {
            return;  // whether it has an effect is not known
        }
        if (reason.empty()) return;
    }
    fail(ErrorCode::wrong_use, "--vary {}: none of its values changes the lane; leave it out. {}",
         shown_text(name), reason);
}

bool SearchSpace::varies_budget() const {
    return std::ranges::any_of(ranges_, [](const SearchRange& range) { return range.name == "budget"; });
}

std::string SearchSpace::value_at(std::size_t i, double place) const {
    const SearchRange& range = ranges_[i];
    const double value = range.low + place * (range.high - range.low);
    if (range.is_whole) return fmt::format("{:.0f}{}", std::round(value), range.unit);
    // A thousandth of the range is as fine as it need be.
    const double step = std::pow(10, std::floor(std::log10((range.high - range.low) / 1000)));
    return fmt::format("{:.6g}{}", std::round(value / step) * step, range.unit);
}

std::string SearchSpace::text_at(std::span<const double> place) const {
    std::string text = text_;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
        const std::string name = "{" + ranges_[i].name + "}";
        for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name))
            text.replace(at, name.size(), value_at(i, place[i]));
    }
    return text;
}

SearchTry SearchSpace::given() const {
    SearchTry one{{}, std::vector<double>(ranges_.size(), 0.5), {}, true};
    one.lane = parse_lane_spec(text_at(one.at));
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
        const SearchRange& range = ranges_[i];
        one.values.push_back(is_in_braces(i) ? value_at(i, 0.5) : setting_of(one.lane, range.name));
        const double value = value_number(one.values.back());
        if (std::isfinite(value) && one.values.back().ends_with('%') == !range.unit.empty())
            one.at[i] = std::clamp((value - range.low) / (range.high - range.low), 0.0, 1.0);
    }
    return one;
}

SearchTry SearchSpace::at(std::vector<double> place) const {
    SearchTry one{parse_lane_spec(text_at(place)), std::move(place), {}, false};
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
        one.values.push_back(value_at(i, one.at[i]));
        if (!is_in_braces(i))
            one.lane = changed_lane_spec(std::move(one.lane), ranges_[i].name + "=" + one.values.back());
    }
    return one;
}

bool fit_bytes(LaneSpec& lane, bool keeps_budget, int most, double total,
               const std::function<double(const LaneSpec&)>& bytes_of) {
    if (keeps_budget) return bytes_of(lane) <= total;
    const auto with = [&](int budget) { return changed_lane_spec(lane, fmt::format("budget={}", budget)); };
    if (bytes_of(with(1)) > total) return false;
    int low = 1, high = most;  // low fits
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (bytes_of(with(middle)) <= total)
            low = middle;
        else
            high = middle - 1;
    }
    lane = with(low);
    return true;
}

LaneSearch::LaneSearch(SearchSpace space, std::uint64_t seed, std::function<bool(LaneSpec&)> fit)
    : space_(std::move(space)), random_(seed), fit_(std::move(fit)) {}

void LaneSearch::add(SearchTry one, std::vector<SearchTry>& tries) {
    if (!fit_(one.lane)) {
        ++n_refused_;
        return;
    }
    const std::string spec = format_lane_spec(one.lane);
    if (std::find(known_.begin(), known_.end(), spec) != known_.end()) return;
    known_.push_back(spec);
    tries.push_back(std::move(one));
}

void LaneSearch::propose(std::vector<double> place, bool is_wide, std::vector<SearchTry>& tries) {
    try {
        SearchTry one = space_.at(std::move(place));
        one.is_wide = is_wide;
        add(std::move(one), tries);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::wrong_use) throw;
        ++n_refused_;
    }
}

std::vector<SearchTry> LaneSearch::wide(int n) {
    constexpr std::array kBases = {2, 3, 5, 7, 11, 13, 17, 19};
    static_assert(kBases.size() == SearchSpace::kMostRanges);
    std::vector<SearchTry> tries;
    add(space_.given(), tries);
    std::vector<double> shift;
    for (std::size_t i = 0; i < space_.ranges().size(); ++i) shift.push_back(uniform());
    for (int k = 1; static_cast<int>(tries.size()) < n && k <= 20 * n; ++k) {
        std::vector<double> place;
        for (std::size_t i = 0; i < shift.size(); ++i) {
            const double x = halton(k, kBases[i]) + shift[i];
            place.push_back(x - std::floor(x));
        }
        propose(std::move(place), true, tries);
    }
    return tries;
}

std::vector<SearchTry> LaneSearch::near(std::span<const double> place, double reach, int n) {
    std::vector<SearchTry> tries;
    for (int k = 0; static_cast<int>(tries.size()) < n && k < 50 * n; ++k) {
        std::vector<double> moved(place.begin(), place.end());
        for (double& x : moved) {
            const double away = (uniform() + uniform() + uniform() - 1.5) * 2;  // a bell from -3 to 3
            x = std::clamp(x + reach * away, 0.0, 1.0);
        }
        propose(std::move(moved), false, tries);
    }
    return tries;
}

}  // namespace keyhole
