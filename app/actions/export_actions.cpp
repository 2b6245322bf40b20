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
#include <optional>
#include <utility>
#include <vector>

namespace keyhole {

namespace {

using namespace key;

void choose_rows(AppState& app, std::string_view rows) {
    if (rows != "all" && rows != "decoded")
        fail(ErrorCode::wrong_use, "'{}' is not valid; choose all or decoded", rows);
    app.jobs.export_job.request.all_rows = rows == "all";
}

/// Reads a number within bounds; 0 stands for the usual.
double within(double number, std::string_view what, double least, double most) {
    if (number != 0 && (number < least || number > most))
        fail(ErrorCode::wrong_use, "{}={} is not valid; choose {} to {}", what, number, least, most);
    return number;
}

/// Reads "svg,pdf 1200 dark bare high=600 font=9": each may be left out.
void choose_pictures(AppState& app, std::string_view words) {
    PictureChoice choice;
    for (std::size_t blank = 0; blank != std::string_view::npos && !words.empty();
         words.remove_prefix(std::min(blank, words.size() - 1) + 1)) {
        blank = words.find(' ');
        const std::string_view word = words.substr(0, blank);
        if (word == "dark" || word == "light")
            choice.background = word == "dark" ? Background::dark : Background::light;
        else if (word == "bare")
            choice.print.bare = true;
        else if (word.starts_with("high="))
            choice.print.height = static_cast<int>(within(whole_numbers(word.substr(5), 1, 1)[0], "high",
                                                          PrintForm::kLeastHeight, PrintForm::kMostHeight));
        else if (word.starts_with("font="))
            choice.print.font_size = within(real_numbers(word.substr(5), 1, 1)[0], "font",
                                            PrintForm::kLeastFont, PrintForm::kMostFont);
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
    app.need_free_writer("export to " + chosen.folder.string());
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
                              const std::vector<std::string>& endings) {
    const std::filesystem::path path(file.empty() ? usual : file);
    const std::string ending = path.extension().string();
    if (std::find(endings.begin(), endings.end(), ending) == endings.end())
        fail(ErrorCode::wrong_use, "cannot save {}: {} can be {}", path.string(), what,
             fmt::join(endings, " or "));
    return path;
}

/// FILE [WIDTH] [dark] [shown] [story|lanes|head] as a user writes it. The file name may contain blanks.
struct PictureWords {
    std::string_view file = "";
    std::string_view part = "";  ///< of kShownParts; empty: the one on show
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
        else if (std::ranges::find(kShownParts, last) != kShownParts.end())
            words.part = last;
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

/// Returns the endings of the files that a kind can be saved as, the usual one first.
std::vector<std::string> endings_of(const PictureKind& kind) {
    std::vector<std::string> endings;
    const auto add = [&](PictureFormat format) {
        endings.push_back(fmt::format(".{}", format_name(format)));
    };
    if (kind.draw != nullptr) {
        add(kind.usual);
        for (const PictureFormat format : kPictureFormats)
            if (format != kind.usual) add(format);
    }
    if (kind.table != nullptr) endings.emplace_back(kind.table_ending);
    return endings;
}

/// Writes a picture, or its table where the file's ending is that of tables.
void write_view(const PictureSource& source, const ViewWord& word, const std::filesystem::path& path) {
    if (word.kind->table != nullptr && path.extension() == word.kind->table_ending)
        write_text_file(path, picture_table(word, source));
    else
        write_drawing(draw_picture(word, source), path);
}

/// Saves a picture, or with FILE.csv its numbers. what: see view_word(); noun: for the refusal of a file.
void save_view(AppState& app, std::string_view what, std::string_view noun, std::string_view arguments) {
    (void)config_of(app);
    const PictureWords words = picture_words(arguments);
    const ViewWord word = view_word(app, what).value();
    const std::vector<std::string> endings = endings_of(*word.kind);
    const std::filesystem::path path =
        file_of(words.file, fmt::format("{}{}", what, endings.front()), noun, endings);
    PictureSource source = picture_source(app, word);
    source.options.width = words.width;
    source.options.background = words.background;
    if (word.kind->is_slow) {  // a second at a thousand heads
        source.lane_of = {};
        source.measures = nullptr;
        return app.save_in_background(path, [history = app.run.history, source, word, path]() mutable {
            source.history = &history;
            write_view(source, word, path);
        });
    }
    write_view(source, word, path);
    app.notify("saved " + std::filesystem::absolute(path).string());
}

/// Draws a part that the window shows, with axes, scale and caption, from the data and not from the window.
void write_shown_view(AppState& app, const std::filesystem::path& path, const PictureWords& words) {
    if (!app.run.has_steps()) fail(ErrorCode::wrong_use, "no run yet");
    const ViewWord word = view_word(app, words.part).value();
    PictureSource source = picture_source(app, word);
    source.options.width = words.width;
    source.options.background = words.background;
    const ViewState& view = app.view;
    if (words.shown && word.kind->of_heads) {
        source.options.shown = shown_cells(view.heat, app.maps.canvas, view.row);
        source.options.cell_aspect = std::clamp(view.heat.cell_height / view.heat.cell_width, 0.1, 10.0);
    }
    const bool differs = word.kind->arguments == PictureArguments::two_lanes;
    const HeatData& shown = differs ? app.maps.difference : app.maps.lane;
    if (!word.kind->of_lanes) source.largest = shown.focus().largest(view.range().sinks_count);
    write_drawing(draw_picture(word, source), path);
    app.notify("saved " + std::filesystem::absolute(path).string());
}

void save_picture(AppState& app, std::string_view arguments) {
    if (arguments.empty()) return open_dialog<Dialog::save_picture>(app, {});
    const PictureWords words = picture_words(arguments);
    write_shown_view(app, file_of(words.file, "", "a picture", endings_of(usual_picture())), words);
}

/// arguments: the action that needs a path, with {} where the path stands if not at the end.
void browse(AppState& app, std::string_view arguments) {
    struct Known {
        std::string_view action;
        FileQuestion question;
    };
    const std::array<Known, 8> kKnown = {
        {{"file.open", {false, false, "Open a trace", "", "Traces of Keyhole", "*.keyhole"}},
         {"file.save", {true, false, "Save the trace", "run.keyhole", "Traces of Keyhole", "*.keyhole"}},
         {"file.picture", {true, false, "Save a picture", "heatmap.png", "", ""}},
         {"screenshot", {true, false, "Save a screenshot", "keyhole.png", "", ""}},
         {"export.folder", {false, true, "Export into a folder", "", "", ""}},
         {"attribution.files", {false, true, "Write budgets by head into a folder", "", "", ""}},
         {"lane.set", {false, false, "Open a file for an option of the lane", "", "", ""}},
         {"open", {false, false, "Open a trace, a model or a prompt", "", "", ""}}}};
    const std::string_view action = arguments.substr(0, arguments.find(' '));
    const auto known =
        std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& k) { return k.action == action; });
    if (known == kKnown.end())
        fail(ErrorCode::wrong_use, "'{}' takes no path; give {}", action,
             "file.open, file.save, file.picture, screenshot, export.folder, attribution.files, lane.set or "
             "open");
    app.choose_path(std::string(arguments), known->question);
}

void copy_picture(AppState& app, std::string_view part) {
    if (part.empty()) part = shown_part(app);
    if (std::ranges::find(kShownParts, part) == kShownParts.end())
        fail(ErrorCode::wrong_use, "'{}' is not valid; choose {}", part, fmt::join(kShownParts, ", "));
    const PrivateFolder folder;
    const std::filesystem::path file = folder.make_file("copied.png");
    PictureWords words;
    words.part = part;
    write_shown_view(app, file, words);
    copy_image_to_clipboard(file);
    app.notify(fmt::format("copied a picture of {}", part == "story"   ? "the story"
                                                     : part == "lanes" ? "the lanes side by side"
                                                                       : "the focused head"));
}

std::string_view needs_export_job(const AppState& app) {
    return app.jobs.export_job.running() || app.jobs.opening() ? ""
                                                               : "no export and no opening is in progress";
}

std::string_view needs_last_run(const AppState& app) {
    return app.last_run.empty() ? "no run of an earlier window is kept" : "";
}

constexpr std::array kBrowseChoices = {ActionChoice{"open", "Open…"}};

constexpr std::array kExportActions = {
    UserAction{"file.page",
               "Export a page",
               "[FILE.html]: saves the run as one file that any browser opens.",
               {},
               [](AppState& app, std::string_view a) { save_view(app, "page", "a page", a); },
               {.menu = {MenuGroup::file_export, 5}, .lacks = need::steps}},
    UserAction{"file.curves",
               "Save the curves",
               "[FILE.svg|FILE.png|FILE.pdf|FILE.csv [WIDTH] [dark]]: saves the plot of the curves panel, or "
               "its numbers.",
               {},
               [](AppState& app, std::string_view a) { save_view(app, "curves", "curves", a); },
               {.menu = {MenuGroup::file_part, 1}, .lacks = need::steps}},
    UserAction{"file.atlas",
               "Save the atlas",
               "[FILE.png|FILE.svg|FILE.pdf [WIDTH] [dark]]: saves all heads of the focused lane up to the "
               "shown step.",
               {},
               [](AppState& app, std::string_view a) { save_view(app, "atlas", "the atlas", a); },
               {.menu = {MenuGroup::file_part, 2}, .lacks = need::steps}},
    UserAction{"file.answers",
               "Save the answers",
               "[FILE.png|FILE.svg|FILE.pdf [WIDTH] [dark]]: saves what each lane answers by itself.",
               {},
               [](AppState& app, std::string_view a) { save_view(app, "answers", "the answers", a); },
               {.menu = {MenuGroup::file_part, 3}, .lacks = need::steps}},
    UserAction{"file.overlap",
               "Save the overlap of two lanes",
               "[FILE.csv]: saves how many tokens both, one or neither keep, by KV head.",
               {},
               [](AppState& app, std::string_view a) { save_view(app, "overlap", "an overlap", a); },
               {.menu = {MenuGroup::file_part, 4}, .lacks = need::two_lanes}},
    UserAction{"file.copy",
               "Copy as command",
               "[story|lanes|head|curves|overlap|atlas|answers|page|run|frames|gif|gif-view]: copies the "
               "command line that makes the picture of what is on show, or the files of the export.",
               {'C', kCtrl | kShift},
               copy_command,
               {.menu = {MenuGroup::file_export, 4}}},
    UserAction{"file.frames",
               "Export the mask over time",
               "[FOLDER]: one picture for each step.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "frames", a); },
               {.menu = {MenuGroup::file_part, 5}, .lacks = need::steps}},
    UserAction{"file.gif",
               "Export the mask over time as GIF",
               "[FOLDER]: makes lane0/mask.gif and so on, with all heads.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "gif", a); },
               {.menu = {MenuGroup::file_part, 6}, .lacks = need::steps}},
    UserAction{"file.gif-view",
               "Export the focused view as GIF",
               "[FOLDER]: attention, mask or scores of the focused head, one frame for each step.",
               {},
               [](AppState& app, std::string_view a) { export_one(app, "gif-view", a); },
               {.menu = {MenuGroup::file_part, 7}, .lacks = need::steps}},
    UserAction{"export.folder",
               "Set the export folder",
               "FOLDER: for file.export and export.start.",
               {},
               [](AppState& app, std::string_view folder) {
                   app.jobs.export_job.request.folder = std::filesystem::path(folder);
               },
               {.is_drag = true}},
    UserAction{"export.list",
               "Choose what to export",
               "[LIST]: as --export of keyhole decode takes it.",
               {},
               choose_list,
               {.elsewhere = "the dialog Export the run"}},
    UserAction{
        "export.pictures",
        "Choose the pictures of an export",
        "[png,svg,pdf] [WIDTH] [light|dark] [bare] [high=PIXELS] [font=POINTS]: of masks, heat maps and "
        "scores. Left out: the usual one.",
        {},
        choose_pictures,
        {.elsewhere = "the dialog Export the run"}},
    UserAction{"export.rows",
               "Choose the rows to export",
               "all|decoded: with or without the prompt's.",
               {},
               choose_rows,
               {.elsewhere = "the dialog Export the run"}},
    UserAction{"export.start",
               "Export",
               "Exports what was chosen, into the chosen folder.",
               {},
               [](AppState& app, std::string_view) { start_export(app); },
               {.elsewhere = "the dialog Export the run"}},
    UserAction{"export.cancel",
               "Cancel export or opening",
               "Stops a running export, and its folder stays as it was; also the reading of a trace.",
               {},
               [](AppState& app, std::string_view) {
                   app.jobs.export_job.cancel();
                   app.cancel_opening();
               },
               {.menu = {MenuGroup::file_cancel, 1}, .lacks = needs_export_job}},
    UserAction{"file.open",
               "Open a trace…",
               "[FILE.keyhole]",
               {'O', kCtrl},
               [](AppState& app, std::string_view a) {
                   a.empty() ? open_dialog<Dialog::open_trace>(app, {})
                             : app.open_trace(std::filesystem::path(a));
               },
               {.menu = {MenuGroup::file_open, 2}}},
    UserAction{"file.last",
               "Open the last run",
               "The run of the window that was closed last, if it was more than what a start shows.",
               {},
               [](AppState& app, std::string_view) {
                   if (app.last_run.empty()) fail(ErrorCode::wrong_use, "{}", needs_last_run(app));
                   std::error_code ignored;
                   if (!std::filesystem::exists(app.last_run, ignored))
                       app.last_run.replace_extension();  // it was opened, and is a trace now
                   app.open_trace(app.last_run);
               },
               {.menu = {MenuGroup::file_open, 4}, .lacks = needs_last_run}},
    UserAction{"file.save",
               "Save the trace…",
               "[FILE.keyhole]",
               {'S', kCtrl},
               [](AppState& app, std::string_view a) {
                   a.empty() ? open_dialog<Dialog::save_trace>(app, {})
                             : app.save_trace(std::filesystem::path(a));
               },
               {.menu = {MenuGroup::file_open, 5}, .lacks = need::steps}},
    UserAction{
        "file.export",
        "Export the run…",
        "[FOLDER [LIST]]: makes the same files as keyhole decode, or as keyhole replay for an opened trace.",
        {'E', kCtrl},
        export_run,
        {.menu = {MenuGroup::file_export, 1}, .lacks = need::steps}},
    UserAction{
        "file.picture",
        "Save a picture…",
        "[FILE.png|FILE.svg|FILE.pdf [story|lanes|head] [WIDTH] [dark] [shown]]: of the story, the lanes "
        "side by side or the focused head, with axes, scale and caption. Left out: what is on show. "
        "WIDTH: in pixels; shown: only what the zoom shows.",
        {'E', kCtrl | kShift},
        save_picture,
        {.menu = {MenuGroup::file_export, 2}, .lacks = need::steps}},
    UserAction{
        "picture.copy",
        "Copy a picture",
        "[story|lanes|head]: to the desktop's clipboard, by wl-copy or xclip. Left out: what is on show.",
        {'P', kCtrl | kShift},
        copy_picture,
        {.menu = {MenuGroup::edit_copy, 3}, .lacks = need::steps}},
    UserAction{
        "file.browse",
        "Choose a path with the desktop's dialog",
        "ACTION: file.open, file.save, file.picture, screenshot, export.folder, attribution.files, lane.set "
        "or open gets the path, at its end or in place of {}.",
        {},
        browse,
        {.menu = {MenuGroup::file_open, 1}, .choices = kBrowseChoices}},
    UserAction{"screenshot",
               "Save a screenshot…",
               "[FILE.png]: saves the window as it is.",
               {kF12, 0},
               [](AppState& app, std::string_view a) {
                   if (a.empty())
                       open_dialog<Dialog::save_screenshot>(app, {});
                   else
                       app.requests.screenshot = std::filesystem::path(a);
               },
               {.menu = {MenuGroup::file_export, 3}}},
    UserAction{"dump-cells",
               "Write cells and their pixels",
               "FILE: writes 20 cells of the heat map with value and colour as JSON.",
               {},
               [](AppState& app, std::string_view a) {
                   if (a.empty()) fail(ErrorCode::wrong_use, "give a file");
                   app.requests.dump_cells = std::filesystem::path(a);
               }},
    UserAction{"quit",
               "Quit",
               "",
               {'Q', kCtrl},
               [](AppState& app, std::string_view) { app.requests.quit = true; },
               {.menu = {MenuGroup::file_quit, 1}}},
};

}  // namespace

std::span<const UserAction> export_actions() {
    return kExportActions;
}

}  // namespace keyhole
