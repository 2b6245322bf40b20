#include "engine/figure/answers.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace keyhole {

namespace {

using Mark = AnswerLine::Mark;

constexpr double kWidth = 960, kLeastTextScale = 0.7;
constexpr int kLineHeight = 26, kRowGap = 12, kMarkWidth = 24;
const TextStyle kWords{16}, kLane{16, {}, TextAlign::left, FontWeight::bold}, kSettings{12}, kMarkText{13};

TextStyle in_color(TextStyle style, Rgb8 color) {
    style.color = color;
    return style;
}

/// One piece of text on a line, and whether it is framed.
struct Piece {
    double x = 0;
    int line = 0;
    std::string text;
    bool framed = false, soft = false;
};

/// Words without their blanks at the ends; a word of blanks alone becomes visible.
struct Trimmed {
    std::size_t before = 0;
    std::string text;
};

Trimmed trimmed(const AnswerWord& word) {
    const std::size_t first = word.text.find_first_not_of(' ');
    if (first != std::string::npos)
        return {first, word.text.substr(first, word.text.find_last_not_of(' ') + 1 - first)};
    std::string visible;  // a frame needs something inside
    for (std::size_t i = 0; word.differs && i < word.text.size(); ++i) visible += "␣";
    return {visible.empty() ? word.text.size() : 0, visible};
}

/// Breaks the words of an answer into lines that end before `right`. Tokens of one word stay together.
std::vector<Piece> lay_out(const AnswerLine& answer, double left, double right) {
    const double blank = static_cast<double>(text_width(" ", kWords));
    constexpr double kFrame = 3;  // room beside a framed word
    std::vector<Piece> pieces;
    double x = left, pending = 0;
    int line = 0;
    const auto add = [&](const std::string& text, bool framed, bool soft, bool begins) {
        if (framed && !begins && !pieces.empty() && pieces.back().framed && pending == 0) {
            pieces.back().text += text;  // a word of several tokens has one frame
            x += static_cast<double>(text_width(text, kWords));
            return;
        }
        const double wide = static_cast<double>(text_width(text, kWords)) + (framed ? 2 * kFrame : 0);
        if (begins && x > left && x + pending + wide > right) {
            x = left;
            ++line;
            pending = 0;
        }
        x += pending + (framed ? kFrame : 0);
        pending = 0;
        pieces.push_back({x, line, text, framed, soft});
        x += wide - (framed ? kFrame : 0);
    };
    for (const AnswerWord& word : answer.words) {
        const Trimmed inner = trimmed(word);
        pending += blank * static_cast<double>(inner.before);
        if (inner.text.empty()) continue;
        add(inner.text, word.differs, false, inner.before > 0 || x + pending > right);
        if (word.text.back() == ' ' && word.text.size() > inner.before + inner.text.size())
            pending += blank * static_cast<double>(word.text.size() - inner.before - inner.text.size());
    }
    if (answer.note.empty()) return pieces;
    if (!answer.words.empty()) pending = std::max(pending, blank);
    std::string rest;  // a note may be a long reason
    for (const std::string& part : wrap_text(answer.note, 1, kWords)) {
        if (!rest.empty()) pending = blank;
        add(part, false, true, true);
        rest = part;
    }
    return pieces;
}

/// A lane's answer in its place.
struct Row {
    AnswerLine answer;
    std::vector<Piece> pieces;
    std::string settings;  ///< cut to the room
    int y = 0, height = 0;
};

void draw_mark(Canvas& canvas, Mark mark, double x, double y) {
    if (mark == Mark::none) return;
    const FigureColors& colors = canvas.colors();
    canvas.text(x, y, mark == Mark::right ? "✓" : "✗",
                in_color(kLane, mark == Mark::right ? colors.right : colors.wrong));
}

void draw_frame(Canvas& canvas, double x, double y, double width, double height) {
    canvas.path({{{x, y}, {x + width, y}, {x + width, y + height}, {x, y + height}, {x, y}}},
                {canvas.colors().differs, 1.5});
}

/// Draws what the marks mean. Returns the width used; draws if `canvas` is given.
void draw_key(Canvas& canvas, const AnswersFigure& figure, int x, int y) {
    const auto has = [&](Mark mark) {
        return std::any_of(figure.lines.begin(), figure.lines.end(),
                           [&](const AnswerLine& line) { return line.mark == mark; });
    };
    const TextStyle body = in_color(kMarkText, canvas.colors().ink);
    double at = x;
    const auto item = [&](const std::string& text) {
        canvas.text(at + kMarkWidth, y, text, body);
        at += kMarkWidth + static_cast<double>(text_width(text, body)) + 24;
    };
    if (has(Mark::right)) {
        draw_mark(canvas, Mark::right, at, y);
        item("right");
    }
    if (has(Mark::wrong)) {
        draw_mark(canvas, Mark::wrong, at, y);
        item("wrong");
    }
    const auto differs = [](const AnswerLine& line) {
        return std::any_of(line.words.begin(), line.words.end(),
                           [](const AnswerWord& word) { return word.differs; });
    };
    if (!std::any_of(figure.lines.begin(), figure.lines.end(), differs)) return;
    draw_frame(canvas, at, y - 11, 16, 14);
    item("another word than lane 0");
}

}  // namespace

