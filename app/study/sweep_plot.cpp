#include "app/study/sweep_plot.h"

#include "app/study/eval_report.h"
#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

namespace keyhole {

namespace {

/// What titles call the lane that differences refer to.
constexpr std::string_view kFirstLane = "the first lane";
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

Estimate times(const Estimate& e, double factor) {
    return {factor * e.value, {factor * e.interval.low, factor * e.interval.high}};
}

Estimate ratio_of(const LaneScore& score) {
    const Estimate& d = score.nats_difference;
    return {std::exp(d.value), {std::exp(d.interval.low), std::exp(d.interval.high)}};
}

/// Returns the index of a text, which is added if it is new.
std::size_t place_in(std::vector<std::string>& list, const std::string& text) {
    const std::size_t index = to_index(std::find(list.begin(), list.end(), text) - list.begin());
    if (index == list.size()) list.push_back(text);
    return index;
}

std::size_t n_models(std::span<const SweepPoint> points) {
    std::set<std::string> models;
    for (const SweepPoint& point : points) models.insert(point.model);
    return models.size();
}

/// The x of the values of a key.
struct KeyAxis {
    explicit KeyAxis(const Vary& vary) : key(vary.key), values(vary.values) {
        percent = values.front().ends_with('%');
        // Words, and tokens mixed with percent, have no axis of numbers.
        are_words = std::any_of(values.begin(), values.end(), [&](const std::string& value) {
            return std::isnan(value_number(value)) || value.ends_with('%') != percent;
        });
        for (const std::string& value : values) {
            low = std::min(low, x_of(value));
            high = std::max(high, x_of(value));
        }
        if (are_words) low -= 0.5, high += 0.5;  // level lines from edge to edge
        is_log = vary.geometric && low > 0 && !are_words;
    }
    double x_of(const std::string& value) const {
        if (!are_words) return value_number(value);
        return static_cast<double>(std::find(values.begin(), values.end(), value) - values.begin());
    }
    std::string label() const { return key + (percent && !are_words ? ", %" : ""); }

