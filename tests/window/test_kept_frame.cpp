// Frames of which only the changes are drawn, against frames that are drawn as a whole. Needs a display.
#include "app/gl/kept_frame.h"
#include "tests/window/gl_test.h"

#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace keyhole::test_kept_frame {
namespace {

constexpr int kWidth = 500, kHeight = 350;
constexpr ImU32 kBackground = IM_COL32(24, 26, 31, 255);

/// Something that a frame draws.
struct Shape {
    enum Kind { area, text, line, circle, picture, last } kind = area;
    ImVec2 low, high;
    std::optional<ImVec4> clip;
    ImU32 color = 0;
    std::string words;
};

std::uint64_t number_of(const ImDrawCmd& command) {
    return static_cast<const Shape*>(command.UserCallbackData)->color;
}

/// Fills the callback's rectangle with a colour that depends on the place, as a picture does.
void paint(const ImDrawList*, const ImDrawCmd* command) {
    const auto& shape = *static_cast<const Shape*>(command->UserCallbackData);
    if (command->ClipRect.z <= command->ClipRect.x || command->ClipRect.w <= command->ClipRect.y) return;
    const ImVec4 c = ImGui::ColorConvertU32ToFloat4(shape.color);
    glEnable(GL_SCISSOR_TEST);
    constexpr int kCell = 7;
    const int left = static_cast<int>(std::floor(command->ClipRect.x)),
              top = static_cast<int>(std::floor(command->ClipRect.y)),
              right = static_cast<int>(std::ceil(command->ClipRect.z)),
              bottom = static_cast<int>(std::ceil(command->ClipRect.w));
    for (int y = top - top % kCell; y < bottom; y += kCell)
        for (int x = left - left % kCell; x < right; x += kCell) {
            const int x0 = std::max(x, left), y0 = std::max(y, top), x1 = std::min(x + kCell, right),
                      y1 = std::min(y + kCell, bottom);
            glScissor(x0, kHeight - y1, x1 - x0, y1 - y0);
            glClearColor(c.x, static_cast<float>(x % 5) / 5, static_cast<float>(y % 3) / 3, 1);
            glClear(GL_COLOR_BUFFER_BIT);
        }
}

void add(ImDrawList& list, const Shape& shape) {
    if (shape.clip) list.PushClipRect({shape.clip->x, shape.clip->y}, {shape.clip->z, shape.clip->w}, true);
    switch (shape.kind) {
        case Shape::area:
            list.AddRectFilled(shape.low, shape.high, shape.color, 5);
            break;
        case Shape::text:
            list.AddText(shape.low, shape.color, shape.words.c_str());
            break;
        case Shape::line:
            list.AddLine(shape.low, shape.high, shape.color, 1.5f);
            break;
        case Shape::circle:
            list.AddCircle(shape.low, std::abs(shape.high.x - shape.low.x) / 2, shape.color);
            break;
        case Shape::picture:
            list.PushClipRect(shape.low, shape.high, true);
            list.AddCallback(paint, const_cast<Shape*>(&shape));
            list.AddCallback(ImDrawCallback_ResetRenderState, nullptr);
            list.PopClipRect();
            break;
        case Shape::last:
            break;
    }
    if (shape.clip) list.PopClipRect();
}

class KeptFrameTest : public testing::GlTest {
  protected:
    void SetUp() override {
        GlTest::SetUp();
        if (IsSkipped()) return;
        ImGui::CreateContext();
        ImGui::GetIO().IniFilename = nullptr;
        ImGui_ImplOpenGL3_Init("#version 330 core");
        kept_.emplace();
        shown_.emplace(kWidth, kHeight);
        whole_.emplace(kWidth, kHeight);
    }
    void TearDown() override {
        if (!kept_) return;
        whole_.reset();
        shown_.reset();
        kept_.reset();
        ImGui_ImplOpenGL3_Shutdown();
        ImGui::DestroyContext();
    }
    /// Draws a frame both ways, and expects the same pixels. Returns the share of it that was drawn.
    double draw(const std::vector<Shape>& shapes) {
        ImGui::GetIO().DisplaySize = {kWidth, kHeight};
        ImGui::GetIO().DeltaTime = 1;
        ImGui_ImplOpenGL3_NewFrame();
        ImGui::NewFrame();
        for (std::size_t i = 0; i < shapes.size(); ++i)
            add(i % 3 == 0 ? *ImGui::GetForegroundDrawList() : *ImGui::GetBackgroundDrawList(), shapes[i]);
        ImGui::Render();
        shown_->bind();
        kept_->draw(*ImGui::GetDrawData(), kBackground, number_of);
        const std::vector<std::uint8_t> shown = shown_->pixels();
        whole_->bind();
        glDisable(GL_SCISSOR_TEST);
        const ImVec4 c = ImGui::ColorConvertU32ToFloat4(kBackground);
        glClearColor(c.x, c.y, c.z, 1);
        glClear(GL_COLOR_BUFFER_BIT);
        ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
        const std::vector<std::uint8_t> whole = whole_->pixels();
        std::size_t n_wrong = 0;
        for (std::size_t i = 0; i < whole.size(); ++i) n_wrong += whole[i] != shown[i] ? 1 : 0;
        EXPECT_EQ(n_wrong, 0u);
        return kept_->drawn_share();
    }

    std::optional<KeptFrame> kept_;
    std::optional<testing::TestFrame> shown_, whole_;
};

class Shapes {
  public:
    std::vector<Shape> shapes;

