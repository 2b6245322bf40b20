#include "app/actions/action_areas.h"
#include "engine/base/error.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using namespace key;

/// 1 to the number of things that there are.
std::size_t index_of(std::string_view arguments, std::size_t n, std::string_view what) {
    const int i = whole_numbers(arguments, 1, 1)[0];
    if (i < 1 || static_cast<std::size_t>(i) > n) fail(ErrorCode::wrong_use, "there are {} {}", n, what);
    return static_cast<std::size_t>(i - 1);
}

/// Beside the trace at once where there is one; else with the next save.
void keep(AppState& app) {
    if (!app.live()) save_annotations(app.annotations, annotations_file(app.opened_file));
}

void add_bookmark(AppState& app, std::string_view name) {
    (void)config_of(app);
    const ViewState& view = app.view;
    Bookmark b;
    b.name = name.empty()
                 ? fmt::format("row {}, lane {}, L{}.H{}", view.row, view.lane, view.layer, view.head)
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
    app.say(fmt::format("bookmark {}: {}", app.annotations.bookmarks.size(),
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
    app.view.other = std::clamp(b.other, 0, std::max(app.lane_editor.n_lanes() - 1, 0));
    app.view.difference = b.difference;
    app.view.arrangement = b.arrangement;
    if (b.zoom)
        app.view.heat = *b.zoom;
    else
        app.view.heat.fitted = true;
    move_time(app, b.row - app.view.row);
    app.view.fit_to(app.lane_editor.n_lanes(), config_of(app).n_layers, config_of(app).n_heads,
                    app.first_row(), app.last_row());
    app.say(b.name);
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
    app.say("noted");
}

void ask_why(AppState& app, std::string_view) {
    if (app.dialog != Dialog::why && !app.view.pick)
        fail(ErrorCode::wrong_use, "pick a token first: a cell of a heat map, or a word of the text");
    open_dialog<Dialog::why>(app, {});
}

/// [watched] [ROW]
void request_counterfactual(AppState& app, std::string_view arguments) {
    app.need_live_run();
    constexpr std::string_view kWatched = "watched";
    const bool watched = arguments.starts_with(kWatched);
    if (watched) arguments.remove_prefix(std::min(arguments.size(), kWatched.size() + 1));
    const int row = arguments.empty() ? app.view.row : whole_numbers(arguments, 1, 1)[0];
    if (watched) {
        if (!app.view.watched) fail(ErrorCode::wrong_use, "no words are watched; pick some, then W");
        return app.request_counterfactual(app.view.lane, app.view.watched->first, row,
                                          app.view.watched->size());
    }
    if (!app.view.pick)
        fail(ErrorCode::wrong_use, "pick a token first: a cell of a heat map, or a word of the text");
    app.request_counterfactual(app.view.lane, app.view.pick->position, row, 1);
}

/// What the focused lane's shadow went on paying to the picked token.
void ask_shadow(AppState& app, std::string_view) {
    if (app.shadow_job.running()) return app.shadow_job.cancel();
    app.need_live_run();
    if (!app.view.pick)
        fail(ErrorCode::wrong_use, "pick a token first: a cell of a heat map, or a word of the text");
    const LaneRecord* record = app.history.lane_record(app.last_row(), app.shown_lane());
    if (record == nullptr || !record->info->policy.shadow)
        fail(ErrorCode::wrong_use, "lane {} has no shadow; switch it on with shadow=on", app.view.lane);
    app.shadow_job.start(
        app.engine().model(), app.status.run, app.backend_options,
        {app.history.generation(), record->info->id, app.view.pick->position, app.last_row(), {}}, app.wake);
}

void open_recent(AppState& app, std::string_view arguments) {
    app.open_any(std::string(app.recent.paths[index_of(arguments, app.recent.paths.size(), "recent files")]));
}

void open_path(AppState& app, std::string_view path) {
    if (path.empty()) fail(ErrorCode::wrong_use, "a path is needed");
    app.open_any(std::filesystem::path(path));
}

constexpr std::array kTable = {
    UserAction{"undo",
               menu::kView,
               "Undo",
               "The last change of the view or of a lane's settings. Evicted tokens stay gone.",
               {'Z', kCtrl},
               [](AppState& app, std::string_view) { app.say(app.undo() ? "undone" : "nothing to undo"); }},
    UserAction{
        "redo",
        menu::kView,
        "Redo",
        "What was undone last.",
        {'Y', kCtrl},
        [](AppState& app, std::string_view) { app.say(app.redo() ? "done again" : "nothing to redo"); }},
    UserAction{"bookmark",
               menu::kView,
               "Bookmark this view",
               "[NAME]: lane and the other one, head, mode, row, pick, zoom and arrangement.",
               {'M', kCtrl},
               add_bookmark},
    UserAction{"bookmark.go", "", "Go to a bookmark", "N: 1 is the first.", {}, go_to_bookmark},
    UserAction{"bookmark.drop", "", "Drop a bookmark", "N: 1 is the first.", {}, drop_bookmark},
    UserAction{"bookmarks",
               menu::kView,
               "Bookmarks and notes…",
               "Places to come back to, notes on the run, files that were open lately.",
               {'M', kShift},
               open_dialog<Dialog::notes>},
    UserAction{"note", "", "Write a note", "[TEXT]: a line more; kept beside the trace.", {}, write_note},
    UserAction{"notes.keep",
               "",
               "Keep the notes now",
               "Beside the opened trace.",
               {},
               [](AppState& app, std::string_view) { keep(app); }},
    UserAction{"doctor",
               menu::kHelp,
               "Eviction doctor and memory…",
               "What must hold of the focused lane, red where it is broken; memory under other schemes.",
               {kF1 + 4, 0},
               open_dialog<Dialog::doctor>},
    UserAction{"why",
               menu::kTokens,
               "Why did this token go?…",
               "The life of the picked token in the focused lane, on one page.",
               {'Y', 0},
               ask_why},
    UserAction{
        "why.back",
        menu::kTokens,
        "What would it say with this token back?",
        "[watched] [ROW]: asks a throw-away copy of the lane; after the shown row without. watched: with all "
        "watched words back.",
        {'Y', kShift},
        request_counterfactual},
    UserAction{"why.shadow",
               menu::kTokens,
               "What would its shadow still pay?",
               "Replays the run in the background for the shadow's attention on the token; again: stops.",
               {},
               ask_shadow},
    UserAction{"recent", "", "Open a recent file", "N: 1 is the last one.", {}, open_recent},
    UserAction{"open",
               "",
               "Open what it is",
               "PATH: a trace, a model folder or a prompt; as dropping it on the window.",
               {},
               open_path},
};

}  // namespace

std::span<const UserAction> annotation_actions() {
    return kTable;
}

}  // namespace keyhole
