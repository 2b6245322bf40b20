#include "app/manual/roff.h"

#include "app/manual/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace keyhole {

namespace {

constexpr int kTableWidth = 72;  // a terminal of 80 columns less man's indent

/// begins: the text stands at the beginning of a line.
std::string escaped(std::string_view text, bool begins) {
    std::string out;
    for (const char c : text) {
        if (begins && (c == '.' || c == '\'')) out += "\\&";
        begins = c == '\n';
        switch (c) {
            case '\\':
                out += "\\e";
                break;
            case '-':
                out += "\\-";
                break;
            case '"':
                out += "\\(dq";
                break;
            case '\'':
                out += "\\(aq";
                break;
            case '`':
                out += "\\(ga";
                break;
            case '^':
                out += "\\(ha";
                break;
            case '~':
                out += "\\(ti";
                break;
            default:
                out += c;
        }
    }
    return out;
}

std::string roff_link(const ManualSpan& span) {
    const std::optional<ManualPlace> place = place_of_link(span.link);
    if (!place) return span.link == span.text ? "" : " (" + roff_escaped(span.link) + ")";
    return place->page.empty() ? "" : fmt::format(" (\\fBkeyhole\\-{}\\fR(7))", roff_escaped(place->page));
}

std::string roff_spans(const ManualText& text) {
    std::string out;
    for (const ManualSpan& span : text) {
        if (span.link == span.text + ".md") {
            out += fmt::format("\\fBkeyhole\\-{}\\fR(7)", roff_escaped(span.text));
            continue;
        }
        const std::string_view font = span.bold || span.code ? "\\fB" : span.italic ? "\\fI" : "";
        out += fmt::format("{}{}{}", font, escaped(span.text, out.empty()), font.empty() ? "" : "\\fR");
        if (!span.link.empty()) out += roff_link(span);
    }
    return out;
}

std::string upper(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return text;
}

/// Returns the lines as they are.
std::string roff_lines(const std::string& lines) {
    return ".PP\n.nf\n" + roff_escaped(lines) + ".fi\n";
}

std::string roff_block(const ManualBlock& block) {
    switch (block.kind) {
        case ManualBlock::Kind::heading:
            return block.level <= 2 ? fmt::format(".SH \"{}\"\n", roff_escaped(upper(plain_text(block.text))))
                                    : fmt::format(".SS \"{}\"\n", roff_escaped(plain_text(block.text)));
        case ManualBlock::Kind::paragraph:
            return ".PP\n" + roff_spans(block.text) + "\n";
        case ManualBlock::Kind::item:
            return fmt::format(".IP {} 4\n{}\n",
                               block.number > 0 ? fmt::format("{}.", block.number) : "\\(bu",
                               roff_spans(block.text));
        case ManualBlock::Kind::code:
        case ManualBlock::Kind::table:
            break;
    }
    return roff_lines(terminal_text(ManualPage{{}, {block}}, {kTableWidth, false}));
}

}  // namespace

std::string roff_escaped(std::string_view text) {
    return escaped(text, true);
}

std::string roff_text(const ManualPage& page) {
    std::string text;
    for (const ManualBlock& block : page.blocks) {
        if (block.kind == ManualBlock::Kind::heading && block.level == 1) continue;
        std::string one = roff_block(block);
        for (int i = block.kind == ManualBlock::Kind::item ? 1 : 0; i < block.indent; ++i)
            one = ".RS 4\n" + one + ".RE\n";
        text += one;
    }
    return text;
}

}  // namespace keyhole
