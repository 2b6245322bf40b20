#include "app/gl/theme.h"

#include "app/gl/imgui_compat.h"
#include "engine/base/index.h"
#include "engine/figure/font.h"

#include <fontconfig/fontconfig.h>

#include <array>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

namespace theme {

ImU32 lane_color(int lane) {
    // Orange also marks thresholds, picks and evictions, so it comes last.
    static constexpr std::array kColors = {rgb(205, 209, 217), rgb(86, 180, 233),  rgb(40, 190, 150),
                                           rgb(214, 139, 182), rgb(240, 228, 100), rgb(134, 154, 248),
                                           rgb(150, 200, 110), rgb(236, 130, 72)};
    return kColors[to_index(lane) % kColors.size()];
}

ImU32 faded(ImU32 color, float alpha) {
    return (color & ~IM_COL32_A_MASK) | (static_cast<ImU32>(alpha * 255) << IM_COL32_A_SHIFT);
}

}  // namespace theme

namespace {

std::string font_file(const char* pattern_text) {
    std::string file;
    FcPattern* pattern = FcNameParse(reinterpret_cast<const FcChar8*>(pattern_text));
    FcConfigSubstitute(nullptr, pattern, FcMatchPattern);
    FcDefaultSubstitute(pattern);
    FcResult result = FcResultNoMatch;
    if (FcPattern* match = FcFontMatch(nullptr, pattern, &result)) {
        FcChar8* name = nullptr;
        if (FcPatternGetString(match, FC_FILE, 0, &name) == FcResultMatch)
            file = reinterpret_cast<const char*>(name);
        FcPatternDestroy(match);
    }
    FcPatternDestroy(pattern);
    return file;
}

/// A system font, and the characters to take from it.
struct SystemFont {
    std::string file;
    int number = 0;  ///< index in a font collection
    std::vector<ImWchar> ranges;
};

/// Picks for each character the font that fontconfig prefers among those that have it (DejaVu Sans first)
/// and that Dear ImGui can read. Leaves out characters without such a font.
std::vector<SystemFont> system_fonts(const std::set<char32_t>& wanted) {
    std::vector<SystemFont> fonts;
    if (wanted.empty()) return fonts;
    FcPattern* pattern =
        FcNameParse(reinterpret_cast<const FcChar8*>("DejaVu Sans:style=Book:scalable=true"));
    FcCharSet* characters = FcCharSetCreate();
    for (const char32_t c : wanted) FcCharSetAddChar(characters, c);
    FcPatternAddCharSet(pattern, FC_CHARSET, characters);
    FcConfigSubstitute(nullptr, pattern, FcMatchPattern);
    FcDefaultSubstitute(pattern);
    FcResult result = FcResultNoMatch;
    std::set<char32_t> left = wanted;
    if (FcFontSet* sorted = FcFontSort(nullptr, pattern, FcTrue, nullptr, &result)) {
        for (int i = 0; i < sorted->nfont && !left.empty(); ++i) {
            FcChar8 *file = nullptr, *format = nullptr;
            FcCharSet* has = nullptr;
            int number = 0;
            if (FcPatternGetString(sorted->fonts[i], FC_FILE, 0, &file) != FcResultMatch ||
                FcPatternGetCharSet(sorted->fonts[i], FC_CHARSET, 0, &has) != FcResultMatch ||
                FcPatternGetString(sorted->fonts[i], FC_FONTFORMAT, 0, &format) != FcResultMatch)
                continue;
            const std::string_view kind = reinterpret_cast<const char*>(format);
            FcBool colored = FcFalse;
            (void)FcPatternGetBool(sorted->fonts[i], FC_COLOR, 0, &colored);
            if ((kind != "TrueType" && kind != "CFF") || colored) continue;
            (void)FcPatternGetInteger(sorted->fonts[i], FC_INDEX, 0, &number);
            SystemFont font{reinterpret_cast<const char*>(file), number & 0xFFFF, {}};
            for (const char32_t c : left)
                if (FcCharSetHasChar(has, c))
                    font.ranges.insert(font.ranges.end(), 2, static_cast<ImWchar>(c));
            if (font.ranges.empty() || !is_readable_font(font.file, font.number)) continue;
            for (const ImWchar c : font.ranges) left.erase(c);
            font.ranges.push_back(0);
            fonts.push_back(std::move(font));
        }
        FcFontSetDestroy(sorted);
    }
    FcCharSetDestroy(characters);
    FcPatternDestroy(pattern);
    return fonts;
}

ImFont* add_font(const char* pattern, float size, const std::vector<SystemFont>& others) {
    // Latin, Greek, Cyrillic, punctuation, arrows, mathematics, control pictures, shapes, marks.
    static constexpr std::array<ImWchar, 19> kRanges = {
        0x20,   0x24F,  0x2B0,  0x52F,  0x2000, 0x22FF, 0x2300, 0x23FF, 0x2400, 0x2426,
        0x2500, 0x25FF, 0x2600, 0x26FF, 0x2713, 0x2717, 0xFFFD, 0xFFFD, 0};
    ImGuiIO& io = ImGui::GetIO();
    ImFontConfig config;
    config.OversampleH = 2;
    config.OversampleV = 1;
    config.PixelSnapH = true;
    const std::string file = font_file(pattern);
    ImFont* font = nullptr;
    if (is_readable_font(file, 0)) {
        font = io.Fonts->AddFontFromFileTTF(file.c_str(), size, &config, kRanges.data());
    } else {
        config.SizePixels = size;
        font = io.Fonts->AddFontDefault(&config);
    }
    for (const SystemFont& other : others) {
        ImFontConfig merged;
        merged.MergeMode = true;
        merged.FontNo = other.number;
        merged.PixelSnapH = true;
        io.Fonts->AddFontFromFileTTF(other.file.c_str(), size, &merged, other.ranges.data());
    }
    return font;
}

Fonts add_fonts(float scale, const std::vector<SystemFont>& others) {
    ImGui::GetIO().Fonts->Clear();
    Fonts fonts;
    fonts.book = add_font("DejaVu Sans:style=Book", std::round(14.5f * scale), others);
    fonts.bold = add_font("DejaVu Sans:style=Bold", std::round(14.5f * scale), others);
    fonts.small = add_font("DejaVu Sans:style=Book", std::round(12.0f * scale), others);
    return fonts;
}

}  // namespace

