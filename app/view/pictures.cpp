#include "app/view/pictures.h"

#include "app/view/heat_data.h"
#include "app/view/model_words.h"
#include "app/view/page.h"
#include "app/view/story_picture.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/policy/lane_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

namespace keyhole {

namespace {

/// Returns the index into history.lanes() of a lane by its number.
int lane_of(const PictureJob& job, int number) {
    return job.source.lane_of ? job.source.lane_of(number) : shown_lane(job.history(), number).lane;
}

/// Returns the largest value of the shown head, or of the difference of two lanes.
float largest_value(const PictureJob& job, HeatData::Kind kind, int lane, int other = 0) {
    if (job.source.largest) return *job.source.largest;
    HeatData data(kind);
    data.update(job.history(), lane, job.view, std::numeric_limits<double>::infinity(), other);
    return data.focus().largest(job.view.range().sinks_count);
}

Drawing draw_head(const PictureJob& job) {
    const int lane = job.source.focus.lane;
    const float most = largest_value(job, HeatData::Kind::head, lane);
    return focus_picture(job.history(), lane, job.view, color_scale(job.view, most), job.source.options);
}

Drawing draw_difference(const PictureJob& job) {
    const int a = lane_of(job, job.word.a), b = lane_of(job, job.word.b);
    const float most = largest_value(job, HeatData::Kind::difference, a, b);
    const PictureOptions& options = job.source.options;
    return difference_picture(job.history(), a, b, job.view,
                              difference_scale(job.view, most, options.background), options);
}

CurvePlot plot_of(const PictureJob& job) {
    MeasureCurves own;
    if (job.view.measure_curve >= 0 && job.source.measures == nullptr) own.update(job.history());
    const bool of_tokens = job.word.kind->of_heads;
    CurvePlot plot = curve_figure(job.history(), job.source.measures ? *job.source.measures : own, job.view,
                                  of_tokens ? std::vector{job.source.focus} : shown_lanes(job.history()));
    plot.picture_width = job.source.options.width;
    plot.print = job.source.options.print;
    plot.background = job.source.options.background;
    return plot;
}

Drawing draw_curves(const PictureJob& job) {
    return curves_drawing(plot_of(job));
}
std::string table_of_curves(const PictureJob& job) {
    return curve_table(plot_of(job));
}

/// "tokens_80+81": two words of an export have files of their own.
std::string name_of_tokens(const PictureJob& job) {
    constexpr std::size_t kMost = 100;  // a file's name holds 255 bytes
    std::string name = fmt::format("tokens_{}", fmt::join(job.word.positions, "+"));
    if (name.size() > kMost) name = fmt::format("{}_{:016x}", name.substr(0, kMost), fnv1a(name));
    return name;
}

void plot_watched(PictureJob& job) {
    job.view.measure_curve = ViewState::kWatchedSpan;
    job.view.watched = watched_tokens(job.history(), job.source.focus.lane, job.word);
}

Drawing draw_answers(const PictureJob& job) {
    const PictureSource& source = job.source;
    if (source.answers.empty())
        fail(ErrorCode::wrong_use,
             "--export answers: the lanes of this run followed lane 0, so its records do not hold their own "
             "answers; decode it again with --export answers");
    AnswersFigure figure =
        answers_figure(job.history().run(), source.answers, source.specs, source.right_answer);
    figure.width = source.options.width;
    figure.print = source.options.print;
    figure.background = source.options.background;
    return answers_drawing(figure);
}

std::string file_of_head(const PictureJob& job) {
    return fmt::format("{}_lane{}", job.word.kind->name, job.source.focus.index);
}
std::string file_of_pair(const PictureJob& job) {
    return fmt::format("{}_{}-{}", job.word.kind->name, job.word.a, job.word.b);
}

std::int64_t bytes_of_cells(const PictureShape& shape) {
    return estimate_picture_bytes(shape.how, shape.n_rows * shape.n_positions);
}
std::int64_t bytes_of_curves(const PictureShape& shape) {
    constexpr std::int64_t kCurve = 60'000, kNumber = 20;
    return shape.n_files * kCurve + shape.n_steps * shape.n_lanes * kNumber;
}

constexpr PictureKind head_kind(std::string_view name, HeatMode mode) {
    return {.name = name,
            .mode = mode,
            .of_heads = true,
            .of_cells = true,
            .of_focus = true,
            .of_step = true,
            .marks_words = true,
            .file = file_of_head,
            .draw = draw_head,
            .bytes = bytes_of_cells};
}

std::string file_of_kind(const PictureJob& job) {
    return std::string(job.word.kind->name);
}

/// The focused head of all lanes, side by side.
constexpr PictureKind lanes_kind(std::string_view name, HeatMode mode) {
    return {.name = name,
            .arguments = PictureArguments::some_lanes,
            .mode = mode,
            .of_heads = true,
            .of_cells = true,
            .of_step = true,
            .of_lanes = true,
            .of_answers = true,
            .marks_words = true,
            .file =
                [](const PictureJob& job) {
                    return fmt::format("{}{}{}", job.word.kind->name, job.word.lanes.empty() ? "" : "_",
                                       fmt::join(job.word.lanes, "+"));
                },
            .draw = lanes_picture,
            .bytes = [](const PictureShape& shape) { return shape.n_lanes * bytes_of_cells(shape); }};
}

constexpr PictureKind story_kind(std::string_view name, HeatMode mode) {
    return {.name = name,
            .mode = mode,
            .of_cells = true,
            .of_focus = true,
            .of_step = true,
            .of_lanes = true,
            .of_answers = true,
            .marks_words = true,
            .file = file_of_kind,
            .draw = story_picture,
            .bytes = [](const PictureShape& shape) {
                return estimate_picture_bytes(shape.how, shape.n_lanes * 100'000);
            }};
}

constexpr PictureKind difference_kind(std::string_view name, HeatMode mode) {
    return {.name = name,
            .arguments = PictureArguments::two_lanes,
            .mode = mode,
            .of_heads = true,
            .of_cells = true,
            .of_step = true,
            .marks_words = true,
            .file = file_of_pair,
            .draw = draw_difference,
            .bytes = bytes_of_cells};
}

constexpr std::array kKinds = {
    head_kind("view", HeatMode::attention),
    head_kind("view-mask", HeatMode::mask),
    head_kind("view-scores", HeatMode::score),
    story_kind("story", HeatMode::attention),
    story_kind("story-mask", HeatMode::mask),
    story_kind("story-scores", HeatMode::score),
    lanes_kind("lanes", HeatMode::attention),
    lanes_kind("lanes-mask", HeatMode::mask),
    lanes_kind("lanes-scores", HeatMode::score),
    difference_kind("difference", HeatMode::attention),
    difference_kind("difference-mask", HeatMode::mask),
    difference_kind("difference-scores", HeatMode::score),
    PictureKind{.name = "overlap",
                .arguments = PictureArguments::two_lanes,
                .of_step = true,
                .file = file_of_pair,
                .table =
                    [](const PictureJob& job) {
                        return overlap_table(job.history(), lane_of(job, job.word.a),
                                             lane_of(job, job.word.b), job.view.row);
                    },
                .bytes =
                    [](const PictureShape& shape) {
                        constexpr std::int64_t kLine = 60;
                        return shape.n_heads * kLine;
                    }},
    PictureKind{.name = "curve",
                .arguments = PictureArguments::measure,
                .usual = PictureFormat::svg,
                .prepare =
                    [](PictureJob& job) {
                        job.view.measure_curve = curve_index(job.word.words);
                        if (!has_curve(job.history(), job.view.measure_curve))
                            fail(ErrorCode::wrong_use, "--export curve:{0}: {1}", job.word.words,
                                 no_sinks_text(job.word.words));
                    },
                .file = [](const PictureJob& job) { return "curve_" + job.word.words; },
                .draw = draw_curves,
                .table = table_of_curves,
                .bytes = bytes_of_curves},
    PictureKind{.name = "tokens",
                .arguments = PictureArguments::positions,
                .of_heads = true,
                .of_focus = true,
                .usual = PictureFormat::svg,
                .prepare =
                    [](PictureJob& job) {
                        job.view.measure_curve = -1;
                        job.view.curve_positions = job.word.positions;
                    },
                .file = name_of_tokens,
                .draw = draw_curves,
                .table = table_of_curves,
                .bytes = bytes_of_curves},
    PictureKind{.name = "watched",
                .arguments = PictureArguments::span,
                .usual = PictureFormat::svg,
                .prepare = plot_watched,
                .file =
                    [](const PictureJob& job) {
                        return fmt::format("watched_{}-{}", job.view.watched->first, job.view.watched->last);
                    },
                .draw = draw_curves,
                .table = table_of_curves,
                .bytes = bytes_of_curves},
    PictureKind{.name = "atlas",
                .of_cells = true,
                .of_focus = true,
                .of_step = true,
                .is_slow = true,
                .file = file_of_head,
                .draw =
                    [](const PictureJob& job) {
                        return atlas_picture(job.history(), job.view, job.source.focus, job.source.options);
                    },
                .bytes =
                    [](const PictureShape& shape) {
                        return estimate_picture_bytes(shape.how, std::int64_t{4'000'000});
                    }},
    PictureKind{.name = "answers",
                .of_answers = true,
                .needs_answers = true,
                .file = file_of_kind,
                .draw = draw_answers,
                .bytes =
                    [](const PictureShape& shape) {
                        return estimate_picture_bytes(shape.how, shape.n_lanes * 40'000);
                    }},
    PictureKind{.name = "page",
                .of_answers = true,
                .marks_words = true,
                .is_slow = true,
                .file = file_of_kind,
                .table = [](const PictureJob& job) { return run_page(job.source); },
                .table_ending = ".html",
                .bytes =
                    [](const PictureShape& shape) {
                        return static_cast<std::int64_t>(
                            most_page_bytes(static_cast<int>(shape.n_positions)));
                    }},
};

constexpr std::array<std::string_view, 6> kOffered = {"page",    "story",    "atlas",
                                                      "answers", "curve:kl", "curve:jaccard"};

}  // namespace

std::span<const PictureKind> picture_kinds() {
    return kKinds;
}

const PictureKind& usual_picture() {
    return kKinds.front();
}

const PictureKind* find_picture(std::string_view name) {
    const auto found = std::ranges::find(kKinds, name, &PictureKind::name);
    return found == kKinds.end() ? nullptr : &*found;
}

std::span<const std::string_view> offered_pictures() {
    return kOffered;
}

std::string_view argument_form(PictureArguments arguments) {
    switch (arguments) {
        case PictureArguments::none:
            return "";
        case PictureArguments::two_lanes:
            return "A-B";
        case PictureArguments::some_lanes:
            return "A+B";
        case PictureArguments::measure:
            return "MEASURE";
        case PictureArguments::positions:
            return "P+P";
        case PictureArguments::span:
            return "FIRST..LAST or WORDS";
    }
    return "";
}

PictureJob picture_job(const ViewWord& word, const PictureSource& source) {
    PictureJob job{word, source, source.view};
    if (word.kind->of_cells) job.view.mode = word.kind->mode;
    if (word.kind->prepare != nullptr) word.kind->prepare(job);
    return job;
}

Drawing draw_picture(const ViewWord& word, const PictureSource& source) {
    return word.kind->draw(picture_job(word, source));
}

std::string picture_table(const ViewWord& word, const PictureSource& source) {
    return word.kind->table(picture_job(word, source));
}

std::vector<ShownLane> shown_lanes(const RunHistory& history) {
    const std::vector<LaneRecord>& last = history.steps().back()->lanes;
    std::vector<ShownLane> lanes;
    std::vector<LaneSpec> specs;
    for (const LaneRecord& lane : last) specs.push_back(parse_stored_lane_spec(lane.info->spec));
    const std::vector<std::string> names = lane_names(specs);
    for (std::size_t i = 0; i < last.size(); ++i) {
        const int lane = *history.lane_from_id(last[i].info->id);
        lanes.push_back({static_cast<int>(i), lane, fmt::format("{} {}", i, names[i]),
                         history.lanes()[to_index(lane)].look});
    }
    return lanes;
}

TokenSpan watched_tokens(const RunHistory& history, int lane, const ViewWord& word) {
    if (!word.positions.empty()) return {word.positions.front(), word.positions.back()};
    if (const std::optional<TokenSpan> found = find_span(history, lane, word.words)) return *found;
    fail(ErrorCode::wrong_use, "--export watched: '{}' is not in the text", shown_text(word.words));
}

ShownLane shown_lane(const RunHistory& history, int index) {
    return shown_lanes(history).at(to_index(index));
}

}  // namespace keyhole
