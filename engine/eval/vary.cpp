#include "engine/eval/vary.h"

#include "engine/base/error.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

constexpr std::size_t kMostValues = 1000;

double read_number(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size()
               ? value
               : std::numeric_limits<double>::quiet_NaN();
}

std::string_view without_percent(std::string_view text, bool* percent) {
    if (!text.ends_with('%')) return text;
    *percent = true;
    return text.substr(0, text.size() - 1);
}

void add_range(Vary& vary, std::string_view item) {
    const auto refuse = [&](std::string_view why) {
        fail(ErrorCode::wrong_use, "--vary {}: the range '{}' {}; write 64..1024*2 or 0..1+0.1", vary.key,
             item, why);
    };
    const std::size_t dots = item.find(".."), mark = item.find_first_of("*+", dots);
    if (mark == std::string_view::npos) refuse("has no step");
    bool percent = false;
    const double low = read_number(without_percent(item.substr(0, dots), &percent)),
                 high = read_number(without_percent(item.substr(dots + 2, mark - dots - 2), &percent)),
                 step = read_number(without_percent(item.substr(mark + 1), &percent));
    const bool factor = item[mark] == '*';
    if (std::isnan(low) || std::isnan(high) || std::isnan(step)) refuse("is not made of numbers");
    if (!(low <= high)) refuse("runs backwards");
    if (factor ? !(step > 1 && low > 0) : !(step > 0)) refuse("never gets to its end");
    vary.geometric = vary.geometric || factor;
    const double slack = 1e-9 * std::max(std::abs(high), 1.0);
    for (int i = 0;; ++i) {
        const double value = factor ? low * std::pow(step, i) : low + i * step;
        if (value > high + slack) break;
        // Ten digits take the rounding of 0.1 * 3 away.
        vary.values.push_back(fmt::format("{:.10g}{}", value, percent ? "%" : ""));
        if (vary.values.size() > kMostValues) refuse(fmt::format("has more than {} values", kMostValues));
    }
}

/// The first comma outside parentheses, else the end.
std::size_t next_comma(std::string_view text) {
    int depth = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        if (text[i] == ',' && depth <= 0) return i;
    }
    return text.size();
}

/// A lane that keeps all varies in how it shares KV heads alone.
bool varies_full(const Vary& vary) {
    return vary.key == "kv" || vary.key == "merge" || vary.key == "compensate";
}

}  // namespace

Vary parse_vary(std::string_view text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals + 1 == text.size())
        fail(ErrorCode::wrong_use, "--vary '{}' has no values; write budget=64..1024*2 or scope=head,layer",
             text);
    Vary vary;
    vary.key = text.substr(0, equals);
    // An override varies too: alpha@L0-3.
    const std::string_view name = std::string_view(vary.key).substr(0, vary.key.find('@'));
    const std::vector<std::string_view> known = lane_spec_keys();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
        std::string names;
        for (std::string_view key : known) names += fmt::format(" {}", key);
        fail(ErrorCode::wrong_use, "--vary: lanes have no key '{}'; keys are{}", name, names);
    }
    std::string_view rest = text.substr(equals + 1);
    while (!rest.empty()) {
        const std::size_t comma = next_comma(rest);
        const std::string_view item = rest.substr(0, comma);
        // tau=1..2 is a value of its own; a range has a step.
        if (item.find("..") != std::string_view::npos &&
            !(name == "tau" && item.find_first_of("*+") == std::string_view::npos))
            add_range(vary, item);
        else
            vary.values.emplace_back(item);
        rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    return vary;
}

std::vector<GridCell> make_grid(const std::vector<LaneSpec>& lanes, const std::vector<Vary>& varies) {
    std::vector<GridCell> cells;
    const auto add = [&](GridCell cell) {
        const bool is_there = std::any_of(cells.begin(), cells.end(),
                                          [&](const GridCell& known) { return known.spec == cell.spec; });
        if (!is_there) cells.push_back(std::move(cell));
    };
    for (const LaneSpec& lane : lanes) {
        const std::string name = format_lane_spec(lane);
        const bool is_full = lane.policy.preset == Preset::full;
        if (is_full && std::none_of(varies.begin(), varies.end(), varies_full)) {
            add({lane, name, {}});
            continue;
        }
        std::vector<std::size_t> at(varies.size(), 0);
        for (bool more = true; more;) {
            GridCell cell{lane, name, {}};
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
    return read_number(without_percent(value, &percent));
}

}  // namespace keyhole
