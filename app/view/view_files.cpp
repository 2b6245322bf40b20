#include "app/view/view_files.h"

#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/model_name.h"
#include "engine/export/captions.h"
#include "engine/figure/heatmap.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

/// look: see Curve.
Curve curve_over_rows(const RunHistory& history, std::string name, std::span<const float> values,
                      int look = -1) {
    Curve curve;
    curve.name = std::move(name);
    curve.look = look;
    for (std::size_t i = 0; i < history.steps().size(); ++i) {
        curve.x.push_back(history.steps()[i]->row);
        curve.y.push_back(i < values.size() ? double(values[i]) : double(kNoNumber));
    }
    return curve;
}

void add_scores(CurvePlot& plot, const RunHistory& history, const ViewState& view, const ShownLane& lane) {
    const int g = history.layout(lane.lane).kv_head_from_head(view.layer, view.head);
    plot.title = "Scores of picked tokens, " + kv_head_text(history.layout(lane.lane), g);
    plot.subtitle = lane_subtitle(history, lane.lane, lane.index, view.row);
    plot.y_label = "score (logarithmic)";
    plot.log_y = true;
    plot.caption =
        "Pooled score after each row, before its eviction. A cross marks the row that evicted the token; "
        "grey: the lowest "
        "score that stayed.";
    std::vector<float> threshold(history.steps().size());
    std::vector<std::vector<float>> of_token(view.curve_positions.size(),
                                             std::vector<float>(history.steps().size(), kNoNumber));
    std::vector<float> row_values;
    for (std::size_t i = 0; i < history.steps().size(); ++i) {
        const int row = history.steps()[i]->row;
        threshold[i] = threshold_at(history, lane.lane, row, g);
        row_values.resize(to_index(row) + 1);
        if (!score_values(history, lane.lane, row, g, row_values)) continue;
        for (std::size_t c = 0; c < of_token.size(); ++c)
            if (view.curve_positions[c] <= row)
                of_token[c][i] = row_values[to_index(view.curve_positions[c])];
    }
    plot.curves.push_back(curve_over_rows(history, "lowest that stayed", threshold));
    plot.curves.back().threshold = true;
    for (std::size_t c = 0; c < of_token.size(); ++c) {
        const int p = view.curve_positions[c];
        plot.curves.push_back(curve_over_rows(
            history, fmt::format("{} {}", p, token_text(history, lane.lane, p)), of_token[c]));
        const std::int32_t evicted = history.evicted_at(lane.lane, g, p);
        if (evicted >= history.steps().front()->row) plot.curves.back().end_mark = evicted;
    }
}

bool is_among(const std::vector<int>& chosen, int i) {
    return std::ranges::find(chosen, i) != chosen.end();
}

/// Returns whether a measure compares lanes with the first one.
bool compares_with_first(std::string_view measure) {
    return measure == "kl" || measure == "jaccard" || measure == "agreement";
}

std::string in_a_sentence(std::string_view label) {
    std::string text(label);
    if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z') text[0] = static_cast<char>(text[0] - 'A' + 'a');
    return text;
}

}  // namespace

CurvePlot curve_figure(const RunHistory& history, const MeasureCurves& measures, const ViewState& view,
                       const std::vector<ShownLane>& lanes) {
    CurvePlot plot;
    plot.x_label = kStepAxis;
    plot.subtitle = model_name(history.run().model_path);
    if (view.measure_curve == ViewState::kWatchedSpan) {
        if (!view.watched) fail(ErrorCode::wrong_use, "no words are watched");
        plot.title = fmt::format("Share of “{}” that is held, positions {} to {}",
                                 span_text(history, lanes.front().lane, *view.watched), view.watched->first,
                                 view.watched->last);
        plot.y_label = "share, mean over KV heads";
        plot.caption = "A cross marks the row from which no KV head stores all of them.";
        for (const ShownLane& lane : lanes) {
            const SpanLifetime life = span_lifetime(history, lane.lane, *view.watched);
            plot.curves.push_back(curve_over_rows(history, lane.name, life.share, lane.look));
            if (life.no_head_has_all && *life.no_head_has_all >= history.steps().front()->row)
                plot.curves.back().end_mark = *life.no_head_has_all;
        }
    } else if (view.measure_curve >= 0) {
        const CurveKind& kind = curve_kinds()[to_index(view.measure_curve)];
        const Measure& about = measure(kind.measure);
        const bool compares = compares_with_first(kind.measure);
        plot.title = std::string(about.label);
        if (compares && !plot.title.ends_with("lane 0")) plot.title += " with lane 0";
        // A share has no unit: its name says more than "1".
        plot.y_label = fmt::format("{}{}", about.unit == "1" ? in_a_sentence(about.label) : about.unit,
                                   kind.logarithmic ? " (logarithmic)" : "");
        plot.log_y = kind.logarithmic;
        plot.y_floor = kind.logarithmic ? 1e-5 : 0;
        plot.caption = fmt::format("{} {}", about.help, about.equation);
        if (!plot.caption.ends_with('.')) plot.caption += '.';
        if (plot.log_y) plot.caption += fmt::format(" Values below {:g} are drawn there.", plot.y_floor);
        for (const ShownLane& lane : lanes) {
            plot.curves.push_back(curve_over_rows(history, lane.name,
                                                  measures.curve(view.measure_curve, lane.lane), lane.look));
            plot.curves.back().hidden = compares && lane.lane == 0;  // the same everywhere
        }
    } else {
        if (view.curve_positions.empty()) fail(ErrorCode::wrong_use, "no tokens are picked; pick some first");
        add_scores(plot, history, view, lanes.front());
    }
    return plot;
}

