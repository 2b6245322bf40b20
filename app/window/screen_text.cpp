#include "app/window/screen_text.h"

#include "app/gl/imgui_compat.h"
#include "app/view/glyphs.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <unordered_map>
#include <utility>

namespace keyhole {

namespace {

/// A character as a font draws it.
struct Glyph {
    const ImFontGlyph* glyph;
    const ImFontGlyph* space;
    float size;  ///< of its font
};

/// Finds glyphs by their place in the fonts' texture.
class GlyphIndex {
  public:
    GlyphIndex() {
        for (ImFont* font : ImGui::GetIO().Fonts->Fonts) {
            const std::span<const ImFontGlyph> glyphs = imgui_compat::glyphs_of(*font);
            const auto space =
                std::find_if(glyphs.begin(), glyphs.end(), [](auto& g) { return g.Codepoint == ' '; });
            for (const ImFontGlyph& glyph : glyphs)
                if (glyph.Visible)
                    by_corner_.try_emplace(key(glyph.U0, glyph.V0),
                                           Glyph{&glyph, space == glyphs.end() ? &glyph : &*space,
                                                 imgui_compat::font_size(*font)});
        }
    }
    /// low, high: corners in the texture. A glyph that was cut at an edge is found by the part that is left.
    const Glyph* find(ImVec2 low, ImVec2 high) const {
        if (const auto found = by_corner_.find(key(low.x, low.y)); found != by_corner_.end())
            return &found->second;
        const float u = (low.x + high.x) / 2, v = (low.y + high.y) / 2;
        for (const auto& [corner, glyph] : by_corner_)
            if (u > glyph.glyph->U0 && u < glyph.glyph->U1 && v > glyph.glyph->V0 && v < glyph.glyph->V1)
                return &glyph;
        return nullptr;
    }

  private:
    std::unordered_map<std::uint64_t, Glyph> by_corner_;
    static std::uint64_t key(float u, float v) {
        std::uint32_t a = 0, b = 0;
        std::memcpy(&a, &u, sizeof a);
        std::memcpy(&b, &v, sizeof b);
        return std::uint64_t{a} << 32 | b;
    }
};

/// Joins glyphs to texts. Blanks are not drawn: they follow from the distance to the next glyph.
class TextJoiner {
  public:
    std::vector<ScreenText> texts;

    void add(const Glyph& at, ImVec2 low, ImVec2 high, ImU32 color, float line, float scale, bool cut) {
        const float start = low.x - at.glyph->X0 * scale, space = at.space->AdvanceX * scale;
        const float gap = start - pen_;
        const bool goes_on = !texts.empty() && texts.back().color == color && at.space == font_ &&
                             std::abs(line - line_) < 0.5f && gap > -0.6f * space && gap < 3.5f * space;
        if (goes_on) {
            texts.back().text.append(to_index(static_cast<int>(std::lround(std::max(gap, 0.0f) / space))),
                                     ' ');
        } else {
            texts.push_back({"", low, high, color, line});
        }
        ScreenText& text = texts.back();
        text.text += for_field(static_cast<char32_t>(at.glyph->Codepoint));
        text.cut |= cut;
        text.size = at.size * scale;
        text.min = {std::min(text.min.x, low.x), std::min(text.min.y, low.y)};
        text.max = {std::max(text.max.x, high.x), std::max(text.max.y, high.y)};
        pen_ = start + at.glyph->AdvanceX * scale;
        line_ = line;
        font_ = at.space;
    }

    /// Notes a character that lies beyond the left or right edge of its room.
    void add_hidden(const Glyph& at, ImVec2 low, ImU32 color, float line, float scale) {
        const float gap = low.x - at.glyph->X0 * scale - pen_, space = at.space->AdvanceX * scale;
        if (!texts.empty() && texts.back().color == color && at.space == font_ &&
            std::abs(line - line_) < 0.5f && gap > -0.6f * space && gap < 3.5f * space)
            texts.back().cut = true;
    }

