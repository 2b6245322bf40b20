#include "app/lessons/lesson.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace keyhole {

namespace {

constexpr int kMostLessonSteps = 100'000, kMostPlace = 1 << 20;
constexpr std::array<std::string_view, 3> kFaults = {"mask", "twice", "attention"};

[[noreturn]] void refuse_words(std::string_view text) {
    fail(ErrorCode::wrong_use,
         "'{}' is no command of a lesson; valid are: step N, rewind +N, fault LANE mask|twice|attention, "
         "evict LANE \"WORDS\" [L2[.H3]] (also pin, unpin), and the commands of `keyhole help scripts`",
         shown_text(text));
}

/// Parses "L2" or "L2.H3".
void parse_touched_place(std::string_view text, std::string_view whole, int& layer, int& head) {
    const std::size_t dot = std::min(text.find('.'), text.size());
    if (!text.starts_with('L')) refuse_words(whole);
    const auto l = number_from_text(text.substr(1, dot - 1), 0, kMostPlace);
    if (!l) refuse_words(whole);
    layer = *l;
    if (dot == text.size()) return;
    const std::string_view rest = text.substr(dot + 1);
    const auto h = rest.starts_with('H') ? number_from_text(rest.substr(1), 0, kMostPlace) : std::nullopt;
    if (!h) refuse_words(whole);
    head = *h;
}

/// Parses `evict 1 "4821" L4.H1`; nullopt: no words in quotes, so it is an engine command.
std::optional<TouchWords> touch_of(std::string_view verb, std::string_view rest, std::string_view whole) {
    const std::size_t open = rest.find('"'), close = rest.rfind('"');
    if (open == std::string_view::npos) return std::nullopt;
    if (close == open || open == 0) refuse_words(whole);
    TouchWords touch{std::string(verb), 0, std::string(rest.substr(open + 1, close - open - 1)), -1, -1};
    std::string_view lane = rest.substr(0, open), place = rest.substr(close + 1);
    while (lane.ends_with(' ')) lane.remove_suffix(1);
    while (place.starts_with(' ')) place.remove_prefix(1);
    const auto number = number_from_text(lane, 0, kMostPlace);
    if (!number || touch.words.empty()) refuse_words(whole);
    touch.lane = *number;
    if (!place.empty()) parse_touched_place(place, whole, touch.layer, touch.head);
    return touch;
}

}  // namespace

LessonCommand parse_lesson_command(std::string_view text) {
    LessonCommand command{std::string(text), {}};
    const std::size_t blank = std::min(text.find(' '), text.size());
    const std::string_view verb = text.substr(0, blank),
                           rest = blank < text.size() ? text.substr(blank + 1) : std::string_view();
    if (verb == "step") {
        const auto n = number_from_text(rest, 1, kMostLessonSteps);
        if (!n) refuse_words(text);
        command.what = DecodeSteps{*n};
        return command;
    }
    if (verb == "rewind" && rest.starts_with('+')) {
        const auto n = number_from_text(rest.substr(1), 0, kMostLessonSteps);
        if (!n) refuse_words(text);
        command.what = GoBack{*n};
        return command;
    }
    if (verb == "fault") {
        const std::size_t gap = std::min(rest.find(' '), rest.size());
        const auto lane = number_from_text(rest.substr(0, gap), 0, kMostPlace);
        const std::string_view kind = gap < rest.size() ? rest.substr(gap + 1) : std::string_view();
        if (!lane || std::find(kFaults.begin(), kFaults.end(), kind) == kFaults.end()) refuse_words(text);
        command.what = AlterRecords{*lane, std::string(kind)};
        return command;
    }
    if (verb == "evict" || verb == "pin" || verb == "unpin")
        if (std::optional<TouchWords> touch = touch_of(verb, rest, text)) {
            command.what = std::move(*touch);
            return command;
        }
    command.what = parse_command(text);
    return command;
}

const LessonRun& run_of_step(const Lesson& lesson, int step) {
    const int first = first_step_of_run(lesson, step);
    const LessonStep& begins = lesson.steps[to_index(first)];
    return begins.run ? *begins.run : lesson.run;
}

int first_step_of_run(const Lesson& lesson, int step) {
    int first = step;
    while (first > 0 && !lesson.steps[to_index(first)].run) --first;
    return first;
}

int count_words(std::string_view text) {
    int n = 0;
    bool inside = false;
    for (const char c : text) {
        const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
        if (!blank && !inside) ++n;
        inside = !blank;
    }
    return n;
}

}  // namespace keyhole
