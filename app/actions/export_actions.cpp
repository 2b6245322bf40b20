#include "app/actions/action_areas.h"

#include "app/actions/command_line.h"
#include "app/actions/export_words.h"
#include "app/base/clipboard_image.h"
#include "app/base/private_folder.h"
#include "app/state/shown_answers.h"
#include "app/view/run_export.h"
#include "app/view/view_files.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/export/options.h"
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

void choose_rows(AppState& app, std::string_view rows) {
    if (rows != "all" && rows != "decoded")
        fail(ErrorCode::wrong_use, "'{}' is not valid; choose all or decoded", rows);
    app.jobs.export_job.request.all_rows = rows == "all";
}

/// Reads "svg,pdf 1200 dark": formats, width and background, each of which may be left out.
void choose_pictures(AppState& app, std::string_view words) {
    PictureChoice choice;
    for (std::size_t blank = 0; blank != std::string_view::npos && !words.empty();
         words.remove_prefix(std::min(blank, words.size() - 1) + 1)) {
        blank = words.find(' ');
        const std::string_view word = words.substr(0, blank);
        if (word == "dark" || word == "light")
            choice.background = word == "dark" ? Background::dark : Background::light;
        else if (!word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos)
            choice.width = whole_numbers(word, 1, 1)[0];
        else if (!word.empty())
            choice.formats = formats_from_list(word);
    }
    check_picture_width(choice.width);
    app.jobs.export_job.request.pictures = choice;
}

/// Copies the command line that makes the files.
void copy_command(AppState& app, std::string_view what) {
    (void)config_of(app);
    const std::filesystem::path& folder = app.jobs.export_job.request.folder;
    if (const std::optional<ViewWord> word = view_word(app, what))
        return copy_text(app, command_of(app, format_view_word(*word), folder, view_options(app, *word)));
    const ExportRequest request = request_of(app, what);
    copy_text(app, command_of(app, request.list, folder, export_options(app, request)));
}

void start_export(AppState& app) {
    (void)config_of(app);
    ExportRequest& chosen = app.jobs.export_job.request;
    const ExportRequest before = chosen;
    chosen.list = request_of(app, "run").list;
    chosen.right = right_answer(app);
    try {
        chosen.command = command_of(app, chosen.list, "OUT", export_options(app, chosen));
    } catch (const Error&) {  // the job says what is wrong with the list
    }
    if (app.run.live()) {
        app.run.need_recorded_run();
        app.jobs.export_job.start(app.run.model(), app.run.status.run, app.run.last_row(),
                                  app.run.job_backend(), app.wake);
    } else {
        app.jobs.export_job.start(app.run.history, app.wake);
    }
    chosen = before;
}

void choose_list(AppState& app, std::string_view list) {
    std::string words(list);
    (void)take_view_words(words);  // refuses incomplete ones; the export checks the others
    app.jobs.export_job.request.list = list;
}

void export_run(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        open_dialog<Dialog::export_run>(app, {});
        return;
    }
    const std::size_t blank = arguments.find(' ');
    if (blank != std::string_view::npos) choose_list(app, arguments.substr(blank + 1));
    app.jobs.export_job.request.folder = std::filesystem::path(arguments.substr(0, blank));
    start_export(app);
}

/// Exports one kind of file for all lanes in the background. Keeps the dialog's choices except the folder.
void export_one(AppState& app, std::string_view what, std::string_view folder) {
    if (!folder.empty()) app.jobs.export_job.request.folder = std::filesystem::path(folder);
    const ExportRequest before = std::exchange(app.jobs.export_job.request, request_of(app, what));
    try {
        start_export(app);
    } catch (...) {
        app.jobs.export_job.request = before;
        throw;
    }
    app.jobs.export_job.request = before;
}

/// Returns the file that a command writes. Throws Error(wrong_use) for another file ending, and lists the
/// valid ones.
std::filesystem::path file_of(std::string_view file, std::string_view usual, std::string_view what,
                              std::initializer_list<std::string_view> endings) {
    const std::filesystem::path path(file.empty() ? usual : file);
    const std::string ending = path.extension().string();
    if (std::find(endings.begin(), endings.end(), ending) == endings.end())
        fail(ErrorCode::wrong_use, "cannot save {}: {} can be {}", path.string(), what,
             fmt::join(endings, " or "));
    return path;
}