    std::string key;
    std::vector<std::string> values;
    bool percent = false, are_words = false, is_log = false;
    double low = std::numeric_limits<double>::infinity(), high = -low;
};

/// Adds a point to the curve of this name, which is made if it is new.
void add_point(std::vector<Curve>& curves, const std::string& name, double x, const Estimate& y) {
    auto curve =
        std::find_if(curves.begin(), curves.end(), [&](const Curve& known) { return known.name == name; });
    if (curve == curves.end()) {
        curves.push_back({name});
        curve = curves.end() - 1;
    }
    curve->x.push_back(x);
    curve->y.push_back(y.value);
    curve->low.push_back(y.interval.low);
    curve->high.push_back(y.interval.high);
}

void add_level(std::vector<Curve>& curves, const std::string& name, double low, double high, double y) {
    const bool known =
        std::any_of(curves.begin(), curves.end(), [&](const Curve& c) { return c.name == name; });
    if (!known) curves.push_back({name, {low, high}, {y, y}, true});
}

/// Returns the curves of a panel, which is made if it is new.
std::vector<Curve>& panel_of(CurvePlot& plot, const std::string& title) {
    const auto at = std::find_if(plot.panels.begin(), plot.panels.end(),
                                 [&](const CurvePanel& panel) { return panel.title == title; });
    if (at != plot.panels.end()) return at->curves;
    return plot.panels.emplace_back(CurvePanel{title, {}}).curves;
}

bool is_level(const SweepPoint& point) {
    return point.values.empty() || point.values.front().empty();
}

/// Returns the panel of a point: its model if there are several, its lane if there are two keys or more, and
/// the values from the third key on.
std::string panel_title(const SweepResult& result, const SweepPoint& point, bool several_models) {
    std::string title = several_models ? point.model : "";
    if (result.varies.size() < 2) return title;
    const std::string lane = lane_label(point.lane, {}, result.varies);
    title += (title.empty() ? "" : " · ") + lane;
    for (std::size_t i = 2; i < point.values.size(); ++i)
        if (!point.values[i].empty()) title += fmt::format(" {}={}", result.varies[i].key, point.values[i]);
    return title;
}

std::string curve_name(const SweepResult& result, const SweepPoint& point) {
    if (result.varies.size() < 2) return lane_label(point.lane, {}, result.varies);
    return point.values[1].empty() ? lane_label(point.lane, {}, result.varies)
                                   : fmt::format("{}={}", result.varies[1].key, point.values[1]);
}

/// The level lines of a model: lanes that do not vary, and shares of its first lane.
void add_levels(const SweepResult& result, const SweepQuantity& quantity, std::span<const double> share_lines,
                const std::string& model, double low, double high,
                const std::vector<std::vector<Curve>*>& into) {
    const SweepPoint* first = nullptr;
    for (const SweepPoint& point : result.points) {
        if (point.model != model) continue;
        if (first == nullptr) first = &point;
        if (!is_level(point)) continue;
        for (std::vector<Curve>* curves : into)
            add_level(*curves, lane_label(point.lane, point.values, result.varies), low, high,
                      quantity.of(point.score).value);
    }
    if (first == nullptr || quantity.is_paired) return;
    for (const double share : share_lines)
        for (std::vector<Curve>* curves : into)
            add_level(*curves, fmt::format("{:g} % of {}", 100 * share, first->lane), low, high,
                      share * quantity.of(first->score).value);
}

void name_plot(CurvePlot& plot, const SweepResult& result, const SweepQuantity& quantity) {
    plot.title = result.name + ": " + quantity.title;
    if (n_models(result.points) == 1) plot.subtitle = result.points.front().model;
    plot.y_label = quantity.y_label;
    plot.caption = result.description + ". " + quantity.caption;
    const SweepPoint& first = result.points[result.against];
    if (quantity.is_paired && n_models(result.points) == 1)
        plot.caption +=
            fmt::format(" {}: {}, {}.", result.against == 0 ? "First lane" : "Compared with",
                        lane_label(first.lane, first.values, result.varies), quantity.of_first(first.score));
    plot.whole_x = false;
}

/// Returns ", budget=50%" if one key varies over one value; else nothing.
std::string one_value(std::span<const Vary> varies) {
    if (varies.size() != 1 || varies.front().values.size() != 1) return "";
    return fmt::format(", {}={}", varies.front().key, varies.front().values.front());
}

/// A lane that collapses would press all other ratios together.
bool ratios_collapse(const SweepResult& result, const SweepQuantity& quantity) {
    double low = std::numeric_limits<double>::infinity(), high = 0;
    for (const SweepPoint& point : result.points) {
        low = std::min(low, quantity.of(point.score).value);
        high = std::max(high, quantity.of(point.score).value);
    }
    return low > 0 && high > 3 * low;
}

/// Returns the plot of lanes side by side: no key varies, or one has one value.
CurvePlot words_plot(const SweepResult& result, const SweepQuantity& quantity,
                     std::span<const double> share_lines) {
    CurvePlot plot;
    name_plot(plot, result, quantity);
    const bool several = n_models(result.points) > 1;
    // The one value of a key stands below the axis, not in every name.
    for (const SweepPoint& point : result.points)
        add_point(plot.curves, several ? point.model : quantity.y_label,
                  static_cast<double>(place_in(plot.x_words, lane_label(point.lane, {}, result.varies))),
                  quantity.of(point.score));
    if (!several && !quantity.is_paired)
        for (const double share : share_lines)
            add_level(plot.curves, fmt::format("{:g} % of {}", 100 * share, result.points.front().lane), -0.5,
                      static_cast<double>(plot.x_words.size()) - 0.5,
                      share * quantity.of(result.points.front().score).value);
    plot.x_label = "lane" + one_value(result.varies);
    if (!result.is_task) plot.log_y = ratios_collapse(result, quantity);
    return plot;
}

ColorScale map_scale(const SweepResult& result, const SweepQuantity& quantity) {
    ColorScale scale;
    scale.map = Colormap::cividis;
    scale.low = 0;
    scale.high = 100;
    if (result.is_task && !quantity.is_paired) return scale;
    float low = std::numeric_limits<float>::infinity(), high = -low;
    for (const SweepPoint& point : result.points) {
        const auto value = static_cast<float>(quantity.of(point.score).value);
        if (!std::isfinite(value)) continue;
        low = std::min(low, value);
        high = std::max(high, value);
    }
    scale.low = low < high ? low : low - 0.5f;
    scale.high = low < high ? high : low + 0.5f;
    return scale;
}

}  // namespace

std::string lane_label(const std::string& typed, std::span<const std::string> values,
                       std::span<const Vary> varies) {
    const std::size_t colon = std::min(typed.find(':'), typed.size());
    std::vector<std::string> items;
    int depth = 0;
    for (std::size_t i = colon + 1, begin = i; i <= typed.size(); ++i) {
        if (i < typed.size()) depth += typed[i] == '(' ? 1 : typed[i] == ')' ? -1 : 0;
        if (i < typed.size() && (typed[i] != ',' || depth > 0)) continue;
        if (i > begin) items.push_back(typed.substr(begin, i - begin));
        begin = i + 1;
    }
    std::erase_if(items, [&](const std::string& item) {
        const std::string key = item.substr(0, item.find('='));
        return std::any_of(varies.begin(), varies.end(), [&](const Vary& vary) { return vary.key == key; });
    });
    for (std::size_t i = 0; i < values.size(); ++i)
        if (!values[i].empty()) items.push_back(varies[i].key + "=" + values[i]);
    std::string label = typed.substr(0, colon);
    for (std::size_t i = 0; i < items.size(); ++i) label += (i == 0 ? ":" : ",") + items[i];
    return label;
}

namespace {

SweepQuantity measure_quantity(const MeasureKind& kind, std::size_t m) {
    return {"-" + kind.name,
            kind.label,
            kind.label + ", %",
            "Bars are 95 % intervals of each lane by itself; the picture of differences pairs the questions.",
            false,
            [m](const LaneScore& s) { return times(s.measures[m].value, 100); }};
}

SweepQuantity difference_quantity(const MeasureKind& kind, std::size_t m) {
    return {"-" + kind.name + "-difference",
            kind.label + ", difference to the first lane",
            kind.label + ", difference in points",
            "The value minus that of the first lane, question by question, with 95 % intervals of the pairs.",
            true,
            [m](const LaneScore& s) { return times(s.measures[m].difference, 100); },
            [m, label = kind.label](const LaneScore& s) {
                return fmt::format("{} {:.1f} %", label, 100 * s.measures[m].value.value);
            }};
}

const std::vector<SweepQuantity>& task_quantities() {
    static const std::vector<SweepQuantity> quantities = {
        {"", "right answers", "right answers, %",
         "Bars are 95 % intervals of each lane by itself (Wilson); the picture of differences pairs the "
         "questions.",
         false, [](const LaneScore& s) { return times(s.accuracy, 100); }},
        {"-difference", "difference to the first lane", "right answers, difference in points",
         "Right answers minus those of the first lane, question by question, with 95 % intervals of the "
         "pairs (Bonett and Price).",
         true, [](const LaneScore& s) { return times(s.accuracy_difference, 100); },
         [](const LaneScore& s) { return fmt::format("{:.1f} % right", 100 * s.accuracy.value); }}};
    return quantities;
}

const std::vector<SweepQuantity>& text_quantities() {
    static const std::vector<SweepQuantity> quantities = {
        {"", "perplexity over that of the first lane", "perplexity, times the first lane's",
         "Ratios are paired, window by window; bars are their 95 % intervals.", true, &ratio_of,
         [](const LaneScore& s) { return fmt::format("perplexity {:.3f}", s.perplexity); }},
        {"-perplexity", "perplexity", "perplexity",
         "Without intervals: those of the paired ratios are in the other picture.", false,
         [](const LaneScore& s) {
             return Estimate{s.perplexity, {kNone, kNone}};
         }}};
    return quantities;
}

}  // namespace

std::vector<SweepQuantity> sweep_quantities(const SweepResult& result) {
    std::vector<SweepQuantity> quantities;
    if (!result.is_task) quantities = text_quantities();
    if (result.is_task && result.measures.empty()) quantities = task_quantities();
    for (std::size_t m = 0; result.is_task && m < result.measures.size(); ++m) {
        quantities.push_back(measure_quantity(result.measures[m], m));
        quantities.push_back(difference_quantity(result.measures[m], m));
    }
    if (result.against == 0) return quantities;
    const SweepPoint& reference = result.points[result.against];
    const std::string name = lane_label(reference.lane, reference.values, result.varies);
    for (SweepQuantity& quantity : quantities)
        for (std::string* text : {&quantity.title, &quantity.y_label, &quantity.caption})
            if (const std::size_t at = text->find(kFirstLane); at != std::string::npos)
                text->replace(at, kFirstLane.size(), name);
    return quantities;
}

CurvePlot sweep_plot(const SweepResult& result, const SweepQuantity& quantity,
                     std::span<const double> share_lines) {
    const bool one_value = result.varies.size() == 1 && result.varies.front().values.size() == 1;
    if (result.varies.empty() || one_value) return words_plot(result, quantity, share_lines);
    CurvePlot plot;
    name_plot(plot, result, quantity);
    const KeyAxis axis(result.varies.front());
    if (axis.are_words) plot.x_words = axis.values;
    plot.x_label = axis.label();
    plot.log_x = axis.is_log;
    const bool several = n_models(result.points) > 1;
    const bool in_panels = several || result.varies.size() > 1;
    std::vector<std::string> models;
    for (const SweepPoint& point : result.points) {
        (void)place_in(models, point.model);
        if (is_level(point)) continue;
        std::vector<Curve>& curves =
            in_panels ? panel_of(plot, panel_title(result, point, several)) : plot.curves;
        add_point(curves, curve_name(result, point), axis.x_of(point.values.front()),
                  quantity.of(point.score));
    }
    for (const std::string& model : models) {
        std::vector<std::vector<Curve>*> into;
        if (!in_panels) into.push_back(&plot.curves);
        for (CurvePanel& panel : plot.panels)
            if (!several || panel.title == model || panel.title.starts_with(model + " · "))
                into.push_back(&panel.curves);
        add_levels(result, quantity, share_lines, model, axis.low, axis.high, into);
    }
    if (!result.is_task) plot.log_y = ratios_collapse(result, quantity);
    return plot;
}

CurvePlot tasks_plot(std::span<const SweepResult> results,
                     const std::function<SweepQuantity(const SweepResult&)>& quantity_of) {
    const SweepResult& first = results.front();
    const SweepQuantity shown = quantity_of(first);
    const bool several = n_models(first.points) > 1;
    CurvePlot plot;
    if (!several) plot.subtitle = first.points.front().model;
    const std::string same = one_value(first.varies);
    plot.x_label = "task" + same;
    plot.y_label = shown.y_label;
    plot.whole_x = false;
    plot.caption = fmt::format("{} a task. {}", counted(first.points.front().score.n_questions, "question"),
                               shown.caption);
    for (const SweepResult& result : results) {
        const SweepQuantity quantity = quantity_of(result);
        const auto x = static_cast<double>(place_in(plot.x_words, result.name));
        for (const SweepPoint& point : result.points) {
            const std::string lane = lane_label(
                point.lane, same.empty() ? point.values : std::vector<std::string>{}, result.varies);
            const std::string name =
                !several ? lane : point.model + (first.varies.empty() ? "" : " · " + lane);
            add_point(plot.curves, name, x, quantity.of(point.score));
        }
    }
    return plot;
}

void add_column(CurvePlot& plot, std::string_view word, std::string_view lane, double value) {
    const auto x = static_cast<double>(place_in(plot.x_words, std::string(word)));
    add_point(plot.curves, std::string(lane), x, {value, {kNone, kNone}});
}

namespace {

/// Returns "0.93 (0.91 to 0.95)".
std::string estimate_text(const Estimate& estimate, double times, int decimals) {
    return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", times * estimate.value, decimals,
                       times * estimate.interval.low, decimals, times * estimate.interval.high, decimals);
}

/// Returns what a cell of a depth map says to a pointer.
std::string depth_note(const std::string& lane, const SweepResult& cell, const LaneScore& score,
                       bool is_first) {
    std::string words = fmt::format("{}; depth {} %, {} tokens: {} % right, {} questions", lane, cell.depth,
                                    cell.length, estimate_text(score.accuracy, 100, 0), score.n_questions);
    if (!is_first)
        words +=
            fmt::format("; against the first lane {} %", estimate_text(score.accuracy_difference, 100, 0));
    return words;
}

}  // namespace

