#include "app/actions/action_areas.h"

#include "app/actions/command_line.h"
#include "app/base/clipboard_image.h"
#include "app/base/private_folder.h"
#include "app/state/shown_answers.h"
#include "app/view/view_export.h"
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

void start_export(AppState& app) {
    (void)config_of(app);
    if (!app.run.live()) return app.jobs.export_job.start(app.run.history, app.wake);
    app.run.need_recorded_run();
    app.jobs.export_job.start(app.run.engine().model(), app.run.status.run, app.run.last_row(),
                              app.run.job_backend(), app.wake);
}

void export_run(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        open_dialog<Dialog::export_run>(app, {});
        return;
    }
    const std::size_t blank = arguments.find(' ');
    app.jobs.export_job.request.folder = std::filesystem::path(arguments.substr(0, blank));
    if (blank != std::string_view::npos) app.jobs.export_job.request.list = arguments.substr(blank + 1);
    start_export(app);
}

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

/// Returns the command-line options of a choice of pictures.
std::vector<std::string> picture_options(const PictureChoice& choice) {
    std::vector<std::string> options, formats;
    for (const PictureFormat format : choice.formats) formats.emplace_back(format_name(format));
    if (!formats.empty()) options.push_back(fmt::format("--format {}", fmt::join(formats, ",")));
    if (choice.width > 0) options.push_back(fmt::format("--width {}", choice.width));
    if (choice.background == Background::dark) options.emplace_back("--look dark");
    return options;
}

/// Returns the export that the user's word names. "run": everything chosen in the export dialog; "frames"
/// and "gif": the mask over time; "gif-view": the focused view over time.
ExportRequest request_of(const AppState& app, std::string_view what) {
    ExportRequest request = app.jobs.export_job.request;
    if (what == "run") return request;
    if (what == "frames" || what == "gif") {
        request.list = what;
    } else if (what == "gif-view") {
        request.list = gif_of_mode(app.view.mode);
        request.layers = {app.view.layer};
        request.heads = {app.view.head};
    } else {
        fail(ErrorCode::wrong_use,
             "'{}' is not valid; give nothing, curves, overlap, atlas, answers, run, frames, gif or gif-view",
             what);
    }
    return request;
}

/// Returns the --export word of the curves panel. Throws Error(wrong_use) if the panel shows nothing.
ViewWord curves_word(const ViewState& view) {
    ViewWord word;
    if (view.measure_curve == ViewState::kWatchedSpan) {
        if (!view.watched) fail(ErrorCode::wrong_use, "no words are watched");
        word.kind = ViewWord::Kind::watched;
        word.positions = {view.watched->first, view.watched->last};
    } else if (view.measure_curve >= 0) {
        word.kind = ViewWord::Kind::measure;
        word.words = curve_kinds()[to_index(view.measure_curve)].measure;
    } else {
        if (view.curve_positions.empty()) fail(ErrorCode::wrong_use, "no tokens are picked; pick some first");
        word.kind = ViewWord::Kind::tokens;
        word.positions = view.curve_positions;
    }
    return word;
}

/// Returns the view that file.picture (empty word), file.curves, file.overlap, file.atlas or file.answers
/// saves; nullopt for any other word.
std::optional<ViewWord> view_word(const AppState& app, std::string_view what) {
    if (what == "curves") return curves_word(app.view);
    ViewWord word;
    word.mode = app.view.mode;
    word.a = app.view.lane;
    word.b = app.other_lane();
    if (what == "overlap") {
        if (app.run.lane_editor.n_lanes() < 2)
            fail(ErrorCode::wrong_use, "an overlap needs a second lane; add one");
        word.kind = ViewWord::Kind::overlap;
    } else if (what == "atlas") {
        word.kind = ViewWord::Kind::atlas;
    } else if (what == "answers") {
        word.kind = ViewWord::Kind::answers;
    } else if (what.empty()) {
        if (app.view.difference && app.shows_difference()) word.kind = ViewWord::Kind::difference;
    } else {
        return std::nullopt;
    }
    return word;
}

