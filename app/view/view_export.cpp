#include "app/view/view_export.h"

#include "app/view/heat_data.h"
#include "engine/analysis/measure_curves.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/number.h"
#include "engine/policy/lane_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>

namespace keyhole {

namespace {

using Kind = ViewWord::Kind;

struct Name {
    std::string_view name;
    Kind kind;
    HeatMode mode = HeatMode::attention;
    std::string_view arguments = {};
};
constexpr std::array kNames = {Name{"view", Kind::picture},
                               Name{"view-mask", Kind::picture, HeatMode::mask},
                               Name{"view-scores", Kind::picture, HeatMode::score},
                               Name{"difference", Kind::difference, HeatMode::attention, "A-B"},
                               Name{"difference-mask", Kind::difference, HeatMode::mask, "A-B"},
                               Name{"difference-scores", Kind::difference, HeatMode::score, "A-B"},
                               Name{"overlap", Kind::overlap, HeatMode::attention, "A-B"},
                               Name{"curve", Kind::measure, HeatMode::attention, "MEASURE"},
                               Name{"tokens", Kind::tokens, HeatMode::attention, "P+P"},
                               Name{"watched", Kind::watched, HeatMode::attention, "FIRST..LAST or WORDS"},
                               Name{"atlas", Kind::atlas},
                               Name{"answers", Kind::answers}};

std::string_view name_of(const ViewWord& word) {
    return std::find_if(
               kNames.begin(), kNames.end(),
               [&](const Name& n) {
                   return n.kind == word.kind &&
                          (n.mode == word.mode || (n.kind != Kind::picture && n.kind != Kind::difference));
               })
        ->name;
}

/// Parses numbers separated by `between`; nullopt if the text is anything else.
std::optional<std::vector<int>> numbers(std::string_view text, std::string_view between) {
    std::vector<int> out;
    while (true) {
        const std::size_t at = text.find(between);
        const auto value = number_from_text<int>(text.substr(0, at), 0);
        if (!value) return std::nullopt;
        out.push_back(*value);
        if (at == std::string_view::npos) return out;
        text.remove_prefix(at + between.size());
    }
}

ViewWord parse_view_word(const Name& name, std::string_view arguments) {
    ViewWord word;
    word.kind = name.kind;
    word.mode = name.mode;
    const auto wrong = [&] {
        fail(ErrorCode::wrong_use, "--export {}: expected {}{}{}, not '{}'", name.name, name.name,
             name.arguments.empty() ? "" : ":", name.arguments, shown_text(arguments));
    };
    const bool has = !arguments.empty();
    if (has == name.arguments.empty()) wrong();
    if (name.kind == Kind::difference || name.kind == Kind::overlap) {
        const auto lanes = numbers(arguments, "-");
        if (!lanes || lanes->size() != 2) wrong();
        word.a = (*lanes)[0];
        word.b = (*lanes)[1];
    } else if (name.kind == Kind::tokens) {
        const auto positions = numbers(arguments, "+");
        if (!positions || positions->size() > ViewState::kMaxCurves) wrong();
        word.positions = *positions;
    } else if (name.kind == Kind::watched) {
        const auto span = numbers(arguments, "..");
        if (span && span->size() == 2 && (*span)[0] <= (*span)[1])
            word.positions = *span;
        else
            word.words = arguments;
    } else {
        word.words = arguments;
        if (name.kind == Kind::measure && curve_index(arguments) < 0) {
            std::vector<std::string_view> known;
            for (const CurveKind& kind : curve_kinds()) known.push_back(kind.measure);
            fail(ErrorCode::wrong_use, "--export curve:{}: no such measure; one of {}", shown_text(arguments),
                 fmt::join(known, ", "));
        }
    }
    return word;
}

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

/// Writes the views. Holds the state that the words of one export share.
struct Writer {
    const RunHistory& history;
    const ViewExport& how;
    PictureOptions request;
    ViewState view;
    std::vector<std::string> files;

