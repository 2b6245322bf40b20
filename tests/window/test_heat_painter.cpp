// The shader against the CPU's colours, drawn into a framebuffer of the test. Needs a display.
#include "app/gl/heat_painter.h"
#include "app/view/focus_picture.h"
#include "engine/base/index.h"
#include "engine/figure/both_color.h"
#include "engine/figure/heatmap.h"
#include "tests/reference/synthetic_run.h"
#include "tests/window/gl_test.h"

#include <cmath>
#include <limits>
#include <memory>
#include <optional>

namespace keyhole::test_heat_painter {
namespace {

constexpr CellColors kBackground = cell_colors(Background::dark);

constexpr int kSize = 300;

class HeatPainterTest : public testing::GlTest {
  protected:
    void SetUp() override {
        GlTest::SetUp();
        if (IsSkipped()) return;
        frame_.emplace(kSize, kSize);
        painter_ = std::make_unique<HeatPainter>();
    }
    void TearDown() override {
        painter_.reset();
        frame_.reset();
    }
    void draw(const HeatQuad& quad) {
        painter_->draw(quad, kSize, kSize);
        pixels_ = frame_->pixels();
    }
    Rgb8 pixel(int x, int y) const {
        const std::uint8_t* p = &pixels_[to_index((kSize - 1 - y) * kSize + x) * 4];
        return {p[0], p[1], p[2]};
    }
    static bool close(Rgb8 a, Rgb8 b) {
        return std::abs(a.r - b.r) <= 1 && std::abs(a.g - b.g) <= 1 && std::abs(a.b - b.b) <= 1;
    }
    static HeatQuad whole_canvas() {
        HeatQuad quad;
        quad.canvas = quad.clip = {0, 0, kSize, kSize};
        return quad;
    }

