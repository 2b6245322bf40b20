#include "engine/export/figures.h"

#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"
#include "engine/base/threads.h"
#include "engine/export/captions.h"
#include "engine/figure/curves.h"
#include "engine/figure/heatmap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

namespace keyhole {

namespace {

std::vector<std::string> token_texts(const LaneRows& rows, int first, int n) {
    const RunInfo& run = rows.history().run();
    const std::vector<int>& tokens = rows.lane().tokens;
    std::vector<std::string> out;
    for (int p = first; p < first + n; ++p) {
        const int token = to_index(p) < tokens.size() ? tokens[to_index(p)] : -1;
        const bool known = token >= 0 && to_index(token) < run.token_display.size();
        out.push_back(known ? run.token_display[to_index(token)] : std::string());
    }
    return out;
}

std::string rows_covered(const LaneRows& rows) {
    const ExportRange& range = rows.range();
    const int n_prompt = rows.history().n_prompt();
    std::string text = fmt::format(
        "Rows {} to {} ({})", range.first_row, range.last_row,
        range.first_row >= n_prompt ? "decoded tokens; prompt rows left out" : "prompt and decoded tokens");
    return text + fmt::format("; the prompt is positions 0 to {}.", n_prompt - 1);
}

MatrixAxis row_axis(const LaneRows& rows) {
    return {"query position", rows.range().first_row,
            token_texts(rows, rows.range().first_row, rows.range().n_rows())};
}

MatrixAxis column_axis(const LaneRows& rows) {
    return {"key position", 0, token_texts(rows, 0, rows.range().n_positions())};
}

MarkedColumns watched_columns(const LaneRows& rows) {
    return marked_columns(rows.history(), rows.index(),
                          watched_span(rows.history(), rows.index(), rows.range().watch), 0,
                          rows.range().n_positions() - 1);
}

std::string attention_caption(const LaneRows& rows, const ColorScale& scale) {
    return fmt::format(
        "{} Attention probability on a logarithmic scale, {:g} to {:g}, one scale for all heads. {}",
        rows_covered(rows), scale.low, scale.high, rows.source());
}

}  // namespace

std::string kv_head_name(const KvHead& head) {
    return fmt::format("L{}_G{}", head.owner_layer, head.index);
}

std::string figure_subtitle(const LaneRows& rows) {
    return lane_subtitle(rows.history(), rows.index(), rows.index(), rows.lane().last_row);
}

void draw_all(std::size_t n, const ExportProgress& progress, const std::function<void(std::size_t)>& draw) {
    ThreadPool pool(0);
    std::mutex mutex;
    std::size_t done = 0;
    pool.parallel_for(static_cast<std::int64_t>(n), [&](std::int64_t i, int) {
        draw(to_index(i));
        const std::lock_guard lock(mutex);
        if (progress) progress(static_cast<double>(++done) / static_cast<double>(n));
    });
}

ColorScale scale_of_attention(const LaneRows& rows) {
    float largest = 0;
    for (int layer : rows.range().layers)
        for (int head : rows.range().heads)
            for (float v : rows.attention_plane(layer, head).values)
                if (v > largest && std::isfinite(v)) largest = v;
    return attention_scale(largest);
}

ColorScale scale_of_scores(const LaneRows& rows) {
    float largest = 0;
    std::vector<float> line(to_index(rows.range().n_positions()));
    for (int g : rows.range().kv_heads)
        for (int row = rows.range().first_row; row <= rows.range().last_row; ++row)
            if (rows.scores(row, g, line))
                for (float v : line)
                    if (v > largest && std::isfinite(v)) largest = v;
    return attention_scale(largest);
}

MaskFigure mask_figure(const LaneRows& rows, int kv_head) {
    MaskFigure figure;
    figure.texts.title = kv_head_title(HeatMode::mask, rows.layout(), kv_head);
    figure.texts.subtitle = figure_subtitle(rows);
    figure.texts.caption =
        rows_covered(rows) +
        " A row attends to its own token and to what was stored before it; evictions follow the row.";
    figure.n_columns = rows.range().n_positions();
    figure.n_rows = rows.range().n_rows();
    figure.states = rows.states(kv_head);
    figure.row_axis = row_axis(rows);
    figure.column_axis = column_axis(rows);
    figure.marked = watched_columns(rows);
    return figure;
}

HeatmapFigure attention_figure(const LaneRows& rows, int layer, int head, const ColorScale& scale) {
    HeatmapFigure figure;
    figure.texts.title = head_title(HeatMode::attention, rows.layout(), layer, head);
    figure.texts.subtitle = figure_subtitle(rows);
    figure.texts.caption = attention_caption(rows, scale);
    figure.row_axis = row_axis(rows);
    figure.column_axis = column_axis(rows);
    figure.marked = watched_columns(rows);
    figure.scale = scale;
    figure.value_label = "attention probability";
    figure.values = rows.attention_plane(layer, head);
    figure.states = rows.states(rows.layout().kv_head_from_head(layer, head));
    if (!rows.history().run().config.has_sinks) return figure;
    figure.texts.caption += std::string(" ") + kSinkCaption;
    figure.side.name = kSinkColumn;
    for (int row = rows.range().first_row; row <= rows.range().last_row; ++row)
        figure.side.values.push_back(rows.has(row)
                                         ? learned_sink_share(rows.history(), rows.index(), row, layer, head)
                                         : std::numeric_limits<float>::quiet_NaN());
    return figure;
}

HeatmapFigure score_figure(const LaneRows& rows, int kv_head, const ColorScale& scale) {
    HeatmapFigure figure;
    figure.texts.title = kv_head_title(HeatMode::score, rows.layout(), kv_head);
    figure.texts.subtitle = figure_subtitle(rows);
    figure.texts.caption =
        rows_covered(rows) + fmt::format(
                                 " Pooled score after each row, before its eviction, on a logarithmic "
                                 "scale, {:g} to {:g}, one scale for all heads.",
                                 scale.low, scale.high);
    figure.row_axis = row_axis(rows);
    figure.column_axis = column_axis(rows);
    figure.marked = watched_columns(rows);
    figure.scale = scale;
    figure.value_label = "score";
    figure.values =
        Plane(rows.range().n_positions(), rows.range().n_rows(), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> line(to_index(figure.values.width));
    for (int y = 0; y < figure.values.height; ++y)
        if (rows.scores(rows.range().first_row + y, kv_head, line)) {
            mark_not_finite(std::span(line), [&](int p) {
                return rows.history().attended(rows.index(), kv_head, p, rows.range().first_row + y);
            });
            std::copy(line.begin(), line.end(),
                      figure.values.values.begin() + std::int64_t{y} * figure.values.width);
        }
    figure.states = rows.states(kv_head);
    return figure;
}

namespace {

/// Sets what all matrices of an export share.
template <class Figure>
void put_choice(Figure& figure, const PictureChoice& how) {
    figure.size.width = how.width;
    figure.size.print = how.print;
    figure.background = how.background;
}

}  // namespace

void write_masks(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                 const ExportProgress& progress) {
    const ExportRange& range = rows.range();
    if (range.n_rows() == 0) return;
    draw_all(range.kv_heads.size(), progress, [&](std::size_t i) {
        const int g = range.kv_heads[i];
        MaskFigure figure = mask_figure(rows, g);
        put_choice(figure, how);
        write_drawing(mask_drawing(figure),
                      folder / fmt::format("mask_{}", kv_head_name(rows.layout().kv_head(g))), how,
                      {PictureFormat::png});
    });
}

void write_heatmaps(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                    const ExportProgress& progress) {
    const ExportRange& range = rows.range();
    if (range.n_rows() == 0) return;
    const KvLayout& layout = rows.layout();
    const ColorScale scale = scale_of_attention(rows);
    draw_all(range.layers.size() * range.heads.size(), progress, [&](std::size_t i) {
        const int layer = range.layers[i / range.heads.size()], head = range.heads[i % range.heads.size()];
        HeatmapFigure figure = attention_figure(rows, layer, head, scale);
        put_choice(figure, how);
        write_drawing(heatmap_drawing(figure), folder / fmt::format("heatmap_L{}_H{}", layer, head), how,
                      {PictureFormat::png});
    });

    AtlasFigure atlas;
    atlas.texts = {"Attention of all layers and heads", figure_subtitle(rows),
                   attention_caption(rows, scale)};
    if (static_cast<int>(range.layers.size()) < layout.n_layers() ||
        static_cast<int>(range.heads.size()) < layout.n_heads())
        atlas.texts.title = "Attention of the chosen layers and heads";
    atlas.layers = range.layers;
    atlas.heads = range.heads;
    atlas.scale = scale;
    atlas.value_label = "attention probability";
    for (int layer : range.layers)
        for (int head : range.heads) {
            const Plane values = rows.attention_plane(layer, head);
            atlas.has_not_finite =
                atlas.has_not_finite || std::any_of(values.values.begin(), values.values.end(),
                                                    [](float v) { return std::isinf(v); });
        }
    atlas.cell = [&](int layer, int head) {
        return AtlasCell{rows.attention_plane(layer, head),
                         rows.states(layout.kv_head_from_head(layer, head))};
    };
    atlas.width = how.width;
    atlas.print = how.print;
    atlas.background = how.background;
    write_drawing(atlas_drawing(std::move(atlas)), folder / "atlas", how, {PictureFormat::png});
}

namespace {

/// Returns the sink, the tokens with the highest score in the last row, and the last evicted ones; ascending,
/// each once.
std::vector<int> telling_tokens(const LaneRows& rows, const std::vector<std::vector<float>>& scores,
                                int kv_head) {
    constexpr std::size_t kHighest = 3, kEvicted = 3;
    const int n_positions = rows.range().n_positions();
    std::vector<int> chosen{0};
    const auto add = [&](int p) {
        if (std::find(chosen.begin(), chosen.end(), p) == chosen.end()) chosen.push_back(p);
    };
    std::vector<int> order(to_index(n_positions));
    for (int p = 0; p < n_positions; ++p) order[to_index(p)] = p;
    const auto last =
        std::find_if(scores.rbegin(), scores.rend(), [](const auto& row) { return !row.empty(); });
    if (last != scores.rend()) {
        const auto value = [&](int p) {
            const float v = (*last)[to_index(p)];
            return std::isnan(v) ? -std::numeric_limits<float>::infinity() : v;
        };
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return value(a) > value(b); });
        for (std::size_t i = 0; i < order.size() && chosen.size() < 1 + kHighest; ++i)
            if (std::isfinite(value(order[i]))) add(order[i]);
    }
    const auto evicted = [&](int p) { return rows.history().evicted_at(rows.index(), kv_head, p); };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return evicted(a) > evicted(b); });
    const std::size_t most = chosen.size() + kEvicted;
    for (std::size_t i = 0;
         i < order.size() && chosen.size() < most && evicted(order[i]) >= rows.range().first_row; ++i)
        add(order[i]);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

