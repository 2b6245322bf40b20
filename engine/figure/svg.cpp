// Pictures as SVG: text stays text, with the needed part of its fonts embedded, and cells are one PNG.
#include "engine/figure/drawing.h"

#include "engine/base/base64.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/utf8.h"
#include "engine/figure/font_subset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

namespace keyhole {

namespace {

std::string hex(Rgb8 c) {
    return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b);
}

/// Returns the shortest text of a coordinate with at most two decimals.
std::string number(double value) {
    std::string text = fmt::format("{:.2f}", value);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
    return text == "-0" ? "0" : text;
}

/// Returns CSS such as "U+20,U+41-5a".
std::string unicode_range(const std::set<char32_t>& characters) {
    std::string text;
    for (auto it = characters.begin(); it != characters.end();) {
        const char32_t first = *it;
        char32_t last = first;
        while (++it != characters.end() && *it == last + 1) ++last;
        text += text.empty() ? "" : ",";
        text += first == last
                    ? fmt::format("U+{:x}", static_cast<unsigned>(first))
                    : fmt::format("U+{:x}-{:x}", static_cast<unsigned>(first), static_cast<unsigned>(last));
    }
    return text;
}

class SvgCanvas final : public Canvas {
  public:
    explicit SvgCanvas(const Drawing& drawing) : Canvas(drawing.background), drawing_(drawing) {}

    void path(const std::vector<Run>& runs, const Stroke& stroke) override {
        body_ += "<path d=\"";
        for (const Run& run : runs)
            for (std::size_t i = 0; i < run.size(); ++i)
                body_ +=
                    fmt::format("{}{} {}", i == 0 ? "M" : "L", number(run[i].first), number(run[i].second));
        body_ += "\" fill=\"none\"";
        if (stroke.round) body_ += " stroke-linecap=\"round\" stroke-linejoin=\"round\"";
        body_ += fmt::format(" stroke=\"{}\" stroke-width=\"{}\"", hex(stroke.color), number(stroke.width));
        if (stroke.opacity < 1) body_ += fmt::format(" stroke-opacity=\"{}\"", stroke.opacity);
        if (!stroke.dash.empty())
            body_ += fmt::format(" stroke-dasharray=\"{}\"", fmt::join(stroke.dash, " "));
        body_ += "/>\n";
    }

    void fill(double x, double y, double width, double height, Rgb8 color) override {
        body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", number(x),
                             number(y), number(width), number(height), hex(color));
    }

    void text(double x, double y, const std::string& utf8, const TextStyle& style) override {
        // Blanks at an end count for the place of centred text here, and nowhere else.
        for (const char32_t c : characters(utf8)) {
            fonts_[{style.weight, font_of(c, style.weight)}].insert(c);
            ems_.try_emplace(style.weight, em_of(font_of(U'x', style.weight), 1));
        }
        const char* anchor = style.align == TextAlign::center  ? " text-anchor=\"middle\""
                             : style.align == TextAlign::right ? " text-anchor=\"end\""
                                                               : "";
        const std::string place =
            style.upward ? fmt::format("transform=\"translate({} {}) rotate(-90)\"", number(x), number(y))
                         : fmt::format("x=\"{}\" y=\"{}\"", number(x), number(y));
        body_ +=
            fmt::format("<text {} font-size=\"{}\"{} fill=\"{}\"{}>{}</text>\n", place,
                        number(static_cast<double>(style.size) * (utf8.empty() ? 1 : ems_[style.weight])),
                        style.weight == FontWeight::bold ? " font-weight=\"bold\"" : "", hex(style.color),
                        anchor, escape_xml(utf8));
    }

    void cells(int x, int y, int width, int height, const std::function<void(CellPainter&)>& paint) override {
        Image image(width, height, colors().paper);
        CellPainter painter(image, 0, 0, x + y, colors().cells);
        paint(painter);
        body_ += fmt::format(
            "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
            "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>\n",
            x, y, width, height, base64(encode_png(image)));
    }

    void note(double x, double y, double width, double height, const std::string& words) override {
        body_ += fmt::format(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" "
            "pointer-events=\"all\"><title>{}</title></rect>\n",
            number(x), number(y), number(width), number(height), escape_xml(words));
    }

    std::string take() const {
        std::string out = fmt::format(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" "
            "xml:space=\"preserve\" font-family=\"KeyholeFigure, DejaVu Sans, Verdana, sans-serif\" "
            "style=\"font-kerning:none;font-variant-ligatures:none\">\n",
            drawing_.width, drawing_.height, number(drawing_.width / drawing_.scale),
            number(drawing_.height / drawing_.scale));
        for (const auto& [name, text] : {std::pair("title", drawing_.texts.title),
                                         {"desc", drawing_.texts.caption},
                                         {"metadata", drawing_.made_by}})
            if (!text.empty()) out += fmt::format("<{0}>{1}</{0}>\n", name, escape_xml(text));
        std::string faces;
        for (const auto& [font, used] : fonts_) {
            const std::vector<std::byte> bytes = font_subset(font.second, used);
            if (bytes.empty()) continue;
            faces += fmt::format(
                "@font-face{{font-family:KeyholeFigure;font-weight:{};unicode-range:{};"
                "src:url(data:font/ttf;base64,{})}}\n",
                font.first == FontWeight::bold ? "bold" : "normal", unicode_range(used), base64(bytes));
        }
        if (!faces.empty()) out += "<style>\n" + faces + "</style>\n";
        out += fmt::format("<rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n", hex(colors().paper));
        return out + body_ + "</svg>\n";
    }

  private:
    const Drawing& drawing_;
    std::string body_;
    std::map<std::pair<FontWeight, FontFile>, std::set<char32_t>> fonts_;
    std::map<FontWeight, double> ems_;
};

}  // namespace

std::string Drawing::svg() const {
    SvgCanvas canvas(*this);
    draw(canvas);
    return canvas.take();
}

std::string escape_xml(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::size_t n = utf8_length(text);
        const std::string_view one = text.substr(0, std::max<std::size_t>(n, 1));
        const char32_t c = n == 0 ? 0 : utf8_decode(one);
        if (c < 0x20 || c == 0xfffe || c == 0xffff)  // no character of XML
            out += "\xef\xbf\xbd";
        else if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '"')
            out += "&quot;";
        else
            out += one;
        text.remove_prefix(one.size());
    }
    return out;
}

}  // namespace keyhole