    std::filesystem::path path(std::string name) {
        files.push_back(name);
        return how.folder / name;
    }
    /// Writes the picture in the chosen formats. name: without an ending.
    void save(const Drawing& drawing, const std::string& name, PictureFormat usual) {
        const std::vector<PictureFormat>& asked = how.pictures.formats;
        for (std::string& file :
             write_drawing(drawing, how.folder / name, asked.empty() ? std::vector{usual} : asked))
            files.push_back(std::move(file));
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
                 fmt::format("{}_lane{}_{}", name_of(word), how.focus, head), PictureFormat::png);
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
                 fmt::format("{}_{}-{}_{}", name_of(word), word.a, word.b, head), PictureFormat::png);
        });
    }
    void curves(const std::string& name) {
        MeasureCurves measures;
        measures.update(history);
        CurvePlot plot = curve_figure(history, measures, view, shown_lanes(history, how.focus));
        plot.picture_width = how.pictures.width;
        plot.background = how.pictures.background;
        save(curves_drawing(plot), name, PictureFormat::svg);
        write_text_file(path(name + ".csv"), curve_table(plot));
    }
    void write(const ViewWord& word) {
        switch (word.kind) {
            case Kind::picture:
                return picture(word);
            case Kind::difference:
                return difference(word);
            case Kind::overlap:
                return write_text_file(
                    path(fmt::format("overlap_{}-{}.csv", word.a, word.b)),
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
                return save(atlas_picture(history, view, shown_lanes(history, how.focus).front(), request),
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

std::vector<ViewWord> take_view_words(std::string& list) {
    std::vector<ViewWord> words;
    std::string rest;
    std::string_view left = list;
    while (!left.empty()) {
        const std::size_t comma = std::min(left.find(','), left.size());
        std::string_view one = left.substr(0, comma);
        left.remove_prefix(std::min(comma + 1, left.size()));
        while (one.starts_with(' ')) one.remove_prefix(1);
        const std::size_t colon = std::min(one.find(':'), one.size());
        const auto it = std::find_if(kNames.begin(), kNames.end(),
                                     [&](const Name& n) { return n.name == one.substr(0, colon); });
        if (it != kNames.end())
            words.push_back(parse_view_word(*it, one.substr(std::min(colon + 1, one.size()))));
        else
            rest += (rest.empty() ? "" : ",") + std::string(one);
    }
    list = rest;
    return words;
}

std::string format_view_word(const ViewWord& word) {
    std::string text(name_of(word));
    if (word.kind == Kind::difference || word.kind == Kind::overlap)
        return text + fmt::format(":{}-{}", word.a, word.b);
    if (word.kind == Kind::tokens) return text + fmt::format(":{}", fmt::join(word.positions, "+"));
    if (word.kind == Kind::watched && !word.positions.empty())
        return text + fmt::format(":{}..{}", word.positions.front(), word.positions.back());
    return word.words.empty() ? text : text + ":" + word.words;
}

std::string view_word_list() {
    std::string list;
    for (const Name& name : kNames)
        list += fmt::format("{}{}{}{}", list.empty() ? "" : ", ", name.name,
                            name.arguments.empty() ? "" : ":", name.arguments);
    return list;
}

std::string format_look(const ViewState& view) {
    const ViewState usual;
    std::vector<std::string> parts;
    if (view.colors != usual.colors) parts.emplace_back(colormap_name(view.colors));
    const RangeChoice& range = view.range();
    if (!range.logarithmic) parts.emplace_back("linear");
    if (!range.automatic)
        parts.push_back(fmt::format("{}..{}", range.low, range.high));
    else if (!range.sinks_count)
        parts.emplace_back("no-sinks");
    if (range.gamma != 1) parts.push_back(fmt::format("gamma={}", range.gamma));
    if (!view.marks_nan) parts.emplace_back("no-nan");
    if (view.marks_clips) parts.emplace_back("clips");
    return fmt::format("{}", fmt::join(parts, ","));
}

Background take_background(std::string& look) {
    Background background = Background::light;
    std::string rest;
    std::string_view left = look;
    while (!left.empty()) {
        const std::size_t comma = std::min(left.find(','), left.size());
        const std::string_view part = left.substr(0, comma);
        left.remove_prefix(std::min(comma + 1, left.size()));
        if (part == "dark" || part == "light")
            background = part == "dark" ? Background::dark : Background::light;
        else
            rest += (rest.empty() ? "" : ",") + std::string(part);
    }
    look = rest;
    return background;
}

void parse_look(std::string_view look, ViewState& view) {
    RangeChoice range;
    while (!look.empty()) {
        const std::size_t comma = std::min(look.find(','), look.size());
        const std::string_view part = look.substr(0, comma);
        look.remove_prefix(std::min(comma + 1, look.size()));
        const std::size_t dots = part.find("..");
        if (const auto map = colormap_from_name(part)) {
            view.colors = *map;
        } else if (part == "linear") {
            range.logarithmic = false;
        } else if (part == "no-sinks") {
            range.sinks_count = false;
        } else if (part == "no-nan") {
            view.marks_nan = false;
        } else if (part == "clips") {
            view.marks_clips = true;
        } else if (part.starts_with("gamma=")) {
            range.gamma = read_number("--look: gamma", part.substr(6), 0.2f, 5.0f);
        } else if (dots != std::string_view::npos) {
            range.automatic = false;
            range.low = read_number("--look: LOW..HIGH", part.substr(0, dots), 0.0f);
            range.high = read_number("--look: LOW..HIGH", part.substr(dots + 2), 0.0f);
            if (!(range.low < range.high))
                fail(ErrorCode::wrong_use, "--look: '{}' does not ascend; write LOW..HIGH", part);
            if (std::fpclassify(range.low) == FP_SUBNORMAL || std::fpclassify(range.high) == FP_SUBNORMAL)
                fail(ErrorCode::wrong_use,
                     "--look: '{}' is too near to 0 for a scale; write 0 or {:.2g} and more", part,
                     std::numeric_limits<float>::min());
        } else {
            fail(ErrorCode::wrong_use,
                 "--look: '{}' is unknown; dark, a colour map, linear, LOW..HIGH, gamma=G, no-sinks, no-nan "
                 "or clips",
                 shown_text(part));
        }
    }
    view.attention_range = view.score_range = range;
}

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
                fail(ErrorCode::wrong_use, "--export {}: positions are 0 to {}, not {}", name_of(word),
                     limits.last_row, p);
    }
}

std::vector<ShownLane> shown_lanes(const RunHistory& history, int focus) {
    const std::vector<LaneRecord>& last = history.steps().back()->lanes;
    std::vector<ShownLane> lanes;
    std::vector<LaneSpec> specs;
    for (const LaneRecord& lane : last) specs.push_back(parse_lane_spec(lane.info->spec));
    const std::vector<std::string> names = lane_names(specs);
    const auto add = [&](int index) {
        lanes.push_back(
            {index, lane_of(history, index), fmt::format("{} {}", index, names[to_index(index)])});
    };
    (void)lane_of(history, focus);
    add(focus);
    for (int index = 0; index < static_cast<int>(last.size()); ++index)
        if (index != focus) add(index);
    return lanes;
}

std::vector<std::string> write_views(const RunHistory& history, const std::vector<ViewWord>& words,
                                     const ViewExport& how, int stride, int dense_from,
                                     const std::function<void(double)>& progress) {
    check_views(words, how, view_limits(history));
    std::error_code ignored;
    std::filesystem::create_directories(how.folder, ignored);
    Writer writer{history, how, {}, {}, {}};
    writer.request.stride = stride;
    writer.request.dense_from = dense_from;
    writer.request.width = how.pictures.width;
    writer.request.background = how.pictures.background;
    parse_look(how.look, writer.view);
    writer.view.row = how.row < 0 ? history.last_row() : how.row;
    double done = 0;
    for (const ViewWord& word : words) {
        writer.write(word);
        if (progress) progress(++done / static_cast<double>(words.size()));
    }
    return std::move(writer.files);
}

}  // namespace keyhole
