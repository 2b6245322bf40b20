#include "engine/figure/value_map.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/number.h"
#include "engine/figure/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace keyhole {

namespace {

constexpr double kUsualWidth = 960, kLeastScale = 0.7, kPadding = 18;
constexpr double kLeastCell = 32, kMostCell = 64, kCellHeight = 26;
constexpr double kPanelGap = 28, kPanelTitleHeight = 22, kTickHeight = 20;
constexpr double kBarLength = 220, kBarThickness = 12, kScaleHeight = 40;
const TextStyle kMapTick{13}, kMapLabel{14}, kPanelName{14, {}, TextAlign::left, FontWeight::bold};

TextStyle with(TextStyle style, Rgb8 color, TextAlign align = TextAlign::left, bool upward = false) {
    style.color = color;
    style.align = align;
    style.upward = upward;
    return style;
}

double width_of(const std::string& text, const TextStyle& style) {
    return static_cast<double>(text_width(text, style));
}

/// Places, in units of text of normal size.
struct Places {
    double width = 0, height = 0, top = 0, left = 0;
    double cell_width = 0, cell_height = kCellHeight;
    int columns = 1, rows = 1;  ///< of panels
    double caption = 0, panel_width = 0, panel_height = 0;
};

/// cell_height: 0: the usual one.
Places place(const ValueMap& map, double width, double cell_height = 0) {
    Places p;
    p.width = width;
    const FigureTexts texts = map.print.shown(map.texts);
    double label = 0;
    for (const std::string& row : map.rows) label = std::max(label, width_of(row, kMapTick));
    p.left = kPadding + 22 + label + 8;
    const auto n_columns = static_cast<double>(std::max<std::size_t>(map.columns.size(), 1));
    const auto n = static_cast<int>(std::max<std::size_t>(map.panels.size(), 1));
    const double room = width - p.left - kPadding;
    const auto fit = static_cast<int>((room + kPanelGap) / (n_columns * kLeastCell + kPanelGap));
    p.columns = std::clamp(fit, 1, std::min(n, 4));
    p.rows = (n + p.columns - 1) / p.columns;
    p.columns = (n + p.rows - 1) / p.rows;  // equal rows
    if (map.panel_columns > 0) {
        p.columns = std::min(n, map.panel_columns);
        p.rows = (n + p.columns - 1) / p.columns;
    }
    p.cell_width = std::min(kMostCell, (room - kPanelGap * (p.columns - 1)) / p.columns / n_columns);
    // Maps of many cells are square ones.
    p.cell_height = p.cell_width < 20 ? p.cell_width : kCellHeight;
    p.panel_width = p.cell_width * n_columns;
    if (cell_height > 0) p.cell_height = cell_height;
    p.panel_height = p.cell_height * static_cast<double>(map.rows.size());
    p.top = kPadding - 6 + draw_heading(nullptr, 0, static_cast<int>(width), texts) + kScaleHeight;
    p.caption = p.top + p.rows * (kPanelTitleHeight + p.panel_height + kTickHeight + 10) + 26;
    p.height = p.caption + draw_caption(nullptr, 0, static_cast<int>(width), texts.caption) + kPadding;
    return p;
}

void draw_names(Canvas& canvas, const ValueMap& map, double y) {
    constexpr double kNameSwatch = 16, kAfter = 7, kBetween = 20;
    double x = kPadding;
    const auto item = [&](Rgb8 color, const std::string& name) {
        canvas.fill(x, y, kNameSwatch, kNameSwatch, color);
        canvas.outline(x, y, kNameSwatch, kNameSwatch, canvas.colors().line);
        canvas.text(x + kNameSwatch + kAfter, y + 12, name, with(kMapLabel, canvas.colors().ink));
        x += kNameSwatch + kAfter + width_of(name, kMapLabel) + kBetween;
    };
    for (const auto& [value, name] : map.named_values) item(color_of(map.scale, value), name);
    if (!map.empty_name.empty()) item(canvas.colors().cells.missing, map.empty_name);
}

void draw_scale(Canvas& canvas, const ValueMap& map, double y) {
    if (!map.named_values.empty()) return draw_names(canvas, map, y);
    const Rgb8 ink = canvas.colors().ink;
    canvas.text(kPadding, y + 11, map.value_label, with(kMapLabel, ink));
    const double x = kPadding + width_of(map.value_label, kMapLabel) + 14;
    constexpr int kSteps = 64;
    for (int i = 0; i < kSteps; ++i) {
        const float u = (static_cast<float>(i) + 0.5f) / kSteps;
        // Each strip reaches below the next one, so that no seam shows.
        const double from = x + kBarLength * i / kSteps;
        canvas.fill(from, y, x + kBarLength - from, kBarThickness,
                    color_of(map.scale, value_at(map.scale, u)));
    }
    canvas.outline(x, y, kBarLength, kBarThickness, canvas.colors().line);
    const double low = static_cast<double>(map.scale.low), high = static_cast<double>(map.scale.high);
    const double least = map.scale.diverging ? -high : low;
    for (const Tick& tick : labelled(linear_ticks(least, high, 5)))
        canvas.text(x + kBarLength * (tick.value - least) / (high - least), y + kBarThickness + 14, tick.text,
                    with(kMapTick, ink, TextAlign::center));
}

void draw_cells(Canvas& canvas, const ValueMap& map, const ValuePanel& panel, const Places& p, double left,
                double top) {
    const double gap = p.cell_width < 20 ? 0 : 1;
    const auto color_at = [&](std::size_t row, std::size_t column) {
        const float value = panel.values[row * map.columns.size() + column];
        return std::isfinite(value) ? color_of(map.scale, value) : canvas.colors().cells.missing;
    };
    double run_left = 0;
    Rgb8 run_color;
    for (std::size_t row = 0; row < map.rows.size(); ++row)
        for (std::size_t column = 0; column < map.columns.size(); ++column) {
            const float value = panel.values[row * map.columns.size() + column];
            const bool known = std::isfinite(value);
            const Rgb8 color = color_at(row, column);
            const double x = left + p.cell_width * static_cast<double>(column),
                         y = top + p.cell_height * static_cast<double>(row);
            if (gap == 0) {  // cells of equal colours become one
                const bool same = column > 0 && color == run_color;
                if (!same) run_left = x;
                run_color = color;
                const bool ends = column + 1 == map.columns.size() || color_at(row, column + 1) != color;
                if (ends) canvas.fill(run_left, y, x + p.cell_width - run_left, p.cell_height, color);
                continue;
            }
            canvas.fill(x, y, p.cell_width - gap, p.cell_height - gap, color);
            if (map.decimals < 0) continue;
            // A small negative value is 0.00, not -0.00.
            const float shown =
                std::abs(value) < 0.5f * std::pow(10.0f, static_cast<float>(-map.decimals)) ? 0 : value;
            const std::string text = known ? fmt::format("{:.{}f}", shown, map.decimals) : "–";
            if (width_of(text, kMapTick) < p.cell_width - 2)
                canvas.text(x + (p.cell_width - gap) / 2, y + p.cell_height / 2 + 4, text,
                            with(kMapTick, ink_on(color), TextAlign::center));
        }
    for (std::size_t i = 0; i < panel.notes.size(); ++i)
        if (!panel.notes[i].empty())
            canvas.note(left + p.cell_width * static_cast<double>(i % map.columns.size()),
                        top + p.cell_height * static_cast<double>(i / map.columns.size()), p.cell_width,
                        p.cell_height, panel.notes[i]);
    canvas.outline(left - 1, top - 1, p.panel_width + 1, p.panel_height + 1, canvas.colors().line);
}

/// Returns every how many labels one has room: 1, 2, 5, 10 and so on, so that numbers are round ones.
/// room: of a cell; needed: of a label.
std::size_t label_step(double room, double needed) {
    for (std::size_t ten = 1;; ten *= 10)
        for (const std::size_t step : {ten, 2 * ten, 5 * ten})
            if (static_cast<double>(step) * room >= needed) return step;
}

/// Calls each(index) for the labels to draw. Labels of whole numbers are taken where the step divides them.
template <class Each>
void each_label(const std::vector<std::string>& labels, double room, double needed, const Each& each) {
    const std::size_t step = label_step(room, needed);
    std::vector<int> numbers;
    for (std::size_t i = 0; i < labels.size(); ++i) {
        const auto number = number_from_text<int>(labels[i], 0);
        if (number && (numbers.empty() || *number == numbers.back() + 1)) numbers.push_back(*number);
    }
    const bool counts = numbers.size() == labels.size();
    for (std::size_t i = 0; i < labels.size(); ++i)
        if ((counts ? to_index(numbers[i]) : i) % step == 0) each(i);
}

/// Draws as many column labels as have room, each below its cell.
void draw_columns(Canvas& canvas, const ValueMap& map, const Places& p, double left, double y) {
    double widest = 0;
    for (const std::string& column : map.columns) widest = std::max(widest, width_of(column, kMapTick));
    each_label(map.columns, p.cell_width, widest + 6, [&](std::size_t i) {
        canvas.text(left + p.cell_width * (static_cast<double>(i) + 0.5), y, map.columns[i],
                    with(kMapTick, canvas.colors().ink, TextAlign::center));
    });
}

void draw_rows(Canvas& canvas, const ValueMap& map, const Places& p, double right, double top) {
    each_label(map.rows, p.cell_height, 14, [&](std::size_t i) {
        canvas.text(right, top + p.cell_height * (static_cast<double>(i) + 0.5) + 4, map.rows[i],
                    with(kMapTick, canvas.colors().ink, TextAlign::right));
    });
}

void draw_map(Canvas& canvas, const ValueMap& map, const Places& p) {
    const FigureColors& colors = canvas.colors();
    const FigureTexts texts = map.print.shown(map.texts);
    draw_heading(&canvas, static_cast<int>(kPadding) - 6, static_cast<int>(p.width), texts);
    draw_scale(canvas, map, p.top - kScaleHeight);
    const double step = kPanelTitleHeight + p.panel_height + kTickHeight + 10;
    for (std::size_t i = 0; i < map.panels.size(); ++i) {
        const int column = static_cast<int>(i) % p.columns, row = static_cast<int>(i) / p.columns;
        const double left = p.left + column * (p.panel_width + kPanelGap),
                     top = p.top + row * step + kPanelTitleHeight;
        canvas.text(
            left, top - 7,
            fit_text(map.panels[i].title, static_cast<float>(p.panel_width + kPanelGap - 6), kPanelName),
            with(kPanelName, colors.ink));
        draw_cells(canvas, map, map.panels[i], p, left, top);
        draw_columns(canvas, map, p, left, top + p.panel_height + 15);
        if (column == 0) draw_rows(canvas, map, p, left - 8, top);
    }
    const double bottom = p.top + p.rows * step, right = p.left + p.columns * (p.panel_width + kPanelGap);
    canvas.text((p.left + right - kPanelGap) / 2, bottom + 10, map.column_label,
                with(kMapLabel, colors.ink, TextAlign::center));
    canvas.text(kPadding + 8, (p.top + bottom) / 2, map.row_label,
                with(kMapLabel, colors.ink, TextAlign::center, true));
    draw_caption(&canvas, static_cast<int>(p.caption), static_cast<int>(p.width), texts.caption);
}

double light_of(Rgb8 color) {
    const auto linear = [](std::uint8_t value) {
        const double c = value / 255.0;
        return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b);
}

}  // namespace