ValueMap sweep_map(const SweepResult& result, const SweepQuantity& quantity) {
    KH_ASSERT(result.varies.size() >= 2);
    CurvePlot names;
    name_plot(names, result, quantity);
    ValueMap map;
    map.texts = {names.title, names.subtitle, result.description + "."};
    if (quantity.is_paired) map.texts.caption += " Each lane is paired with the first one.";
    map.column_label = result.varies[0].key;
    map.row_label = result.varies[1].key;
    map.value_label = quantity.y_label;
    map.columns = result.varies[0].values;
    map.rows = result.varies[1].values;
    map.scale = map_scale(result, quantity);
    map.decimals = result.is_task ? 0 : 2;
    const bool several = n_models(result.points) > 1;
    for (const SweepPoint& point : result.points) {
        if (is_level(point) || point.values[1].empty()) continue;
        const std::string title = panel_title(result, point, several);
        auto panel = std::find_if(map.panels.begin(), map.panels.end(),
                                  [&](const ValuePanel& known) { return known.title == title; });
        if (panel == map.panels.end()) {
            map.panels.push_back(
                {title, std::vector<float>(map.rows.size() * map.columns.size(), static_cast<float>(kNone))});
            panel = map.panels.end() - 1;
        }
        const auto index = [](const std::vector<std::string>& list, const std::string& value) {
            return to_index(std::find(list.begin(), list.end(), value) - list.begin());
        };
        const std::size_t at =
            index(map.rows, point.values[1]) * map.columns.size() + index(map.columns, point.values[0]);
        const Estimate estimate = quantity.of(point.score);
        panel->values[at] = static_cast<float>(estimate.value);
        panel->notes.resize(panel->values.size());
        panel->notes[at] = fmt::format("{}; {} {}, {} {}: {}", title, map.column_label, point.values[0],
                                       map.row_label, point.values[1], estimate_text(estimate, 1, 4));
    }
    return map;
}

