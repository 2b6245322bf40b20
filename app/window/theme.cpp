#include "app/window/theme.h"

#include <fontconfig/fontconfig.h>

#include <array>
#include <cmath>

namespace keyhole {

namespace theme {

ImU32 lane_color(int lane) {
    static constexpr std::array kColors = {rgb(205, 209, 217), rgb(86, 180, 233),  rgb(240, 168, 40),
                                           rgb(40, 190, 150),  rgb(214, 139, 182), rgb(240, 228, 100),
                                           rgb(228, 120, 60),  rgb(120, 140, 240)};
    return kColors[static_cast<std::size_t>(lane) % kColors.size()];
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

ImFont* add_font(const char* pattern, float size) {
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
    ImFont* font =
        file.empty() ? nullptr : io.Fonts->AddFontFromFileTTF(file.c_str(), size, &config, kRanges.data());
    if (font == nullptr) {
        config.SizePixels = size;
        font = io.Fonts->AddFontDefault(&config);
    }
    return font;
}

}  // namespace

Fonts load_fonts(float scale) {
    ImGui::GetIO().Fonts->Clear();
    Fonts fonts;
    fonts.book = add_font("DejaVu Sans:style=Book", std::round(14.5f * scale));
    fonts.bold = add_font("DejaVu Sans:style=Bold", std::round(14.5f * scale));
    fonts.small = add_font("DejaVu Sans:style=Book", std::round(12.0f * scale));
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