    explicit Shapes(unsigned seed) : random_(seed) {
        for (int i = 0; i < 40; ++i) shapes.push_back(any());
    }
    void change() {
        Shape& shape = shapes[pick(static_cast<int>(shapes.size()))];
        switch (pick(7)) {
            case 0:
                shape.color ^= 0x00010203u << pick(3);
                break;
            case 1:
                shape.low.x += between(-9, 9), shape.high.x += between(-9, 9);
                break;
            case 2:
                shape.words += 'x';
                break;
            case 3:
                shape.clip = any_clip();
                break;
            case 4:
                shape = any();
                break;
            case 5:
                std::swap(shape, shapes[pick(static_cast<int>(shapes.size()))]);
                break;
            default:
                break;  // nothing
        }
    }

  private:
    std::mt19937 random_;

    std::size_t pick(int n) { return random_() % static_cast<unsigned>(n); }
    float between(float low, float high) {
        return low + (high - low) * static_cast<float>(random_() % 1000) / 1000;
    }
    ImVec4 any_clip() {
        const float x = between(-20, kWidth), y = between(-20, kHeight);
        return {x, y, x + between(1, 200), y + between(1, 200)};
    }
    Shape any() {
        const ImVec4 place = any_clip();
        Shape shape{static_cast<Shape::Kind>(pick(Shape::last)),
                    {place.x, place.y},
                    {place.z, place.w},
                    std::nullopt,
                    IM_COL32(random_() % 256, random_() % 256, random_() % 256, 40 + random_() % 216),
                    "words " + std::to_string(random_() % 100000)};
        if (pick(3) == 0) shape.clip = any_clip();
        return shape;
    }
};

TEST_F(KeptFrameTest, ShowsWhatAWholeFrameShows) {
    for (unsigned seed = 1; seed <= 5; ++seed) {
        SCOPED_TRACE(seed);
        Shapes frame(seed);
        kept_->forget();
        EXPECT_EQ(draw(frame.shapes), 1);
        double drawn = 0;
        constexpr int kFrames = 30;
        for (int i = 0; i < kFrames && !HasFailure(); ++i) {
            for (unsigned n = 0; n <= seed / 3; ++n) frame.change();
            drawn += draw(frame.shapes);
        }
        EXPECT_LT(drawn / kFrames, 0.5);
        EXPECT_GT(drawn, 0);
    }
}

TEST_F(KeptFrameTest, DrawsOnlyWhatChanges) {
    Shapes frame(9);
    frame.shapes.push_back({Shape::area, {100, 100}, {110, 110}, std::nullopt, IM_COL32(200, 0, 0, 255), ""});
    EXPECT_EQ(draw(frame.shapes), 1);
    EXPECT_EQ(draw(frame.shapes), 0) << "nothing changed";
    frame.shapes.back().color = IM_COL32(0, 200, 0, 255);
    EXPECT_EQ(draw(frame.shapes), double(FrameTiles::kSide * FrameTiles::kSide) / (kWidth * kHeight));
    kept_->forget();
    EXPECT_EQ(draw(frame.shapes), 1);
}

TEST(FrameTiles, ChangesFarApartStayApartAndManyBecomeFew) {
    ImGui::CreateContext();
    ImGui::GetIO().DisplaySize = {kWidth, kHeight};
    ImGui::GetIO().DeltaTime = 1;
    unsigned char* ignored = nullptr;
    int width = 0, height = 0;
    ImGui::GetIO().Fonts->GetTexDataAsRGBA32(&ignored, &width, &height);
    FrameTiles tiles;
    const auto changes = [&](const std::vector<ImVec2>& dots) {
        ImGui::NewFrame();
        for (const ImVec2 dot : dots)
            ImGui::GetBackgroundDrawList()->AddRectFilled(dot, {dot.x + 2, dot.y + 2}, IM_COL32_WHITE);
        ImGui::Render();
        return tiles.changes(*ImGui::GetDrawData(), 0, number_of);
    };
    EXPECT_EQ(changes({}), (std::vector<FrameRect>{{0, 0, kWidth, kHeight}}));
    EXPECT_EQ(changes({}), std::vector<FrameRect>());
    EXPECT_EQ(changes({{5, 5}, {490, 345}}),
              (std::vector<FrameRect>{{0, 0, 32, 32}, {480, 320, kWidth, kHeight}}));
    EXPECT_EQ(changes({{5, 5}}), (std::vector<FrameRect>{{480, 320, kWidth, kHeight}}));
    // A dot on each second tile, like a chess board: few rectangles, which hold every dot once, also the one
    // that was there.
    std::vector<ImVec2> dots;
    for (int row = 0; row * 32 + 2 < kHeight; ++row)
        for (int column = row % 2; column * 32 + 2 < kWidth; column += 2)
            dots.push_back({static_cast<float>(column * 32), static_cast<float>(row * 32)});
    const std::vector<FrameRect> rects = changes(dots);
    EXPECT_LE(rects.size(), 10u);
    for (const ImVec2 dot : dots) {
        const auto holds = [&](const FrameRect& r) {
            return r.left <= int(dot.x) && int(dot.x) < r.right && r.top <= int(dot.y) &&
                   int(dot.y) < r.bottom;
        };
        EXPECT_EQ(std::ranges::count_if(rects, holds), 1) << dot.x << ' ' << dot.y;
    }
    ImGui::DestroyContext();
}

}  // namespace
}  // namespace keyhole::test_kept_frame