    std::optional<testing::TestFrame> frame_;
    std::unique_ptr<HeatPainter> painter_;
    std::vector<std::uint8_t> pixels_;
};

void prepare(HeatData& data, const RunHistory& history, int lane, const ViewState& view) {
    while (!data.update(history, lane, view, 1000)) {
    }
}

constexpr int kOddRows = 173;

/// Hot at the corners of a causal matrix, dim elsewhere.
float corners(int row, int, int, int position) {
    const int last = kOddRows - 1;
    const bool corner = (row == 0 && position == 0) || (row == last && (position == 0 || position == last));
    return corner ? 1.0f : 0.001f;
}

TEST_F(HeatPainterTest, AKeptPictureIsWhatIsDrawnAndIsDrawnOnce) {
    const StepList steps = testing::synthetic_run({.n_prompt = 50, .n_decoded = 30, .budgets = {0, 16}});
    RunHistory history;
    history.update(StepList(steps.begin(), steps.end() - 1));
    HeatData data;
    ViewState view;
    prepare(data, history, 1, view);
    painter_->update(data, history, 1);
    std::vector<HeatQuad> quads;
    for (int i = 0; i < 16; ++i) {
        HeatQuad quad = whole_canvas();
        quad.canvas = {11.0f + 70 * static_cast<float>(i % 4), 7.0f + 70 * static_cast<float>(i / 4), 64, 66};
        quad.clip = {20, 0, 250, 280};  // clips the outer quads
        quad.matrix = i;
        quad.kv_head = i;
        quad.shown_row = 70;
        quad.view.fit(history.n_positions(), history.n_positions(), 64, 66);
        quads.push_back(quad);
    }
    const Rgb8 background{30, 33, 39};
    const auto shown = [&](bool kept) {
        glClearColor(float(background.r) / 255, float(background.g) / 255, float(background.b) / 255, 1);
        glDisable(GL_SCISSOR_TEST);
        glClear(GL_COLOR_BUFFER_BIT);
        if (kept) {
            EXPECT_TRUE(painter_->keep(quads, kSize, kSize, background, false));
            painter_->draw_kept(quads, kSize, {0, 0, kSize, kSize});
        } else {
            painter_->draw(quads, kSize, kSize);
        }
        return frame_->pixels();
    };
    for (const HeatMode mode : {HeatMode::attention, HeatMode::mask}) {
        for (HeatQuad& quad : quads) quad.mode = mode;
        const std::vector<std::uint8_t> drawn = shown(false);
        EXPECT_EQ(shown(true), drawn);
        const int n = painter_->n_redrawn();
        EXPECT_EQ(shown(true), drawn);
        EXPECT_EQ(painter_->n_redrawn(), n) << "nothing changed";
    }
    // One head's matrix, drawn alone, is at the same place.
    const int n = painter_->n_redrawn();
    for (HeatQuad& quad : quads) quad.shown_row = 60;
    const std::vector<std::uint8_t> earlier = shown(true);
    EXPECT_EQ(painter_->n_redrawn(), n + 1) << "time moved";
    EXPECT_EQ(earlier, shown(false));
    history.update(steps);
    prepare(data, history, 1, view);
    painter_->update(data, history, 1);
    (void)shown(true);
    EXPECT_EQ(painter_->n_redrawn(), n + 2) << "a row came";
    // What has gone from sight is another picture too.
    const std::uint64_t number = painter_->kept_number(quads);
    for (HeatQuad& quad : quads) quad.canvas.x += 2 * kSize;
    EXPECT_TRUE(painter_->keep(quads, kSize, kSize, background, false));
    const std::uint64_t gone = painter_->kept_number(quads);
    EXPECT_NE(gone, number);
    EXPECT_TRUE(painter_->keep(quads, kSize, kSize, background, false));
    EXPECT_EQ(painter_->kept_number(quads), gone);
}

TEST_F(HeatPainterTest, HotCornersSurviveEveryZoom) {
    RunHistory history;
    history.update(testing::synthetic_run({.n_layers = 1,
                                           .n_heads = 1,
                                           .n_kv_heads = 1,
                                           .n_prompt = 100,
                                           .n_decoded = kOddRows - 100,
                                           .budgets = {0},
                                           .attention = corners}));
    HeatData data;
    ViewState view;
    prepare(data, history, 0, view);
    painter_->update(data, history, 0);
    HeatQuad quad = whole_canvas();
    quad.scale = {.logarithmic = true, .low = 1e-4f, .high = 1};
    quad.shown_row = kOddRows;
    const Rgb8 hot = color_of(quad.scale, 1.0f);
    for (int matrix : {-1, 0})
        for (double cell = 0.02; cell < 9; cell *= 1.31) {
            for (const auto& [p, i] :
                 {std::pair(0, 0), std::pair(0, kOddRows - 1), std::pair(kOddRows - 1, kOddRows - 1)}) {
                quad.matrix = matrix;
                quad.view.cell_width = cell;
                quad.view.cell_height = cell * 1.3;
                quad.view.center_on(p, i, kSize, kSize);
                draw(quad);
                int n_hot = 0;
                for (int y = 0; y < kSize; ++y)
                    for (int x = 0; x < kSize; ++x) n_hot += close(pixel(x, y), hot) ? 1 : 0;
                EXPECT_GE(n_hot, 1) << "cell of " << cell << " pixels, position " << p << ", row " << i
                                    << ", matrix " << matrix;
            }
        }
}

TEST_F(HeatPainterTest, CellsTakeTheColoursOfTheTable) {
    RunHistory history;
    history.update(testing::synthetic_run({.budgets = {0, 16}}));
    HeatData data;
    ViewState view;
    view.layer = 1;
    view.head = 2;
    prepare(data, history, 1, view);
    painter_->update(data, history, 1);
    const int g = history.run().layout.kv_head_from_head(1, 2), n = history.n_positions();
    for (bool logarithmic : {false, true}) {
        HeatQuad quad = whole_canvas();
        quad.kv_head = g;
        quad.scale = {.logarithmic = logarithmic, .low = logarithmic ? 1e-4f : 0.0f, .high = 0.5f};
        quad.view.fit(n, n, kSize, kSize);
        quad.shown_row = n;
        draw(quad);
        int n_gone = 0;
        for (int i = 0; i < n; ++i)
            for (int p = 0; p < n; ++p) {
                const CanvasPoint at = quad.view.pixel_of({p + 0.5, i + 0.5});
                const Rgb8 seen = pixel(static_cast<int>(at.x), static_cast<int>(at.y));
                if (p > i) {
                    EXPECT_TRUE(close(seen, kBackground.future));
                } else if (!history.attended(1, g, p, i)) {
                    EXPECT_TRUE(close(seen, kBackground.evicted) || close(seen, kBackground.hatch))
                        << i << " " << p;
                    ++n_gone;
                } else {
                    const float value = data.focus().pyramid().front().at(p, i);
                    const int index = color_index(scale_terms(quad.scale), value);
                    bool good = false;  // the shader's log2 may select the neighbouring colour
                    for (int k = std::max(0, index - 1); k <= std::min(255, index + 1); ++k)
                        good = good || close(seen, colormap_table(Colormap::viridis)[to_index(k)]);
                    EXPECT_TRUE(good) << i << " " << p << " value " << value;
                }
            }
        EXPECT_GT(n_gone, 100);
    }
}

TEST_F(HeatPainterTest, MaskShowsTheEvictionTable) {
    const StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    RunHistory history;
    HeatData data;
    ViewState view;
    view.mode = HeatMode::mask;
    for (std::size_t n = 1; n <= steps.size(); ++n) {  // while the run grows: uploads only new evictions
        history.update(StepList(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(n)));
        prepare(data, history, 1, view);
        painter_->update(data, history, 1);
    }
    const int n = history.n_positions();
    HeatQuad quad = whole_canvas();
    quad.mode = HeatMode::mask;
    quad.kv_head = 5;
    quad.view.fit(n, n, kSize, kSize);
    quad.shown_row = n;
    draw(quad);
    for (int i = 0; i < n; ++i)
        for (int p = 0; p <= i; ++p) {
            const CanvasPoint at = quad.view.pixel_of({p + 0.5, i + 0.5});
            const Rgb8 seen = pixel(static_cast<int>(at.x), static_cast<int>(at.y));
            if (history.stored(1, 5, p, i))
                EXPECT_TRUE(close(seen, kBackground.kept)) << i << " " << p;
            else if (history.attended(1, 5, p, i))
                EXPECT_TRUE(close(seen, kBackground.last_seen)) << i << " " << p;
            else
                EXPECT_TRUE(close(seen, kBackground.evicted) || close(seen, kBackground.hatch))
                    << i << " " << p;
        }
}

// The CPU's block sums of the atlas masks give the same picture as the shader's cells, at every zoom, while
// rows arrive.
TEST_F(HeatPainterTest, MasksOfSumsAreThoseOfCells) {
    const StepList steps = testing::synthetic_run({.n_prompt = 150, .n_decoded = 40, .budgets = {0, 48}});
    RunHistory history;
    HeatData data;
    ViewState view;
    view.mode = HeatMode::mask;
    for (const std::size_t n : {std::size_t{1}, std::size_t{2}, steps.size() - 1, steps.size()}) {
        history.update(StepList(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(n)));
        prepare(data, history, 1, view);
        for (const double cell : {0.02, 0.06, 0.3, 0.9, 1.5, 7.0}) {
            std::vector<HeatQuad> quads;
            for (int i = 0; i < 9; ++i) {
                HeatQuad quad = whole_canvas();
                quad.canvas = {5.0f + 98 * static_cast<float>(i % 3), 3.0f + 98 * static_cast<float>(i / 3),
                               95, 94};
                quad.matrix = i;
                quad.kv_head = i;
                quad.mode = HeatMode::mask;
                quad.shown_row = 120;
                quad.view.cell_width = quad.view.cell_height = cell;
                quad.view.center_on(history.last_row() / 2, history.last_row() / 2, 95, 94);
                quads.push_back(quad);
            }
            std::vector<std::uint8_t> drawn[2];
            for (const bool masks : {false, true}) {
                painter_->update(data, history, 1, masks);
                glClear(GL_COLOR_BUFFER_BIT);
                painter_->draw(quads, kSize, kSize);
                drawn[masks].resize(kSize * kSize * 4);
                glReadPixels(0, 0, kSize, kSize, GL_RGBA, GL_UNSIGNED_BYTE, drawn[masks].data());
                EXPECT_EQ(glGetError(), static_cast<GLenum>(GL_NO_ERROR));
            }
            EXPECT_EQ(drawn[0], drawn[1]) << n << " records, cells of " << cell;
        }
    }
}

TEST_F(HeatPainterTest, HiddenCellsHaveAColourOfTheirOwn) {
    // Every third position is stored but hidden in the rows after the prompt.
    StepList steps = testing::synthetic_run(
        {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .n_prompt = 20, .n_decoded = 10, .budgets = {0}});
    for (auto& step : steps) {
        if (step->row < 20) continue;
        auto hidden = std::make_shared<HiddenSet>();
        hidden->bits.assign(to_index(step->row / 8 + 1), 0);
        for (int p = 0; p <= step->row; p += 3)
            hidden->bits[to_index(p / 8)] |= static_cast<std::uint8_t>(1 << (p % 8));
        hidden->offset = {0, static_cast<std::int32_t>(hidden->bits.size())};
        auto changed = std::make_shared<StepTrace>(*step);
        changed->lanes[0].hidden = hidden;
        step = changed;
    }
    RunHistory history;
    history.update(steps);
    HeatData data;
    ViewState view;
    view.mode = HeatMode::mask;
    prepare(data, history, 0, view);
    painter_->update(data, history, 0);
    HeatQuad quad = whole_canvas();
    quad.mode = HeatMode::mask;
    quad.shown_row = 29;
    quad.view.fit(30, 30, kSize, kSize);
    const auto share_of = [&](int row, int position, Rgb8 color) {
        int n = 0;
        for (int y = 1; y < 9; ++y)
            for (int x = 1; x < 9; ++x) n += close(pixel(position * 10 + x, row * 10 + y), color);
        return n / 64.0;
    };
    for (const HeatMode mode : {HeatMode::mask, HeatMode::attention}) {
        quad.mode = mode;
        draw(quad);
        EXPECT_GT(share_of(25, 3, kBackground.hidden), 0.8);
        EXPECT_LT(share_of(25, 3, kBackground.hidden), 1.0);  // dotted: a pattern, not only a colour
        EXPECT_EQ(share_of(25, 4, kBackground.hidden), 0.0);
    }
    quad.mode = HeatMode::mask;
    draw(quad);
    EXPECT_EQ(share_of(25, 4, kBackground.kept), 1.0);
    EXPECT_EQ(share_of(10, 3, kBackground.kept), 1.0);  // a prompt row
}

/// Some values are NaN, some infinite; others are outside the test's range.
float with_faults(int row, int layer, int head, int position) {
    if ((row + 2 * position) % 11 == 0) return std::numeric_limits<float>::quiet_NaN();
    if ((row + 2 * position) % 13 == 0) return std::numeric_limits<float>::infinity();
    return testing::synthetic_attention(row, layer, head, position);
}

TEST_F(HeatPainterTest, NanAndClippedCellsHaveTheColoursOfTheFigure) {
    RunHistory history;
    history.update(testing::synthetic_run({.n_layers = 1,
                                           .n_heads = 1,
                                           .n_kv_heads = 1,
                                           .n_prompt = 20,
                                           .n_decoded = 20,
                                           .budgets = {0},
                                           .attention = with_faults}));
    HeatData data;
    ViewState view;
    prepare(data, history, 0, view);
    painter_->update(data, history, 0);
    EXPECT_TRUE(data.focus().has_not_finite());
    const int n = history.n_positions();
    const float largest = data.focus().largest(true);
    EXPECT_TRUE(std::isfinite(largest));
    for (const bool logarithmic : {false, true})
        for (const bool clips : {false, true})
            for (const bool nan : {false, true})
                for (const int matrix : {-1, 0}) {  // the focused head, and its thumbnail
                    HeatQuad quad = whole_canvas();
                    quad.matrix = matrix;
                    quad.scale = {.logarithmic = logarithmic,
                                  .low = largest / 20,
                                  .high = largest / 2,
                                  .marks_nan = nan,
                                  .marks_clips = clips};
                    quad.view.fit(n, n, kSize, kSize);
                    quad.shown_row = n;
                    draw(quad);
                    int n_nan = 0, n_clipped = 0;
                    for (int i = 0; i < n; ++i)
                        for (int p = 0; p <= i; ++p) {
                            const CanvasPoint at = quad.view.pixel_of({p + 0.5, i + 0.5});
                            const Rgb8 seen = pixel(static_cast<int>(at.x), static_cast<int>(at.y));
                            const float value = data.focus().pyramid().front().at(p, i);
                            Rgb8 expected = color_of(quad.scale, value);
                            if (expected == kMissingColor) expected = kBackground.missing;
                            const bool marked = expected == kNanColor || expected == kAboveColor ||
                                                expected == kBelowColor || expected == kBackground.missing;
                            n_nan += std::isinf(value);
                            n_clipped += expected == kAboveColor || expected == kBelowColor;
                            // Adjacent viridis entries differ by at most 6.
                            EXPECT_LE(std::abs(seen.r - expected.r), marked ? 1 : 7)
                                << i << " " << p << " " << value;
                            EXPECT_LE(std::abs(seen.g - expected.g), marked ? 1 : 7)
                                << i << " " << p << " " << value;
                        }
                    EXPECT_GT(n_nan, 50);
                    EXPECT_EQ(n_clipped > 50, clips);
                }
    // NaN is visible at any zoom.
    HeatQuad quad = whole_canvas();
    quad.view.cell_width = quad.view.cell_height = 0.1;
    quad.shown_row = n;
    draw(quad);
    EXPECT_EQ(pixel(0, 0), kNanColor);
}

/// Returns the left and top of a figure's matrix: inside the longest vertical line of the frame's colour.
std::pair<int, int> matrix_corner(const Image& image, int height) {
    const Rgb8 line{150, 150, 156};
    for (int x = 0; x < image.width(); ++x)
        for (int y = 0, run = 0; y < image.height(); ++y) {
            run = image.at(x, y) == line ? run + 1 : 0;
            if (run == height + 2) return {x + 1, y - height};
        }
    ADD_FAILURE() << "no frame of " << height << " pixels";
    return {0, 0};
}

TEST_F(HeatPainterTest, DifferencesAreThoseOfTheFigure) {
    RunHistory history;
    history.update(testing::synthetic_run(
        {.n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .n_prompt = 20, .n_decoded = 20, .budgets = {9, 16}}));
    for (const HeatMode mode : {HeatMode::mask, HeatMode::attention, HeatMode::score})
        for (const bool logarithmic : {false, true}) {
            ViewState view;
            view.head = 1;
            view.mode = mode;
            view.difference = true;
            view.range().logarithmic = logarithmic;
            view.marks_clips = true;
            view.row = history.last_row();
            HeatData data(HeatData::Kind::difference);
            while (!data.update(history, 0, view, 1000, 1)) {
            }
            painter_ = std::make_unique<HeatPainter>();
            painter_->update(data, history, 0);
            const int n = history.n_positions();
            HeatQuad quad = whole_canvas();
            quad.mode = mode;
            quad.difference = true;
            quad.kv_head = 1;
            quad.scale = difference_scale(view, data.focus().largest(true) / 2, Background::dark);
            quad.view.fit(n, n, kSize, kSize);
            quad.shown_row = n;
            draw(quad);
            const Image figure = difference_picture(history, 0, 1, view, quad.scale).image();
            const int cell = layout_cells(n, n, FigureSize{}.max_width, FigureSize{}.max_height).cell_width;
            const auto [left, top] = matrix_corner(figure, n * cell);
            int n_values = 0, n_hatched = 0, n_above = 0, n_both = 0;
            for (int i = 0; i < n; ++i)
                for (int p = 0; p < n; ++p) {
                    const Rgb8 drawn = figure.at(left + p * cell + cell / 2, top + i * cell + cell / 2);
                    const CanvasPoint at = quad.view.pixel_of({p + 0.5, i + 0.5});
                    const Rgb8 seen = pixel(static_cast<int>(at.x), static_cast<int>(at.y));
                    if (p > i) {
                        EXPECT_TRUE(close(seen, kBackground.future) && drawn == kFutureColor);
                    } else if (drawn == kEvictedColor || drawn == kHatchColor) {
                        ++n_hatched;
                        EXPECT_TRUE(close(seen, kBackground.evicted) || close(seen, kBackground.hatch))
                            << mode_name(mode) << " " << i << " " << p;
                    } else if (drawn == kMissingColor) {
                        EXPECT_TRUE(close(seen, kBackground.missing))
                            << mode_name(mode) << " " << i << " " << p;
                    } else if (mode == HeatMode::mask && drawn == both_color(Background::light)) {
                        ++n_both;
                        EXPECT_TRUE(close(seen, both_color(Background::dark))) << i << " " << p;
                    } else {
                        ++n_values;
                        n_above += drawn == kAboveColor;
                        // The shader's logarithm may select the next entry: this is the largest difference.
                        for (const int apart : {seen.r - drawn.r, seen.g - drawn.g, seen.b - drawn.b})
                            EXPECT_LE(std::abs(apart), mode == HeatMode::mask ? 1 : 9)
                                << mode_name(mode) << " " << i << " " << p;
                    }
                }
            EXPECT_GT(n_values + n_both, 100) << mode_name(mode);
            EXPECT_EQ(n_both > 0, mode == HeatMode::mask) << mode_name(mode);
            EXPECT_GT(n_hatched, 50) << mode_name(mode);
            EXPECT_EQ(n_above > 0, mode != HeatMode::mask) << mode_name(mode);
        }
}

}  // namespace
}  // namespace keyhole::test_heat_painter
