#include "engine/figure/curves.h"
#include "engine/figure/font.h"
#include "engine/figure/heatmap.h"
#include "engine/figure/lane_look.h"
#include "engine/figure/ticks.h"
#include "engine/figure/value_map.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "tests/reference/temp_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <stb/stb_image.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

namespace keyhole::test_figure {
namespace {

/// Returns the first pixel of this colour from row from_y on. Finds the matrix's top left by the colour of
/// cell (0, 0).
std::pair<int, int> find_color(const Image& image, Rgb8 color, int from_y = 0) {
    for (int y = from_y; y < image.height(); ++y)
        for (int x = 0; x < image.width(); ++x)
            if (image.at(x, y) == color) return {x, y};
    return {-1, -1};
}

constexpr int kBelowLegend = 92;  // for figures with a one-line title and subtitle

HeatmapFigure ramp_figure(int columns, int rows) {
    HeatmapFigure figure;
    figure.texts = {"Title", "subtitle", "Caption."};
    figure.values = Plane(columns, rows);
    // Values whose order no colour bar below the legend repeats. Cell (0, 0) has no value, so that its colour
    // marks the corner.
    for (int y = 0; y < rows; ++y)
        for (int x = 0; x < columns; ++x)
            figure.values.at(x, y) = static_cast<float>((x * 7 + y * 13) % 101) / 100;
    figure.values.at(0, 0) = std::numeric_limits<float>::quiet_NaN();
    return figure;
}

TEST(Figure, EveryCellOfAHeatmapHasItsColour) {
    for (auto [columns, rows] : {std::pair{9, 5}, {130, 40}, {700, 300}}) {
        const HeatmapFigure figure = ramp_figure(columns, rows);
        const Image image = draw_heatmap(figure);
        const CellLayout cells = layout_cells(columns, rows, figure.size.max_width, figure.size.max_height);
        ASSERT_EQ(cells.factor, 1);
        const auto [left, top] = find_color(image, kMissingColor, kBelowLegend);
        ASSERT_GE(left, 0);
        for (int y = 0; y < rows; ++y)
            for (int x = 0; x < columns; ++x)
                for (int corner = 0; corner < 2; ++corner) {
                    const int px = left + x * cells.cell_width + corner * (cells.cell_width - 1);
                    const int py = top + y * cells.cell_height + corner * (cells.cell_height - 1);
                    ASSERT_EQ(image.at(px, py),
                              x + y == 0 ? kMissingColor : color_of(figure.scale, figure.values.at(x, y)))
                        << x << " " << y;
                }
    }
}

// A column that is no key position stands on the left, in the colours of the same scale; it moves the matrix.
TEST(Figure, ASideColumnStandsLeftOfTheMatrix) {
    for (const auto& [n_values, width] : {std::pair{20, 0}, {20, 1100}, {12, 0}, {9, 1100}}) {
        HeatmapFigure figure = ramp_figure(30, 20);
        figure.size.width = width;
        const auto [plain, plain_top] = find_color(draw_heatmap(figure), kMissingColor, kBelowLegend);
        figure.side.name = "sink";
        for (int row = 0; row < n_values; ++row)
            figure.side.values.push_back(row == 3 ? std::numeric_limits<float>::quiet_NaN()
                                                  : static_cast<float>(row + 1) / 21);
        const Image image = draw_heatmap(figure);
        FigureSize size = figure.size;
        size.has_side_column = true;
        const CellLayout cells = layout_cells(30, 20, size, figure.row_axis);
        ASSERT_EQ(cells.factor, 1);
        ASSERT_GE(cells.side, 10);
        const auto [left, top] = find_color(image, kMissingColor, kBelowLegend);
        ASSERT_GE(left, 0);
        if (width == 0) {
            EXPECT_EQ(left, plain + cells.side) << "the matrix makes room";
        } else {
            EXPECT_EQ(image.width(), width);
        }
        EXPECT_EQ(top, plain_top);
        for (int row = 0; row < 20; ++row) {
            const Rgb8 expected = row >= n_values ? cell_colors(Background::light).future
                                  : row == 3      ? kMissingColor
                                                  : color_of(figure.scale, figure.side.values[to_index(row)]);
            for (const int y : {cells.y(row), cells.y(row + 1) - 1})
                for (const int x : {0, 4})
                    ASSERT_EQ(image.at(left - cells.side + x, top + y), expected) << row;
        }
    }
    HeatmapFigure tall = ramp_figure(40, 40);
    tall.size = {20, 20};
    tall.side = {"sink", std::vector<float>(40, 0.1f)};
    tall.side.values[21] = 0.9f;
    const Image image = draw_heatmap(tall);
    const Rgb8 most = color_of(tall.scale, 0.9f), few = color_of(tall.scale, 0.1f);
    const CellLayout cells = layout_cells(40, 40, 20, 20);
    ASSERT_EQ(cells.factor, 2);
    const auto [x, y] = find_color(image, few, kBelowLegend);
    EXPECT_EQ(image.at(x, y + cells.y(10)), most) << "the largest of two rows";
    EXPECT_EQ(image.at(x, y + cells.y(11)), few);
}

TEST(Figure, ReducedHeatmapShowsMaximaAndSaysSo) {
    HeatmapFigure figure = ramp_figure(211, 103);
    figure.size = {80, 60};
    const CellLayout cells = layout_cells(211, 103, 80, 60);
    EXPECT_EQ(cells.factor, 3);
    EXPECT_LE(cells.width(), 80);
    EXPECT_LE(cells.height(), 60);
    figure.values.values.assign(figure.values.values.size(), 0);
    for (int i = 0; i < 9; ++i) figure.values.at(i % 3, i / 3) = std::numeric_limits<float>::quiet_NaN();
    figure.values.at(210, 102) = 1;
    figure.values.at(101, 50) = 0.5f;
    const Image image = draw_heatmap(figure);
    const auto [left, top] = find_color(image, kMissingColor, kBelowLegend);
    ASSERT_GE(left, 0);
    const auto cell = [&](int x, int y) {
        return image.at(left + x * cells.cell_width, top + y * cells.cell_height);
    };
    EXPECT_EQ(cell(70, 34), color_of(figure.scale, 1));
    EXPECT_EQ(cell(33, 16), color_of(figure.scale, 0.5f));
    EXPECT_EQ(cell(34, 16), color_of(figure.scale, 0));
}

/// Returns which of these colours occur in a part of a picture.
std::set<int> colors_found(const Image& image, int from_y, int to_y, const std::vector<Rgb8>& colors) {
    std::set<int> found;
    for (int y = from_y; y < std::min(to_y, image.height()); ++y)
        for (int x = 0; x < image.width(); ++x)
            for (std::size_t i = 0; i < colors.size(); ++i)
                if (image.at(x, y) == colors[i]) found.insert(static_cast<int>(i));
    return found;
}

TEST(Figure, WhatTheMapCannotShowHasColoursThatTheLegendNames) {
    const std::vector<Rgb8> marks = {kNanColor, kAboveColor, kBelowColor, kMissingColor};
    HeatmapFigure figure = ramp_figure(9, 5);
    for (float& v : figure.values.values) v = 0.5f;
    figure.scale.low = 0.2f;
    figure.scale.high = 0.8f;
    EXPECT_EQ(colors_found(draw_heatmap(figure), 0, 9999, marks), std::set<int>{});
    figure.values.at(4, 2) = kNotFinite;
    figure.values.at(5, 2) = 0.9f;
    figure.values.at(6, 2) = 0.1f;
    figure.values.at(7, 2) = std::numeric_limits<float>::quiet_NaN();
    const auto check = [&](const std::set<int>& expected) {
        const Image image = draw_heatmap(figure);
        EXPECT_EQ(colors_found(image, 0, kBelowLegend, marks), expected) << "legend";
        EXPECT_EQ(colors_found(image, kBelowLegend, 9999, marks), expected) << "matrix";
    };
    check({0, 3});
    figure.scale.marks_clips = true;
    check({0, 1, 2, 3});
    figure.scale.marks_nan = false;
    check({1, 2, 3});
    // No reduction hides NaN, and NaN hides the other values of its block.
    figure.scale.marks_nan = true;
    figure.size = {3, 2};
    check({0});
    // Evicted and future cells lack no value.
    figure.size = {};
    figure.scale.marks_clips = false;
    figure.states.assign(45, CellState::kept);
    figure.states[2 * 9 + 7] = CellState::evicted;
    check({0});
    figure.states[2 * 9 + 7] = CellState::future;
    check({0});
    figure.states[2 * 9 + 7] = CellState::kept;
    check({0, 3});
}

TEST(Figure, CellLayoutKeepsWithinTheSizeForAnyMatrix) {
    for (int columns : {1, 2, 48, 1399, 1400, 1401, 8192})
        for (int rows : {1, 3, 200, 1100, 5000}) {
            const CellLayout cells = layout_cells(columns, rows, 1400, 1100);
            EXPECT_LE(cells.width(), 1400);
            EXPECT_LE(cells.height(), 1100);
            EXPECT_GE(cells.columns * cells.factor, columns);
            EXPECT_GE(cells.rows * cells.factor, rows);
            EXPECT_GE(cells.cell_width, 1);
            EXPECT_LE(cells.cell_width, 12);
            EXPECT_GE(cells.cell_height, 1);
            EXPECT_LE(cells.cell_height, 12);
        }
}

TEST(Figure, EvictedCellsAreHatchedByPatternAndColour) {
    MaskFigure figure;
    figure.texts = {"Mask", "", ""};
    figure.n_columns = 4;
    figure.n_rows = 2;
    using enum CellState;
    figure.states = {kept, last_seen, future, future, kept, evicted, kept, future};
    const Image image = draw_mask(figure);
    // Below the legend, whose swatches have the same colours.
    int legend_bottom = 0;
    for (int y = 0; y < image.height() && legend_bottom == 0; ++y)
        if (image.at(30, y) == kKeptColor && image.at(30, y + 1) != kKeptColor) legend_bottom = y + 3;
    const auto [left, top] = find_color(image, kKeptColor, legend_bottom);
    ASSERT_GE(left, 0);
    const auto at = [&](int column, int row, int dx, int dy) {
        return image.at(left + column * 12 + dx, top + row * 12 + dy);
    };
    EXPECT_EQ(at(1, 0, 6, 6), kLastSeenColor);
    EXPECT_EQ(at(2, 0, 6, 6), kFutureColor);
    EXPECT_EQ(at(2, 1, 6, 6), kKeptColor);
    int stripes = 0;
    for (int dy = 0; dy < 12; ++dy)
        for (int dx = 0; dx < 12; ++dx) {
            const Rgb8 color = at(1, 1, dx, dy);
            EXPECT_TRUE(color == kHatchColor || color == kEvictedColor);
            EXPECT_EQ(color == kHatchColor, on_hatch(left + 12 + dx, top + 12 + dy));
            stripes += color == kHatchColor;
        }
    EXPECT_EQ(stripes, 48);
}

TEST(Figure, AtlasShowsEveryThumbnailInItsPlace) {
    AtlasFigure figure;
    figure.texts = {"Atlas", "", ""};
    figure.layers = {0, 2};
    figure.heads = {1, 3, 5};
    std::set<std::pair<int, int>> asked;
    figure.cell = [&](int layer, int head) {
        EXPECT_TRUE(asked.insert({layer, head}).second);
        AtlasCell cell;
        cell.values = Plane(500, 400);
        cell.values.at(499, 399) =
            static_cast<float>(layer * 10 + head) / 32;  // one hot cell in the last corner
        return cell;
    };
    const Image image = draw_atlas(figure);
    EXPECT_EQ(asked.size(), 6u);
    for (auto [layer, head] : asked) {
        const Rgb8 hot = color_of(figure.scale, static_cast<float>(layer * 10 + head) / 32);
        bool found = false;
        for (int y = 80; y + 1 < image.height() && !found; ++y)
            for (int x = 60; x + 1 < image.width() && !found; ++x)
                found = image.at(x, y) == hot && image.at(x - 3, y) == color_of(figure.scale, 0);
        EXPECT_TRUE(found) << layer << " " << head;
    }
}

TEST(Figure, PngDecodesToTheSamePixels) {
    Image image(37, 11, {1, 2, 3});
    image.line(0, 0, 36, 10, {200, 100, 50});
    image.fill(-5, 4, 12, 99, {9, 8, 7});  // clipped to the image
    const std::vector<std::byte> png = encode_png(image);
    int width = 0, height = 0, channels = 0;
    unsigned char* pixels =
        stbi_load_from_memory(reinterpret_cast<const unsigned char*>(png.data()),
                              static_cast<int>(png.size()), &width, &height, &channels, 3);
    ASSERT_NE(pixels, nullptr);
    EXPECT_EQ(width, 37);
    EXPECT_EQ(height, 11);
    EXPECT_TRUE(std::equal(image.rgb().begin(), image.rgb().end(), pixels));
    stbi_image_free(pixels);
}

TEST(Figure, UnwritablePngIsOneErrorThatNamesThePath) {
    const std::filesystem::path path = "/nonexistent-folder/picture.png";
    try {
        write_png(Image(2, 2), path);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
    }
}

TEST(Figure, TextInksWhereItIsAskedToAndAlignmentMovesIt) {
    const auto inked = [](const Image& image) {
        int left = image.width(), right = -1, top = image.height(), bottom = -1;
        for (int y = 0; y < image.height(); ++y)
            for (int x = 0; x < image.width(); ++x)
                if (!(image.at(x, y) == Rgb8{255, 255, 255})) {
                    left = std::min(left, x), right = std::max(right, x);
                    top = std::min(top, y), bottom = std::max(bottom, y);
                }
        return std::array{left, right, top, bottom};
    };
    TextStyle style;
    Image plain(200, 200), centred(200, 200), turned(200, 200);
    plain.text(100, 100, "Hxgh", style);
    style.align = TextAlign::center;
    centred.text(100, 100, "Hxgh", style);
    style.align = TextAlign::left;
    style.upward = true;
    turned.text(100, 100, "Hxgh", style);
    const float width = text_width("Hxgh", style);
    const auto a = inked(plain), b = inked(centred), c = inked(turned);
    EXPECT_NEAR(a[0], 100, 3);
    EXPECT_NEAR(a[1], 100 + width, 3);
    EXPECT_LT(a[2], 93);  // ascent
    EXPECT_GT(a[3], 99);  // descent of g
    EXPECT_NEAR(b[0], 100 - width / 2, 3);
    // A quarter turn: text runs along -y, ascent to the left.
    EXPECT_NEAR(c[3], 100, 3);
    EXPECT_NEAR(c[2], 100 - width, 3);
    EXPECT_EQ(c[1] - c[0], a[3] - a[2]);
    EXPECT_EQ(c[3] - c[2], a[1] - a[0]);
}

TEST(Figure, TextIsWrappedAndCutToWidth) {
    const TextStyle style;
    const std::string text = "one two three four five six seven eight nine ten";
    std::string joined;
    for (const std::string& line : wrap_text(text, 90, style)) {
        EXPECT_LE(text_width(line, style), 90);
        joined += (joined.empty() ? "" : " ") + line;
    }
    EXPECT_EQ(joined, text);
    EXPECT_EQ(fit_text("short", 100, style), "short");
    const std::string cut = fit_text(text, 60, style);
    EXPECT_LE(text_width(cut, style), 61);
    EXPECT_TRUE(cut.ends_with("…"));
}

TEST(Figure, CharactersReplaceBrokenUtf8) {
    EXPECT_EQ(characters("aä€😀"), (std::vector<char32_t>{U'a', U'ä', U'€', U'😀'}));
    EXPECT_EQ(characters("a\xff"
                         "b\xe4"),
              (std::vector<char32_t>{U'a', U'\ufffd', U'b', U'\ufffd'}));
}

TEST(Figure, AFontIsReadableIfItsOutlinesAre) {
    const std::string dejavu = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";
    if (!std::filesystem::exists(dejavu)) GTEST_SKIP() << "no " << dejavu;
    EXPECT_TRUE(is_readable_font(dejavu, 0));
    EXPECT_FALSE(is_readable_font(dejavu, 1));  // not a collection
    const reference::TempFolder folder("font");
    EXPECT_FALSE(is_readable_font((folder.path() / "none.ttf").string(), 0));
    std::ifstream in(dejavu, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(in), {});
    const auto written = [&] {
        const std::string file = (folder.path() / "font.ttf").string();
        std::ofstream(file, std::ios::binary) << bytes;
        return file;
    };
    const std::size_t outlines = bytes.find("glyf");  // in the table of contents
    ASSERT_NE(outlines, std::string::npos);
    bytes.replace(outlines, 4, "CFF2");  // variable fonts have these
    EXPECT_FALSE(is_readable_font(written(), 0));
    bytes.resize(4);
    EXPECT_FALSE(is_readable_font(written(), 0));
    bytes.clear();
    EXPECT_FALSE(is_readable_font(written(), 0));
}

TEST(Font, ABoldCharacterOfAnotherFontIsBold) {
    constexpr char32_t kSector = 0x2314;  // in DejaVu Sans Mono, regular and bold, but not in DejaVu Sans
    const auto ink = [&](FontWeight weight) {
        const std::vector<std::uint8_t>& coverage = glyph(kSector, 40, weight).coverage;
        return std::accumulate(coverage.begin(), coverage.end(), 0L);
    };
    const long book = ink(FontWeight::book), bold = ink(FontWeight::bold);
    EXPECT_GT(book, 0);
    EXPECT_GT(bold, book);
}

TEST(Ticks, AreRoundWithinTheRangeAndNotTooMany) {
    for (auto [low, high] : {std::pair{0.0, 1.0}, {0.0, 0.037}, {-3.0, 17.0}, {99.5, 101.0}, {0.0, 12345.0}})
        for (int most : {2, 5, 9}) {
            const auto ticks = linear_ticks(low, high, most);
            EXPECT_LE(static_cast<int>(ticks.size()), most);
            for (double tick : ticks) {
                EXPECT_GE(tick, low - 1e-9);
                EXPECT_LE(tick, high + 1e-9);
            }
        }
    EXPECT_EQ(linear_ticks(0, 1, 6), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
    const auto logs = log_ticks(1e-4f, 1, 6);
    ASSERT_EQ(logs.size(), 5u);
    EXPECT_NEAR(logs[0], 1e-4, 1e-12);
    EXPECT_EQ(logs[4], 1);
    EXPECT_EQ(index_ticks(303, 20, 4), (std::vector<int>{305, 310, 315, 320}));
}

TEST(Ticks, TextsAreShortAndDifferBetweenNeighbours) {
    const auto texts = [](const std::vector<double>& values) {
        std::vector<std::string> out;
        for (const Tick& tick : labelled(values)) out.push_back(tick.text);
        return out;
    };
    using Texts = std::vector<std::string>;
    EXPECT_EQ(texts({0, 1e-7, 0.05, 1500, 2e9}), (Texts{"0", "1e-7", "0.05", "1500", "2e9"}));
    EXPECT_EQ(texts(linear_ticks(0, 1, 6)), (Texts{"0", "0.2", "0.4", "0.6", "0.8", "1"}));
    EXPECT_EQ(texts({1000000, 1002000, 1004000}), (Texts{"1e6", "1.002e6", "1.004e6"}));
    EXPECT_EQ(texts({999999, 1000000, 1000001}), (Texts{"999999", "1000000", "1000001"}));
    EXPECT_EQ(texts({100000, 100000.5, 100001}), (Texts{"100000", "100000.5", "100001"}));
    EXPECT_EQ(texts({3, 3}), (Texts{"3", "3"}));
}

/// Returns an SVG without its fonts, which hold any letters.
std::string body_of(const std::string& svg) {
    const std::size_t end = svg.find("</style>");
    return end == std::string::npos ? svg : svg.substr(end);
}

TEST(Curves, SvgHasEveryLineAndEscapesTexts) {
    CurvePlot plot;
    plot.title = "a < b & \"c\"";
    plot.x_label = "row";
    plot.y_label = "score";
    plot.curves.push_back({"one", {1, 2, 3, 4, 5}, {1, 2, NAN, 4, 5}});
    plot.curves.push_back({"lonely", {3}, {3}});
    plot.curves.push_back({"nothing", {1, 2}, {NAN, NAN}});
    plot.curves.push_back({"threshold", {1, 5}, {1, 1}, true});
    plot.curves[0].end_mark = 5;
    const std::string svg = body_of(curves_drawing(plot).svg());
    EXPECT_EQ(svg.find("a < b"), std::string::npos);
    EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    for (const char* name : {">one<", ">lonely<", ">nothing<", ">threshold<"})
        EXPECT_NE(svg.find(name), std::string::npos) << name;
    // The broken line has two strokes in one path.
    const auto path = svg.find("stroke=\"#0072b2\"");
    ASSERT_NE(path, std::string::npos);
    const std::string line = svg.substr(svg.rfind("<path", path), path - svg.rfind("<path", path));
    EXPECT_EQ(std::count(line.begin(), line.end(), 'M'), 2);
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(Curves, ManyOrderedOnesHaveARampOfColoursAndFewNames) {
    CurvePlot plot;
    plot.ordered = true;
    const auto strokes = [&] {
        const std::string svg = body_of(curves_drawing(plot).svg());
        std::set<std::string> colors;
        for (std::size_t at = 0; (at = svg.find("stroke=\"#", at)) != std::string::npos; ++at)
            colors.insert(svg.substr(at + 8, 7));
        return std::pair(colors.size(), svg);
    };
    for (int i = 0; i < 8; ++i) {
        const double y = i;
        plot.curves.push_back({fmt::format("layer {}", i), {0, 1}, {y, y}});
    }
    EXPECT_NE(strokes().second.find(">layer 5<"), std::string::npos);
    for (int i = 8; i < 30; ++i) {
        const double y = i;
        plot.curves.push_back({fmt::format("layer {}", i), {0, 1}, {y, y}});
    }
    plot.curves.push_back({"mean", {0, 1}, {3, 3}, true});
    const auto [n_colors, svg] = strokes();
    EXPECT_GE(n_colors, 30u) << "each layer has its own";
    EXPECT_EQ(svg.find("stroke-dasharray=\"7"), std::string::npos);
    for (const char* name : {">layer 0<", ">layer 7<", ">layer 14<", ">layer 21<", ">layer 29<", ">mean<"})
        EXPECT_NE(svg.find(name), std::string::npos) << name;
    EXPECT_EQ(svg.find(">layer 5<"), std::string::npos);
}

TEST(Curves, XmlHasNoBytesThatAreNotCharacters) {
    const std::string bad = "\xef\xbf\xbd";
    EXPECT_EQ(escape_xml("a<b>&\"\u00e9\U0001f600"), "a&lt;b&gt;&amp;&quot;\u00e9\U0001f600");
    EXPECT_EQ(escape_xml("\x01|\n"), bad + "|" + bad);
    EXPECT_EQ(escape_xml("\xe0\x80\xaf"), bad + bad + bad) << "an overlong slash";
    EXPECT_EQ(escape_xml("\xf0\x80\x80\xaf"), bad + bad + bad + bad) << "the same in four bytes";
    EXPECT_EQ(escape_xml("\xed\xa0\x80"), bad + bad + bad) << "half of a surrogate pair";
    EXPECT_EQ(escape_xml("\xf4\x90\x80\x80"), bad + bad + bad + bad) << "beyond U+10FFFF";
    EXPECT_EQ(escape_xml("\xef\xbf\xbf"), bad) << "a code point that XML excludes";
    EXPECT_EQ(escape_xml("x\xc3"), "x" + bad);
    EXPECT_EQ(characters("\xe0\x80\xafz"), (std::vector<char32_t>{0xfffd, 0xfffd, 0xfffd, U'z'}));
}

TEST(Curves, HigherValuesAreDrawnHigherAndLogSkipsZero) {
    CurvePlot plot;
    plot.log_y = true;
    plot.curves.push_back({"c", {0, 1, 2}, {0, 10, 1000}});
    const std::string svg = curves_drawing(plot).svg();
    const auto at = svg.find("fill=\"none\" stroke-linecap");
    ASSERT_NE(at, std::string::npos);
    const auto begin = svg.rfind("d=\"M", at);
    double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
    ASSERT_EQ(std::sscanf(svg.c_str() + begin, "d=\"M%lf %lfL%lf %lf\"", &x0, &y0, &x1, &y1), 4);
    EXPECT_LT(x0, x1);
    EXPECT_GT(y0, y1);
}

TEST(Curves, FloorOfALogScaleLiftsWhatIsBelowIt) {
    CurvePlot low, lifted;
    low.log_y = lifted.log_y = true;
    low.curves.push_back({"c", {0, 1, 2}, {0.5, 1, 10}});
    lifted.curves.push_back({"c", {0, 1, 2}, {1e-30, 1, 10}});
    lifted.y_floor = 0.5;
    EXPECT_EQ(curves_drawing(low).svg(), curves_drawing(lifted).svg());
}

TEST(Curves, PixelsShowTheCurvesOfTheSvg) {
    CurvePlot plot;
    plot.log_x = true;
    plot.curves.push_back({"c", {32, 64, 128}, {50, 50, 50}});
    plot.curves.push_back({"d", {32, 64, 128}, {20, 20, 20}});
    // Rows of a column of which the first curve's blue covers at least half.
    const auto rows_of = [](const Image& image, int x) {
        std::vector<int> rows;
        for (int y = 0; y < image.height(); ++y)
            if (image.at(x, y).b > image.at(x, y).r + 90) rows.push_back(y);
        return rows;
    };
    const Image plain = curves_drawing(plot).image();
    EXPECT_EQ(plain.width(), plot.width);
    // Ticks of a logarithmic x axis are at the values themselves, equally spaced.
    const std::string svg = curves_drawing(plot).svg();
    double x[3];
    int i = 0;
    for (const char* tick : {">32<", ">64<", ">128<"}) {
        const auto at = svg.find(tick);
        ASSERT_NE(at, std::string::npos) << tick;
        ASSERT_EQ(std::sscanf(svg.c_str() + svg.rfind("x=\"", at), "x=\"%lf\"", &x[i++]), 1);
    }
    EXPECT_NEAR(x[1] - x[0], x[2] - x[1], 0.2);
    const int middle = static_cast<int>(x[1]);
    const std::vector<int> line = rows_of(plain, middle + 20);
    ASSERT_FALSE(line.empty());
    EXPECT_LE(line.back() - line.front(), 2);

    plot.curves[0].low = {40, 40, 40};
    plot.curves[0].high = {60, 60, 60};
    EXPECT_NE(curves_drawing(plot).svg(), svg);
    const Image barred = curves_drawing(plot).image();
    int changed = 0;
    for (int y = 0; y < barred.height(); ++y) {
        bool here = false;  // bars of different curves stand side by side
        for (int at = middle - 5; at <= middle + 5; ++at) here = here || barred.at(at, y) != plain.at(at, y);
        changed += here ? 1 : 0;
    }
    EXPECT_GT(changed, 30);  // the bar covers twenty per cent of the scale
}

/// Returns the places of the first path with these attributes: pairs x, y.
std::vector<std::pair<double, double>> path_points(const std::string& svg, const std::string& attributes) {
    std::vector<std::pair<double, double>> points;
    const std::size_t at = svg.find(attributes);
    if (at == std::string::npos) return points;
    std::size_t i = svg.rfind("d=\"", at) + 3;
    while (svg[i] == 'M' || svg[i] == 'L') {
        double x = 0, y = 0;
        int n = 0;
        std::sscanf(svg.c_str() + i + 1, "%lf %lf%n", &x, &y, &n);
        points.emplace_back(x, y);
        i += to_index(n) + 1;
    }
    return points;
}

/// The cross stands at its own x on the line, not at the line's end.
TEST(Curves, ACrossStandsAtItsX) {
    CurvePlot plot;
    plot.curves.push_back({"c", {0, 10, 20}, {0, 10, 10}});
    plot.curves[0].end_mark = 5;
    const std::string svg = body_of(curves_drawing(plot).svg());
    const auto line = path_points(svg, "stroke=\"#0072b2\" stroke-width=\"1.8\"");
    const auto cross = path_points(svg, "stroke=\"#202024\" stroke-width=\"2\"");
    ASSERT_EQ(line.size(), 3u);
    ASSERT_EQ(cross.size(), 4u);
    const double x = (cross[0].first + cross[1].first) / 2, y = (cross[0].second + cross[1].second) / 2;
    EXPECT_NEAR(x, (line[0].first + line[1].first) / 2, 0.02);
    EXPECT_NEAR(y, (line[0].second + line[1].second) / 2, 0.02);
    // Beyond the last point it stands beside it.
    plot.curves[0] = {"c", {0, 10}, {0, 10}};
    plot.curves[0].end_mark = 12;
    plot.curves.push_back({"d", {0, 20}, {1, 1}});
    const std::string later = body_of(curves_drawing(plot).svg());
    const auto beside = path_points(later, "stroke=\"#202024\" stroke-width=\"2\"");
    const auto ends = path_points(later, "stroke=\"#0072b2\" stroke-width=\"1.8\"");
    ASSERT_EQ(beside.size(), 4u);
    EXPECT_NEAR((beside[0].first + beside[1].first) / 2, ends[1].first + (ends[1].first - ends[0].first) / 5,
                0.02);
}

TEST(Curves, LevelLinesLookDifferent) {
    CurvePlot plot;
    plot.curves.push_back({"full", {0, 1}, {100, 100}, true});
    plot.curves.push_back({"99 % of full", {0, 1}, {99, 99}, true});
    plot.curves.push_back({"h2o", {0, 1}, {40, 90}});
    const std::string svg = body_of(curves_drawing(plot).svg());
    EXPECT_NE(svg.find("stroke-width=\"4\""), std::string::npos);
    EXPECT_NE(svg.find("stroke=\"#8c8c94\" stroke-width=\"1.6\" stroke-dasharray=\"8 4\""), std::string::npos)
        << svg;
}

/// A lane looks as it does in the window, whatever stands before it in the list.
TEST(Curves, LanesLookAsTheirNumber) {
    for (const Background background : {Background::light, Background::dark})
        for (const int number : {0, 3, 5, 9}) {
            CurvePlot plot;
            plot.background = background;
            plot.curves.push_back({"first in the list", {0, 1}, {1, 2}});
            plot.curves.push_back({.name = "a lane", .x = {0, 1}, .y = {2, 3}, .look = number});
            const LaneLook look = lane_look(number, background);
            std::string stroke = fmt::format("stroke=\"#{:02x}{:02x}{:02x}\" stroke-width=\"1.8\"",
                                             look.color.r, look.color.g, look.color.b);
            if (!look.dash.empty())
                stroke += fmt::format(" stroke-dasharray=\"{}\"", fmt::join(look.dash, " "));
            EXPECT_NE(body_of(curves_drawing(plot).svg()).find(stroke), std::string::npos) << stroke;
        }
}

/// Names stand at the ends of their lines: in the order of the ends, and apart.
TEST(Curves, NamesStandAtTheEndsWithoutOverlap) {
    CurvePlot plot;
    std::vector<std::string> names;
    for (int c = 0; c < 24; ++c) {
        names.push_back("lane " + std::to_string(c));
        plot.curves.push_back({names.back(), {0, 1}, {1.0 * c, c < 12 ? 5.0 : 5.0 + 0.01 * c}});
    }
    const Drawing drawing = curves_drawing(plot);
    const std::string svg = body_of(drawing.svg());
    std::vector<std::pair<double, std::string>> places;
    for (const std::string& name : names) {
        const std::size_t at = svg.find(">" + name + "<");
        ASSERT_NE(at, std::string::npos) << name;
        double y = 0;
        ASSERT_EQ(std::sscanf(svg.c_str() + svg.rfind("y=\"", at), "y=\"%lf\"", &y), 1);
        EXPECT_LT(y, drawing.height - 40.0) << "above the axis' label";
        places.emplace_back(y, name);
    }
    std::sort(places.begin(), places.end());
    for (std::size_t i = 1; i < places.size(); ++i)
        EXPECT_GE(places[i].first - places[i - 1].first, 16) << places[i].second;
    EXPECT_EQ(places.front().second, "lane 23") << "the highest line has the highest name";
}

/// Panels share axes and looks; each curve name is in the legend once.
TEST(Curves, PanelsShareAxesAndLooks) {
    CurvePlot plot;
    plot.x_label = "budget";
    for (const char* lane : {"h2o", "tova", "window", "sink", "a2sf", "keyformer", "key", "dilated"})
        plot.panels.push_back({lane, {{"pool=mean", {1, 2}, {10, 20}}, {"pool=max", {1, 2}, {12, 18}}}});
    const std::string svg = body_of(curves_drawing(plot).svg());
    const auto count = [&](const std::string& what) {
        int n = 0;
        for (std::size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++n;
        return n;
    };
    EXPECT_EQ(count(">pool=mean<"), 1);
    EXPECT_EQ(count(">dilated<"), 1);
    EXPECT_EQ(count(">budget<"), 1);
    EXPECT_EQ(count("stroke=\"#0072b2\" stroke-width=\"1.8\""), 8 + 1) << "the first style, and the legend";
    EXPECT_EQ(count("stroke=\"#009e73\""), 0) << "no third style";
    plot.own_y = true;
    plot.panels[0].curves[0].y = {1000, 2000};
    EXPECT_NE(body_of(curves_drawing(plot).svg()).find(">2000<"), std::string::npos);
}

/// Words below an axis are not cut: they are broken into lines, and if that does not help, stand upright.
TEST(Curves, WordsBelowAnAxisAreWhole) {
    CurvePlot plot;
    plot.y_label = "perplexity";
    const auto svg_of = [&](std::vector<std::string> words) {
        plot.curves = {{"perplexity"}};
        for (std::size_t i = 0; i < words.size(); ++i) {
            plot.curves[0].x.push_back(static_cast<double>(i));
            plot.curves[0].y.push_back(1);
        }
        plot.x_words = std::move(words);
        return body_of(curves_drawing(plot).svg());
    };
    const std::string broken =
        svg_of({"full", "keyformer", "keyformer:scope=shared", "keyformer:positions=cache", "h2o:recent=30%",
                "window", "sink:positions=cache,budget=60%"});
    for (const char* piece :
         {">full<", ">keyformer:<", ">scope=shared<", ">positions=cache<", ">budget=60%<"})
        EXPECT_NE(broken.find(piece), std::string::npos) << piece;
    EXPECT_EQ(broken.find("…"), std::string::npos);
    EXPECT_EQ(broken.find("rotate(-90"), broken.rfind("rotate(-90")) << "the y label alone is upright";
    const std::size_t name = broken.find(">perplexity<");
    EXPECT_EQ(broken.find(">perplexity<", name + 1), std::string::npos) << "no legend that repeats the axis";

    std::vector<std::string> many;
    for (int i = 0; i < 18; ++i) many.push_back("sentence_end (" + std::to_string(i) + ")");
    const int low = curves_drawing(plot).height;
    const std::string upright = svg_of(many);
    for (const std::string& word : many) EXPECT_NE(upright.find(">" + word + "<"), std::string::npos) << word;
    EXPECT_NE(upright.find("rotate(-90"), upright.rfind("rotate(-90"));
    EXPECT_GT(curves_drawing(plot).height, low + 40) << "upright words need room";
}

/// A line from a lone point to its name would look like a curve.
TEST(Curves, APointFarFromItsNameIsNotJoinedToIt) {
    CurvePlot plot;
    plot.curves = {{"near", {9}, {1}}, {"far", {1}, {2}}};
    const std::string svg = body_of(curves_drawing(plot).svg());
    const std::size_t dotted = svg.find("stroke-dasharray=\"1 3\"");
    ASSERT_NE(dotted, std::string::npos);
    EXPECT_EQ(svg.find("stroke-dasharray=\"1 3\"", dotted + 1), std::string::npos);
}

/// Numbers of a wide map stand at equal distances, and are round.
TEST(ValueMaps, LabelsAreRoundNumbersAtEqualDistances) {
    ValueMap map;
    for (int i = 0; i < 420; ++i) map.columns.push_back(std::to_string(i));
    for (int i = 370; i < 418; ++i) map.rows.push_back(std::to_string(i));
    map.panels = {{"p", std::vector<float>(420 * 48, 0.5f)}};
    map.decimals = -1;
    const std::string svg = body_of(value_map_drawing(map).svg());
    std::vector<int> columns;
    for (int i = 0; i < 420; ++i)
        if (svg.find(">" + std::to_string(i) + "<") != std::string::npos) columns.push_back(i);
    std::vector<int> rows;
    while (columns.size() > 1 && columns.back() >= 370 && columns.back() != 400) {
        rows.push_back(columns.back());
        columns.pop_back();
    }
    ASSERT_GE(columns.size(), 5u);
    EXPECT_EQ(columns[0], 0);
    for (const int label : columns) EXPECT_EQ(label % (columns[1] - columns[0]), 0) << label;
    for (const int label : rows) EXPECT_EQ(label % 5, 0) << label;
}

TEST(ValueMaps, CellsHaveTheColourAndTheNumberOfTheirValue) {
    ValueMap map;
    map.rows = {"0", "50"};
    map.columns = {"128", "256", "512"};
    map.panels = {{"full", {100, 100, 100, 100, 100, 100}},
                  {"h2o", {0, 25, 50, 75, 100, NAN}, {"", "25 % <of 4>", "", "", "", ""}}};
    map.scale = {Colormap::cividis, false, false, 0, 100};
    const Drawing drawing = value_map_drawing(map);
    const std::string svg = body_of(drawing.svg());
    for (const char* number : {">25<", ">75<", ">–<", ">h2o<", ">512<"})
        EXPECT_NE(svg.find(number), std::string::npos) << number;
    // The pixel beside a number has the colour of its value.
    const Image image = drawing.image();
    const std::size_t at = svg.find(">25<");
    double x = 0, y = 0;
    ASSERT_EQ(std::sscanf(svg.c_str() + svg.rfind("x=\"", at), "x=\"%lf\" y=\"%lf\"", &x, &y), 2);
    EXPECT_EQ(image.at(static_cast<int>(x) + 12, static_cast<int>(y) - 4), color_of(map.scale, 25));
    EXPECT_NE(color_of(map.scale, 25), color_of(map.scale, 75));
    // The note lies on the cell, and there is one.
    const std::size_t note = svg.find("<title>25 % &lt;of 4&gt;</title>");
    ASSERT_NE(note, std::string::npos);
    EXPECT_EQ(svg.find("<title>", note + 1), std::string::npos);
    double left = 0, top = 0, width = 0, height = 0;
    ASSERT_EQ(
        std::sscanf(svg.c_str() + svg.rfind("<rect", note),
                    "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &left, &top, &width, &height),
        4);
    EXPECT_TRUE(left < x && x < left + width && top < y - 4 && y - 4 < top + height);
}

TEST(ValueMaps, NumbersCanBeReadOnEveryColour) {
    const auto luminance = [](Rgb8 color) {
        const auto linear = [](std::uint8_t value) {
            const double c = value / 255.0;
            return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
        };
        return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b);
    };
    for (const Colormap map : kColormaps)
        for (const Rgb8 color : colormap_table(map)) {
            const auto [low, high] = std::minmax({luminance(color), luminance(ink_on(color))});
            EXPECT_GE((high + 0.05) / (low + 0.05), 4.5);
        }
}

TEST(Curves, EmptyPlotsAreDrawnToo) {
    EXPECT_NE(curves_drawing({}).svg().find("</svg>"), std::string::npos);
    CurvePlot plot;
    plot.log_y = true;
    EXPECT_EQ(body_of(curves_drawing(plot).svg()).find("nan"), std::string::npos);
}

TEST(Figure, AttentionScaleCoversTheLargestValue) {
    for (float largest : {1.0f, 0.9f, 0.3f, 0.011f, 3e-6f}) {
        const ColorScale scale = attention_scale(largest);
        EXPECT_TRUE(scale.logarithmic);
        EXPECT_GE(scale.high, largest * 0.998f);
        EXPECT_LE(scale.high, largest * 2.6f);
        EXPECT_LE(scale.low, scale.high * 1e-2f);
    }
    EXPECT_EQ(attention_scale(0).high, 1);
    EXPECT_EQ(attention_scale(NAN).high, 1);
}

}  // namespace
}  // namespace keyhole::test_figure
