#include "app/gl/theme.h"

#include "app/gl/imgui_compat.h"
#include "engine/base/index.h"
#include "engine/figure/font.h"
#include "engine/figure/lane_look.h"

#include <fontconfig/fontconfig.h>

#include <array>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

namespace theme {

namespace {

/// Returns the lanes' colours, which pictures in files have too.
constexpr std::array<ImU32, 8> lane_colors(Background background) {
    std::array<ImU32, 8> colors = {};
    for (std::size_t lane = 0; lane < colors.size(); ++lane) {
        const Rgb8 color = lane_look(static_cast<int>(lane), background).color;
        colors[lane] = rgb(color.r, color.g, color.b);
    }
    return colors;
}

constexpr Colors kDarkTheme = {
    .window = rgb(24, 26, 31),
    .panel = rgb(30, 33, 39),
    .card = rgb(38, 42, 50),
    .card_focused = rgb(44, 50, 61),
    .inset = rgb(26, 28, 34),
    .line = rgb(54, 59, 70),
    .grid = rgb(42, 46, 55),
    .text = rgb(222, 225, 231),
    .dim = rgb(168, 174, 186),
    .faint = rgb(150, 156, 168),
    .accent = rgb(92, 163, 232),
    .warm = rgb(238, 150, 34),
    .fault = rgb(244, 122, 115),
    .good = rgb(126, 196, 148),
    .lit = rgb(52, 92, 138),
    .lit_hovered = rgb(62, 108, 160),
    .on_lit = rgb(232, 236, 242),
    .run = rgb(40, 104, 74),
    .run_hovered = rgb(44, 112, 80),
    .stop = rgb(122, 78, 32),
    .stop_hovered = rgb(132, 84, 34),
    .on_run = rgb(232, 236, 242),
    .held = rgb(30, 52, 76),
    .gone = rgb(44, 40, 36),
    .kept_by_none = rgb(34, 38, 46),
    .kept_by_all = rgb(44, 98, 142),
    .lanes = lane_colors(Background::dark),
};
constexpr Colors kLightTheme = {
    .window = rgb(232, 234, 239),
    .panel = rgb(250, 251, 253),
    .card = rgb(241, 243, 247),
    .card_focused = rgb(226, 235, 247),
    .inset = rgb(255, 255, 255),
    .line = rgb(200, 205, 215),
    .grid = rgb(224, 227, 233),
    .text = rgb(24, 27, 33),
    .dim = rgb(74, 80, 92),
    .faint = rgb(90, 96, 108),
    .accent = rgb(10, 88, 164),
    .warm = rgb(158, 80, 0),
    .fault = rgb(184, 28, 26),
    .good = rgb(18, 106, 56),
    .lit = rgb(176, 208, 242),
    .lit_hovered = rgb(160, 198, 238),
    .on_lit = rgb(16, 32, 56),
    .run = rgb(176, 224, 196),
    .run_hovered = rgb(158, 214, 182),
    .stop = rgb(246, 212, 168),
    .stop_hovered = rgb(242, 202, 148),
    .on_run = rgb(20, 28, 24),
    .held = rgb(206, 226, 246),
    .gone = rgb(240, 234, 226),
    .kept_by_none = rgb(250, 251, 253),
    .kept_by_all = rgb(164, 206, 240),
    .lanes = lane_colors(Background::light),
};

const Colors* shown_colors = &kDarkTheme;

}  // namespace

const Colors& colors_on(Background background) {
    return background == Background::light ? kLightTheme : kDarkTheme;
}

const Colors& colors() {
    return *shown_colors;
}

ImU32 lane_color(int look) {
    const std::array<ImU32, 8>& lanes = colors().lanes;
    return lanes[to_index(look) % lanes.size()];
}

std::span<const float> lane_dash(int look) {
    return lane_look(look, Background::dark).dash;  // the same on all
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
    fonts.large = add_font("DejaVu Sans:style=Book", std::round(20.0f * scale), others);
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

void apply_theme(float scale, Background background) {
    theme::shown_colors = &theme::colors_on(background);
    ImGuiStyle& style = ImGui::GetStyle();
    style = ImGuiStyle();
    background == Background::light ? ImGui::StyleColorsLight(&style) : ImGui::StyleColorsDark(&style);
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
    const theme::Colors& c = theme::colors();
    set(ImGuiCol_Text, c.text);
    set(ImGuiCol_TextDisabled, c.dim);
    set(ImGuiCol_WindowBg, c.window);
    set(ImGuiCol_ChildBg, c.panel);
    set(ImGuiCol_MenuBarBg, c.panel);
    set(ImGuiCol_Border, c.line);
    set(ImGuiCol_CheckMark, c.accent);
    set(ImGuiCol_SliderGrabActive, c.accent);
    set(ImGuiCol_Separator, c.line);
    set(ImGuiCol_SeparatorHovered, c.accent);
    set(ImGuiCol_SeparatorActive, c.accent);
    set(ImGuiCol_TableBorderStrong, c.line);
    set(ImGuiCol_TableBorderLight, c.grid);
    set(ImGuiCol_TableHeaderBg, c.card);
    set(ImGuiCol_TitleBg, c.card);
    set(ImGuiCol_TitleBgActive, c.card_focused);
    set(ImGuiCol_NavHighlight, c.accent);
    set(ImGuiCol_ScrollbarBg, theme::rgb(0, 0, 0, 0));
    // Widgets: at rest, under the pointer, held.
    struct Widget {
        ImGuiCol part;
        ImU32 dark, light;
    };
    using theme::rgb;
    static constexpr std::array kWidgets = {
        Widget{ImGuiCol_PopupBg, rgb(36, 40, 48, 252), rgb(255, 255, 255, 252)},
        Widget{ImGuiCol_FrameBg, rgb(50, 55, 66), rgb(226, 229, 235)},
        Widget{ImGuiCol_FrameBgHovered, rgb(60, 67, 81), rgb(214, 222, 233)},
        Widget{ImGuiCol_FrameBgActive, rgb(66, 76, 95), rgb(202, 215, 232)},
        Widget{ImGuiCol_ScrollbarGrab, rgb(66, 72, 85), rgb(196, 201, 210)},
        Widget{ImGuiCol_ScrollbarGrabHovered, rgb(84, 91, 107), rgb(172, 178, 190)},
        Widget{ImGuiCol_ScrollbarGrabActive, rgb(98, 106, 124), rgb(150, 157, 171)},
        Widget{ImGuiCol_SliderGrab, rgb(104, 146, 194), rgb(92, 146, 204)},
        Widget{ImGuiCol_Button, rgb(54, 60, 72), rgb(221, 225, 232)},
        Widget{ImGuiCol_ButtonHovered, rgb(67, 76, 92), rgb(206, 215, 227)},
        Widget{ImGuiCol_ButtonActive, rgb(74, 98, 130), rgb(184, 204, 228)},
        Widget{ImGuiCol_Header, rgb(56, 66, 83), rgb(216, 226, 240)},
        Widget{ImGuiCol_HeaderHovered, rgb(64, 78, 101), rgb(202, 218, 238)},
        Widget{ImGuiCol_HeaderActive, rgb(72, 90, 118), rgb(188, 208, 234)},
        Widget{ImGuiCol_TextSelectedBg, rgb(60, 100, 150), rgb(170, 204, 240)},
        Widget{ImGuiCol_ModalWindowDimBg, rgb(10, 11, 13, 140), rgb(120, 126, 138, 120)}};
    for (const Widget& widget : kWidgets)
        set(widget.part, background == Background::light ? widget.light : widget.dark);
}

}  // namespace keyhole
