#include "app/actions/action_areas.h"

#include "app/actions/command_line.h"
#include "app/view/view_export.h"
#include "app/view/view_files.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/figure/curves.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <utility>

namespace keyhole {

namespace {

using namespace key;

void start_export(AppState& app) {
    (void)config_of(app);
    if (!app.live()) return app.export_job.start(app.history, app.wake);
    app.export_job.start(app.engine().model(), app.status.run, app.last_row(), app.backend_options, app.wake);
}

void export_run(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        open_dialog<Dialog::export_run>(app, {});
        return;
    }
    const std::size_t blank = arguments.find(' ');
    app.export_job.request.folder = std::filesystem::path(arguments.substr(0, blank));
    if (blank != std::string_view::npos) app.export_job.request.list = arguments.substr(blank + 1);
    start_export(app);
}

/// What a word of the user's stands for: "run": all that the export dialog has; "frames" and "gif": the mask over time; "gif-view": the
/// focused view over time.
ExportRequest request_of(const AppState& app, std::string_view what) {
    ExportRequest request = app.export_job.request;
    if (what == "run") return request;
    if (what == "frames" || what == "gif") {
        request.list = what;
    } else if (what == "gif-view") {
        request.list = gif_of_mode(app.view.mode);
        request.layers = {app.view.layer};
        request.heads = {app.view.head};
    } else {
        fail(ErrorCode::wrong_use, "'{}': nothing, curves, overlap, atlas, run, frames, gif or gif-view",
             what);
    }
    return request;
}

/// The curves panel as a word of --export. Throws Error(wrong_use) where it shows nothing.
ViewWord curves_word(const ViewState& view) {
    ViewWord word;
    if (view.measure_curve == ViewState::kWatchedSpan) {
        if (!view.watched) fail(ErrorCode::wrong_use, "no words are watched");
        word.kind = ViewWord::Kind::watched;
        word.positions = {view.watched->first, view.watched->last};
    } else if (view.measure_curve >= 0) {
        word.kind = ViewWord::Kind::measure;
        word.words = curve_kinds()[static_cast<std::size_t>(view.measure_curve)].measure;
    } else {
        if (view.curve_positions.empty()) fail(ErrorCode::wrong_use, "no tokens are picked; pick some first");
        word.kind = ViewWord::Kind::tokens;
        word.positions = view.curve_positions;
    }
    return word;
}

/// What file.picture (without words), file.curves, file.overlap and file.atlas save. Nothing: no view's word.
std::optional<ViewWord> view_word(const AppState& app, std::string_view what) {
    if (what == "curves") return curves_word(app.view);
    ViewWord word;
    word.mode = app.view.mode;
    word.a = app.view.lane;
    word.b = app.other_card();
    if (what == "overlap") {
        if (app.lane_editor.n_lanes() < 2)
            fail(ErrorCode::wrong_use, "an overlap needs a second lane; add one");
        word.kind = ViewWord::Kind::overlap;
    } else if (what == "atlas") {
        word.kind = ViewWord::Kind::atlas;
    } else if (what.empty()) {
        if (app.view.difference && app.shows_difference()) word.kind = ViewWord::Kind::difference;
    } else {
        return std::nullopt;
    }
    return word;
}

/// Options of a view's word.
std::string view_options(const AppState& app, const ViewWord& word) {
    using Kind = ViewWord::Kind;
    const bool of_two = word.kind == Kind::difference || word.kind == Kind::overlap;
    for (const int card : {app.view.lane, of_two ? word.b : app.view.lane})
        if (!app.history_lane(card))
            fail(ErrorCode::wrong_use, "lane {} has no row yet, so no command can show it; step once", card);
    std::vector<std::string> options;
    if (word.kind == Kind::picture || word.kind == Kind::difference || word.kind == Kind::tokens)
        options.push_back(fmt::format("--layers {} --heads {}", app.view.layer, app.view.head));
    if (app.view.lane != 0 && !of_two) options.push_back(fmt::format("--focus {}", app.view.lane));
    const bool of_rows =
        word.kind == Kind::measure || word.kind == Kind::tokens || word.kind == Kind::watched;
    if (app.view.row < app.last_row() && !of_rows) options.push_back(fmt::format("--row {}", app.view.row));
    const std::string look = format_look(app.view);
    if (!look.empty() && !of_rows && word.kind != Kind::overlap) options.push_back("--look " + look);
    return fmt::format("{}", fmt::join(options, " "));
}

/// The command line that makes the files.
void copy_command(AppState& app, std::string_view what) {
    (void)config_of(app);
    std::string list, extra;
    if (const std::optional<ViewWord> word = view_word(app, what)) {
        list = format_view_word(*word);
        extra = view_options(app, *word);
    } else {
        const ExportRequest request = request_of(app, what);
        list = request.list;
        if (!request.layers.empty())
            extra = fmt::format("--layers {} --heads {}", fmt::join(request.layers, ","),
                                fmt::join(request.heads, ","));
        if (request.all_rows) extra += extra.empty() ? "--rows all" : " --rows all";
    }
    const std::filesystem::path& folder = app.export_job.request.folder;
    if (app.live())
        app.clipboard_out =
            decode_command(app.setup.model_folder, app.status.run, app.n_decoded(), list, folder, extra);
    else
        app.clipboard_out =
            fmt::format("keyhole replay {} --export {} --out {}{}{}", shell_word(app.opened_file.string()),
                        list, shell_word(folder.string()), extra.empty() ? "" : " ", extra);
    app.say("copied " + app.clipboard_out);
}

/// One thing of all lanes, in the background; the dialog's own choice stays as it is but for the folder.
void export_one(AppState& app, std::string_view what, std::string_view folder) {
    if (!folder.empty()) app.export_job.request.folder = std::filesystem::path(folder);
    const ExportRequest before = std::exchange(app.export_job.request, request_of(app, what));
    try {
        start_export(app);
    } catch (...) {
        app.export_job.request = before;
        throw;
    }
    app.export_job.request = before;
}

/// The file that a command writes. Throws Error(wrong_use) for an ending that it does not write: which says what it can be.
std::filesystem::path file_of(std::string_view file, std::string_view usual, std::string_view what,
                              std::initializer_list<std::string_view> endings) {
    const std::filesystem::path path(file.empty() ? usual : file);
    const std::string ending = path.extension().string();
    if (std::find(endings.begin(), endings.end(), ending) == endings.end())
        fail(ErrorCode::wrong_use, "cannot save {}: {} can be {}", path.string(), what,
             fmt::join(endings, " or "));
    return path;
}

/// A lane that was just added has none.
int focus_with_rows(const AppState& app) {
    return app.history_lane(app.view.lane) ? app.view.lane : 0;
}

/// FILE.svg, FILE.png: a picture; FILE.csv: the numbers.
void save_curves(AppState& app, std::string_view file) {
    (void)config_of(app);
    const std::filesystem::path path = file_of(file, "curves.svg", "curves", {".svg", ".png", ".csv"});
    const CurvePlot plot =
        curve_figure(app.history, app.curves, app.view, shown_lanes(app.history, focus_with_rows(app)));
    if (path.extension() == ".png")
        write_png(draw_curves_image(plot), path);
    else
        write_text_file(path, path.extension() == ".csv" ? curve_table(plot) : draw_curves(plot));
    app.say("saved " + path.string());
}

void save_atlas(AppState& app, std::string_view file) {
    (void)config_of(app);
    const std::filesystem::path path = file_of(file, "atlas.png", "the atlas", {".png"});
    // A second at a thousand heads.
    app.save_in_background(path, [history = app.history, view = app.view,
                                  lane = shown_lanes(app.history, focus_with_rows(app)).front(),
                                  stride = app.stride, dense_from = app.dense_from, path] {
        write_png(atlas_figure(history, view, lane, stride, dense_from), path);
    });
}

void save_overlap(AppState& app, std::string_view file) {
    (void)config_of(app);
    if (app.lane_editor.n_lanes() < 2) fail(ErrorCode::wrong_use, "an overlap needs a second lane; add one");
    const std::filesystem::path path = file_of(file, "overlap.csv", "an overlap", {".csv"});
    write_text_file(path, overlap_table(app.history, app.shown_lane(),
                                        app.history_lane(app.other_card()).value_or(0), app.view.row));
    app.say("saved " + path.string());
}

/// FILE [WIDTH] [shown]; the file may have blanks in its name.
void save_picture(AppState& app, std::string_view arguments) {
    if (arguments.empty()) return open_dialog<Dialog::save_picture>(app, {});
    int width = 0;
    bool shown = false;
    const auto last_word = [&] { return arguments.substr(arguments.rfind(' ') + 1); };
    const auto drop_word = [&] { arguments.remove_suffix(last_word().size() + 1); };
    if (arguments.ends_with(" shown")) {
        shown = true;
        drop_word();
    }
    const std::string_view word = last_word();
    if (word.size() < arguments.size() && word.find_first_not_of("0123456789") == std::string_view::npos) {
        width = whole_numbers(word, 1, 1)[0];
        drop_word();
    }
    app.save_picture(std::filesystem::path(arguments), width, shown);
}

constexpr std::array kTable = {
    UserAction{"file.curves",
               menu::kFile,
               "Save the curves",
               "[FILE.svg|FILE.png|FILE.csv]: what the curves panel draws, or its numbers.",
               {},
               save_curves},
    UserAction{"file.atlas",
               menu::kFile,
               "Save the atlas",
               "[FILE.png]: all heads of the focused lane up to the shown row.",
               {},
               save_atlas},
    UserAction{"file.overlap",
               menu::kFile,
               "Save the overlap of two lanes",
               "[FILE.csv]: tokens that both, one or neither hold, by KV head.",
               {},
               save_overlap},
    UserAction{"file.copy",
               menu::kFile,
               "Copy as command",
               "[curves|overlap|atlas|run|frames|gif|gif-view]: the command line that makes the same file "
               "as the focused "
               "view's, or those of the export.",
               {'C', kCtrl | kShift},
               copy_command},
    UserAction{"file.frames",
               menu::kFile,
               "Export the mask over time",
               "[FOLDER]: a picture a row, for a film.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "frames", a); }},
    UserAction{"file.gif",
               menu::kFile,
               "Export the mask over time as GIF",
               "[FOLDER]: lane0/mask.gif and so on, all heads.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "gif", a); }},
    UserAction{"file.gif-view",
               menu::kFile,
               "Export the focused view as GIF",
               "[FOLDER]: attention, mask or scores of the focused head, a frame a row.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "gif-view", a); }},
    UserAction{
        "export.cancel",
        menu::kFile,
        "Cancel export or opening",
        "Stops the export that is under way (files that are whole stay) and the trace that is being read.",
        {},
        [](AppState& app, std::string_view) {
            app.export_job.cancel();
            app.cancel_opening();
        }},
    UserAction{"file.open",
               menu::kFile,
               "Open a trace…",
               "[FILE.keyhole]",
               {'O', kCtrl},
               [](AppState& app, std::string_view a) {
                   a.empty() ? open_dialog<Dialog::open_trace>(app, {})
                             : app.open_trace(std::filesystem::path(a));
               }},
    UserAction{"file.save",
               menu::kFile,
               "Save the trace…",
               "[FILE.keyhole]",
               {'S', kCtrl},
               [](AppState& app, std::string_view a) {
                   a.empty() ? open_dialog<Dialog::save_trace>(app, {})
                             : app.save_trace(std::filesystem::path(a));
               }},
    UserAction{"file.export",
               menu::kFile,
               "Export the run…",
               "[FOLDER [LIST]]: the same files as keyhole decode; of an opened trace as keyhole replay.",
               {'E', kCtrl},
               export_run},
    UserAction{"file.picture",
               menu::kFile,
               "Save a picture of the focused view…",
               "[FILE.png [WIDTH] [shown]]: with axes, scale and caption; so many pixels wide; only what "
               "the zoom shows.",
               {'E', kCtrl | kShift},
               save_picture},
    UserAction{"screenshot",
               menu::kFile,
               "Save a screenshot…",
               "[FILE.png]: the window as it is.",
               {kF12, 0},
               [](AppState& app, std::string_view a) {
                   if (a.empty())
                       open_dialog<Dialog::save_screenshot>(app, {});
                   else
                       app.screenshot = std::filesystem::path(a);
               }},
    UserAction{"dump-cells",
               "",
               "Write cells and their pixels",
               "FILE: 20 cells of the heat map with value and colour, as JSON.",
               {},
               [](AppState& app, std::string_view a) {
                   if (a.empty()) fail(ErrorCode::wrong_use, "a file is needed");
                   app.dump_cells = std::filesystem::path(a);
               }},
    UserAction{"quit",
               menu::kFile,
               "Quit",
               "",
               {'Q', kCtrl},
               [](AppState& app, std::string_view) { app.quit = true; }},
};

}  // namespace

std::span<const UserAction> export_actions() {
    return kTable;
}

}  // namespace keyhole
