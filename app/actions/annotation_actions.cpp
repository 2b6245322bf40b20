#include "app/actions/action_areas.h"
#include "app/actions/history_actions.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/live/engine.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using namespace key;

/// Parses a 1-based index of at most n and returns it 0-based. Throws Error(wrong_use).
std::size_t index_of(std::string_view arguments, std::size_t n, std::string_view what) {
    const int i = whole_numbers(arguments, 1, 1)[0];
    if (i < 1 || to_index(i) > n) fail(ErrorCode::wrong_use, "there are {} {}", n, what);
    return to_index(i - 1);
}

/// Saves bookmarks and notes beside an opened trace at once. Those of a live run are saved with its trace.
void keep(AppState& app) {
    if (!app.run.live()) save_annotations(app.annotations, annotations_file(app.run.opened_file));
}

void add_bookmark(AppState& app, std::string_view name) {
    (void)config_of(app);
    const ViewState& view = app.view;
    Bookmark b;
    b.name = name.empty()
                 ? fmt::format("step {}, lane {}, L{}.H{}", view.row, view.lane, view.layer, view.head)
                 : std::string(name);
    b.lane = view.lane;
    b.layer = view.layer;
    b.head = view.head;
    b.row = view.row;
    b.mode = view.mode;
    b.pick = view.pick;
    b.other = view.other;
    b.difference = view.difference;
    b.arrangement = view.arrangement;
    if (!view.heat.fitted) b.zoom = view.heat;
    app.annotations.bookmarks.push_back(std::move(b));
    keep(app);
    app.notify(fmt::format("bookmark {}: {}", app.annotations.bookmarks.size(),
                           app.annotations.bookmarks.back().name));
}

void go_to_bookmark(AppState& app, std::string_view arguments) {
    (void)config_of(app);
    const Bookmark& b =
        app.annotations.bookmarks[index_of(arguments, app.annotations.bookmarks.size(), "bookmarks")];
    app.view.lane = b.lane;
    app.view.layer = b.layer;
    app.view.head = b.head;
    app.view.mode = b.mode;
    app.view.pick = b.pick;
    app.view.other = b.other;
    app.view.difference = b.difference;
    app.view.arrangement = b.arrangement;
    if (b.zoom)
        app.view.heat = *b.zoom;
    else
        app.view.heat.fitted = true;
    move_time(app, b.row - app.view.row);
    app.notify(b.name);
}

void drop_bookmark(AppState& app, std::string_view arguments) {
    std::vector<Bookmark>& all = app.annotations.bookmarks;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(index_of(arguments, all.size(), "bookmarks")));
    keep(app);
}

void write_note(AppState& app, std::string_view text) {
    if (text.empty()) {
        open_dialog<Dialog::notes>(app, {});
        return;
    }
    if (!app.annotations.notes.empty()) app.annotations.notes += "\n";
    app.annotations.notes += text;
    keep(app);
    app.notify("noted");
}

void ask_why(AppState& app, std::string_view) {
    if (app.dialog != Dialog::why && !app.view.pick)
        fail(ErrorCode::wrong_use, "pick a token first: a cell of a heat map, or a word of the text");
    open_dialog<Dialog::why>(app, {});
}

/// Asks the engine what the lane would answer if it had kept the tokens. Asks nothing unless the lane had
/// evicted one of them by the end of the prompt.
void ask_with(AppState& app, TokenSpan tokens) {
    const RunHistory& history = app.run.history;
    const int lane = app.need_shown_lane(), row = history.n_prompt() - 1;
    const LaneRecord* record = history.lane_record(row, lane);
    if (!app.run.live() || app.run.is_replaying() || tokens.last > row || record == nullptr ||
        !attends_plainly(record->info->policy))
        return;
    for (int p = tokens.first; p <= tokens.last; ++p)
        for (int g = 0; g < history.layout(lane).n_kv_heads(); ++g)
            if (!history.stored(lane, g, p, row))
                return app.run.request_counterfactual(app.view.lane, tokens.first, row, tokens.size());
}

