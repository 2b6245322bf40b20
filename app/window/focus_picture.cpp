#include "app/window/focus_picture.h"

#include "app/window/compare.h"
#include "app/window/run_rows.h"
#include "engine/figure/heatmap.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

namespace keyhole {

Image focus_picture(const RunHistory& history, int lane, const ViewState& view, const ColorScale& scale) {
    const RunInfo& run = history.run();
    const int g = history.layout(lane).kv_head_from_head(view.layer, view.head);
    const int n = view.row + 1;
    std::vector<CellState> states(static_cast<std::size_t>(n) * static_cast<std::size_t>(n),
                                  CellState::unborn);
    for (int i = 0; i < n; ++i)
        for (int p = 0; p <= i; ++p)
            states[static_cast<std::size_t>(i) * static_cast<std::size_t>(n) + static_cast<std::size_t>(p)] =
                history.stored(lane, g, p, i)     ? CellState::kept
                : history.attended(lane, g, p, i) ? CellState::last_seen
                                                  : CellState::evicted;
    MatrixAxis rows{"query row", 0, {}}, columns{"key position", 0, {}};
    for (int p = 0; p < n; ++p) rows.tokens.push_back(token_text(history, lane, p));
    columns.tokens = rows.tokens;
    const LaneRecord* record = history.lane_record(std::max(view.row, history.n_prompt() - 1), lane);
    FigureTexts texts;
    texts.title = fmt::format(
        "{}, layer {}, {}",
        view.mode == HeatMode::attention ? "Attention"
        : view.mode == HeatMode::mask    ? "Kept tokens"
                                         : "Scores",
        view.layer,
        view.mode == HeatMode::attention ? fmt::format("head {}", view.head) : fmt::format("KV head {}", g));
    texts.subtitle = fmt::format("{}, {}", std::filesystem::path(run.model_path).filename().string(),
                                 record == nullptr ? "" : record->info->effective);
    texts.caption = recording_note(history, lane, 1, 0);
    if (view.mode == HeatMode::mask) {
        MaskFigure figure;
        figure.texts = std::move(texts);
        figure.n_columns = figure.n_rows = n;
        figure.states = std::move(states);
        figure.row_axis = std::move(rows);
        figure.column_axis = std::move(columns);
        return draw_mask(figure);
    }
    HeatmapFigure figure;
    figure.values = Plane(n, n, std::numeric_limits<float>::quiet_NaN());
    std::vector<float> row(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
        const std::span<float> values(row.data(), static_cast<std::size_t>(i) + 1);
        if (!picture_values(history, lane, i, view.layer, view.head, view.mode, values)) continue;
        for (int p = 0; p <= i; ++p) {
            const float value = values[static_cast<std::size_t>(p)];
            figure.values.at(p, i) = value == kHiddenValue ? 0 : value;
        }
    }
    figure.texts = std::move(texts);
    figure.states = std::move(states);
    figure.row_axis = std::move(rows);
    figure.column_axis = std::move(columns);
    figure.scale = scale;
    figure.value_label = view.mode == HeatMode::score ? "score" : "attention";
    return draw_heatmap(figure);
}

Image difference_picture(const RunHistory& history, int a, int b, const ViewState& view,
                         const ColorScale& scale) {
    const int n = view.row + 1;
    HeatmapFigure figure;
    figure.values = Plane(n, n, std::numeric_limits<float>::quiet_NaN());
    figure.states.assign(static_cast<std::size_t>(n) * static_cast<std::size_t>(n), CellState::unborn);
    std::vector<float> row(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
        const bool known = difference_values(history, a, b, i, view.layer, view.head, view.mode,
                                             {row.data(), static_cast<std::size_t>(i) + 1});
        for (int p = 0; p <= i; ++p) {
            const float value =
                known ? row[static_cast<std::size_t>(p)] : std::numeric_limits<float>::quiet_NaN();
            figure.values.at(p, i) = value;
            figure.states[static_cast<std::size_t>(i) * static_cast<std::size_t>(n) +
                          static_cast<std::size_t>(p)] =
                known && std::isnan(value) ? CellState::evicted : CellState::kept;
        }
    }
    const auto effective = [&](int lane) {
        const LaneRecord* record = history.lane_record(std::max(view.row, history.n_prompt() - 1), lane);
        return record == nullptr ? std::string() : record->info->effective;
    };
    figure.texts.title =
        fmt::format("Difference of {}, layer {}, head {}", mode_name(view.mode), view.layer, view.head);
    figure.texts.subtitle =
        fmt::format("{}: {} minus {}", std::filesystem::path(history.run().model_path).filename().string(),
                    effective(a), effective(b));
    figure.texts.caption =
        view.mode == HeatMode::mask
            ? "1: stored by the first lane alone; -1: by the second alone; 0: by both; hatched: by neither."
            : "What a lane did not see counts as 0; hatched: seen by neither.";
    figure.row_axis = {"query row", 0, {}};
    figure.column_axis = {"key position", 0, {}};
    for (int p = 0; p < n; ++p) figure.row_axis.tokens.push_back(token_text(history, a, p));
    figure.column_axis.tokens = figure.row_axis.tokens;
    figure.scale = scale;
    figure.value_label = "difference";
    figure.reduction = Reduction::magnitude;
    return draw_heatmap(figure);
}

}  // namespace keyhole
