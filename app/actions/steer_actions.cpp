#include "app/actions/action_areas.h"
#include "app/actions/steer.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using namespace key;

/// words: empty: the picked tokens; two numbers: positions; else: a text to find.
void watch(AppState& app, std::string_view words) {
    (void)config_of(app);
    if (words.empty()) {
        const std::vector<int>& picked = app.view.curve_positions;
        if (picked.empty())
            fail(ErrorCode::wrong_use, "watch: pick tokens first, or give FIRST LAST or words");
        const auto [first, last] = std::minmax_element(picked.begin(), picked.end());
        app.view.watched = TokenSpan{*first, *last};
    } else if (words.find_first_not_of("0123456789 ") == std::string_view::npos &&
               words.find(' ') != std::string_view::npos) {
        const std::vector<int> v = whole_numbers(words, 2, 2);
        if (v[0] > v[1] || v[1] > app.run.last_row())
            fail(ErrorCode::wrong_use, "positions are 0 to {}, and the first may not be after the last",
                 app.run.last_row());
        app.view.watched = TokenSpan{v[0], v[1]};
    } else {
        const std::optional<TokenSpan> found = find_span(app.run.history, app.text_lane(), words);
        if (!found) fail(ErrorCode::wrong_use, "'{}' is not in the text", words);
        app.view.watched = found;
    }
    app.view.measure_curve = ViewState::kWatchedSpan;
    app.notify("watching " + app.view.watched->text());
}

void unwatch(AppState& app, std::string_view) {
    app.view.watched.reset();
    if (app.view.measure_curve == ViewState::kWatchedSpan) app.view.measure_curve = -1;
    if (app.view.atlas_measure == ViewState::kWatchedSpan) app.view.atlas_measure = -1;
}

/// Makes the next step consume the K-th candidate of the focused lane after the shown step.
void take_candidate(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    const int k = whole_numbers(arguments, 1, 1)[0];
    const LaneRecord* record = app.record(app.view.lane);
    if (record == nullptr || k < 1 || k > static_cast<int>(record->top.size()))
        fail(ErrorCode::wrong_use, "candidates are 1 to {}", record == nullptr ? 0 : record->top.size());
    force_next(app, app.view.row, record->top[to_index(k - 1)].id);
}

void force_tokens(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    app.run.lane_editor.run(parse_command("force " + std::string(arguments)));
    app.notify("the next steps consume these tokens");
}

void say_text(AppState& app, std::string_view words) {
    if (words.empty()) {
        open_dialog<Dialog::say>(app, {});
        return;
    }
    say_turn(app, words);
}

void edit_token(AppState& app, std::string_view arguments) {
    const std::size_t blank = arguments.find(' ');
    if (arguments.empty()) {
        if (!app.view.pick || app.view.pick->position < app.run.history.n_prompt())
            fail(ErrorCode::wrong_use, "pick a generated token first, or give POSITION and text");
        open_dialog<Dialog::edit_token>(app, {});
        return;
    }
    if (blank == std::string_view::npos) fail(ErrorCode::wrong_use, "give POSITION and text");
    edit_text(app, whole_numbers(arguments.substr(0, blank), 1, 1)[0], arguments.substr(blank + 1));
}

std::string_view needs_watched(const AppState& app) {
    return app.view.watched ? "" : "no words are watched";
}

constexpr std::array kSteerActions = {
    UserAction{"candidate",
               "Force a candidate",
               "K: the step after the shown one consumes the focused lane's K-th most likely token.",
               {},
               take_candidate,
               {.arguments_are_plain = true}},
    UserAction{
        "force", "Force tokens", "ID[,ID...]: the next steps of all lanes consume them.", {}, force_tokens},
    UserAction{"say",
               "Append a turn…",
               "[TEXT]: all lanes read it, keeping their caches, and then continue.",
               {'T', kCtrl},
               say_text,
               {.menu = {MenuGroup::run_say, 1}, .lacks = need::live_run}},
    UserAction{"token.edit",
               "Replace the text from here…",
               "[POSITION TEXT]: goes back to before a generated token and reads the text instead.",
               {'E', 0},
               edit_token,
               {.menu = {MenuGroup::token_edit, 1}, .lacks = need::pick_of_live_run}},
    UserAction{"watch",
               "Watch the picked tokens",
               "[FIRST LAST|WORDS]: shows how long each lane keeps them, and when the answer was lost.",
               {'W', 0},
               watch,
               {.menu = {MenuGroup::token_watch, 1}, .lacks = need::pick}},
    UserAction{"watch.clear",
               "Stop watching",
               "Drops the watched words, their curve and colours.",
               {'W', kShift},
               unwatch,
               {.menu = {MenuGroup::token_watch, 2}, .lacks = needs_watched}},
};

}  // namespace

std::span<const UserAction> steer_actions() {
    return kSteerActions;
}

}  // namespace keyhole
