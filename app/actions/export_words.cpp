#include "app/actions/export_words.h"

#include "app/actions/command_line.h"
#include "app/state/shown_answers.h"
#include "app/state/story.h"
#include "app/view/run_export.h"
#include "engine/analysis/measure_curves.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <fmt/ranges.h>

#include <vector>

namespace keyhole {

namespace {

/// Returns the command-line options of a choice of pictures.
std::vector<std::string> picture_options(const PictureChoice& choice) {
    std::vector<std::string> options, formats;
    for (const PictureFormat format : choice.formats) formats.emplace_back(format_name(format));
    if (!formats.empty()) options.push_back(fmt::format("--format {}", fmt::join(formats, ",")));
    if (choice.width > 0) options.push_back(fmt::format("--width {}", choice.width));
    if (choice.print.bare) options.emplace_back("--bare");
    if (choice.print.height > 0) options.push_back(fmt::format("--height {}", choice.print.height));
    if (choice.print.font_size > 0) options.push_back(fmt::format("--font-size {}", choice.print.font_size));
    if (choice.background == Background::dark) options.emplace_back("--look dark");
    return options;
}

/// Returns the --export word of the curves panel. Throws Error(wrong_use) if the panel shows nothing.
ViewWord curves_word(const ViewState& view) {
    ViewWord word;
    if (view.measure_curve == ViewState::kWatchedSpan) {
        if (!view.watched) fail(ErrorCode::wrong_use, "no words are watched");
        word.kind = find_picture("watched");
        word.positions = {view.watched->first, view.watched->last};
    } else if (view.measure_curve >= 0) {
        word.kind = find_picture("curve");
        word.words = curve_kinds()[to_index(view.measure_curve)].measure;
    } else {
        if (view.curve_positions.empty()) fail(ErrorCode::wrong_use, "no tokens are picked; pick some first");
        word.kind = find_picture("tokens");
        word.positions = view.curve_positions;
    }
    return word;
}

/// Returns the kind that draws what a part of the window shows, by its word; null: the word names no part.
const PictureKind* kind_of_part(const AppState& app, std::string_view part) {
    const HeatMode mode = app.view.mode;
    const std::string_view of_mode = mode == HeatMode::mask    ? "-mask"
                                     : mode == HeatMode::score ? "-scores"
                                                               : "";
    const bool differs = app.view.difference && app.shows_difference();
    if (part.empty()) part = shown_part(app);
    const std::string_view name = part != "head" ? part : differs ? "difference" : "view";
    return find_picture(fmt::format("{}{}", name, of_mode));
}

/// Returns the options of lanes' own answers: the right one, and where they end.
std::vector<std::string> answer_options(const AppState& app) {
    std::vector<std::string> options;
    if (const std::string right = right_answer(app); !right.empty())
        options.push_back("--right " + shell_word(right));
    if (app.run.live() && app.run.status.run.answer_end)
        if (const std::vector<std::string>& stop = app.run.status.run.answer_end->stop;
            stop != AnswerEnd().stop)
            for (const std::string& text : stop.empty() ? std::vector<std::string>{""} : stop)
                options.push_back("--stop " + shell_word(text));
    return options;
}

/// Returns the settings that gave an answer, with amounts in tokens where the lane's records have the same
/// ones.
std::string settings_of_answer(const AppState& app, const ShownAnswer& answer) {
    const LaneSpec& lane = app.run.lane_editor.lanes()[to_index(answer.lane)];
    LaneSpec spec = answer.answer.spec.empty() ? lane : parse_stored_lane_spec(answer.answer.spec);
    spec.name = lane.name;
    const std::string wanted = format_lane_spec(spec);
    const std::optional<int> recorded = app.run.history_lane(answer.lane);
    const LaneRecord* record =
        recorded ? app.run.history.lane_record(app.run.last_row(), *recorded) : nullptr;
    const bool same =
        record != nullptr && format_lane_spec(parse_stored_lane_spec(record->info->spec)) == wanted;
    return same || (record != nullptr && !app.run.live()) ? record->info->effective : wanted;
}

/// Returns the lanes that stand side by side on the screen, in their order; empty: all do, or none.
std::vector<int> lanes_side_by_side(const AppState& app) {
    if (app.view.arrangement != Arrangement::compare) return {};
    std::vector<int> lanes = app.compared_lanes();
    lanes.push_back(app.view.lane);
    std::ranges::sort(lanes);
    return std::ssize(lanes) == app.run.lane_editor.n_lanes() ? std::vector<int>() : lanes;
}

/// Returns the lanes that have something to draw.
std::vector<ShownLane> drawn_lanes(const AppState& app) {
    std::vector<ShownLane> lanes;
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane)
        if (const std::optional<int> known = app.run.drawn_lane(lane))
            lanes.push_back({lane, *known, app.shown().at(lane).title, app.shown().at(lane).look});
    return lanes;
}

/// Adds the lanes' own answers. needed: throws Error(wrong_use) if a trace does not hold them.
void add_answers(PictureSource& source, const AppState& app, bool needed) {
    source.answers = shown_answers(app);
    if (source.answers.empty() && needed)
        fail(ErrorCode::wrong_use,
             "the lanes of this trace followed lane 0, so it does not hold their own answers");
    for (const ShownAnswer& answer : source.answers) source.specs.push_back(settings_of_answer(app, answer));
    source.right_answer = right_answer(app);
}

}  // namespace