Curve token_curve(const LaneRows& rows, const std::vector<std::vector<float>>& scores, int kv_head,
                  int position, const std::vector<std::string>& texts) {
    Curve curve;
    curve.name = fmt::format("{} {}", position, texts[to_index(position)]);
    for (std::size_t i = 0; i < scores.size(); ++i) {
        if (scores[i].empty()) continue;  // thinned out: the line is drawn straight on
        curve.x.push_back(rows.range().first_row + static_cast<double>(i));
        curve.y.push_back(scores[i][to_index(position)]);
    }
    const std::int32_t evicted = rows.history().evicted_at(rows.index(), kv_head, position);
    if (evicted >= rows.range().first_row) {
        curve.end_mark = evicted;
        curve.name += fmt::format(", gone at {}", evicted);
    }
    return curve;
}

}  // namespace

void write_score_curves(const LaneRows& rows, const std::vector<float>& thresholds, const PictureChoice& how,
                        const std::filesystem::path& folder, const ExportProgress& progress) {
    const ExportRange& range = rows.range();
    if (range.n_rows() == 0) return;
    const KvLayout& layout = rows.layout();
    const std::vector<std::string> texts = token_texts(rows, 0, range.n_positions());
    double done = 0;
    for (int g : range.kv_heads) {
        const KvHead& head = layout.kv_head(g);
        std::vector<std::vector<float>> scores(to_index(range.n_rows()));
        Curve threshold;
        threshold.name = "lowest that stayed";
        threshold.threshold = true;
        for (int y = 0; y < range.n_rows(); ++y) {
            const auto i = to_index(y);
            scores[i].resize(to_index(range.n_positions()));
            if (!rows.scores(range.first_row + y, g, scores[i])) scores[i].clear();
            float value = std::numeric_limits<float>::quiet_NaN();
            const LaneRecord* record = rows.history().lane_record(range.first_row + y, rows.index());
            if (!thresholds.empty())
                value = thresholds[i * to_index(layout.n_kv_heads()) + to_index(g)];
            else if (record && record->rows && !record->rows->threshold.empty())
                value = record->rows->threshold[to_index(g)];
            threshold.x.push_back(range.first_row + y);
            threshold.y.push_back(value);
        }
        // On a linear scale a sink would press everything else, above all the threshold, down to the axis.
        float highest = 0, lowest = std::numeric_limits<float>::infinity();
        for (const auto& row : scores)
            for (float v : row) highest = std::max(highest, std::isnan(v) ? 0.0f : v);
        for (double v : threshold.y)
            if (v > 0) lowest = std::min(lowest, static_cast<float>(v));
        CurvePlot plot;
        plot.log_y = highest > 8 * lowest;
        plot.y_floor = lowest / 20;
        plot.title = fmt::format("Scores of tokens in layer {}, KV head {}", head.owner_layer, head.index);
        plot.subtitle = figure_subtitle(rows);
        plot.caption =
            "Pooled score after each row, before its eviction. A cross marks the row whose processing "
            "evicted the token; the grey "
            "line is the lowest score that stayed among the tokens that competed. Tokens: the first, the "
            "highest at the end, the "
            "last evicted.";
        if (plot.log_y) plot.caption += fmt::format(" Scores below {:.2g} are drawn there.", plot.y_floor);
        plot.x_label = kStepAxis;
        plot.y_label = plot.log_y ? "score (logarithmic)" : "score";
        plot.curves.push_back(std::move(threshold));
        for (int p : telling_tokens(rows, scores, g))
            plot.curves.push_back(token_curve(rows, scores, g, p, texts));
        plot.picture_width = how.width;
        plot.print = how.print;
        plot.background = how.background;
        write_drawing(curves_drawing(plot), folder / fmt::format("scores_{}", kv_head_name(head)), how,
                      {PictureFormat::svg});
        if (progress) progress(++done / static_cast<double>(range.kv_heads.size()));
    }
}

}  // namespace keyhole