std::vector<int> chosen_or_all(const std::vector<int>& chosen, int n) {
    std::vector<int> all = chosen;
    for (int i = 0; chosen.empty() && i < n; ++i) all.push_back(i);
    return all;
}

std::string curve_table(const CurvePlot& plot) {
    const auto quoted = [](const std::string& text) {
        std::string out = "\"";
        for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
        return out + "\"";
    };
    std::string text = "row";
    for (const Curve& curve : plot.curves) text += "," + quoted(curve.name);
    text += "\n";
    if (plot.curves.empty()) return text;
    for (std::size_t i = 0; i < plot.curves.front().x.size(); ++i) {
        text += fmt::format("{}", plot.curves.front().x[i]);
        for (const Curve& curve : plot.curves)
            text += std::isnan(curve.y[i]) ? "," : fmt::format(",{:.9g}", curve.y[i]);
        text += "\n";
    }
    return text;
}

Drawing atlas_picture(const RunHistory& history, const ViewState& view, const ShownLane& lane,
                      const PictureOptions& request) {
    const KvLayout& layout = history.layout(lane.lane);
    const int n = view.row + 1, first = request.shown ? request.shown->first_row : 0;
    AtlasFigure figure;
    const bool all = request.layers.empty() && request.heads.empty();
    figure.texts = {fmt::format("Attention of {} layers and heads, rows {} to {}", all ? "all" : "the chosen",
                                first, view.row),
                    fmt::format("{} · lane {}", model_name(history.run().model_path), lane.name), ""};
    figure.layers = chosen_or_all(request.layers, layout.n_layers());
    figure.heads = chosen_or_all(request.heads, layout.n_heads());
    float largest = 0;
    std::vector<float> row(to_index(n));
    for (int i = 0; i < n; ++i)
        attention_values_of_all(history, lane.lane, i, [&](int l, int h, std::span<const float> values) {
            if (!is_among(figure.layers, l) || !is_among(figure.heads, h)) return;
            for (std::size_t p = view.attention_range.sinks_count ? 0 : 4; p < values.size(); ++p)
                if (std::isinf(values[p]))
                    figure.has_not_finite = view.marks_nan;
                else if (values[p] > largest)
                    largest = values[p];
        });
    figure.scale = attention_scale(largest > 0 ? largest : 1);
    figure.scale.map = view.colors;
    figure.scale.marks_nan = view.marks_nan;
    figure.scale.marks_clips = view.marks_clips;
    std::string& caption = figure.texts.caption;
    caption = head_caption(HeatMode::attention, figure.scale) + " One scale for all heads.";
    if (const std::string note = recording_note(history, lane.lane, request.stride, request.dense_from);
        !note.empty())
        caption += " " + note;
    figure.value_label = "attention probability";
    figure.width = request.width;
    figure.print = request.print;
    figure.background = request.background;
    figure.cell = [&history, lane, n, first, row](int layer, int head) mutable {
        AtlasCell cell;
        cell.values = Plane(n, n - first, kNoNumber);
        cell.states.assign(to_index(n) * to_index(n - first), CellState::future);
        const int g = history.layout(lane.lane).kv_head_from_head(layer, head);
        for (int i = first; i < n; ++i) {
            const bool known = picture_values(history, lane.lane, i, layer, head, HeatMode::attention,
                                              {row.data(), to_index(i) + 1});
            const int by = lane_of_row(history, lane.lane, i);
            for (int p = 0; p <= i; ++p) {
                const float value = known ? row[to_index(p)] : kNoNumber;
                cell.values.at(p, i - first) = value == kHiddenValue ? 0 : value;
                cell.states[to_index(i - first) * to_index(n) + to_index(p)] =
                    history.attended(by, g, p, i) ? CellState::kept : CellState::evicted;
            }
        }
        return cell;
    };
    return atlas_drawing(std::move(figure));
}

std::string overlap_table(const RunHistory& history, int a, int b, int row) {
    std::string text = "layer,kv_head,both,only_a,only_b,neither,overlap\n";
    const KvLayout& layout = finer_layout(history, a, b);
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const HeldBy held = held_by(history, a, b, g, row);
        text +=
            fmt::format("{},{},{},{},{},{},{:.6f}\n", layout.kv_head(g).owner_layer, layout.kv_head(g).index,
                        held.both, held.only_a, held.only_b, held.neither, held.overlap());
    }
    return text;
}

}  // namespace keyhole