/// Opens the page on the token that explains a lane's answer: the token of the watched words, or else of all
/// tokens, that most KV heads of the lane have evicted. Also asks what the lane would answer if it had kept
/// this token, or all watched words.
void explain_answer(AppState& app, std::string_view arguments) {
    (void)config_of(app);
    const int lane = arguments.empty() ? app.view.lane : whole_numbers(arguments, 1, 1)[0];
    if (lane < 0 || lane >= app.run.lane_editor.n_lanes())
        fail(ErrorCode::wrong_use, "there are lanes 0 to {}", app.run.lane_editor.n_lanes() - 1);
    app.view.lane = lane;
    const int shown = app.need_shown_lane(), row = app.view.row;
    const int first = app.view.watched ? app.view.watched->first : 0;
    const int last = app.view.watched ? app.view.watched->last : row;
    int position = -1, most = 0;
    for (int p = first; p <= std::min(last, row); ++p) {
        int n_lost = 0;
        for (int g = 0; g < app.run.history.layout(shown).n_kv_heads(); ++g)
            n_lost += app.run.history.stored(shown, g, p, row) ? 0 : 1;
        if (n_lost > most) most = n_lost, position = p;
    }
    if (position < 0)
        fail(ErrorCode::wrong_use, "lane {} still holds {} in all heads after step {}", lane,
             app.view.watched ? "the watched words" : "every token", row);
    app.view.pick = Pick{row, position};  // the plotted tokens stay
    app.dialog = Dialog::why;
    ask_with(app, app.view.watched.value_or(TokenSpan{position, position}));
}

/// arguments: [watched] [STEP]. Asks what the lane would say if it had kept the evicted token, or the watched
/// words.
void request_counterfactual(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    constexpr std::string_view kWatched = "watched";
    const bool watched = arguments.starts_with(kWatched);
    if (watched) arguments.remove_prefix(std::min(arguments.size(), kWatched.size() + 1));
    const int row = arguments.empty() ? app.view.row : whole_numbers(arguments, 1, 1)[0];
    if (watched) {
        if (!app.view.watched) fail(ErrorCode::wrong_use, "no words are watched; pick some and press W");
        app.run.request_counterfactual(app.view.lane, app.view.watched->first, row, app.view.watched->size());
        if (const int first = app.view.watched->first; !app.view.pick)
            app.view.pick_cell({std::max(app.view.row, first), first}, false);
    } else {
        if (!app.view.pick)
            fail(ErrorCode::wrong_use, "pick a token first: a cell of a heat map, or a word of the text");
        app.run.request_counterfactual(app.view.lane, app.view.pick->position, row, 1);
    }
    app.dialog = Dialog::why;  // its page shows the answer
}

/// Computes, or stops computing, how much attention the focused lane's shadow gave to the picked token.
void ask_shadow(AppState& app, std::string_view) {
    if (app.jobs.shadow_job.running()) return app.jobs.shadow_job.cancel();
    app.run.need_recorded_run();
    if (!app.view.pick)
        fail(ErrorCode::wrong_use, "pick a token first: a cell of a heat map, or a word of the text");
    const LaneRecord* record = app.run.history.lane_record(app.run.last_row(), app.need_shown_lane());
    if (record == nullptr || !record->info->policy.shadow)
        fail(ErrorCode::wrong_use, "lane {} has no shadow; switch it on with shadow=on", app.view.lane);
    app.jobs.shadow_job.start(
        app.run.model(), app.run.status.run, app.run.job_backend(),
        {app.run.history.generation(), record->info->id, app.view.pick->position, app.run.last_row(), {}},
        app.wake);
}

void open_recent(AppState& app, std::string_view arguments) {
    app.open_any(std::string(app.recent.paths[index_of(arguments, app.recent.paths.size(), "recent files")]));
}

void open_path(AppState& app, std::string_view path) {
    if (path.empty()) fail(ErrorCode::wrong_use, "give a path");
    app.open_any(std::filesystem::path(path));
}

void say_undone(AppState& app, std::string_view) {
    const RequestId before = app.run.engine().last_request();
    const std::string what = app.undo();
    if (what.empty()) return app.notify("nothing to undo");
    announce_undo(app, what, before);
}