Rgb8 ink_on(Rgb8 color) {
    // Contrast to white is 1.05 / (l + 0.05), to black (l + 0.05) / 0.05.
    const double l = light_of(color) + 0.05;
    return 1.05 / l >= l / 0.05 ? Rgb8{255, 255, 255} : Rgb8{0, 0, 0};
}

Drawing value_map_drawing(const ValueMap& map) {
    for ([[maybe_unused]] const ValuePanel& panel : map.panels)
        KH_ASSERT(panel.values.size() == map.rows.size() * map.columns.size() &&
                  (panel.notes.empty() || panel.notes.size() == panel.values.size()));
    Drawing drawing;
    drawing.width = map.width > 0 ? map.width : static_cast<int>(kUsualWidth);
    drawing.scale = map.print.scale(kMapTick, std::max(drawing.width / kUsualWidth, kLeastScale));
    Places places = place(map, drawing.width / drawing.scale);
    if (map.print.height > 0) {
        const double least = map.decimals < 0 ? 0.25 : 14;  // of a cell; a number needs a line
        const double n_cells = places.rows * static_cast<double>(map.rows.size());
        const double words = places.height - n_cells * places.cell_height;
        const double high = (map.print.height / drawing.scale - words) / std::max(n_cells, 1.0);
        if (high < least)
            refuse_height(drawing.width, map.print.height,
                          static_cast<int>(std::ceil((words + n_cells * least) * drawing.scale)));
        places = place(map, drawing.width / drawing.scale, high);
    }
    drawing.height = static_cast<int>(std::lround(places.height * drawing.scale));
    drawing.background = map.background;
    drawing.texts = map.texts;
    drawing.draw = [=, kept = std::make_shared<const ValueMap>(map)](Canvas& canvas) {
        draw_map(canvas, *kept, places);
    };
    return drawing;
}

}  // namespace keyhole
