#include "app/view/view_export.h"

#include "app/view/heat_data.h"
#include "engine/analysis/measure_curves.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/policy/lane_names.h"

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

namespace keyhole {

namespace {

using Kind = ViewWord::Kind;

/// Returns the index into history.lanes() of a lane. index: among the last step's, checked by check_views().
int lane_of(const RunHistory& history, int index) {
    return *history.lane_from_id(history.steps().back()->lanes.at(to_index(index)).info->id);
}

void check_lane(std::string_view where, int lane, const ViewLimits& limits) {
    if (limits.n_lanes >= 0 && lane >= limits.n_lanes)
        fail(ErrorCode::wrong_use, "{}: lane {} does not exist; at its end the run has lanes 0 to {}", where,
             lane, limits.n_lanes - 1);
}

void check_indices(const std::vector<int>& asked, int n, std::string_view what) {
    for (const int i : asked)
        if (i < 0 || i >= n)
            fail(ErrorCode::wrong_use, "--{0}s: {0} {1} does not exist; the model has {0}s 0 to {2}", what, i,
                 n - 1);
}

/// Returns the requested indices; all if none were requested.
std::vector<int> chosen(const std::vector<int>& asked, int n) {
    std::vector<int> all;
    for (int i = 0; asked.empty() && i < n; ++i) all.push_back(i);
    return asked.empty() ? all : asked;
}

/// Returns the number of heads that a word draws one by one; 1 for other words.
std::int64_t n_heads_of(const ViewWord& word, const ViewExport& how, const ViewLimits& limits) {
    if (word.kind != Kind::picture && word.kind != Kind::difference && word.kind != Kind::tokens) return 1;
    return static_cast<std::int64_t>(chosen(how.layers, limits.n_layers).size() *
                                     chosen(how.heads, limits.n_heads).size());
}

/// Returns the number of files that a word makes of a head.
std::int64_t n_files_of(const ViewWord& word, const ViewExport& how) {
    if (word.kind == Kind::overlap) return 1;
    const bool has_table =
        word.kind == Kind::measure || word.kind == Kind::tokens || word.kind == Kind::watched;
    return static_cast<std::int64_t>(std::max<std::size_t>(how.pictures.formats.size(), 1)) + has_table;
}

/// Writes the views. Holds the state that the words of one export share.
struct Writer {
    const RunHistory& history;
    const ViewExport& how;
    const std::function<void(double)>& progress;
    std::int64_t n_all;
    PictureOptions request;
    ViewState view;
    std::vector<std::string> files;