ExportRequest request_of(const AppState& app, std::string_view what) {
    ExportRequest request = app.jobs.export_job.request;
    if (what == "run") {
        // As `decode` without --export: what there is to show.
        const bool followed = !app.run.live() && app.run.has_steps() && app.run.history.run().start.follow;
        if (request.list == ExportRequest().list)
            request.list = usual_export_list(app.run.lane_editor.n_lanes(), !followed);
        return request;
    }
    if (what == "frames" || what == "gif") {
        request.list = what;
    } else if (what == "gif-view") {
        request.list = gif_of_mode(app.view.mode);
        request.layers = {app.view.layer};
        request.heads = {app.view.head};
    } else {
        fail(ErrorCode::wrong_use,
             "'{}' is not valid; give nothing, story, lanes, head, curves, overlap, atlas, answers, page, "
             "run, "
             "frames, gif or gif-view",
             what);
    }
    return request;
}

std::string_view shown_part(const AppState& app) {
    const bool compares = app.view.arrangement == Arrangement::compare && app.run.lane_editor.n_lanes() > 1;
    return app.tells_story() ? "story" : compares ? "lanes" : "head";
}

std::optional<ViewWord> view_word(const AppState& app, std::string_view what) {
    if (what == "curves") return curves_word(app.view);
    ViewWord word;
    const bool is_part = what.empty() || std::ranges::find(kShownParts, what) != kShownParts.end();
    word.kind = is_part ? kind_of_part(app, what) : find_picture(what);
    if (word.kind == nullptr) return std::nullopt;
    if (word.kind->arguments == PictureArguments::two_lanes) {
        if (app.run.lane_editor.n_lanes() < 2)
            fail(ErrorCode::wrong_use, "an overlap needs a second lane; add one");
        word.a = app.view.lane;
        word.b = app.other_lane();
    } else if (word.kind->arguments == PictureArguments::some_lanes) {
        word.lanes = lanes_side_by_side(app);
    } else if (word.kind->arguments != PictureArguments::none) {
        return std::nullopt;
    }
    return word;
}

/// Returns the focused lane. A heat map shows what stands for it before its first step; other pictures show
/// lane 0 then.
static ShownLane focus_of(const AppState& app, const PictureKind& kind) {
    if (kind.of_heads && kind.of_cells) return {app.view.lane, app.need_shown_lane(), "", 0};
    return shown_lane(app.run.history, app.run.history_lane(app.view.lane) ? app.view.lane : 0);
}

