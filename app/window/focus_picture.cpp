#include "app/window/focus_picture.h"

#include "app/window/run_rows.h"
#include "engine/figure/heatmap.h"

#include <filesystem>
#include <limits>

namespace keyhole {

Image focus_picture(const RunHistory& history, int lane, const ViewState& view, const ColorScale& scale) {
    const RunInfo& run = history.run();
    const int g = run.layout.kv_head_from_head(view.layer, view.head);
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
        if (!(view.mode == HeatMode::score
                  ? score_values(history, lane, i, g, values)
                  : attention_values(history, lane, i, view.layer, view.head, values)))
            continue;
        for (int p = 0; p <= i; ++p) figure.values.at(p, i) = values[static_cast<std::size_t>(p)];
    }
    figure.texts = std::move(texts);
    figure.states = std::move(states);
    figure.row_axis = std::move(rows);
    figure.column_axis = std::move(columns);
    figure.scale = scale;
    figure.value_label = view.mode == HeatMode::score ? "score" : "attention";
    return draw_heatmap(figure);
}

}  // namespace keyhole
