#include "app/actions/action_table.h"

#include "app/actions/action_areas.h"
#include "app/base/crash_report.h"
#include "app/base/saved_policies.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/policy/spec_text.h"

#include <array>
#include <utility>

namespace keyhole {

namespace {

using namespace key;

template <class Number>
std::vector<Number> numbers(std::string_view text, std::size_t at_least, std::size_t at_most, Number low,
                            Number high) {
    std::vector<Number> values;
    for (const spec_text::Item& item : spec_text::split_blanks({text, 0})) {
        const auto value = number_from_text(item.text, low, high);
        if (!value) fail(ErrorCode::wrong_use, "{}", no_number(item.text, low, high));
        values.push_back(*value);
    }
    if (values.size() < at_least || values.size() > at_most)
        fail(ErrorCode::wrong_use, "'{}': give {} to {} numbers", shown_text(text), at_least, at_most);
    return values;
}

/// Ids that earlier scripts use, and the present ones.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kFormerIds = {
    {{"row", "time.show"},
     {"strip.color", "text.color"},
     {"compare.parting", "compare.first-difference"},
     {"why.back", "why.kept"}}};

/// Joins all areas in the order of menus and palette.
std::vector<UserAction> whole_table() {
    std::vector<UserAction> table;
    for (const std::span<const UserAction> area :
         {run_actions(), steer_actions(), story_actions(), compare_actions(), view_actions(), lane_actions(),
          export_actions(), annotation_actions(), dialog_actions(), lesson_actions(), paper_actions(),
          attribution_actions(), app_actions()})
        table.insert(table.end(), area.begin(), area.end());
    return table;
}

}  // namespace

std::vector<int> whole_numbers(std::string_view text, std::size_t at_least, std::size_t at_most) {
    constexpr int kMost = 1'000'000'000;  // so that the sum or difference of two is an int
    return numbers(text, at_least, at_most, -kMost, kMost);
}

std::vector<double> real_numbers(std::string_view text, std::size_t at_least, std::size_t at_most) {
    return numbers(text, at_least, at_most, kLowest<double>, kHighest<double>);
}

bool on_or_off(std::string_view text, bool now) {
    if (text.empty()) return !now;
    if (text == "on") return true;
    if (text == "off") return false;
    fail(ErrorCode::wrong_use, "'{}' is not valid; write on or off", text);
}

const ModelConfig& config_of(const AppState& app) {
    if (!app.run.has_steps()) fail(ErrorCode::wrong_use, "no run yet");
    return app.run.history.run().config;
}

void engine_command(AppState& app, std::string_view verb, std::string_view arguments) {
    app.run.lane_editor.run(parse_command(command_with_saved_policy(fmt::format("{} {}", verb, arguments))));
}

void move_time(AppState& app, int by) {
    app.view.move_row(by, app.run.first_row(), app.run.last_row());
}

void copy_text(AppState& app, std::string text) {
    app.notify("copied " + text);
    app.requests.clipboard_out = std::move(text);
}

namespace need {

std::string_view steps(const AppState& app) {
    return app.run.has_steps() ? "" : "no run yet";
}
std::string_view live_run(const AppState& app) {
    return app.run.live() ? "" : "an opened trace cannot be changed; start a run";
}
std::string_view pick(const AppState& app) {
    return app.view.pick ? "" : "pick a token first: a cell of a heat map, or a word of the text";
}
std::string_view pick_of_live_run(const AppState& app) {
    return app.view.pick ? live_run(app) : pick(app);
}
std::string_view lanes(const AppState& app) {
    return app.run.lane_editor.n_lanes() > 0 ? "" : "no lane yet";
}
std::string_view two_lanes(const AppState& app) {
    return app.run.lane_editor.n_lanes() > 1 ? "" : "a comparison needs a second lane; add one";
}
std::string_view lesson(const AppState& app) {
    return app.lesson.shown ? "" : "no lesson is open";
}

}  // namespace need

std::string shortcut_text(const Shortcut& shortcut) {
    if (shortcut.code == 0) return "";
    if (shortcut == Shortcut{'/', kShift}) return "?";
    std::string text;
    if (shortcut.mods & kCtrl) text += "Ctrl+";
    if (shortcut.mods & kAlt) text += "Alt+";
    if (shortcut.mods & kShift) text += "Shift+";
    switch (shortcut.code) {
        case ' ':
            return text + "Space";
        case kEscape:
            return text + "Esc";
        case kEnter:
            return text + "Enter";
        case kTab:
            return text + "Tab";
        case kRight:
            return text + "Right";
        case kLeft:
            return text + "Left";
        case kDown:
            return text + "Down";
        case kUp:
            return text + "Up";
        case kPageUp:
            return text + "Page Up";
        case kPageDown:
            return text + "Page Down";
        case kHome:
            return text + "Home";
        case kEnd:
            return text + "End";
        case kF1:
            return text + "F1";
        case kF1 + 1:
        case kF1 + 2:
        case kF1 + 3:
        case kF1 + 4:
        case kF1 + 5:
            return text + fmt::format("F{}", shortcut.code - kF1 + 1);
        case kF12:
            return text + "F12";
        default:
            return text + static_cast<char>(shortcut.code);
    }
}

std::span<const UserAction> action_table() {
    static const std::vector<UserAction> table = whole_table();
    return table;
}

const UserAction* find_action(std::string_view id) {
    for (const auto& [former, present] : kFormerIds)
        if (former == id) id = present;
    for (const UserAction& action : action_table())
        if (action.id == id) return &action;
    return nullptr;
}

const UserAction* find_action(Shortcut shortcut) {
    if (shortcut.code == 0) return nullptr;
    for (const UserAction& action : action_table())
        if (action.shortcut == shortcut) return &action;
    return nullptr;
}

void run_action(AppState& app, std::string_view text) {
    const std::size_t blank = text.find(' ');
    const std::string_view id = text.substr(0, blank);
    std::string_view arguments = blank == std::string_view::npos ? std::string_view() : text.substr(blank);
    arguments.remove_prefix(std::min(arguments.find_first_not_of(' '), arguments.size()));
    const UserAction* action = find_action(id);
    if (action == nullptr) {
        std::vector<std::string_view> ids;
        for (const UserAction& known : action_table()) ids.push_back(known.id);
        const std::string hint = spec_text::near_hint(id, ids);
        fail(ErrorCode::wrong_use, "there is no command '{}'{}", shown_text(id),
             hint.empty() ? "; keyhole help window lists them" : hint);
    }
    ++app.action_log.count;
    app.action_log.last_ids.emplace_back(action->id);
    if (app.action_log.last_ids.size() > 16) app.action_log.last_ids.pop_front();
    const ActionTraits& traits = action->traits;
    note_action(action->id, arguments, traits.arguments_are_plain, traits.is_drag);
    action->run(app, arguments);
    app.fit_view();
}

}  // namespace keyhole
