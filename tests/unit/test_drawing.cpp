// Pictures as PNG, SVG and PDF: the same words at the same places, exact cells, fonts within, any width, both
// backgrounds. Poppler's programs read the PDFs where they are installed.
#include "engine/figure/answers.h"
#include "engine/figure/curves.h"
#include "engine/figure/font.h"
#include "engine/figure/heatmap.h"
#include "engine/figure/value_map.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>
#include <stb/stb_image.h>
#include <stb/stb_truetype.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <sstream>

namespace keyhole::test_drawing {
namespace {

// --- figures of every kind ---------------------------------------------------------------------------------

HeatmapFigure heatmap(int columns, int rows, Background background = Background::light) {
    HeatmapFigure figure;
    figure.texts = {"Attention <1> & more", "model · lane 1", "A caption that says what the colours mean."};
    figure.values = Plane(columns, rows);
    for (int y = 0; y < rows; ++y)
        for (int x = 0; x < columns; ++x) {
            figure.values.at(x, y) = static_cast<float>((x * 7 + y * 13) % 101) / 100;
            figure.states.push_back(x > y + columns - rows ? CellState::future
                                    : (x + y) % 5 == 0     ? CellState::evicted
                                                           : CellState::kept);
        }
    for (int x = 0; x < columns; ++x) figure.column_axis.tokens.push_back(x % 2 == 0 ? "·Gärten" : "“x”");
    figure.background = background;
    return figure;
}

MaskFigure mask(Background background) {
    MaskFigure figure;
    figure.texts = {"Kept tokens", "model", ""};
    figure.n_columns = 20;
    figure.n_rows = 12;
    for (int i = 0; i < 240; ++i) figure.states.push_back(static_cast<CellState>(i * 7 % 4));
    figure.background = background;
    return figure;
}

AtlasFigure atlas(Background background) {
    AtlasFigure figure;
    figure.texts = {"Attention of all layers and heads", "model", "One scale."};
    figure.layers = {0, 1};
    figure.heads = {0, 1, 2};
    figure.cell = [](int layer, int head) {
        AtlasCell cell{Plane(30, 30), {}};
        for (std::size_t i = 0; i < cell.values.values.size(); ++i) {
            cell.values.values[i] =
                static_cast<float>((i * 31 + static_cast<std::size_t>(layer * 7 + head)) % 97) / 97;
            cell.states.push_back(i % 6 == 0 ? CellState::evicted : CellState::kept);
        }
        return cell;
    };
    figure.background = background;
    return figure;
}

CurvePlot curves(Background background) {
    CurvePlot plot;
    plot.title = "KL to lane 0";
    plot.subtitle = "model";
    plot.caption = "What it measures: a sum over all tokens of p (ln p - ln q), in nats, for every step.";
    plot.x_label = "row";
    plot.y_label = "nats";
    for (int c = 0; c < 9; ++c)
        plot.curves.push_back({"lane " + std::to_string(c) + " h2o", {1, 2, 3}, {1.0 * c, 2, 3}});
    plot.curves.push_back({"threshold", {1, 3}, {1, 1}, true});
    plot.background = background;
    return plot;
}

CurvePlot panels(Background background) {
    CurvePlot plot = curves(background);
    for (int i = 0; i < 7; ++i) plot.panels.push_back({"panel " + std::to_string(i), plot.curves});
    plot.x_words = {"one", "two", "three", "four"};
    return plot;
}

ValueMap value_map(Background background) {
    ValueMap map;
    map.texts = {"Right answers by depth and length", "model", "Share of right answers."};
    map.row_label = "depth, %";
    map.column_label = "length, tokens";
    map.value_label = "right, %";
    for (const int i : {0, 25, 50, 75, 100}) map.rows.push_back(std::to_string(i));
    for (int length = 128; length <= 8192; length *= 2) map.columns.push_back(std::to_string(length));
    for (int i = 0; i < 6; ++i)
        map.panels.push_back({"tova:budget=64 " + std::to_string(i), std::vector<float>(35, 50)});
    map.scale = {Colormap::cividis, false, false, 0, 100};
    map.decimals = -1;  // numbers stand on the cells' colours, not on the paper
    map.background = background;
    return map;
}

AnswersFigure answers(Background background) {
    AnswersFigure figure;
    figure.texts = {"What each lane answers", "model · the right answer has “4821”", "Each by itself."};
    figure.lines = {
        {"0 full", "full", AnswerLine::Mark::right, {{" 4821", false}, {".", false}}, ""},
        {"1 h2o", "h2o:budget=64", AnswerLine::Mark::wrong, {{" 4", false}, {"8 or so", true}}, "…"},
        {"2 tova", "tova", AnswerLine::Mark::none, {}, "(nothing)"}};
    figure.background = background;
    return figure;
}

struct Named {
    std::string name;
    std::function<Drawing(int width, Background background, const PrintForm& print)> draw;
    Drawing make(int width, Background background, const PrintForm& print = {}) const {
        return draw(width, background, print);
    }
};

const std::vector<Named>& figures() {
    static const std::vector<Named> all = {
        {"heatmap",
         [](int width, Background background, const PrintForm& print) {
             HeatmapFigure figure = heatmap(40, 10, background);
             figure.size.width = width;
             figure.size.print = print;
             return heatmap_drawing(figure);
         }},
        {"mask",
         [](int width, Background background, const PrintForm& print) {
             MaskFigure figure = mask(background);
             figure.size.width = width;
             figure.size.print = print;
             return mask_drawing(figure);
         }},
        {"atlas",
         [](int width, Background background, const PrintForm& print) {
             AtlasFigure figure = atlas(background);
             figure.width = width;
             figure.print = print;
             return atlas_drawing(std::move(figure));
         }},
        {"curves",
         [](int width, Background background, const PrintForm& print) {
             CurvePlot plot = curves(background);
             plot.picture_width = width;
             plot.print = print;
             return curves_drawing(plot);
         }},
        {"panels",
         [](int width, Background background, const PrintForm& print) {
             CurvePlot plot = panels(background);
             plot.picture_width = width;
             plot.print = print;
             return curves_drawing(plot);
         }},
        {"value map",
         [](int width, Background background, const PrintForm& print) {
             ValueMap map = value_map(background);
             map.width = width;
             map.print = print;
             return value_map_drawing(map);
         }},
        {"answers", [](int width, Background background, const PrintForm& print) {
             AnswersFigure figure = answers(background);
             figure.width = width;
             figure.print = print;
             return answers_drawing(figure);
         }}};
    return all;
}

// --- what is drawn -----------------------------------------------------------------------------------------

/// Notes what a drawing draws.
class Notes final : public Canvas {
  public:
    struct Text {
        double x, y;
        std::string words;
        TextStyle style;
    };
    struct Cells {
        int x, y;
        Image pixels;
    };
    std::vector<Text> texts;
    std::vector<Cells> pictures;
    std::vector<Stroke> strokes;

