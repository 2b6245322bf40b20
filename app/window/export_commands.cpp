#include "app/window/command_areas.h"

#include "app/window/command_line.h"
#include "app/window/view_files.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"

#include <array>
#include <utility>

namespace keyhole {

namespace {

using namespace key;

void start_export(AppState& app) {
    if (!app.live() || !app.has_run())
        fail(ErrorCode::wrong_use, "an export re-runs a live run; for an opened trace use keyhole replay");
    app.export_job.start(app.engine().model(), app.status.run, app.last_row(), app.backend_options, app.wake);
}

void export_run(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        open_dialog<Dialog::export_run>(app, {});
        return;
    }
    const std::size_t blank = arguments.find(' ');
    app.export_job.wish.folder = std::filesystem::path(arguments.substr(0, blank));
    if (blank != std::string_view::npos) app.export_job.wish.list = arguments.substr(blank + 1);
    start_export(app);
}

/// What a word of the user's stands for: nothing: the focused view; "run": all that the export dialog has; "frames" and "gif": the mask
/// over time; "gif-view": the focused view over time.
ExportWish wish_of(const AppState& app, std::string_view what) {
    ExportWish wish = app.export_job.wish;
    if (what == "run") return wish;
    if (what == "frames" || what == "gif") {
        wish.list = what;
    } else if (what.empty() || what == "gif-view") {
        wish.list = what.empty() ? export_of_mode(app.view.mode) : gif_of_mode(app.view.mode);
        wish.layers = {app.view.layer};
        wish.heads = {app.view.head};
        wish.all_rows = wish.all_rows || what.empty();
    } else {
        fail(ErrorCode::wrong_use, "'{}': nothing, run, frames, gif or gif-view", what);
    }
    return wish;
}

/// The command line that makes the files.
void copy_command(AppState& app, std::string_view what) {
    (void)config_of(app);
    const ExportWish wish = wish_of(app, what);
    std::string extra;
    if (!wish.layers.empty())
        extra =
            fmt::format("--layers {} --heads {}", fmt::join(wish.layers, ","), fmt::join(wish.heads, ","));
    if (wish.all_rows) extra += extra.empty() ? "--rows all" : " --rows all";
    if (app.live())
        app.clipboard_out = decode_command(app.setup.model_folder, app.status.run, app.n_decoded(), wish.list,
                                           wish.folder, extra);
    else
        app.clipboard_out =
            fmt::format("keyhole replay {} --export {} --out {} {}", shell_word(app.opened_file.string()),
                        wish.list, shell_word(wish.folder.string()), extra);
    app.say("copied " + app.clipboard_out);
}

/// One thing of all lanes, in the background; the dialog's own choice stays as it is but for the folder.
void export_one(AppState& app, std::string_view what, std::string_view folder) {
    if (!folder.empty()) app.export_job.wish.folder = std::filesystem::path(folder);
    const ExportWish before = std::exchange(app.export_job.wish, wish_of(app, what));
    try {
        start_export(app);
    } catch (...) {
        app.export_job.wish = before;
        throw;
    }
    app.export_job.wish = before;
}

/// Lanes with a record, the focused one first.
std::vector<ShownLane> lanes_on_show(const AppState& app) {
    std::vector<ShownLane> lanes;
    const auto add = [&](int card) {
        if (const auto lane = app.history_lane(card))
            lanes.push_back(
                {card, *lane,
                 fmt::format("{} {}", card,
                             preset_name(app.desk.lanes()[static_cast<std::size_t>(card)].policy.preset))});
    };
    add(app.view.lane);
    for (int card = 0; card < app.desk.n_lanes(); ++card)
        if (card != app.view.lane) add(card);
    return lanes;
}

/// FILE.svg: a picture; FILE.csv: the numbers.
void save_curves(AppState& app, std::string_view file) {
    (void)config_of(app);
    const std::filesystem::path path(file.empty() ? "curves.svg" : std::string(file));
    const CurvePlot plot = curve_figure(app.history, app.curves, app.view, lanes_on_show(app));
    write_text_file(path, path.extension() == ".csv" ? curve_table(plot) : draw_curves(plot));
    app.say("saved " + path.string());
}

void save_atlas(AppState& app, std::string_view file) {
    (void)config_of(app);
    const std::filesystem::path path(file.empty() ? "atlas.png" : std::string(file));
    // A second at a thousand heads.
    app.save_in_background(path, [history = app.history, view = app.view, lane = lanes_on_show(app).front(),
                                  path] { write_png(atlas_figure(history, view, lane), path); });
}

void save_overlap(AppState& app, std::string_view file) {
    (void)config_of(app);
    if (app.desk.n_lanes() < 2) fail(ErrorCode::wrong_use, "an overlap needs a second lane; add one");
    const std::filesystem::path path(file.empty() ? "overlap.csv" : std::string(file));
    write_text_file(path, overlap_table(app.history, app.shown_lane(),
                                        app.history_lane(app.other_card()).value_or(0), app.view.row));
    app.say("saved " + path.string());
}

constexpr std::array kTable = {
    UserCommand{"file.curves",
                menu::kFile,
                "Save the curves",
                "[FILE.svg|FILE.csv]: what the curves panel draws, or its numbers.",
                {},
                save_curves},
    UserCommand{"file.atlas",
                menu::kFile,
                "Save the atlas",
                "[FILE.png]: all heads of the focused lane up to the shown row.",
                {},
                save_atlas},
    UserCommand{"file.overlap",
                menu::kFile,
                "Save the overlap of two lanes",
                "[FILE.csv]: tokens that both, one or neither hold, by KV head.",
                {},
                save_overlap},
    UserCommand{
        "file.copy",
        menu::kFile,
        "Copy as command",
        "[run|frames|gif|gif-view]: the command line that makes the focused view's files, or those of the "
        "export.",
        {'C', kCtrl | kShift},
        copy_command},
    UserCommand{"file.frames",
                menu::kFile,
                "Export the mask over time",
                "[FOLDER]: a picture a row, for a film.",
                {},
                [](AppState& app, std::string_view a) { export_one(app, "frames", a); }},
    UserCommand{"file.gif",
                menu::kFile,
                "Export the mask over time as GIF",
                "[FOLDER]: lane0/mask.gif and so on, all heads.",
                {},
                [](AppState& app, std::string_view a) { export_one(app, "gif", a); }},
    UserCommand{"file.gif-view",
                menu::kFile,
                "Export the focused view as GIF",
                "[FOLDER]: attention, mask or scores of the focused head, a frame a row.",
                {},
                [](AppState& app, std::string_view a) { export_one(app, "gif-view", a); }},
    UserCommand{
        "export.cancel",
        menu::kFile,
        "Cancel export or opening",
        "Stops the export that is under way (files that are whole stay) and the trace that is being read.",
        {},
        [](AppState& app, std::string_view) {
            app.export_job.cancel();
            app.cancel_opening();
        }},
    UserCommand{"file.open",
                menu::kFile,
                "Open a trace…",
                "[FILE.keyhole]",
                {'O', kCtrl},
                [](AppState& app, std::string_view a) {
                    a.empty() ? open_dialog<Dialog::open_trace>(app, {})
                              : app.open_trace(std::filesystem::path(a));
                }},
    UserCommand{"file.save",
                menu::kFile,
                "Save the trace…",
                "[FILE.keyhole]",
                {'S', kCtrl},
                [](AppState& app, std::string_view a) {
                    a.empty() ? open_dialog<Dialog::save_trace>(app, {})
                              : app.save_trace(std::filesystem::path(a));
                }},
    UserCommand{"file.export",
                menu::kFile,
                "Export the run…",
                "[FOLDER [LIST]]: the same files as keyhole decode.",
                {'E', kCtrl},
                export_run},
    UserCommand{"file.picture",
                menu::kFile,
                "Save a picture of the focused view…",
                "[FILE.png]: with axes, scale and caption.",
                {'E', kCtrl | kShift},
                [](AppState& app, std::string_view a) {
                    a.empty() ? open_dialog<Dialog::save_picture>(app, {})
                              : app.save_picture(std::filesystem::path(a));
                }},
    UserCommand{"screenshot",
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
    UserCommand{"dump-cells",
                "",
                "Write cells and their pixels",
                "FILE: 20 cells of the heat map with value and colour, as JSON.",
                {},
                [](AppState& app, std::string_view a) {
                    if (a.empty()) fail(ErrorCode::wrong_use, "a file is needed");
                    app.dump_cells = std::filesystem::path(a);
                }},
    UserCommand{"quit",
                menu::kFile,
                "Quit",
                "",
                {'Q', kCtrl},
                [](AppState& app, std::string_view) { app.quit = true; }},
};

}  // namespace

std::span<const UserCommand> export_commands() {
    return kTable;
}

}  // namespace keyhole