/// Returns the focused lane, or lane 0 if the focused one was just added and has no records.
int focus_with_rows(const AppState& app) {
    return app.run.history_lane(app.view.lane) ? app.view.lane : 0;
}

/// FILE [WIDTH] [dark] [shown] as a user writes it. The file name may contain blanks.
struct PictureWords {
    std::string_view file;
    int width = 0;
    Background background = Background::light;
    bool shown = false;
};

PictureWords picture_words(std::string_view arguments) {
    PictureWords words;
    while (true) {
        const std::size_t blank = arguments.rfind(' ');
        const std::string_view last = blank == std::string_view::npos ? "" : arguments.substr(blank + 1);
        if (last == "shown")
            words.shown = true;
        else if (last == "dark" || last == "light")
            words.background = last == "dark" ? Background::dark : Background::light;
        else if (!last.empty() && last.find_first_not_of("0123456789") == std::string_view::npos)
            words.width = whole_numbers(last, 1, 1)[0];
        else
            break;
        arguments = arguments.substr(0, blank);
    }
    words.file = arguments;
    check_picture_width(words.width);
    return words;
}

/// FILE.svg, FILE.png or FILE.pdf saves a picture, FILE.csv the numbers.
void save_curves(AppState& app, std::string_view arguments) {
    (void)config_of(app);
    const PictureWords words = picture_words(arguments);
    const std::filesystem::path path =
        file_of(words.file, "curves.svg", "curves", {".svg", ".png", ".pdf", ".csv"});
    CurvePlot plot = curve_figure(app.run.history, app.run.curves, app.view,
                                  curve_lanes(app.run.history, app.view, focus_with_rows(app)));
    plot.picture_width = words.width;
    plot.background = words.background;
    if (path.extension() == ".csv")
        write_text_file(path, curve_table(plot));
    else
        write_drawing(curves_drawing(plot), path);
    app.notify("saved " + path.string());
}

void save_atlas(AppState& app, std::string_view arguments) {
    (void)config_of(app);
    const PictureWords words = picture_words(arguments);
    const std::filesystem::path path =
        file_of(words.file, "atlas.png", "the atlas", {".png", ".svg", ".pdf"});
    const PictureOptions request{words.width, {}, 1, app.run.stride, app.run.dense_from, words.background};
    // Takes a second at a thousand heads, hence in the background.
    app.save_in_background(path, [history = app.run.history, view = app.view,
                                  lane = shown_lane(app.run.history, focus_with_rows(app)), request, path] {
        write_drawing(atlas_picture(history, view, lane, request), path);
    });
}

/// Returns the settings that gave an answer, with amounts in tokens where the lane's records have the same
/// ones.
std::string settings_of_answer(const AppState& app, const ShownAnswer& answer) {
    const std::string wanted = answer.answer.spec.empty()
                                   ? format_lane_spec(app.run.lane_editor.lanes()[to_index(answer.lane)])
                                   : answer.answer.spec;
    const std::optional<int> recorded = app.run.history_lane(answer.lane);
    const LaneRecord* record =
        recorded ? app.run.history.lane_record(app.run.last_row(), *recorded) : nullptr;
    const bool same = record != nullptr && format_lane_spec(parse_lane_spec(record->info->spec)) == wanted;
    return same || (record != nullptr && !app.run.live()) ? record->info->effective : wanted;
}

void save_answers(AppState& app, std::string_view arguments) {
    (void)config_of(app);
    const PictureWords words = picture_words(arguments);
    const std::filesystem::path path =
        file_of(words.file, "answers.png", "the answers", {".png", ".svg", ".pdf"});
    const std::vector<ShownAnswer> answers = shown_answers(app);
    if (answers.empty())
        fail(ErrorCode::wrong_use,
             "the lanes of this trace followed lane 0, so it does not hold their own answers");
    std::vector<std::string> specs;
    for (const ShownAnswer& answer : answers) specs.push_back(settings_of_answer(app, answer));
    AnswersFigure figure = answers_figure(app.run.history.run(), answers, specs, right_answer(app));
    figure.width = words.width;
    figure.background = words.background;
    write_drawing(answers_drawing(figure), path);
    app.notify("saved " + path.string());
}