Fonts load_fonts(float scale, Glyphs& glyphs) {
    const std::vector<SystemFont> others = system_fonts(glyphs.wanted());
    const Fonts fonts = add_fonts(scale, others);
    imgui_compat::build_fonts();
    std::set<char32_t> missing;
    for (const char32_t c : glyphs.wanted())
        if (!imgui_compat::has_glyph(*fonts.small, static_cast<ImWchar>(c))) missing.insert(c);
    glyphs.set_missing(std::move(missing));
    return fonts;
}

void apply_theme(float scale) {
    ImGuiStyle& style = ImGui::GetStyle();
    style = ImGuiStyle();
    ImGui::StyleColorsDark(&style);
    style.WindowPadding = {10, 8};
    style.FramePadding = {7, 3};
    style.ItemSpacing = {7, 5};
    style.ItemInnerSpacing = {5, 4};
    style.CellPadding = {5, 2};
    style.ScrollbarSize = 11;
    style.GrabMinSize = 9;
    style.WindowRounding = style.ChildRounding = style.PopupRounding = 5;
    style.FrameRounding = style.GrabRounding = 4;
    style.ScrollbarRounding = 6;
    style.WindowBorderSize = style.PopupBorderSize = 1;
    style.ChildBorderSize = 0;
    style.FrameBorderSize = 0;
    style.ScaleAllSizes(scale);

    const auto set = [&](ImGuiCol which, ImU32 color) {
        style.Colors[which] = ImGui::ColorConvertU32ToFloat4(color);
    };
    using namespace theme;
    set(ImGuiCol_Text, kText);
    set(ImGuiCol_TextDisabled, kDim);
    set(ImGuiCol_WindowBg, kWindow);
    set(ImGuiCol_ChildBg, kPanel);
    set(ImGuiCol_PopupBg, rgb(36, 40, 48, 252));
    set(ImGuiCol_Border, kLine);
    set(ImGuiCol_FrameBg, rgb(50, 55, 66));
    set(ImGuiCol_FrameBgHovered, rgb(60, 67, 81));
    set(ImGuiCol_FrameBgActive, rgb(66, 76, 95));
    set(ImGuiCol_MenuBarBg, rgb(30, 33, 39));
    set(ImGuiCol_ScrollbarBg, rgb(0, 0, 0, 0));
    set(ImGuiCol_ScrollbarGrab, rgb(66, 72, 85));
    set(ImGuiCol_ScrollbarGrabHovered, rgb(84, 91, 107));
    set(ImGuiCol_ScrollbarGrabActive, rgb(98, 106, 124));
    set(ImGuiCol_CheckMark, kAccent);
    set(ImGuiCol_SliderGrab, rgb(104, 146, 194));
    set(ImGuiCol_SliderGrabActive, kAccent);
    set(ImGuiCol_Button, rgb(54, 60, 72));
    set(ImGuiCol_ButtonHovered, rgb(67, 76, 92));
    set(ImGuiCol_ButtonActive, rgb(74, 98, 130));
    set(ImGuiCol_Header, rgb(56, 66, 83));
    set(ImGuiCol_HeaderHovered, rgb(64, 78, 101));
    set(ImGuiCol_HeaderActive, rgb(72, 90, 118));
    set(ImGuiCol_Separator, kLine);
    set(ImGuiCol_SeparatorHovered, kAccent);
    set(ImGuiCol_SeparatorActive, kAccent);
    set(ImGuiCol_TableBorderLight, rgb(48, 53, 62));
    set(ImGuiCol_TableBorderStrong, kLine);
    set(ImGuiCol_TableHeaderBg, rgb(38, 42, 50));
    set(ImGuiCol_TitleBgActive, rgb(44, 50, 61));
    set(ImGuiCol_TitleBg, rgb(38, 42, 50));
    set(ImGuiCol_TextSelectedBg, rgb(60, 100, 150));
    set(ImGuiCol_ModalWindowDimBg, rgb(10, 11, 13, 140));
    set(ImGuiCol_NavHighlight, kAccent);
}

}  // namespace keyhole