bool has_several_bytes(const SweepResult& result) {
    const auto [least, most] =
        std::minmax_element(result.points.begin(), result.points.end(),
                            [](const SweepPoint& a, const SweepPoint& b) { return a.kv_bytes < b.kv_bytes; });
    return least != result.points.end() && least->kv_bytes > 0 && least->kv_bytes < most->kv_bytes;
}

CurvePlot memory_plot(const SweepResult& result, const SweepQuantity& quantity) {
    CurvePlot plot;
    name_plot(plot, result, quantity);
    plot.title += " against memory";
    plot.x_label = "bytes of K and V, a token of the context";
    plot.caption += " Memory is what a lane stores after the context, divided by its tokens.";
    plot.log_x = true;
    std::vector<const SweepPoint*> points;
    std::set<std::string> lanes;
    for (const SweepPoint& point : result.points) {
        points.push_back(&point);
        lanes.insert(point.lane);
    }
    std::stable_sort(points.begin(), points.end(),
                     [](const SweepPoint* a, const SweepPoint* b) { return a->kv_bytes < b->kv_bytes; });
    if (n_models(result.points) == 1) {
        // Curves keep the order in which the lanes were given.
        std::vector<std::string> names;
        for (const SweepPoint& point : result.points)
            (void)place_in(names, lane_label(point.lane, {}, result.varies));
        for (const std::string& name : names)
            for (const SweepPoint* point : points)
                if (lane_label(point->lane, {}, result.varies) == name)
                    add_point(plot.curves, name, point->kv_bytes, quantity.of(point->score));
        return plot;
    }
    // Curves keep the order in which the models were given.
    std::vector<std::string> models;
    for (const SweepPoint& point : result.points) {
        (void)place_in(models, point.model);
        if (lanes.size() > 1) (void)panel_of(plot, lane_label(point.lane, {}, result.varies));
    }
    for (const std::string& model : models)
        for (const SweepPoint* point : points)
            if (point->model == model)
                add_point(lanes.size() > 1 ? panel_of(plot, lane_label(point->lane, {}, result.varies))
                                           : plot.curves,
                          model, point->kv_bytes, quantity.of(point->score));
    return plot;
}