/// Returns the command-line options of a view word.
std::string view_options(const AppState& app, const ViewWord& word) {
    using Kind = ViewWord::Kind;
    const bool of_two = word.kind == Kind::difference || word.kind == Kind::overlap;
    for (const int lane : {app.view.lane, of_two ? word.b : app.view.lane})
        if (!app.run.history_lane(lane))
            fail(ErrorCode::wrong_use, "lane {} has no step yet, so no command can show it; step once", lane);
    std::vector<std::string> options;
    if (word.kind == Kind::picture || word.kind == Kind::difference || word.kind == Kind::tokens)
        options.push_back(fmt::format("--layers {} --heads {}", app.view.layer, app.view.head));
    if (word.kind == Kind::answers) {
        const std::string right = right_answer(app);
        return right.empty() ? "" : "--right " + shell_word(right);
    }
    if (app.view.lane != 0 && !of_two) options.push_back(fmt::format("--focus {}", app.view.lane));
    const bool of_rows =
        word.kind == Kind::measure || word.kind == Kind::tokens || word.kind == Kind::watched;
    if (app.view.row < app.run.last_row() && !of_rows)
        options.push_back(fmt::format("--row {}", app.view.row));
    const std::string look = format_look(app.view);
    if (!look.empty() && !of_rows && word.kind != Kind::overlap) options.push_back("--look " + look);
    return fmt::format("{}", fmt::join(options, " "));
}

/// Copies the command line that makes the files.
void copy_command(AppState& app, std::string_view what) {
    (void)config_of(app);
    std::string list, extra;
    if (const std::optional<ViewWord> word = view_word(app, what)) {
        list = format_view_word(*word);
        extra = view_options(app, *word);
    } else {
        const ExportRequest request = request_of(app, what);
        list = request.list;
        std::vector<std::string> options;
        if (!request.layers.empty())
            options.push_back(fmt::format("--layers {} --heads {}", fmt::join(request.layers, ","),
                                          fmt::join(request.heads, ",")));
        if (request.all_rows) options.emplace_back("--rows all");
        ExportOptions files;
        parse_export_list(list, files, !app.run.live());
        PictureChoice pictures;
        if (files.draws())
            pictures = request.pictures;
        else if (files.animates())
            pictures.background = request.pictures.background;
        for (std::string& option : picture_options(pictures)) options.push_back(std::move(option));
        extra = fmt::format("{}", fmt::join(options, " "));
    }
    const std::filesystem::path& folder = app.jobs.export_job.request.folder;
    if (app.run.live())
        copy_text(app, decode_command(app.run.setup.model_folder, app.run.status.run, app.run.n_decoded(),
                                      list, folder, extra));
    else
        copy_text(app, fmt::format("keyhole replay {} --export {} --out {}{}{}",
                                   shell_word(app.run.opened_file.string()), list,
                                   shell_word(folder.string()), extra.empty() ? "" : " ", extra));
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
                                  shown_lanes(app.run.history, focus_with_rows(app)));
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
    app.save_in_background(path,
                           [history = app.run.history, view = app.view,
                            lane = shown_lanes(app.run.history, focus_with_rows(app)).front(), request,
                            path] { write_drawing(atlas_picture(history, view, lane, request), path); });
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
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane) {
        const std::optional<int> recorded = app.run.history_lane(lane);
        const LaneRecord* record =
            recorded ? app.run.history.lane_record(app.run.last_row(), *recorded) : nullptr;
        specs.push_back(record != nullptr ? record->info->effective
                                          : format_lane_spec(app.run.lane_editor.lanes()[to_index(lane)]));
    }
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
    write_text_file(path, overlap_table(app.run.history, app.shown_lane(),
                                        app.run.history_lane(app.other_lane()).value_or(0), app.view.row));
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
               [](AppState& app, std::string_view list) { app.jobs.export_job.request.list = list; }},
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
               "Stops a running export (complete files stay) and the reading of a trace.",
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