void say_redone(AppState& app, std::string_view) {
    const RequestId before = app.run.engine().last_request();
    const std::string what = app.redo();
    if (what.empty()) return app.notify("nothing to redo");
    announce_redo(app, what, before);
}

std::string next_undo(const AppState& app) {
    return app.next_undo();
}
std::string next_redo(const AppState& app) {
    return app.next_redo();
}
std::string_view can_undo(const AppState& app) {
    return next_undo(app).empty() ? "nothing to undo" : "";
}
std::string_view can_redo(const AppState& app) {
    return next_redo(app).empty() ? "nothing to redo" : "";
}

constexpr std::array kAnnotationActions = {
    UserAction{"why.answer",
               "Why does this lane answer so?",
               "[LANE]: opens the page on a watched token that the lane has evicted.",
               {},
               explain_answer,
               {.elsewhere = "a button below a wrong answer"}},
    UserAction{"undo",
               "Undo",
               "Undoes the last change of the view or of the lanes. Evicted tokens stay evicted.",
               {'Z', kCtrl},
               say_undone,
               {.menu = {MenuGroup::edit_undo, 1}, .lacks = can_undo, .object = next_undo}},
    UserAction{"redo",
               "Redo",
               "Repeats the change that was undone last.",
               {'Y', kCtrl},
               say_redone,
               {.menu = {MenuGroup::edit_undo, 2}, .lacks = can_redo, .object = next_redo}},
    UserAction{"bookmark",
               "Bookmark this view",
               "[NAME]: stores both lanes, head, mode, step, pick, zoom and arrangement.",
               {'M', kCtrl},
               add_bookmark,
               {.menu = {MenuGroup::edit_bookmark, 1}, .lacks = need::steps}},
    UserAction{"bookmark.go", "Go to a bookmark", "N: 1 is the first.", {}, go_to_bookmark},
    UserAction{"bookmark.drop", "Drop a bookmark", "N: 1 is the first.", {}, drop_bookmark},
    UserAction{"note",
               "Write a note",
               "[TEXT]: adds a line to the notes, which are stored beside the trace.",
               {},
               write_note,
               {.elsewhere = "the dialog Bookmarks and notes"}},
    UserAction{"notes.set",
               "Replace the notes",
               "TEXT: all notes on the run; notes.keep saves them.",
               {},
               [](AppState& app, std::string_view text) { app.annotations.notes = text; },
               {.is_drag = true}},
    UserAction{"notes.keep",
               "Save the notes now",
               "Saves them beside the opened trace.",
               {},
               [](AppState& app, std::string_view) { keep(app); },
               {.elsewhere = "the dialog Bookmarks and notes"}},
    UserAction{"why",
               "Why did this token go?…",
               "Shows the history of the picked token in the focused lane on one page.",
               {'Y', 0},
               ask_why,
               {.menu = {MenuGroup::token_why, 1}, .lacks = need::pick}},
    UserAction{
        "why.kept",
        "What if the lane had kept this token?",
        "[watched] [STEP]: the next token and the answer, after this step (default: the shown one), had the "
        "lane kept this token; watched: all watched words. Computed on a copy; the page Why shows it.",
        {'Y', kShift},
        request_counterfactual,
        {.menu = {MenuGroup::token_why, 2}, .lacks = need::pick_of_live_run}},
    UserAction{"why.shadow",
               "Compute full attention to this token",
               "Replays the run in the background to compute the shadow's attention to the evicted token; "
               "again: stops.",
               {},
               ask_shadow,
               {.menu = {MenuGroup::token_why, 3}, .lacks = need::pick_of_live_run}},
    UserAction{"recent",
               "Open a recent file",
               "N: 1 is the most recent file.",
               {},
               open_recent,
               {.menu = {MenuGroup::file_open, 3}}},
    UserAction{"open",
               "Open any file",
               "PATH: a trace, a model (folder or GGUF file), a prompt or a saved policy; as dropping it on "
               "the window.",
               {},
               open_path},
};

}  // namespace

std::span<const UserAction> annotation_actions() {
    return kAnnotationActions;
}

}  // namespace keyhole