namespace {

/// The cells of a depth map, in order.
struct DepthGrid {
    std::vector<int> lengths, depths;
    explicit DepthGrid(std::span<const SweepResult> cells) {
        std::set<int> by_length, by_depth;
        for (const SweepResult& cell : cells) {
            by_length.insert(cell.length);
            by_depth.insert(cell.depth);
        }
        lengths.assign(by_length.begin(), by_length.end());
        depths.assign(by_depth.begin(), by_depth.end());
    }
    std::size_t at(const SweepResult& cell) const {
        const auto row = std::find(depths.begin(), depths.end(), cell.depth) - depths.begin(),
                   column = std::find(lengths.begin(), lengths.end(), cell.length) - lengths.begin();
        return to_index(row) * lengths.size() + to_index(column);
    }
};

}  // namespace

ValueMap depth_map(std::span<const SweepResult> cells) {
    const DepthGrid grid(cells);
    const SweepResult& first = cells.front();
    const bool several = n_models(first.points) > 1;
    ValueMap map;
    map.texts.title = first.name + ": right answers by depth and length";
    if (!several) map.texts.subtitle = first.points.front().model;
    map.texts.caption = fmt::format(
        "Share of right answers of {} questions a cell; depth 0 % is the beginning of the text, 100 % its "
        "end. Intervals of 95 %, paired with the first lane, are in table.csv, and in the SVG at the cell "
        "under the pointer.",
        first.points.front().score.n_questions);
    map.row_label = "depth, %";
    map.column_label = "length of the text, tokens";
    map.value_label = "right, %";
    map.scale = {Colormap::cividis, false, false, 0, 100};
    for (const int length : grid.lengths) map.columns.push_back(std::to_string(length));
    for (const int depth : grid.depths) map.rows.push_back(std::to_string(depth));
    for (std::size_t i = 0; i < first.points.size(); ++i) {
        const SweepPoint& point = first.points[i];
        ValuePanel& panel = map.panels.emplace_back();
        panel.title =
            (several ? point.model + " · " : "") + lane_label(point.lane, point.values, first.varies);
        panel.values.assign(map.rows.size() * map.columns.size(), static_cast<float>(kNone));
        panel.notes.resize(panel.values.size());
        for (const SweepResult& cell : cells) {
            const LaneScore& score = cell.points[i].score;
            panel.values[grid.at(cell)] = static_cast<float>(100 * score.accuracy.value);
            panel.notes[grid.at(cell)] = depth_note(panel.title, cell, score, i == 0);
        }
    }
    return map;
}

std::string depth_table(std::span<const SweepResult> cells) {
    const ValueMap map = depth_map(cells);
    std::string text;
    for (const ValuePanel& panel : map.panels) {
        text += fmt::format("\n{}: right, %\n{:>8}", panel.title, "depth");
        for (const std::string& column : map.columns) text += fmt::format(" {:>7}", column);
        text += "\n";
        for (std::size_t row = 0; row < map.rows.size(); ++row) {
            text += fmt::format("{:>6} %", map.rows[row]);
            for (std::size_t column = 0; column < map.columns.size(); ++column)
                text += fmt::format(" {:>7.0f}", panel.values[row * map.columns.size() + column]);
            text += "\n";
        }
    }
    return text;
}

}  // namespace keyhole
