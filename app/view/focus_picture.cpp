#include "app/view/focus_picture.h"

#include "app/view/model_words.h"
#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_state.h"
#include "engine/base/index.h"
#include "engine/export/captions.h"
#include "engine/figure/both_color.h"
#include "engine/figure/heatmap.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

/// The drawn part of a matrix.
struct Part {
    CellRect cells;
    int n_columns() const { return cells.last_position - cells.first_position + 1; }
    int n_rows() const { return cells.last_row - cells.first_row + 1; }
    std::size_t at(int row, int position) const {
        return to_index(row - cells.first_row) * to_index(n_columns()) +
               to_index(position - cells.first_position);
    }
    std::vector<CellState> states(CellState state) const {
        return std::vector<CellState>(to_index(n_rows()) * to_index(n_columns()), state);
    }
    /// Calls each(row, position) for the cells whose token existed at that row.
    template <class Each>
    void each_existing(Each each) const {
        for (int i = cells.first_row; i <= cells.last_row; ++i)
            for (int p = cells.first_position; p <= std::min(i, cells.last_position); ++p) each(i, p);
    }
};

Part part_of(const ViewState& view, const PictureOptions& request) {
    return {request.shown.value_or(CellRect{0, view.row, 0, view.row})};
}

void append(std::string& caption, const std::string& sentence) {
    if (sentence.empty()) return;
    if (!caption.empty()) caption += caption.ends_with('.') ? " " : ". ";
    caption += sentence;
}

/// Appends to the caption what the picture leaves out of the run, beside what the record lacks.
void append_limits(std::string& caption, const RunHistory& history, const ViewState& view, const Part& part) {
    const CellRect& c = part.cells;
    if (view.mode == HeatMode::score && c.first_row < history.n_prompt() - 1)
        append(caption, "Prompt rows have no scores.");
    const bool all_positions = c.first_position == 0 && c.last_position == view.row;
    if (all_positions && c.first_row > 0 && c.last_row == view.row)
        append(caption, fmt::format("Rows {} to {} of rows 0 to {}.", c.first_row, c.last_row, view.row));
    else if (c != CellRect{0, view.row, 0, view.row})
        append(caption,
               fmt::format("Rows {} to {} and positions {} to {} alone, of rows and positions 0 to {}.",
                           c.first_row, c.last_row, c.first_position, c.last_position, view.row));
    if (view.row < history.last_row())
        append(caption, fmt::format("Up to row {} of {}.", view.row, history.last_row()));
}

template <class Figure>
void put_axes(Figure& figure, const RunHistory& history, int lane, const ViewState& view, const Part& part,
              const PictureOptions& request) {
    figure.row_axis = {"query position", part.cells.first_row, {}};
    figure.column_axis = {"key position", part.cells.first_position, {}};
    if (!request.row_words.empty())
        figure.row_axis = {"word that it chooses", part.cells.first_row, request.row_words};
    for (int p = part.cells.first_row; p <= part.cells.last_row && request.row_words.empty(); ++p)
        figure.row_axis.tokens.push_back(token_text(history, lane, p));
    for (int p = part.cells.first_position; p <= part.cells.last_position; ++p)
        figure.column_axis.tokens.push_back(token_text(history, lane, p));
    figure.size.width = request.width;
    figure.size.cell_aspect = request.cell_aspect;
    figure.size.plot_height = request.plot_height;
    figure.has_legend = request.has_legend;
    figure.size.print = request.print;
    figure.marked =
        marked_columns(history, lane, view.watched, part.cells.first_position, part.cells.last_position);
    figure.background = request.background;
}

}  // namespace

CellRect shown_cells(const HeatView& view, CanvasPoint canvas, int last_row) {
    const CellRect all{0, last_row, 0, last_row};
    if (!(canvas.x > 0) || !(canvas.y > 0)) return all;
    const CanvasPoint first = view.cell_at({0, 0}), last = view.cell_at(canvas);
    constexpr double kSliver = 0.02;  // of a cell at an edge; less than this is not shown
    const auto begin = [](double at) { return std::max(static_cast<int>(std::floor(at + kSliver)), 0); };
    const auto end = [&](double at) {
        return std::min(static_cast<int>(std::ceil(std::min(at, 1e9) - kSliver)) - 1, last_row);
    };
    const CellRect shown{begin(first.y), end(last.y), begin(first.x), end(last.x)};
    return shown.first_row > shown.last_row || shown.first_position > shown.last_position ? all : shown;
}

