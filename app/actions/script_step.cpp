#include "app/actions/script_step.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/policy/spec_text.h"

#include <algorithm>

namespace keyhole {

namespace {

using Kind = ScriptStep::Kind;

constexpr double kLongestWaitS = 180, kLongestDeadlineS = 1e6, kMostPixels = 1e5, kMostTurns = 1000;

/// Parses two numbers separated by blanks, each within +-most.
std::pair<double, double> two_numbers(std::string_view what, std::string_view text, double most) {
    const std::vector<spec_text::Item> items = spec_text::split_blanks({text, 0});
    if (items.size() != 2) fail(ErrorCode::wrong_use, "{}: '{}' is not two numbers", what, shown_text(text));
    return {read_number(what, items[0].text, -most, most), read_number(what, items[1].text, -most, most)};
}

/// Returns the button: 0 is left, 1 is right; left if the text is empty.
int read_button(std::string_view what, std::string_view text) {
    return text.empty() ? 0 : read_number(what, text, 0, 1);
}

ScriptStep parse_wait(std::string_view what) {
    const std::size_t blank = std::min(what.find(' '), what.size());
    const std::string_view word = what.substr(0, blank),
                           number = spec_text::trimmed({what.substr(blank)}).text;
    if (what == "idle") return {Kind::wait_idle};
    if (word == "seconds")
        return {.kind = Kind::wait_seconds, .seconds = read_number("seconds", number, 0.0, kLongestWaitS)};
    if (word == "steps" || word == "rows")  // "rows": the word of earlier scripts
        return {.kind = Kind::wait_steps, .n = read_number("steps", number, 0)};
    fail(ErrorCode::wrong_use, "write wait steps N, wait idle, or wait seconds S");
}

std::vector<std::string> parse_paths(std::string_view text) {
    std::vector<std::string> paths;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('|'), text.size());
        if (end > 0) paths.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (paths.empty()) fail(ErrorCode::wrong_use, "drop: give a path");
    return paths;
}

}  // namespace

std::pair<double, double> parse_parts(std::string_view text) {
    return two_numbers("parts of the widget", text, 100);
}

ScriptStep parse_script_step(std::string_view line) {
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, blank);
    const std::string_view rest = spec_text::trimmed({line.substr(blank)}).text;
    if (word == "wait") return parse_wait(rest);
    if (word == "deadline")
        return {.kind = Kind::deadline, .seconds = read_number(word, rest, 0.0, kLongestDeadlineS)};
    if (word == "finally") return {Kind::finally};
    if (word == "mouse") {
        const auto [x, y] = two_numbers(word, rest, kMostPixels);
        return {.kind = Kind::mouse, .x = x, .y = y};
    }
    if (word == "wheel") return {.kind = Kind::wheel, .x = read_number(word, rest, -kMostTurns, kMostTurns)};
    if (word == "press") return {.kind = Kind::press, .n = read_button(word, rest)};
    if (word == "click") return {.kind = Kind::click, .n = read_button(word, rest)};
    if (word == "release") return {Kind::release};
    if (word == "drop") return {.kind = Kind::drop, .paths = parse_paths(rest)};
    if (word == "try") return {Kind::attempt, std::string(rest)};
    if (word == "point") return {Kind::point, std::string(rest)};
    if (word == "text") return {Kind::text, std::string(rest)};
    if (word == "key") return {Kind::key, std::string(rest)};
    return {Kind::command, std::string(line)};
}

}  // namespace keyhole