  private:
    float pen_ = 0, line_ = 0;
    const ImFontGlyph* font_ = nullptr;
};

bool is_white(const ImDrawVert& vertex) {
    const ImVec2 white = ImGui::GetIO().Fonts->TexUvWhitePixel;
    return vertex.uv.x == white.x && vertex.uv.y == white.y;
}

/// Calls each(command, corners, count) for the triangles of a frame that are no callbacks, in their order.
template <class Each>
void for_each_triangle(const ImDrawData& frame, const Each& each) {
    for (int i = 0; i < frame.CmdListsCount; ++i) {
        const ImDrawList& list = *frame.CmdLists[i];
        for (const ImDrawCmd& command : list.CmdBuffer) {
            if (command.UserCallback != nullptr) continue;
            for (unsigned at = 0; at + 2 < command.ElemCount; at += 3) {
                const ImDrawVert* corners[3];
                for (unsigned k = 0; k < 3; ++k)
                    corners[k] = &list.VtxBuffer[static_cast<int>(
                        command.VtxOffset + list.IdxBuffer[static_cast<int>(command.IdxOffset + at + k)])];
                each(command, corners);
            }
        }
    }
}

bool holds(const ImDrawVert* const (&corners)[3], ImVec2 at) {
    const auto side = [&](const ImDrawVert& a, const ImDrawVert& b) {
        return (b.pos.x - a.pos.x) * (at.y - a.pos.y) - (b.pos.y - a.pos.y) * (at.x - a.pos.x);
    };
    const float a = side(*corners[0], *corners[1]), b = side(*corners[1], *corners[2]),
                c = side(*corners[2], *corners[0]);
    return (a >= 0 && b >= 0 && c >= 0) || (a <= 0 && b <= 0 && c <= 0);
}

}  // namespace

std::vector<ScreenText> screen_texts(const ImDrawData& frame) {
    const GlyphIndex glyphs;
    TextJoiner joiner;
    for_each_triangle(frame, [&](const ImDrawCmd& command, const ImDrawVert* const(&corners)[3]) {
        // A glyph is two triangles, and the first one begins at the upper left corner and ends at the lower
        // right one.
        const ImDrawVert &low = *corners[0], &high = *corners[2];
        if (is_white(low) || corners[1]->pos.y != low.pos.y || corners[1]->pos.x != high.pos.x) return;
        const ImVec4& clip = command.ClipRect;
        if (high.pos.y <= clip.y || low.pos.y >= clip.w) return;
        const bool hidden = high.pos.x <= clip.x || low.pos.x >= clip.z;
        const Glyph* glyph = glyphs.find(low.uv, high.uv);
        if (glyph == nullptr) return;
        const float height = glyph->glyph->V1 - glyph->glyph->V0, drawn = high.uv.y - low.uv.y;
        const float scale =
            drawn <= 0 || glyph->glyph->Y1 == glyph->glyph->Y0
                ? 1
                : (high.pos.y - low.pos.y) * (height / drawn) / (glyph->glyph->Y1 - glyph->glyph->Y0);
        const float line = high.pos.y - glyph->glyph->Y1 * scale;
        if (hidden) return joiner.add_hidden(*glyph, low.pos, low.col, line, scale);
        constexpr float kLeast = 1;  // pixels: glyphs have blank edges
        const float whole = glyph->glyph->U1 - glyph->glyph->U0;
        const bool cut = high.uv.x - low.uv.x < whole * 0.9f || low.pos.x < clip.x - kLeast ||
                         high.pos.x > clip.z + kLeast;
        joiner.add(*glyph, low.pos, high.pos, low.col, line, scale, cut);
    });
    return std::move(joiner.texts);
}

std::string pane_of(const ScreenText& text, const PanelShared& shared) {
    constexpr std::string_view kPrefix = "pane ";
    const float x = (text.min.x + text.max.x) / 2, y = (text.min.y + text.max.y) / 2;
    std::string pane;
    float smallest = 0;
    for (const auto& [name, item] : shared.items) {
        if (!name.starts_with(kPrefix) || x < item.min.x || x > item.max.x || y < item.min.y ||
            y > item.max.y)
            continue;
        const float area = (item.max.x - item.min.x) * (item.max.y - item.min.y);
        if (!pane.empty() && area >= smallest) continue;
        pane = name.substr(kPrefix.size());
        smallest = area;
    }
    return pane;
}

std::map<std::string, std::vector<std::string>> lines_of_panes(std::vector<ScreenText> texts,
                                                               const PanelShared& shared) {
    std::map<std::string, std::vector<ScreenText>> by_pane;
    for (ScreenText& text : texts) by_pane[pane_of(text, shared)].push_back(std::move(text));
    std::map<std::string, std::vector<std::string>> panes;
    for (auto& [pane, found] : by_pane) {
        std::ranges::stable_sort(found, {}, &ScreenText::top);
        std::vector<std::string>& lines = panes[pane];
        for (std::size_t i = 0; i < found.size();) {
            constexpr float kSameLine = 5;  // fonts of two sizes stand on one line
            std::size_t end = i + 1;
            while (end < found.size() && found[end].top - found[i].top < kSameLine) ++end;
            std::ranges::stable_sort(std::span(found).subspan(i, end - i), {},
                                     [](const ScreenText& text) { return text.min.x; });
            std::string line;
            for (; i < end; ++i) line += (line.empty() ? "" : "  ") + found[i].text;
            lines.push_back(std::move(line));
        }
    }
    return panes;
}

std::optional<ImU32> screen_color(const ImDrawData& frame, ImVec2 at) {
    std::optional<ImU32> color;
    for_each_triangle(frame, [&](const ImDrawCmd& command, const ImDrawVert* const(&corners)[3]) {
        const ImVec4& clip = command.ClipRect;
        if (at.x < clip.x || at.x >= clip.z || at.y < clip.y || at.y >= clip.w) return;
        if (!is_white(*corners[0]) || corners[0]->col != corners[1]->col ||
            corners[0]->col != corners[2]->col || !holds(corners, at))
            return;
        color = corners[0]->col;
    });
    return color;
}

}  // namespace keyhole