PictureSource picture_source(const AppState& app, const ViewWord& word) {
    if (!app.run.has_steps()) fail(ErrorCode::wrong_use, "no run yet");
    const RunHistory& history = app.run.history;
    PictureSource source;
    source.history = &history;
    source.view = app.view;
    source.focus = focus_of(app, *word.kind);
    source.options.stride = app.run.stride;
    source.options.dense_from = app.run.dense_from;
    source.measures = &app.run.curves;
    source.lane_of = [&app](int lane) { return app.need_drawn_lane(lane); };
    if (word.kind->of_answers) add_answers(source, app, word.kind->needs_answers);
    if (!word.kind->of_lanes) return source;
    const bool of_story = !word.kind->of_heads;
    source.beside = drawn_lanes(app);
    if (of_story) {
        source.story = story_of(app);
        source.options.layers = {app.view.layer};
        source.options.heads = {app.view.head};
    }
    return source;
}

std::string view_options(const AppState& app, const ViewWord& word) {
    const PictureKind& kind = *word.kind;
    const bool of_two = kind.arguments == PictureArguments::two_lanes;
    for (const int lane : {app.view.lane, of_two ? word.b : app.view.lane})
        if (!app.run.history_lane(lane))
            fail(ErrorCode::wrong_use, "lane {} has no step yet, so no command can show it; step once", lane);
    std::vector<std::string> options;
    if (kind.marks_words && app.view.watched)
        options.push_back(fmt::format("--watch {}..{}", app.view.watched->first, app.view.watched->last));
    if (kind.of_answers)
        for (std::string& option : answer_options(app)) options.push_back(std::move(option));
    if (kind.of_heads || kind.of_lanes)
        options.push_back(fmt::format("--layers {} --heads {}", app.view.layer, app.view.head));
    if (kind.of_cells && (kind.of_heads || !kind.of_lanes)) options.emplace_back("--rows all");
    if (app.view.lane != 0 && kind.of_focus) options.push_back(fmt::format("--focus {}", app.view.lane));
    if (app.view.row < app.run.last_row() && kind.of_step)
        options.push_back(fmt::format("--row {}", app.view.row));
    const std::string look = format_look(app.view);
    if (!look.empty() && kind.of_cells) options.push_back("--look " + look);
    return fmt::format("{}", fmt::join(options, " "));
}

std::string command_of(const AppState& app, const std::string& list, const std::filesystem::path& folder,
                       const std::string& extra) {
    if (!app.run.live())
        return fmt::format("keyhole replay {} --export {} --out {}{}{}",
                           shell_word(app.run.opened_file.string()), list, shell_word(folder.string()),
                           extra.empty() ? "" : " ", extra);
    if (app.run.n_decoded() < 1)
        fail(ErrorCode::wrong_use, "no token is decoded yet, and a command decodes at least one; step once");
    return decode_command(app.run.setup.model_folder, app.run.status.run, app.run.n_decoded(), list, folder,
                          extra, app.run.backend_options);
}

std::string export_options(const AppState& app, const ExportRequest& request) {
    std::vector<std::string> options;
    if (!request.layers.empty())
        options.push_back(fmt::format("--layers {} --heads {}", fmt::join(request.layers, ","),
                                      fmt::join(request.heads, ",")));
    if (request.all_rows) options.emplace_back("--rows all");
    RunExport exports;
    exports.files.all_rows = request.all_rows;
    parse_run_export(request.list, exports, !app.run.live());
    PictureChoice pictures;
    if (exports.files.draws() || !exports.views.empty())
        pictures = request.pictures;
    else if (exports.files.animates())
        pictures.background = request.pictures.background;
    for (std::string& option : picture_options(pictures)) options.push_back(std::move(option));
    if (exports.has_answers())
        for (std::string& option : answer_options(app)) options.push_back(std::move(option));
    return fmt::format("{}", fmt::join(options, " "));
}

}  // namespace keyhole