void save_overlap(AppState& app, std::string_view file) {
    (void)config_of(app);
    if (app.run.lane_editor.n_lanes() < 2)
        fail(ErrorCode::wrong_use, "an overlap needs a second lane; add one");
    const std::filesystem::path path = file_of(file, "overlap.csv", "an overlap", {".csv"});
    write_text_file(path, overlap_table(app.run.history, app.need_shown_lane(),
                                        app.need_drawn_lane(app.other_lane()), app.view.row));
    app.notify("saved " + path.string());
}

void save_picture(AppState& app, std::string_view arguments) {
    if (arguments.empty()) return open_dialog<Dialog::save_picture>(app, {});
    const PictureWords words = picture_words(arguments);
    const std::filesystem::path path = file_of(words.file, "", "a picture", {".png", ".svg", ".pdf"});
    app.save_picture(path, words.width, words.shown, words.background);
}

/// arguments: the action that needs a path, with {} where the path stands if not at the end.
void browse(AppState& app, std::string_view arguments) {
    struct Known {
        std::string_view action;
        FileQuestion question;
    };
    const std::array<Known, 6> kKnown = {
        {{"file.open", {false, false, "Open a trace", "", "Traces of Keyhole", "*.keyhole"}},
         {"file.save", {true, false, "Save the trace", "run.keyhole", "Traces of Keyhole", "*.keyhole"}},
         {"file.picture", {true, false, "Save a picture", "heatmap.png", "", ""}},
         {"screenshot", {true, false, "Save a screenshot", "keyhole.png", "", ""}},
         {"export.folder", {false, true, "Export into a folder", "", "", ""}},
         {"open", {false, false, "Open a trace, a model or a prompt", "", "", ""}}}};
    const std::string_view action = arguments.substr(0, arguments.find(' '));
    const auto known =
        std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& k) { return k.action == action; });
    if (known == kKnown.end())
        fail(ErrorCode::wrong_use, "'{}' takes no path; give {}", action,
             "file.open, file.save, file.picture, screenshot, export.folder or open");
    app.choose_path(std::string(arguments), known->question);
}

void copy_picture(AppState& app, std::string_view) {
    const PrivateFolder folder;
    const std::filesystem::path file = folder.make_file("copied.png");
    app.save_picture(file);
    copy_image_to_clipboard(file);
    app.notify("copied a picture of the focused view");
}

