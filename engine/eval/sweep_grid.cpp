#include "engine/eval/sweep_grid.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace keyhole {

namespace {

constexpr std::size_t kMostValues = 1000;

constexpr std::size_t kMostCells = 10'000;

double number_or_nan(std::string_view text) {
    return number_from_text<double>(text).value_or(std::numeric_limits<double>::quiet_NaN());
}

std::string_view without_percent(std::string_view text, bool* percent) {
    if (!text.ends_with('%')) return text;
    *percent = true;
    return text.substr(0, text.size() - 1);
}

void add_range(Vary& vary, std::string_view where, std::string_view item) {
    const auto refuse = [&](std::string_view why) {
        fail(ErrorCode::wrong_use, "{}: the range '{}' {}; write 64..1024*2 or 0..1+0.1", where,
             shown_text(item), why);
    };
    const std::size_t dots = item.find(".."), mark = item.find_first_of("*+", dots);
    if (mark == std::string_view::npos) refuse("has no step");
    bool percent = false;
    const double low = number_or_nan(without_percent(item.substr(0, dots), &percent)),
                 high = number_or_nan(without_percent(item.substr(dots + 2, mark - dots - 2), &percent)),
                 step = number_or_nan(without_percent(item.substr(mark + 1), &percent));
    const bool factor = item[mark] == '*';
    if (std::isnan(low) || std::isnan(high) || std::isnan(step)) refuse("is not made of numbers");
    if (!(low <= high)) refuse("runs backwards");
    if (factor ? !(step > 1 && low > 0) : !(step > 0)) refuse("never gets to its end");
    vary.geometric = vary.geometric || factor;
    const double slack = 1e-9 * std::max(std::abs(high), 1.0);
    for (int i = 0;; ++i) {
        const double value = factor ? low * std::pow(step, i) : low + i * step;
        if (value > high + slack) break;
        // Ten digits remove the rounding of 0.1 * 3.
        vary.values.push_back(fmt::format("{:.10g}{}", value, percent ? "%" : ""));
        if (vary.values.size() > kMostValues) refuse(fmt::format("has more than {} values", kMostValues));
    }
}

/// Returns the first comma outside parentheses, or the end.
std::size_t next_comma(std::string_view text) {
    int depth = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        if (text[i] == ',' && depth <= 0) return i;
    }
    return text.size();
}

/// has_schedules: a range without a step is one value.
void add_values(Vary& vary, std::string_view where, std::string_view rest, bool has_schedules) {
    while (!rest.empty()) {
        const std::size_t comma = next_comma(rest);
        const std::string_view item = rest.substr(0, comma);
        if (item.find("..") != std::string_view::npos &&
            !(has_schedules && item.find_first_of("*+") == std::string_view::npos))
            add_range(vary, where, item);
        else
            vary.values.emplace_back(item);
        if (vary.values.size() > kMostValues)
            fail(ErrorCode::wrong_use, "{}: it has more than {} values", where, kMostValues);
        rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
}

/// Returns whether the key applies to a lane that keeps everything: only those of K and V do.
bool varies_full(const Vary& vary) {
    return vary.key == "kv" || vary.key == "merge" || vary.key == "compensate" || vary.key == "kv_dtype";
}

}  // namespace

Vary parse_vary(std::string_view text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals + 1 == text.size())
        fail(ErrorCode::wrong_use, "--vary '{}' has no values; write budget=64..1024*2 or scope=head,layer",
             shown_text(text));
    Vary vary;
    vary.key = text.substr(0, equals);
    // Overrides can be varied too: alpha@L0-3.
    const std::string_view name = std::string_view(vary.key).substr(0, vary.key.find('@'));
    const std::vector<std::string_view> known = lane_spec_keys();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
        std::string names;
        for (std::string_view key : known) names += fmt::format(" {}", key);
        fail(ErrorCode::wrong_use, "--vary: lanes have no key '{}'; keys are{}", shown_text(name), names);
    }
    // tau=1..2 is one value; a range has a step.
    add_values(vary, fmt::format("--vary {}", shown_text(vary.key)), text.substr(equals + 1), name == "tau");
    return vary;
}

std::vector<std::string> parse_values(std::string_view where, std::string_view items) {
    Vary vary;
    add_values(vary, where, items, false);
    return vary.values;
}

std::vector<GridCell> make_grid(const std::vector<LaneSpec>& lanes, const std::vector<Vary>& varies,
                                const std::vector<std::string>& names) {
    std::set<std::string_view> keys;
    for (const Vary& vary : varies)
        if (!keys.insert(vary.key).second)
            fail(ErrorCode::wrong_use, "--vary {} is given twice; name all its values in one", vary.key);
    double n_cells = static_cast<double>(lanes.size());
    for (const Vary& vary : varies) n_cells *= static_cast<double>(vary.values.size());
    if (n_cells > kMostCells)
        fail(ErrorCode::wrong_use, "--vary asks for {} lanes; a grid has at most {}", n_cells, kMostCells);
    std::vector<GridCell> cells;
    std::set<std::string> specs;
    const auto add = [&](GridCell cell) {
        if (specs.insert(format_lane_spec(cell.spec)).second) cells.push_back(std::move(cell));
    };
    for (std::size_t index = 0; index < lanes.size(); ++index) {
        const LaneSpec& lane = lanes[index];
        const bool is_named = index < names.size() && !names[index].empty();
        const std::string name = is_named ? names[index] : format_lane_spec(lane);
        const bool is_full = lane.policy.preset == Preset::full;
        if (is_full && std::none_of(varies.begin(), varies.end(), varies_full)) {
            add({lane, name, static_cast<int>(index), {}});
            continue;
        }
        std::vector<std::size_t> at(varies.size(), 0);
        for (bool more = true; more;) {
            GridCell cell{lane, name, static_cast<int>(index), {}};
            for (std::size_t i = 0; i < varies.size(); ++i) {
                const bool varies_it = !is_full || varies_full(varies[i]);
                cell.values.push_back(varies_it ? varies[i].values[at[i]] : std::string());
                if (!varies_it) continue;
                cell.spec = changed_lane_spec(std::move(cell.spec), varies[i].key + "=" + cell.values.back());
            }
            add(std::move(cell));
            more = false;
            for (std::size_t i = varies.size(); i-- > 0 && !more;) {
                more = ++at[i] < varies[i].values.size();
                if (!more) at[i] = 0;
            }
        }
    }
    return cells;
}

double value_number(std::string_view value) {
    bool percent = false;
    return number_or_nan(without_percent(value, &percent));
}

}  // namespace keyhole