    void written(std::string name) {
        files.push_back(std::move(name));
        if (progress) progress(static_cast<double>(files.size()) / static_cast<double>(n_all));
    }
    void table(const std::string& name, const std::string& text) {
        write_text_file(how.folder / name, text);
        written(name);
    }
    /// Writes the picture in the chosen formats. name: without an ending.
    void save(const Drawing& drawing, const std::string& name, PictureFormat usual) {
        const std::vector<PictureFormat>& asked = how.pictures.formats;
        for (const PictureFormat format : asked.empty() ? std::vector{usual} : asked)
            written(write_drawing(drawing, how.folder / name, std::vector{format}).front());
    }
    /// Calls write(name of the head) for each chosen head, with the view focused on it.
    template <class Write>
    void each_head(Write write) {
        const ModelConfig& config = history.run().config;
        for (const int layer : chosen(how.layers, config.n_layers))
            for (const int head : chosen(how.heads, config.n_heads)) {
                view.layer = layer;
                view.head = head;
                write(fmt::format("L{}_H{}", layer, head));
            }
    }
    void picture(const ViewWord& word) {
        view.mode = word.mode;
        const int lane = lane_of(history, how.focus);
        each_head([&](const std::string& head) {
            HeatData data(HeatData::Kind::head);
            data.update(history, lane, view, std::numeric_limits<double>::infinity());
            const float most = data.focus().largest(view.range().sinks_count);
            save(focus_picture(history, lane, view, color_scale(view, most), request),
                 fmt::format("{}_lane{}_{}", view_name(word), how.focus, head), PictureFormat::png);
        });
    }
    void difference(const ViewWord& word) {
        view.mode = word.mode;
        const int a = lane_of(history, word.a), b = lane_of(history, word.b);
        each_head([&](const std::string& head) {
            HeatData data(HeatData::Kind::difference);
            data.update(history, a, view, std::numeric_limits<double>::infinity(), b);
            const float most = data.focus().largest(view.range().sinks_count);
            save(difference_picture(history, a, b, view, difference_scale(view, most, request.background),
                                    request),
                 fmt::format("{}_{}-{}_{}", view_name(word), word.a, word.b, head), PictureFormat::png);
        });
    }
    void curves(const std::string& name) {
        MeasureCurves measures;
        measures.update(history);
        CurvePlot plot = curve_figure(history, measures, view, curve_lanes(history, view, how.focus));
        plot.picture_width = how.pictures.width;
        plot.background = how.pictures.background;
        save(curves_drawing(plot), name, PictureFormat::svg);
        table(name + ".csv", curve_table(plot));
    }
    void write(const ViewWord& word) {
        switch (word.kind) {
            case Kind::picture:
                return picture(word);
            case Kind::difference:
                return difference(word);
            case Kind::overlap:
                return table(
                    fmt::format("overlap_{}-{}.csv", word.a, word.b),
                    overlap_table(history, lane_of(history, word.a), lane_of(history, word.b), view.row));
            case Kind::measure:
                view.measure_curve = curve_index(word.words);
                return curves("curve_" + word.words);
            case Kind::tokens:
                view.measure_curve = -1;
                view.curve_positions = word.positions;
                return each_head([&](const std::string& head) { curves("tokens_" + head); });
            case Kind::watched:
                return watched(word);
            case Kind::atlas:
                return save(atlas_picture(history, view, shown_lane(history, how.focus), request),
                            fmt::format("atlas_lane{}", how.focus), PictureFormat::png);
            case Kind::answers:
                return answers();
        }
    }
    void answers() {
        if (how.answers.empty())
            fail(ErrorCode::wrong_use,
                 "--export answers: the lanes of this run followed lane 0, so its records do not hold their "
                 "own answers; decode it again with --export answers");
        std::vector<std::string> specs;
        for (const LaneRecord& record : history.steps().back()->lanes)
            specs.push_back(record.info->effective);
        AnswersFigure figure = answers_figure(history.run(), how.answers, specs, how.right_answer);
        figure.width = how.pictures.width;
        figure.background = how.pictures.background;
        save(answers_drawing(figure), "answers", PictureFormat::png);
    }
    void watched(const ViewWord& word) {
        view.measure_curve = ViewState::kWatchedSpan;
        if (word.positions.empty()) {
            view.watched = find_span(history, lane_of(history, how.focus), word.words);
            if (!view.watched)
                fail(ErrorCode::wrong_use, "--export watched: '{}' is not in the text",
                     shown_text(word.words));
        } else {
            view.watched = TokenSpan{word.positions.front(), word.positions.back()};
        }
        curves(fmt::format("watched_{}-{}", view.watched->first, view.watched->last));
    }
};

}  // namespace

ViewLimits view_limits(const RunHistory& history) {
    const ModelConfig& config = history.run().config;
    return {config.n_layers, config.n_heads, static_cast<int>(history.steps().back()->lanes.size()),
            history.steps().front()->row, history.last_row()};
}

void check_views(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits) {
    if (words.empty()) {
        if (how.row >= 0 || how.focus > 0 || !how.look.empty())
            fail(ErrorCode::wrong_use, "--row, --focus and --look are for views; name one with --export: {}",
                 view_word_list());
        return;
    }
    check_picture_width(how.pictures.width);
    check_lane("--focus", how.focus, limits);
    check_indices(how.layers, limits.n_layers, "layer");
    check_indices(how.heads, limits.n_heads, "head");
    if (how.row > limits.last_row || (how.row >= 0 && how.row < limits.first_row))
        fail(ErrorCode::wrong_use, "--row {}: the run has rows {} to {}", how.row, limits.first_row,
             limits.last_row);
    ViewState ignored;
    parse_look(how.look, ignored);
    for (const ViewWord& word : words) {
        if (word.kind == Kind::difference || word.kind == Kind::overlap)
            for (const int lane : {word.a, word.b})
                check_lane("--export " + format_view_word(word), lane, limits);
        for (const int p : word.positions)
            if (p > limits.last_row)
                fail(ErrorCode::wrong_use, "--export {}: positions are 0 to {}, not {}", view_name(word),
                     limits.last_row, p);
    }
}

std::vector<ShownLane> shown_lanes(const RunHistory& history) {
    const std::vector<LaneRecord>& last = history.steps().back()->lanes;
    std::vector<ShownLane> lanes;
    std::vector<LaneSpec> specs;
    for (const LaneRecord& lane : last) specs.push_back(parse_lane_spec(lane.info->spec));
    const std::vector<std::string> names = lane_names(specs);
    for (int index = 0; index < static_cast<int>(last.size()); ++index)
        lanes.push_back(
            {index, lane_of(history, index), fmt::format("{} {}", index, names[to_index(index)])});
    return lanes;
}

ShownLane shown_lane(const RunHistory& history, int index) {
    return shown_lanes(history).at(to_index(index));
}

std::vector<ShownLane> curve_lanes(const RunHistory& history, const ViewState& view, int focus) {
    const bool of_tokens = view.measure_curve < 0 && view.measure_curve != ViewState::kWatchedSpan;
    return of_tokens ? std::vector{shown_lane(history, focus)} : shown_lanes(history);
}

ViewsSize views_size(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits) {
    constexpr std::int64_t kCurve = 60'000, kTableLine = 60;  // bytes
    ViewsSize size;
    const std::int64_t n_positions = limits.last_row + 1, n_rows = limits.last_row + 1 - limits.first_row;
    const std::int64_t n_lanes = std::max(limits.n_lanes, 1);
    for (const ViewWord& word : words) {
        const std::int64_t n_heads = n_heads_of(word, how, limits), n_files = n_files_of(word, how);
        size.n_files += n_heads * n_files;
        switch (word.kind) {
            case Kind::picture:
            case Kind::difference: {
                std::int64_t n_shown = how.all_rows ? n_positions : n_rows;
                if (how.last_rows > 0) n_shown = std::min<std::int64_t>(n_shown, how.last_rows);
                size.n_bytes += n_heads * estimate_picture_bytes(how.pictures, n_shown * n_positions);
                break;
            }
            case Kind::atlas:
                size.n_bytes += estimate_picture_bytes(how.pictures, std::int64_t{4'000'000});
                break;
            case Kind::answers:
                size.n_bytes += estimate_picture_bytes(how.pictures, n_lanes * 40'000);
                break;
            case Kind::overlap:
                size.n_bytes += std::int64_t{limits.n_layers} * limits.n_heads * kTableLine;
                break;
            default:
                size.n_bytes += n_heads * (n_files * kCurve + n_rows * n_lanes * 20);
        }
    }
    return size;
}

void check_views_size(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits) {
    constexpr std::int64_t kMostUnasked = 64;
    if (!how.layers.empty() || !how.heads.empty()) return;
    for (const ViewWord& word : words) {
        const std::int64_t n_heads = n_heads_of(word, how, limits);
        const std::int64_t n_files = n_heads * n_files_of(word, how);
        if (n_heads > 1 && n_files > kMostUnasked)
            fail(ErrorCode::wrong_use,
                 "--export {} writes {} files, for each of {} heads; choose some with --layers and --heads, "
                 "or "
                 "say --yes",
                 format_view_word(word), n_files, n_heads);
    }
}

std::vector<std::string> write_views(const RunHistory& history, const std::vector<ViewWord>& words,
                                     const ViewExport& how, int stride, int dense_from,
                                     const std::function<void(double)>& progress) {
    const ViewLimits limits = view_limits(history);
    check_views(words, how, limits);
    std::error_code ignored;
    std::filesystem::create_directories(how.folder, ignored);
    Writer writer{history, how, progress, std::max<std::int64_t>(views_size(words, how, limits).n_files, 1),
                  {},      {},  {}};
    writer.request.stride = stride;
    writer.request.dense_from = dense_from;
    writer.request.width = how.pictures.width;
    writer.request.background = how.pictures.background;
    parse_look(how.look, writer.view);
    const int last = how.row < 0 ? history.last_row() : how.row;
    writer.view.row = last;
    int first = how.all_rows ? 0 : std::min(history.n_prompt(), last);
    if (how.last_rows > 0) first = std::max(first, last + 1 - how.last_rows);
    if (first > 0) writer.request.shown = CellRect{first, last, 0, last};
    for (const ViewWord& word : words) writer.write(word);
    return std::move(writer.files);
}

}  // namespace keyhole
