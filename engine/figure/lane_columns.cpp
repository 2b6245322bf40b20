#include "engine/figure/lane_columns.h"

#include "engine/base/index.h"
#include "engine/figure/lane_look.h"
#include "engine/figure/shifted_canvas.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace keyhole {

namespace {

using Mark = AnswerLine::Mark;

constexpr int kMostAcross = 4, kOneWidth = 560, kColumnGap = 14, kLaneBar = 5, kHeadSquare = 14;
const TextStyle kLaneName{17, {}, TextAlign::left, FontWeight::bold}, kLaneNote{13}, kLargeAnswer{24},
    kTextWords{16}, kSentenceText{16, {}, TextAlign::left, FontWeight::bold};

TextStyle scaled_to(TextStyle style, double scale, Rgb8 color = {}) {
    style.size = static_cast<float>(style.size * scale);
    style.color = color;
    return style;
}

/// Text in lines of one height.
struct TextLines {
    std::vector<std::string> lines;
    TextStyle style;
    int line_height = 0;
    int height() const { return static_cast<int>(lines.size()) * line_height; }
    /// Draws it below y.
    void draw(Canvas& canvas, int x, int y, Rgb8 color) const {
        TextStyle inked = style;
        inked.color = color;
        for (const std::string& line : lines)
            canvas.text(x, (y += line_height) - line_height / 4.0, line, inked);
    }
};

TextLines wrapped_lines(const std::string& text, int width, const TextStyle& style, std::size_t most = 99) {
    TextLines out{{}, style, static_cast<int>(std::lround(style.size * 1.35f))};
    if (!text.empty()) out.lines = wrap_text(text, static_cast<float>(width), style);
    if (out.lines.size() > most) {
        out.lines.resize(most);
        out.lines.back() = fit_text(out.lines.back() + " …", static_cast<float>(width), style);
    }
    return out;
}

/// A lane as it is laid out, and the height of each part.
struct LaidColumn {
    const LaneColumn* lane = nullptr;
    TextLines name, note, answer, holds_note;
    std::optional<Drawing> drawing;
    int square = 0, squares_height = 0;
};

/// The lanes of one line of the picture, and where its parts are: they stand at one height in all.
struct LaneBand {
    std::vector<LaidColumn> columns;
    int answer_y = 0, drawing_y = 0, squares_y = 0, height = 0;
};

/// What the parts share: sizes in pixels.
struct ColumnSizes {
    double scale = 1;
    int width = 0, padding = 0, gap = 0, column = 0;
    int px(int pixels) const { return static_cast<int>(std::lround(pixels * scale)); }
    int inside() const { return column - px(kLaneBar) - px(8); }  ///< of the words of a lane
    int mark() const { return px(26); }
};

LaidColumn laid_lane(const LaneColumn& lane, const LaneColumnsFigure& figure, const ColumnSizes& sizes,
                     int plot_height) {
    LaidColumn out;
    out.lane = &lane;
    out.name = wrapped_lines(lane.name, sizes.inside(), scaled_to(kLaneName, sizes.scale));
    out.note = wrapped_lines(lane.note, sizes.inside(), scaled_to(kLaneNote, sizes.scale), 3);
    const int mark = lane.mark == Mark::none ? 0 : sizes.mark();
    out.answer = wrapped_lines(lane.answer, sizes.inside() - mark, scaled_to(kLargeAnswer, sizes.scale), 4);
    if (lane.drawing) {
        FigureSize size;
        size.width = sizes.column;
        size.print = figure.print;
        size.print.bare = true;
        size.print.height = 0;
        size.plot_height = plot_height;
        out.drawing = lane.drawing(size);
    }
    if (lane.holds.empty()) return out;
    out.holds_note = wrapped_lines(lane.holds_note, sizes.inside(), scaled_to(kLaneNote, sizes.scale));
    const int across = std::max(lane.squares_across, 1);
    out.square = std::clamp(sizes.inside() / across, 1, sizes.px(kHeadSquare));
    const int down = (static_cast<int>(lane.holds.size()) + across - 1) / across;
    out.squares_height = out.holds_note.height() + sizes.px(6) + down * out.square;
    return out;
}

LaneBand laid_band(std::span<const LaneColumn> lanes, const LaneColumnsFigure& figure,
                   const ColumnSizes& sizes, int plot_height) {
    LaneBand band;
    int drawing = 0, squares = 0, answer = 0;
    for (const LaneColumn& lane : lanes) {
        const LaidColumn& c = band.columns.emplace_back(laid_lane(lane, figure, sizes, plot_height));
        band.answer_y = std::max(band.answer_y, c.name.height() + c.note.height() + sizes.px(8));
        answer = std::max(answer, c.answer.height());
        drawing = std::max(drawing, c.drawing ? c.drawing->height : 0);
        squares = std::max(squares, c.squares_height);
    }
    band.drawing_y = band.answer_y + answer + (answer > 0 ? sizes.px(6) : 0);
    band.squares_y = band.drawing_y + drawing;
    band.height = band.squares_y + squares + sizes.gap;
    return band;
}

void draw_squares(Canvas& canvas, const LaidColumn& column, const ColumnSizes& sizes, int x, int y) {
    const FigureColors& colors = canvas.colors();
    column.holds_note.draw(canvas, x, y, colors.soft);
    y += column.holds_note.height() + sizes.px(6);
    const LaneColumn& lane = *column.lane;
    for (std::size_t g = 0; g < lane.holds.size(); ++g) {
        const int i = static_cast<int>(g), left = x + i % lane.squares_across * column.square,
                  top = y + i / lane.squares_across * column.square, side = std::max(column.square - 1, 1);
        canvas.fill(left, top, side, side, lane.holds[g] ? colors.differs : colors.grid);
    }
}

void draw_column(Canvas& canvas, const LaidColumn& column, const LaneBand& band, const ColumnSizes& sizes,
                 Background background, int x, int y) {
    const FigureColors& colors = canvas.colors();
    const LaneColumn& lane = *column.lane;
    const Rgb8 color = lane_look(lane.look, background).color;
    canvas.fill(x, y, sizes.px(kLaneBar), band.drawing_y - sizes.px(4), color);
    const int left = x + sizes.px(kLaneBar) + sizes.px(8);
    column.name.draw(canvas, left, y, color);
    column.note.draw(canvas, left, y + column.name.height(), lane.warns ? colors.differs : colors.soft);
    int words = left;
    if (lane.mark != Mark::none) {
        const bool right = lane.mark == Mark::right;
        TextLines{{right ? "✓" : "✗"}, column.answer.style, column.answer.line_height}.draw(
            canvas, left, y + band.answer_y, right ? colors.right : colors.wrong);
        words += sizes.mark();
    }
    column.answer.draw(canvas, words, y + band.answer_y, colors.ink);
    if (column.drawing) {
        ShiftedCanvas shifted(canvas, background, x, y + band.drawing_y);
        column.drawing->draw(shifted);
    }
    if (column.squares_height > 0) draw_squares(canvas, column, sizes, left, y + band.squares_y);
}

/// A word in its place.
struct PlacedWord {
    const ShownWord* word = nullptr;
    int x = 0, line = 0, width = 0;
};

std::vector<PlacedWord> placed_words(const std::vector<ShownWord>& words, const TextStyle& style, int width) {
    std::vector<PlacedWord> out;
    int x = 0, line = 0;
    for (const ShownWord& word : words) {
        const int wide = static_cast<int>(std::ceil(text_width(word.text, style)));
        if (x > 0 && x + wide > width) {
            x = 0;
            ++line;
        }
        out.push_back({&word, x, line, wide});
        x += wide;
    }
    return out;
}

void draw_words(Canvas& canvas, const std::vector<PlacedWord>& words, const ColumnSizes& sizes, int y) {
    const FigureColors& colors = canvas.colors();
    const int line = sizes.px(26);
    for (const PlacedWord& placed : words) {
        const ShownWord& word = *placed.word;
        const int x = sizes.padding + placed.x, base = y + (placed.line + 1) * line - sizes.px(8);
        canvas.text(x, base, word.text,
                    scaled_to(kTextWords, sizes.scale, word.soft || word.gone ? colors.soft : colors.ink));
        if (word.gone) canvas.fill(x, base - sizes.px(5), placed.width, 1, colors.soft);
        if (word.marked) canvas.fill(x, base + sizes.px(3), placed.width, sizes.px(2), colors.differs);
    }
}

/// The whole picture, laid out.
struct ColumnsLayout {
    LaneColumnsFigure figure;  ///< columns and words point into it
    ColumnSizes sizes;
    FigureTexts texts;
    std::vector<PlacedWord> words;
    std::vector<LaneBand> bands;
    TextLines sentence, remedy;
    int words_y = 0, legend_y = 0, bands_y = 0, sentence_y = 0, caption_y = 0, height = 0;
};

ColumnSizes sizes_of(const LaneColumnsFigure& figure, int across) {
    ColumnSizes sizes;
    sizes.width = figure.width > 0 ? figure.width : std::max(across * kOneWidth, kUsualFigureWidth);
    sizes.scale = text_scale(figure.width > 0 ? figure.width : kUsualFigureWidth, figure.print);
    sizes.padding = sizes.px(kFigurePadding);
    sizes.gap = sizes.px(kColumnGap);
    sizes.column =
        std::max((sizes.width - 2 * sizes.padding - (across - 1) * sizes.gap) / std::max(across, 1), 1);
    return sizes;
}

/// Returns how many lanes stand beside each other: as even a share for each line as there is.
int lanes_across(std::size_t n) {
    const int all = std::max(static_cast<int>(n), 1), lines = (all + kMostAcross - 1) / kMostAcross;
    return (all + lines - 1) / lines;
}

/// plot_height: of the cells, in pixels; 0: square cells.
std::shared_ptr<const ColumnsLayout> lay_out_columns(const LaneColumnsFigure& figure, int plot_height) {
    auto out = std::make_shared<ColumnsLayout>();
    ColumnsLayout& l = *out;
    l.figure = figure;
    const int across = lanes_across(figure.lanes.size());
    ColumnSizes& sizes = l.sizes = sizes_of(figure, across);
    if (figure.print.font_size <= 0) {  // of the drawings: they are narrower than the picture
        PrintForm one_point;
        one_point.font_size = 1;
        l.figure.print.font_size = sizes.scale / text_scale(sizes.width, one_point);
    }
    l.texts = figure.print.shown(figure.texts);
    const int room = sizes.width - 2 * sizes.padding;
    l.words = placed_words(l.figure.words, scaled_to(kTextWords, sizes.scale), room);
    l.words_y = sizes.padding - sizes.px(6) + draw_heading(nullptr, 0, sizes.width, l.texts, sizes.scale);
    l.legend_y = l.words_y + (l.words.empty() ? 0 : (l.words.back().line + 1) * sizes.px(26) + sizes.px(8));
    const LegendBar* bar = l.figure.bar ? &*l.figure.bar : nullptr;
    l.bands_y = l.legend_y +
                draw_legend(nullptr, sizes.padding, 0, bar, l.figure.items, sizes.scale, sizes.width) +
                sizes.px(6);
    int y = l.bands_y;
    const std::span<const LaneColumn> lanes(l.figure.lanes);
    for (std::size_t i = 0; i < lanes.size(); i += to_index(across)) {
        const std::size_t n = std::min(to_index(across), lanes.size() - i);
        l.bands.push_back(laid_band(lanes.subspan(i, n), l.figure, sizes, plot_height));
        y += l.bands.back().height;
    }
    l.sentence = wrapped_lines(figure.sentence, room, scaled_to(kSentenceText, sizes.scale));
    l.remedy = wrapped_lines(figure.remedy, room, scaled_to(kSentenceText, sizes.scale));
    l.sentence_y = y;
    l.caption_y = y + l.sentence.height() + l.remedy.height() + sizes.px(6);
    l.height =
        l.caption_y + draw_caption(nullptr, 0, sizes.width, l.texts.caption, sizes.scale) + sizes.padding;
    return out;
}

void draw_columns(Canvas& canvas, const ColumnsLayout& l) {
    const ColumnSizes& sizes = l.sizes;
    draw_heading(&canvas, sizes.padding - sizes.px(6), sizes.width, l.texts, sizes.scale);
    draw_words(canvas, l.words, sizes, l.words_y);
    draw_legend(&canvas, sizes.padding, l.legend_y, l.figure.bar ? &*l.figure.bar : nullptr, l.figure.items,
                sizes.scale, sizes.width);
    int y = l.bands_y;
    for (const LaneBand& band : l.bands) {
        int x = sizes.padding;
        for (const LaidColumn& column : band.columns) {
            draw_column(canvas, column, band, sizes, l.figure.background, x, y);
            x += sizes.column + sizes.gap;
        }
        y += band.height;
    }
    const FigureColors& colors = canvas.colors();
    l.sentence.draw(canvas, sizes.padding, l.sentence_y, l.figure.warns ? colors.differs : colors.ink);
    l.remedy.draw(canvas, sizes.padding, l.sentence_y + l.sentence.height(), colors.right);
    draw_caption(&canvas, l.caption_y, sizes.width, l.texts.caption, sizes.scale);
}

}  // namespace