    using Canvas::Canvas;
    void path(const std::vector<Run>&, const Stroke& stroke) override { strokes.push_back(stroke); }
    void fill(double, double, double, double, Rgb8) override {}
    void text(double x, double y, const std::string& words, const TextStyle& style) override {
        texts.push_back({x, y, words, style});
    }
    void cells(int x, int y, int width, int height, const std::function<void(CellPainter&)>& paint) override {
        Image image(width, height, colors().paper);
        CellPainter painter(image, 0, 0, x + y, colors().cells);
        paint(painter);
        pictures.push_back({x, y, std::move(image)});
    }
};

std::vector<std::string> words_of(const Drawing& drawing) {
    Notes notes(drawing.background);
    drawing.draw(notes);
    std::vector<std::string> words;
    for (const Notes::Text& text : notes.texts) words.push_back(text.words);
    return words;
}

/// An element of an SVG.
struct Element {
    std::string name, content;
    std::map<std::string, std::string> attributes;
};

std::string unescaped(std::string text) {
    for (const auto& [from, to] : {std::pair("&lt;", "<"), {"&gt;", ">"}, {"&quot;", "\""}, {"&amp;", "&"}})
        for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; ++at)
            text.replace(at, std::string(from).size(), to);
    return text;
}

/// Reads XML as the writer makes it, and fails the test for tags that are not closed, attributes without
/// quotes, and bare signs.
std::vector<Element> parse_xml(const std::string& xml) {
    std::vector<Element> elements;
    std::vector<std::size_t> open;
    std::size_t at = 0;
    while (at < xml.size()) {
        if (xml[at] != '<') {
            const std::size_t end = std::min(xml.find('<', at), xml.size());
            const std::string text = xml.substr(at, end - at);
            EXPECT_EQ(text.find('>'), std::string::npos) << text;
            for (std::size_t sign = text.find('&'); sign != std::string::npos;
                 sign = text.find('&', sign + 1))
                EXPECT_LT(text.find(';', sign), sign + 7) << text;
            if (!open.empty()) elements[open.back()].content += text;
            at = end;
            continue;
        }
        std::size_t end = at;
        for (bool quoted = false; end < xml.size() && (quoted || xml[end] != '>'); ++end)
            if (xml[end] == '"') quoted = !quoted;
        std::string tag = xml.substr(at + 1, end - at - 1);
        at = end + 1;
        if (tag.starts_with('/')) {
            if (open.empty() || elements[open.back()].name != tag.substr(1)) {
                ADD_FAILURE() << "</" << tag << "> closes nothing";
                return elements;
            }
            open.pop_back();
            continue;
        }
        const bool empty = tag.ends_with('/');
        if (empty) tag.pop_back();
        Element element;
        std::size_t blank = std::min(tag.find(' '), tag.size());
        element.name = tag.substr(0, blank);
        while (blank < tag.size()) {
            const std::size_t equals = tag.find("=\"", blank), quote = tag.find('"', equals + 2);
            if (equals == std::string::npos || quote == std::string::npos) {
                EXPECT_EQ(tag.find_first_not_of(' ', blank), std::string::npos) << tag;
                break;
            }
            element.attributes[tag.substr(blank + 1, equals - blank - 1)] =
                unescaped(tag.substr(equals + 2, quote - equals - 2));
            blank = quote + 1;
        }
        elements.push_back(std::move(element));
        if (!empty) open.push_back(elements.size() - 1);
    }
    EXPECT_TRUE(open.empty());
    return elements;
}

std::vector<unsigned char> from_base64(std::string_view text) {
    static const std::string kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::vector<unsigned char> bytes;
    unsigned bits = 0;
    int n = 0;
    for (const char c : text) {
        const std::size_t digit = kDigits.find(c);
        if (digit == std::string::npos) break;
        bits = bits << 6 | static_cast<unsigned>(digit);
        if ((n += 6) >= 8) bytes.push_back(static_cast<unsigned char>(bits >> (n -= 8) & 255));
    }
    return bytes;
}

// --- tests -------------------------------------------------------------------------------------------------

TEST(Drawings, SvgHasTheWordsOfThePixels) {
    for (const Named& figure : figures())
        for (const int width : {0, 500}) {
            const Drawing drawing = figure.make(width, Background::light);
            std::vector<std::string> words;
            for (const Element& element : parse_xml(drawing.svg()))
                if (element.name == "text") words.push_back(unescaped(element.content));
            EXPECT_EQ(words, words_of(drawing)) << figure.name;
            EXPECT_GT(words.size(), 6u) << figure.name;
        }
}

TEST(Drawings, SvgHoldsTheExactCells) {
    for (const Named& figure : figures()) {
        const Drawing drawing = figure.make(0, Background::light);
        Notes notes(Background::light);
        drawing.draw(notes);
        const Image image = drawing.image();
        std::size_t n = 0;
        for (const Element& element : parse_xml(drawing.svg())) {
            if (element.name != "image") continue;
            const int left = std::stoi(element.attributes.at("x")),
                      top = std::stoi(element.attributes.at("y"));
            const std::string& href = element.attributes.at("href");
            const auto png = from_base64(std::string_view(href).substr(href.find(',') + 1));
            int width = 0, height = 0, channels = 0;
            unsigned char* pixels = stbi_load_from_memory(png.data(), static_cast<int>(png.size()), &width,
                                                          &height, &channels, 3);
            ASSERT_NE(pixels, nullptr);
            EXPECT_EQ(std::to_string(width), element.attributes.at("width"));
            EXPECT_EQ(std::to_string(height), element.attributes.at("height"));
            int wrong = 0;
            const int edge =
                width == 16 && height == 16 ? 1 : 0;  // the outline of a legend's sample lies on it
            for (int y = edge; y < height - edge; ++y)
                for (int x = edge; x < width - edge; ++x) {
                    const unsigned char* c = pixels + 3 * (y * width + x);
                    wrong += image.at(left + x, top + y) == Rgb8{c[0], c[1], c[2]} ? 0 : 1;
                }
            stbi_image_free(pixels);
            EXPECT_EQ(wrong, 0) << figure.name << " " << n;
            ++n;
        }
        EXPECT_EQ(n, notes.pictures.size()) << figure.name;
    }
    EXPECT_GT(heatmap_drawing(heatmap(40, 10)).svg().size(), 1000u);
}

TEST(Drawings, SvgEmbedsFontsWithTheWidthsOfThePixels) {
    if (!has_pdf()) GTEST_SKIP() << "built without HarfBuzz";
    const Drawing drawing = heatmap_drawing(heatmap(40, 10));
    std::set<char32_t> used;
    for (const std::string& words : words_of(drawing))
        for (const char32_t c : characters(words)) used.insert(c);
    const std::string svg = drawing.svg();
    std::set<char32_t> there;
    int faces = 0;
    for (std::size_t at = svg.find("@font-face"); at != std::string::npos;
         at = svg.find("@font-face", at + 1)) {
        ++faces;
        const bool bold = svg.substr(at, 80).find("font-weight:bold") != std::string::npos;
        const std::size_t begin = svg.find("base64,", at) + 7;
        const auto font = from_base64(std::string_view(svg).substr(begin, svg.find(')', begin) - begin));
        stbtt_fontinfo info{};
        ASSERT_TRUE(stbtt_InitFont(&info, font.data(), 0));
        EXPECT_LT(font.size(), 60'000u) << "a part of a font, not all of it";
        EXPECT_EQ(stbtt_FindGlyphIndex(&info, 'Z'), 0) << "no figure says Z";
        for (const char32_t c : used) {
            if (stbtt_FindGlyphIndex(&info, static_cast<int>(c)) == 0) continue;
            there.insert(c);
            int advance = 0, bearing = 0;
            stbtt_GetCodepointHMetrics(&info, static_cast<int>(c), &advance, &bearing);
            const float width = static_cast<float>(advance) * stbtt_ScaleForPixelHeight(&info, 13);
            EXPECT_NEAR(width, glyph(c, 13, bold ? FontWeight::bold : FontWeight::book).advance, 0.01f);
        }
    }
    EXPECT_EQ(faces, 2) << "book and bold";
    EXPECT_EQ(there, used);
}

TEST(Drawings, AreAsWideAsAskedInEveryFormat) {
    for (const Named& figure : figures())
        for (const int width : {320, 501, 960, 3000, 12'000}) {
            const Drawing drawing = figure.make(width, Background::light);
            EXPECT_EQ(drawing.width, width) << figure.name;
            EXPECT_LT(drawing.height, 3 * width) << figure.name;
            const std::string svg = drawing.svg();
            EXPECT_NE(svg.substr(0, 200).find("width=\"" + std::to_string(width) + "\""), std::string::npos);
            if (width > 3000) continue;
            EXPECT_EQ(drawing.image().width(), width) << figure.name;
            // No text leaves the picture.
            Notes notes(Background::light);
            drawing.draw(notes);
            for (const Notes::Text& text : notes.texts) {
                const double wide = static_cast<double>(text_width(text.words, text.style));
                const double before = text.style.align == TextAlign::left     ? 0
                                      : text.style.align == TextAlign::center ? wide / 2
                                                                              : wide;
                const double at = text.style.upward ? text.y : text.x;
                const double low = text.style.upward ? at - wide + before : at - before;
                const double end = text.style.upward ? drawing.height : drawing.width;
                EXPECT_GE(low, -1) << figure.name << " " << width << " " << text.words;
                EXPECT_LE(low + wide, end / drawing.scale + 1)
                    << figure.name << " " << width << " " << text.words;
            }
        }
}

/// No text leaves the picture.
void expect_texts_within(const Drawing& drawing, const std::string& what) {
    Notes notes(drawing.background);
    drawing.draw(notes);
    for (const Notes::Text& text : notes.texts) {
        EXPECT_GE(text.y, 0) << what << " " << text.words;
        EXPECT_LE(text.y * drawing.scale, drawing.height + 1) << what << " " << text.words;
    }
}

TEST(Drawings, AreAsHighAsAskedWithAllTheirWords) {
    for (const Named& figure : figures())
        for (const int width : {0, 640, 1400})
            for (const int height : {1100, 1601}) {
                const std::string what = fmt::format("{} {} x {}", figure.name, width, height);
                const Drawing drawing = figure.make(width, Background::light, {false, height, 0});
                EXPECT_EQ(drawing.height, height) << what;
                EXPECT_EQ(drawing.image().height(), height) << what;
                if (width > 0) {
                    EXPECT_EQ(drawing.width, width) << what;
                }
                expect_texts_within(drawing, what);
                EXPECT_GE(words_of(drawing).size(), 7u) << what;
            }
    for (const Named& figure : figures()) {
        std::string refused;
        try {
            (void)figure.make(640, Background::light, {false, 121, 0});
        } catch (const Error& error) {
            refused = error.what();
        }
        ASSERT_NE(refused.find("it needs --height "), std::string::npos) << figure.name << ": " << refused;
        const int least = std::stoi(refused.substr(refused.find("--height ") + 9));
        EXPECT_EQ(figure.make(640, Background::light, {false, least, 0}).height, least) << figure.name;
    }
}

TEST(Drawings, BareOnesLeaveTheirTextsToTheFileBeside) {
    for (const Named& figure : figures()) {
        const Drawing whole = figure.make(900, Background::light),
                      bare = figure.make(900, Background::light, {true});
        ASSERT_FALSE(whole.texts.title.empty()) << figure.name;
        const auto shows = [](const Drawing& drawing, const std::string& text) {
            const std::vector<std::string> words = words_of(drawing);
            const std::string first = text.substr(0, text.find(' '));
            return std::any_of(words.begin(), words.end(),
                               [&](const std::string& line) { return line.starts_with(first); });
        };
        EXPECT_EQ(bare.texts.title, whole.texts.title);
        EXPECT_LE(bare.height, whole.height) << figure.name;
        for (const std::string& text : {whole.texts.title, whole.texts.caption}) {
            if (text.empty()) continue;
            EXPECT_TRUE(shows(whole, text)) << figure.name << ": " << text;
            EXPECT_FALSE(shows(bare, text)) << figure.name << ": " << text;
            EXPECT_NE(text_beside(bare).find(text), std::string::npos) << figure.name;
        }
        const reference::TempFolder folder("bare");
        PictureChoice how;
        how.formats = {PictureFormat::svg, PictureFormat::png};
        how.print = {true};
        how.made_by = "Keyhole: keyhole decode";
        EXPECT_EQ(write_drawing(bare, folder.path() / "a.b", how, {}),
                  (std::vector<std::string>{"a.b.svg", "a.b.png", "a.b.caption.txt"}));
        EXPECT_EQ(how.n_files(), 3);
        EXPECT_EQ(read_text_file(folder.path() / "a.b.caption.txt"),
                  text_beside(bare) + "\n" + how.made_by + "\n");
    }
}

TEST(Drawings, NumbersOfTheAxesHaveTheFontSizeAskedFor) {
    for (const Named& figure : figures())
        for (const double points : {6.0, 9.0, 14.0}) {
            const Drawing drawing = figure.make(1400, Background::light, {true, 0, points});
            EXPECT_EQ(drawing.width, 1400) << figure.name;
            const double wanted = points * 96 / 72;
            double nearest = 1e9;
            for (const Element& element : parse_xml(drawing.svg()))
                if (element.name == "text") {
                    const double size = std::stod(element.attributes.at("font-size")) * drawing.scale;
                    if (std::abs(size - wanted) < std::abs(nearest - wanted)) nearest = size;
                }
            EXPECT_NEAR(nearest, wanted, 0.02 * wanted) << figure.name;
        }
}

TEST(Drawings, MarkedColumnsHaveLinesOutsideOfTheCells) {
    HeatmapFigure figure = heatmap(40, 10);
    figure.size.width = 900;
    const Image plain = heatmap_drawing(figure).image();
    figure.marked = {8, 11, "“4821”, positions 8 to 11"};
    const Drawing drawing = heatmap_drawing(figure);
    EXPECT_EQ(words_of(drawing).at(2), "attention");
    const std::vector<std::string> words = words_of(drawing);
    EXPECT_NE(std::find(words.begin(), words.end(), "“4821”, positions 8 to 11"), words.end());
    const Image marked = drawing.image();
    ASSERT_EQ(marked.height(), plain.height());
    Notes notes(Background::light);
    drawing.draw(notes);
    const Notes::Cells& cells = notes.pictures.back();
    const Rgb8 mark = figure_colors(Background::light).differs;
    int first = marked.width(), last = -1;
    for (int x = 0; x < marked.width(); ++x)
        if (marked.at(x, cells.y - 3) == mark) {
            first = std::min(first, x);
            last = std::max(last, x);
        }
    const double column = cells.pixels.width() / 40.0;
    EXPECT_NEAR(first, cells.x + 8 * column, 1);
    EXPECT_NEAR(last + 1, cells.x + 12 * column, 1);
    EXPECT_EQ(marked.at(first + 1, cells.y + cells.pixels.height() + 2), mark);
    for (int y = 0; y < cells.pixels.height(); ++y)
        for (int x = 0; x < cells.pixels.width(); ++x)
            ASSERT_EQ(marked.at(cells.x + x, cells.y + y), plain.at(cells.x + x, cells.y + y));
}

TEST(Drawings, FilesSayWhatMadeThem) {
    Drawing drawing = heatmap_drawing(heatmap(40, 10));
    drawing.made_by = "Keyhole 0.1: keyhole decode \"a & b\" 猫";
    const reference::TempFolder folder("made");
    write_drawing(drawing, folder.path() / "a.png");
    const std::string png = read_text_file(folder.path() / "a.png");
    for (const std::string& text : {drawing.texts.title, drawing.texts.caption, drawing.made_by})
        EXPECT_NE(png.find(text), std::string::npos) << text;
    int width = 0, height = 0, channels = 0;
    unsigned char* pixels = stbi_load((folder.path() / "a.png").c_str(), &width, &height, &channels, 3);
    ASSERT_NE(pixels, nullptr);
    stbi_image_free(pixels);
    EXPECT_EQ(width, drawing.width);
    std::map<std::string, std::string> said;
    for (const Element& element : parse_xml(drawing.svg())) said[element.name] = unescaped(element.content);
    EXPECT_EQ(said["title"], drawing.texts.title);
    EXPECT_EQ(said["desc"], drawing.texts.caption);
    EXPECT_EQ(said["metadata"], drawing.made_by);
}

double luminance(Rgb8 color) {
    const auto linear = [](std::uint8_t value) {
        const double c = value / 255.0;
        return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b);
}

double contrast(Rgb8 a, Rgb8 b) {
    const auto [low, high] = std::minmax({luminance(a), luminance(b)});
    return (high + 0.05) / (low + 0.05);
}

TEST(Drawings, EveryTextCanBeReadOnBothBackgrounds) {
    for (const Background background : {Background::light, Background::dark}) {
        const FigureColors colors = figure_colors(background);
        for (const Named& figure : figures()) {
            const Drawing drawing = figure.make(0, background);
            Notes notes(background);
            drawing.draw(notes);
            for (const Notes::Text& text : notes.texts)
                EXPECT_GE(contrast(text.style.color, colors.paper), 4.5) << figure.name << " " << text.words;
            if (background == Background::dark && (figure.name == "curves" || figure.name == "panels"))
                for (const Stroke& stroke : notes.strokes)
                    if (stroke.width > 1) {
                        EXPECT_GE(contrast(stroke.color, colors.paper), 3) << int{stroke.color.r};
                    }
            // The picture stands on its paper.
            const Image image = drawing.image();
            EXPECT_EQ(image.at(0, 0), colors.paper) << figure.name;
            EXPECT_EQ(image.at(image.width() - 1, image.height() - 1), colors.paper) << figure.name;
        }
    }
    // No colour of the light background is left on the dark one.
    const Image dark = mask_drawing(mask(Background::dark)).image();
    for (int y = 0; y < dark.height(); ++y)
        for (int x = 0; x < dark.width(); ++x)
            ASSERT_FALSE(dark.at(x, y) == kFutureColor || dark.at(x, y) == kEvictedColor) << x << " " << y;
}

TEST(Drawings, ASmallNegativeValueIsZeroWithoutASign) {
    ValueMap map = value_map(Background::light);
    map.decimals = 2;
    map.panels.resize(1);
    map.panels[0].values[0] = -0.001f;
    map.panels[0].values[1] = -0.006f;
    const std::string svg = value_map_drawing(map).svg();
    EXPECT_EQ(svg.find("-0.00<"), std::string::npos);
    EXPECT_NE(svg.find("0.00<"), std::string::npos);
    EXPECT_NE(svg.find("-0.01<"), std::string::npos);
}

TEST(Drawings, AnswersFrameTheWordsThatDiffer) {
    Notes notes(Background::light);
    answers_drawing(answers(Background::light)).draw(notes);
    const Rgb8 frame = figure_colors(Background::light).differs;
    const auto frames = std::count_if(notes.strokes.begin(), notes.strokes.end(),
                                      [&](const Stroke& stroke) { return stroke.color == frame; });
    EXPECT_EQ(frames, 2) << "one word, and the legend";
    const auto says = [&](const std::string& words) {
        return std::count_if(notes.texts.begin(), notes.texts.end(),
                             [&](const Notes::Text& text) { return text.words == words; });
    };
    for (const char* words : {"0 full", "1 h2o", "2 tova", "h2o:budget=64", "4821", "8 or so", "(nothing)"})
        EXPECT_EQ(says(words), 1) << words;
    EXPECT_EQ(says("✓"), 2) << "one lane, and the legend";
    EXPECT_EQ(says("✗"), 2);
    // Tokens of one word have one frame, and the line above each lane stays at every width.
    AnswersFigure joined = answers(Background::light);
    joined.lines[1].words = {{" 33", true}, {"33", true}, {" 5", true}};
    joined.width = 320;
    const Drawing small = answers_drawing(joined);
    Notes of_joined(Background::light);
    small.draw(of_joined);
    EXPECT_EQ(std::count_if(of_joined.texts.begin(), of_joined.texts.end(),
                            [](const Notes::Text& text) { return text.words == "3333"; }),
              1);
    const Image image = small.image();
    int lines = 0;
    for (int y = 0; y < image.height(); ++y)
        lines += image.at(200, y) == figure_colors(Background::light).grid ? 1 : 0;
    EXPECT_EQ(lines, 3);
    // Long answers wrap within the picture, and tokens of one word stay together.
    AnswersFigure figure = answers(Background::light);
    for (int i = 0; i < 60; ++i) figure.lines[0].words.push_back({i % 2 == 0 ? " gard" : "ens", i % 7 == 0});
    const Drawing drawing = answers_drawing(figure);
    EXPECT_GT(drawing.height, answers_drawing(answers(Background::light)).height);
    Notes wrapped(Background::light);
    drawing.draw(wrapped);
    for (std::size_t i = 1; i < wrapped.texts.size(); ++i)
        if (wrapped.texts[i].words == "ens") {
            EXPECT_EQ(wrapped.texts[i].y, wrapped.texts[i - 1].y);
        }
}

TEST(Drawings, WrongEndingsFormatsAndWidthsAreOneLine) {
    const auto said = [](const std::function<void()>& what) {
        try {
            what();
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("nothing");
    };
    const Drawing drawing = answers_drawing(answers(Background::light));
    const reference::TempFolder folder("endings");
    for (const char* name : {"x.jpg", "x", "x.", "png", "x.PNG2"}) {
        const std::string words = said([&] { write_drawing(drawing, folder.path() / name); });
        EXPECT_NE(words.find("ends in .png, .svg or .pdf"), std::string::npos) << words;
        EXPECT_EQ(words.find('\n'), std::string::npos);
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_NE(said([] { formats_from_list("svg,eps"); }).find("'eps' is no format"), std::string::npos);
    EXPECT_NE(said([] { formats_from_list(""); }).find("'' is no format"), std::string::npos);
    EXPECT_EQ(formats_from_list("pdf,png"), (std::vector{PictureFormat::pdf, PictureFormat::png}));
    for (const int width : {1, 319, 12'001, -5})
        EXPECT_NE(said([&] { check_picture_width(width); }).find("320 to 12000"), std::string::npos);
    for (const int width : {0, 320, 12'000}) EXPECT_EQ(said([&] { check_picture_width(width); }), "nothing");
    if (!has_pdf()) {
        EXPECT_NE(said([&] { (void)drawing.pdf(); }).find("without PDF"), std::string::npos);
    }
}

// --- PDF, as another program reads it ----------------------------------------------------------------------

std::string output_of(const std::string& command) {
    std::string out;
    FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    if (pipe == nullptr) return out;
    char buffer[4096];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
    ::pclose(pipe);
    return out;
}

class PdfDrawings : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!has_pdf()) GTEST_SKIP() << "built without cairo";
        if (std::system("pdftotext -v >/dev/null 2>&1") != 0) GTEST_SKIP() << "no poppler-utils";
    }
    std::string write(const Drawing& drawing) {
        const std::string file = (folder_.path() / "figure.pdf").string();
        write_drawing(drawing, file);
        return file;
    }
    reference::TempFolder folder_{"pdf"};
};

/// Returns the words without blanks, sorted: readers of PDF choose an order of their own.
std::vector<std::string> sorted_words(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
    std::sort(words.begin(), words.end());
    return words;
}

TEST_F(PdfDrawings, HasTheWordsOfThePixels) {
    for (const Named& figure : figures()) {
        const Drawing drawing = figure.make(0, Background::light);
        std::string expected;
        for (const std::string& words : words_of(drawing)) expected += words + " ";
        const std::string found = output_of("pdftotext -raw " + write(drawing) + " -");
        // Letters and digits: a reader may join or part words, such as a number and the token below it.
        const auto letters = [](const std::string& text) {
            std::map<char32_t, int> count;
            for (const char32_t c : characters(text))
                if (c > 0x20) ++count[c];
            return count;
        };
        EXPECT_EQ(letters(found), letters(expected)) << figure.name << "\n" << found;
        const std::vector<std::string> all = sorted_words(found);
        for (const std::string& word : sorted_words(drawing.texts.title))
            EXPECT_TRUE(std::binary_search(all.begin(), all.end(), word)) << word;
    }
}

TEST_F(PdfDrawings, EmbedsItsFontsAndNamesItsTitle) {
    HeatmapFigure figure = heatmap(40, 10);
    figure.texts.title += " 猫";  // from another font, where there is one
    Drawing drawing = heatmap_drawing(figure);
    drawing.made_by = "Keyhole: keyhole decode";
    const std::string file = write(drawing);
    std::istringstream lines(output_of("pdffonts " + file));
    std::string line;
    int n = 0;
    while (std::getline(lines, line)) {
        if (line.starts_with("name") || line.starts_with("---")) continue;
        ++n;
        // Columns: embedded, subset, with a table to Unicode.
        EXPECT_NE(line.find("yes yes yes"), std::string::npos) << line;
    }
    EXPECT_GE(n, 2) << "book and bold";
    const std::string info = output_of("pdfinfo " + file);
    for (const char* text :
         {"Attention <1> & more", "A caption that says what the colours mean.", "keyhole decode"})
        EXPECT_NE(info.find(text), std::string::npos) << text;
}

TEST_F(PdfDrawings, HoldsTheExactCells) {
    const Drawing drawing = heatmap_drawing(heatmap(40, 10, Background::dark));
    Notes notes(Background::dark);
    drawing.draw(notes);
    const std::string stem = (folder_.path() / "cells").string();
    output_of("pdfimages -png " + write(drawing) + " " + stem);
    std::vector<Image> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
        if (entry.path().extension() != ".png") continue;
        int width = 0, height = 0, channels = 0;
        unsigned char* pixels = stbi_load(entry.path().c_str(), &width, &height, &channels, 3);
        ASSERT_NE(pixels, nullptr);
        Image image(width, height);
        for (int y = 0; y < height; ++y)
            for (int x = 0; x < width; ++x) {
                const unsigned char* c = pixels + 3 * (y * width + x);
                image.set(x, y, {c[0], c[1], c[2]});
            }
        stbi_image_free(pixels);
        found.push_back(std::move(image));
    }
    for (const Notes::Cells& cells : notes.pictures)
        EXPECT_TRUE(std::any_of(found.begin(), found.end(),
                                [&](const Image& image) {
                                    return image.width() == cells.pixels.width() &&
                                           image.rgb() == cells.pixels.rgb();
                                }))
            << cells.pixels.width() << " x " << cells.pixels.height();
}

TEST_F(PdfDrawings, OfEqualFiguresAreEqualAndAsLargeAsThePixels) {
    const Drawing drawing = curves_drawing(curves(Background::dark));
    EXPECT_EQ(drawing.pdf(), curves_drawing(curves(Background::dark)).pdf());
    const std::string size = output_of("pdfinfo " + write(drawing));
    EXPECT_NE(size.find("720 x " + std::to_string(drawing.height * 3 / 4)), std::string::npos) << size;
}

}  // namespace
}  // namespace keyhole::test_drawing