constexpr std::array kExportActions = {
    UserAction{"file.curves",
               "Save the curves",
               "[FILE.svg|FILE.png|FILE.pdf|FILE.csv [WIDTH] [dark]]: saves the plot of the curves panel, or "
               "its numbers.",
               {},
               save_curves},
    UserAction{"file.atlas",
               "Save the atlas",
               "[FILE.png|FILE.svg|FILE.pdf [WIDTH] [dark]]: saves all heads of the focused lane up to the "
               "shown step.",
               {},
               save_atlas},
    UserAction{"file.answers",
               "Save the answers",
               "[FILE.png|FILE.svg|FILE.pdf [WIDTH] [dark]]: saves what each lane answers by itself.",
               {},
               save_answers},
    UserAction{"file.overlap",
               "Save the overlap of two lanes",
               "[FILE.csv]: saves how many tokens both, one or neither keep, by KV head.",
               {},
               save_overlap},
    UserAction{
        "file.copy",
        "Copy as command",
        "[curves|overlap|atlas|answers|run|frames|gif|gif-view]: copies the command line that makes the file "
        "of the focused view, or the files of the export.",
        {'C', kCtrl | kShift},
        copy_command},
    UserAction{"file.frames",
               "Export the mask over time",
               "[FOLDER]: one picture for each step.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "frames", a); }},
    UserAction{"file.gif",
               "Export the mask over time as GIF",
               "[FOLDER]: makes lane0/mask.gif and so on, with all heads.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "gif", a); }},
    UserAction{"file.gif-view",
               "Export the focused view as GIF",
               "[FOLDER]: attention, mask or scores of the focused head, one frame for each step.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "gif-view", a); }},
    UserAction{"export.folder",
               "Set the export folder",
               "FOLDER: for file.export and export.start.",
               {},
               [](AppState& app, std::string_view folder) {
                   app.jobs.export_job.request.folder = std::filesystem::path(folder);
               }},
    UserAction{"export.list",
               "Choose what to export",
               "[LIST]: as --export of keyhole decode takes it.",
               {},
               choose_list},
    UserAction{"export.pictures",
               "Choose the pictures of an export",
               "[png,svg,pdf] [WIDTH] [light|dark]: of masks, heat maps and scores. Left out: the usual one.",
               {},
               choose_pictures},
    UserAction{"export.rows",
               "Choose the rows to export",
               "all|decoded: with or without the prompt's.",
               {},
               choose_rows},
    UserAction{"export.start",
               "Export",
               "Exports what was chosen, into the chosen folder.",
               {},
               [](AppState& app, std::string_view) { start_export(app); }},
    UserAction{"export.cancel",
               "Cancel export or opening",
               "Stops a running export, and its folder stays as it was; also the reading of a trace.",
               {},
               [](AppState& app, std::string_view) {
                   app.jobs.export_job.cancel();
                   app.cancel_opening();
               }},
    UserAction{"file.open",
               "Open a trace…",
               "[FILE.keyhole]",
               {'O', kCtrl},
               [](AppState& app, std::string_view a) {
                   a.empty() ? open_dialog<Dialog::open_trace>(app, {})
                             : app.open_trace(std::filesystem::path(a));
               }},
    UserAction{"file.save",
               "Save the trace…",
               "[FILE.keyhole]",
               {'S', kCtrl},
               [](AppState& app, std::string_view a) {
                   a.empty() ? open_dialog<Dialog::save_trace>(app, {})
                             : app.save_trace(std::filesystem::path(a));
               }},
    UserAction{
        "file.export",
        "Export the run…",
        "[FOLDER [LIST]]: makes the same files as keyhole decode, or as keyhole replay for an opened trace.",
        {'E', kCtrl},
        export_run},
    UserAction{"file.picture",
               "Save a picture of the focused view…",
               "[FILE.png|FILE.svg|FILE.pdf [WIDTH] [dark] [shown]]: with axes, scale and caption. WIDTH: in "
               "pixels; shown: only what the zoom shows.",
               {'E', kCtrl | kShift},
               save_picture},
    UserAction{"picture.copy",
               "Copy a picture of the focused view",
               "To the desktop's clipboard, by wl-copy or xclip.",
               {'P', kCtrl | kShift},
               copy_picture},
    UserAction{"file.browse",
               "Choose a path with the desktop's dialog",
               "ACTION: file.open, file.save, file.picture, screenshot, export.folder or open gets the path.",
               {},
               browse},
    UserAction{"screenshot",
               "Save a screenshot…",
               "[FILE.png]: saves the window as it is.",
               {kF12, 0},
               [](AppState& app, std::string_view a) {
                   if (a.empty())
                       open_dialog<Dialog::save_screenshot>(app, {});
                   else
                       app.requests.screenshot = std::filesystem::path(a);
               }},
    UserAction{"dump-cells",
               "Write cells and their pixels",
               "FILE: writes 20 cells of the heat map with value and colour as JSON.",
               {},
               [](AppState& app, std::string_view a) {
                   if (a.empty()) fail(ErrorCode::wrong_use, "give a file");
                   app.requests.dump_cells = std::filesystem::path(a);
               }},
    UserAction{
        "quit", "Quit", "", {'Q', kCtrl}, [](AppState& app, std::string_view) { app.requests.quit = true; }},
};

}  // namespace

std::span<const UserAction> export_actions() {
    return kExportActions;
}

}  // namespace keyhole