Drawing lane_columns_drawing(const LaneColumnsFigure& figure) {
    const double scale = sizes_of(figure, lanes_across(figure.lanes.size())).scale;
    int plot_height = static_cast<int>(std::lround(figure.plot_height * scale));
    std::shared_ptr<const ColumnsLayout> layout = lay_out_columns(figure, plot_height);
    if (const int asked = figure.print.height; asked > 0) {
        constexpr int kLeastPlot = 16, kRounds = 5;
        const int n = static_cast<int>(layout->bands.size());
        if (plot_height == 0) layout = lay_out_columns(figure, plot_height = kLeastPlot);
        for (int round = 0; round < kRounds && layout->height != asked && n > 0; ++round) {
            const int high = std::max(plot_height + (asked - layout->height) / n, kLeastPlot);
            if (high == plot_height) break;
            layout = lay_out_columns(figure, plot_height = high);
        }
        if (layout->height > asked) refuse_height(layout->sizes.width, asked, layout->height);
    }
    Drawing drawing;
    drawing.width = layout->sizes.width;
    drawing.height = std::max(layout->height, figure.print.height);
    drawing.background = figure.background;
    drawing.texts = figure.texts;
    drawing.draw = [layout](Canvas& canvas) { draw_columns(canvas, *layout); };
    return drawing;
}

}  // namespace keyhole