Drawing focus_picture(const RunHistory& history, int lane, const ViewState& view, const ColorScale& scale,
                      const PictureOptions& request) {
    const int g = history.layout(lane).kv_head_from_head(view.layer, view.head);
    const Part part = part_of(view, request);
    std::vector<CellState> states = part.states(CellState::future);
    part.each_existing([&](int i, int p) {
        // The mask is complete where a lane ran again without a record; its values are not.
        const bool known = view.mode == HeatMode::mask || is_recorded(history, lane, i);
        states[part.at(i, p)] = known ? mask_state(history, lane, g, p, i) : CellState::kept;
    });
    FigureTexts texts;
    texts.title = head_title(view.mode, history.layout(lane), view.layer, view.head);
    texts.subtitle = lane_subtitle(history, lane, lane_number(history, lane), view.row);
    append(texts.caption, head_caption(view.mode, scale));
    append(texts.caption, recording_note(history, lane, request.stride, request.dense_from));
    append_limits(texts.caption, history, view, part);
    const LaneRecord* last = history.lane_record(part.cells.last_row, lane);
    if (last != nullptr && view.mode == HeatMode::attention)
        if (const std::string words = expert_words(history.run().config, *last, view.layer); !words.empty())
            append(texts.caption,
                   fmt::format("Experts of the layer at row {}: {}.", part.cells.last_row, words));
    if (view.mode == HeatMode::mask) {
        MaskFigure figure;
        figure.texts = std::move(texts);
        figure.n_columns = part.n_columns();
        figure.n_rows = part.n_rows();
        figure.states = std::move(states);
        put_axes(figure, history, lane, view, part, request);
        return mask_drawing(figure);
    }
    HeatmapFigure figure;
    if (view.mode == HeatMode::attention && history.run().config.has_sinks) {
        append(texts.caption, kSinkCaption);
        figure.side.name = kSinkColumn;
        for (int i = part.cells.first_row; i <= part.cells.last_row; ++i)
            figure.side.values.push_back(learned_sink_share(history, lane, i, view.layer, view.head));
    }
    figure.values = Plane(part.n_columns(), part.n_rows(), kNone);
    std::vector<float> row(to_index(part.cells.last_row) + 1);
    for (int i = part.cells.first_row; i <= part.cells.last_row; ++i) {
        const std::span<float> values(row.data(), to_index(i) + 1);
        if (!picture_values(history, lane, i, view.layer, view.head, view.mode, values)) continue;
        for (int p = part.cells.first_position; p <= std::min(i, part.cells.last_position); ++p) {
            const float value = values[to_index(p)];
            figure.values.values[part.at(i, p)] = value == kHiddenValue ? 0 : value;
        }
    }
    figure.texts = std::move(texts);
    figure.states = std::move(states);
    put_axes(figure, history, lane, view, part, request);
    figure.scale = scale;
    figure.value_label = view.mode == HeatMode::score ? "score" : "attention";
    return heatmap_drawing(figure);
}

Drawing difference_picture(const RunHistory& history, int a, int b, const ViewState& view,
                           const ColorScale& scale, const PictureOptions& request) {
    const Part part = part_of(view, request);
    HeatmapFigure figure;
    figure.values = Plane(part.n_columns(), part.n_rows(), kNone);
    figure.states = part.states(CellState::future);
    std::vector<float> row(to_index(part.cells.last_row) + 1);
    for (int i = part.cells.first_row; i <= part.cells.last_row; ++i) {
        const bool known = difference_values(history, a, b, i, view.layer, view.head, view.mode,
                                             {row.data(), to_index(i) + 1});
        for (int p = part.cells.first_position; p <= std::min(i, part.cells.last_position); ++p) {
            const float value = known ? row[to_index(p)] : kNone;
            figure.values.values[part.at(i, p)] = value;
            figure.states[part.at(i, p)] = known && std::isnan(value) ? CellState::evicted : CellState::kept;
        }
    }
    figure.texts.title =
        fmt::format("Difference of {}, layer {}, head {}", mode_name(view.mode), view.layer, view.head);
    figure.texts.subtitle =
        fmt::format("{} minus {}", lane_subtitle(history, a, lane_number(history, a), view.row),
                    lane_settings(history, b, lane_number(history, b), view.row));
    std::string& caption = figure.texts.caption;
    caption = view.mode == HeatMode::mask
                  ? "What the lanes store after each query position; hatched: neither does."
                  : "First lane minus second, for each query position. A token that a lane did not attend "
                    "to counts as 0; hatched: attended to by neither.";
    const std::string of_a = recording_note(history, a, request.stride, request.dense_from),
                      of_b = recording_note(history, b, request.stride, request.dense_from);
    if (!of_a.empty()) append(caption, of_a == of_b ? of_a : "First lane: " + of_a);
    if (!of_b.empty() && of_a != of_b) append(caption, "Second lane: " + of_b);
    append_limits(caption, history, view, part);
    put_axes(figure, history, a, view, part, request);
    figure.scale = scale;
    figure.value_label = "difference";
    if (view.mode == HeatMode::mask)
        figure.named_values = {{1, "the first alone", color_of(scale, 1)},
                               {0, "both", both_color(request.background)},
                               {-1, "the second alone", color_of(scale, -1)}};
    figure.reduction = Reduction::magnitude;
    return heatmap_drawing(figure);
}

}  // namespace keyhole