Drawing answers_drawing(const AnswersFigure& figure) {
    Drawing drawing;
    drawing.width = figure.width > 0 ? figure.width : static_cast<int>(kWidth);
    drawing.scale = figure.print.scale(kMarkText, std::max(drawing.width / kWidth, kLeastTextScale));
    const FigureTexts texts = figure.print.shown(figure.texts);
    const int width = static_cast<int>(std::lround(drawing.width / drawing.scale));
    double name_width = 0;
    for (const AnswerLine& line : figure.lines)
        name_width = std::max(name_width, static_cast<double>(text_width(line.lane, kLane)));
    const double left = kFigurePadding + kMarkWidth, words = left + std::min(name_width, width * 0.3) + 20,
                 right = width - kFigurePadding;
    const int heading = draw_heading(nullptr, 0, width, texts);
    constexpr int kKeyHeight = 30;
    int y = kFigurePadding - 6 + heading + kKeyHeight;
    auto rows = std::make_shared<std::vector<Row>>();
    for (const AnswerLine& line : figure.lines) {
        Row row{line, lay_out(line, words, right), {}, y, kLineHeight};
        row.answer.lane = fit_text(line.lane, static_cast<float>(words - left - 8), kLane);
        for (const Piece& piece : row.pieces)
            row.height = std::max(row.height, (piece.line + 1) * kLineHeight);
        if (!line.settings.empty()) {
            row.settings = fit_text(line.settings, static_cast<float>(right - words), kSettings);
            row.height += 18;
        }
        y += row.height + kRowGap;
        rows->push_back(std::move(row));
    }
    int caption_y = y;
    const int below = draw_caption(nullptr, 0, width, texts.caption) + kFigurePadding;
    drawing.height = static_cast<int>(std::lround((caption_y + below) * drawing.scale));
    if (const int asked = figure.print.height; asked > 0) {
        if (asked < drawing.height) refuse_height(drawing.width, asked, drawing.height);
        // The lines share what is left.
        const int more = static_cast<int>(asked / drawing.scale) - caption_y - below,
                  n = static_cast<int>(rows->size());
        for (int i = 0; i < n; ++i) (*rows)[to_index(i)].y += more * i / n;
        caption_y += more;
        drawing.height = asked;
    }
    drawing.background = figure.background;
    drawing.texts = figure.texts;
    drawing.draw = [=](Canvas& canvas) {
        const FigureColors& colors = canvas.colors();
        draw_heading(&canvas, kFigurePadding - 6, width, texts);
        draw_key(canvas, figure, kFigurePadding, kFigurePadding - 6 + heading + 9);
        for (const Row& row : *rows) {
            canvas.fill(kFigurePadding, row.y - 5, width - 2 * kFigurePadding, 1, colors.grid);
            const int baseline = row.y + 15;
            draw_mark(canvas, row.answer.mark, kFigurePadding, baseline);
            canvas.text(left, baseline, row.answer.lane, in_color(kLane, colors.ink));
            for (const Piece& piece : row.pieces) {
                const int at = baseline + piece.line * kLineHeight;
                if (piece.framed)
                    draw_frame(canvas, piece.x - 2, at - 15,
                               static_cast<double>(text_width(piece.text, kWords)) + 4, 20);
                canvas.text(piece.x, at, piece.text, in_color(kWords, piece.soft ? colors.soft : colors.ink));
            }
            if (!row.settings.empty())
                canvas.text(words, row.y + row.height - 5, row.settings, in_color(kSettings, colors.soft));
        }
        draw_caption(&canvas, caption_y, width, texts.caption);
    };
    return drawing;
}

}  // namespace keyhole
