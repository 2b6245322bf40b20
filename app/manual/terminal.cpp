#include "app/manual/terminal.h"

#include "engine/base/index.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace keyhole {

namespace {

constexpr int kTextIndent = 2, kCodeIndent = 6, kListIndent = 3, kColumnGap = 2;

/// A piece of text within which the line cannot break.
struct Word {
    std::string text;  // with escapes
    int width = 0;     // columns
};

/// Every character of the manual takes one column.
int width_of(std::string_view utf8) {
    return static_cast<int>(
        std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string styled(std::string text, const ManualSpan& span, bool all_bold, const TerminalStyle& style) {
    if (!style.escapes || text.empty()) return text;
    if (span.bold || span.code || all_bold) text = "\033[1m" + text + "\033[22m";
    if (span.italic) text = "\033[4m" + text + "\033[24m";
    return text;
}

/// Returns a note with a link's target for the terminal; empty if the text names it already.
std::string link_note(const ManualSpan& span) {
    if (span.link.empty() || span.link == span.text) return {};
    const std::optional<ManualPlace> place = place_of_link(span.link);
    return !place || place->page.empty() ? span.link : "see keyhole help " + place->page;
}

/// Adds a link's target in parentheses. `[models](models.md)` becomes only the target.
std::string text_of_span(const ManualSpan& span, const TerminalStyle& style) {
    std::string text = span.text;
    if (!style.escapes && span.code) text = "`" + text + "`";
    if (!style.escapes && span.italic) text = "\"" + text + "\"";
    if (span.link == span.text + ".md") return "keyhole help " + span.text;
    const std::string note = link_note(span);
    return note.empty() ? text : text + " (" + note + ")";
}

/// Splits a text at blanks. Code of up to half a line stays whole.
std::vector<Word> words_of(const ManualText& text, bool all_bold, int width, const TerminalStyle& style) {
    std::vector<Word> words;
    bool open = false;  // the last word continues
    for (const ManualSpan& span : text) {
        std::string rest = text_of_span(span, style);
        const bool whole = span.code && width_of(rest) <= width / 2;
        while (!rest.empty()) {
            if (rest.front() == ' ' && !whole) {
                rest.erase(0, 1);
                open = false;
                continue;
            }
            const std::size_t end = whole ? rest.size() : std::min(rest.find(' '), rest.size());
            if (!open) words.emplace_back();
            const std::string piece = rest.substr(0, end);
            words.back().text += styled(piece, span, all_bold, style);
            words.back().width += width_of(piece);
            open = true;
            rest.erase(0, end);
        }
    }
    return words;
}

struct Line {
    std::string text;
    int width = 0;
};

/// Returns at least one line.
std::vector<Line> wrapped(const std::vector<Word>& words, int width) {
    std::vector<Line> lines(1);
    for (const Word& word : words) {
        if (lines.back().width > 0 && lines.back().width + 1 + word.width > width) lines.emplace_back();
        Line& line = lines.back();
        if (line.width > 0) {
            line.text += ' ';
            ++line.width;
        }
        line.text += word.text;
        line.width += word.width;
    }
    return lines;
}

std::string blanks(int n) {
    return std::string(to_index(std::max(n, 0)), ' ');
}

/// Makes columns as wide as their longest cell. If that is too much, shrinks the widest ones, down to their
/// longest word.
std::vector<int> column_widths(const std::vector<std::vector<std::vector<Word>>>& cells, int width) {
    std::vector<int> widest, least;
    for (const auto& row : cells) {
        widest.resize(std::max(widest.size(), row.size()), 0);
        least.resize(widest.size(), 0);
        for (std::size_t c = 0; c < row.size(); ++c) {
            int sum = -1;
            for (const Word& word : row[c]) {
                sum += 1 + word.width;
                least[c] = std::max(least[c], word.width);
            }
            widest[c] = std::max(widest[c], sum);
        }
    }
    const int gaps = kColumnGap * (static_cast<int>(widest.size()) - 1);
    while (std::accumulate(widest.begin(), widest.end(), gaps) > width) {
        auto most = widest.end();
        for (auto c = widest.begin(); c != widest.end(); ++c)
            if (*c > least[to_index(c - widest.begin())] && (most == widest.end() || *c > *most)) most = c;
        if (most == widest.end()) break;
        --*most;
    }
    return widest;
}

std::string table_text(const ManualBlock& table, int indent, const TerminalStyle& style) {
    const int width = style.width - indent;
    std::vector<std::vector<std::vector<Word>>> cells;
    for (const auto& row : table.rows) {
        auto& out = cells.emplace_back();
        for (const ManualText& cell : row) out.push_back(words_of(cell, cells.size() == 1, width, style));
    }
    const std::vector<int> widths = column_widths(cells, width);
    std::string text;
    for (std::size_t r = 0; r < cells.size(); ++r) {
        std::vector<std::vector<Line>> columns;
        std::size_t n_lines = 1;
        for (std::size_t c = 0; c < cells[r].size(); ++c) {
            columns.push_back(wrapped(cells[r][c], widths[c]));
            n_lines = std::max(n_lines, columns.back().size());
        }
        for (std::size_t i = 0; i < n_lines; ++i) {
            std::string line = blanks(indent);
            int missing = 0;  // blanks are written only before more text
            for (std::size_t c = 0; c < columns.size(); ++c) {
                const Line part = i < columns[c].size() ? columns[c][i] : Line{};
                if (part.width > 0) {
                    line += blanks(missing) + part.text;
                    missing = 0;
                }
                missing += widths[c] - part.width + kColumnGap;
            }
            text += line + "\n";
        }
        if (r == 0) {
            std::string rule = blanks(indent);
            for (std::size_t c = 0; c < widths.size(); ++c)
                rule +=
                    (c > 0 ? blanks(kColumnGap) : "") + std::string(to_index(std::max(widths[c], 0)), '-');
            text += rule + "\n";
        }
    }
    return text;
}

std::string block_text(const ManualBlock& block, const TerminalStyle& style) {
    const bool heading = block.kind == ManualBlock::Kind::heading;
    const int indent = heading ? 0 : kTextIndent + kListIndent * block.indent;
    if (block.kind == ManualBlock::Kind::table) return table_text(block, indent, style);
    std::string text;
    if (block.kind == ManualBlock::Kind::code) {
        for (std::size_t begin = 0; begin < block.code.size();) {
            const std::size_t end = std::min(block.code.find('\n', begin), block.code.size());
            const std::string line = block.code.substr(begin, end - begin);
            text += (line.empty() ? "" : blanks(indent + kCodeIndent - kTextIndent)) + line + "\n";
            begin = end + 1;
        }
        return text;
    }
    const int width = style.width - indent;
    const std::vector<Line> lines = wrapped(words_of(block.text, heading, width, style), width);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        std::string lead = blanks(indent);
        if (i == 0 && block.kind == ManualBlock::Kind::item) {
            const std::string mark = block.number > 0 ? std::to_string(block.number) + "." : "-";
            lead = blanks(indent - static_cast<int>(mark.size()) - 1) + mark + " ";
        }
        text += lead + lines[i].text + "\n";
    }
    return text;
}

}  // namespace

std::string terminal_text(const ManualPage& page, const TerminalStyle& style) {
    std::string text;
    const ManualBlock* before = nullptr;
    for (const ManualBlock& block : page.blocks) {
        const bool in_list = before != nullptr && block.kind == ManualBlock::Kind::item && block.tight &&
                             before->kind == ManualBlock::Kind::item;
        if (before != nullptr && !in_list) text += "\n";
        text += block_text(block, style);
        before = &block;
    }
    return text;
}

}  // namespace keyhole
