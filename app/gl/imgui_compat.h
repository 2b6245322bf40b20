/// Hides what differs between Dear ImGui 1.86 (Debian 12) and 1.92 (Debian unstable). imgui_input.cpp does
/// the same for input; no other file asks for the version. Window thread.
#pragma once

#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace keyhole::imgui_compat {

// Since 1.92 ImGui draws glyphs into the texture when a text needs them; before, it drew all when building
// the fonts.

/// Builds the fonts that were added.
inline void build_fonts() {
#ifndef IMGUI_HAS_TEXTURES
    ImGui::GetIO().Fonts->Build();
#endif
}

/// Returns true if the font has this character itself, not only a replacement sign.
inline bool has_glyph(ImFont& font, ImWchar character) {
#ifdef IMGUI_HAS_TEXTURES
    return font.IsGlyphInFont(character);
#else
    return font.FindGlyphNoFallback(character) != nullptr;
#endif
}

/// Returns the glyphs that a font has drawn into the texture, at its own size.
inline std::span<const ImFontGlyph> glyphs_of(ImFont& font) {
#ifdef IMGUI_HAS_TEXTURES
    const ImVector<ImFontGlyph>& glyphs = font.GetFontBaked(font.LegacySize)->Glyphs;
#else
    const ImVector<ImFontGlyph>& glyphs = font.Glyphs;
#endif
    return {glyphs.Data, static_cast<std::size_t>(glyphs.Size)};
}

/// Returns the size in pixels with which a font was added.
inline float font_size(const ImFont& font) {
#ifdef IMGUI_HAS_TEXTURES
    return font.LegacySize;
#else
    return font.FontSize;
#endif
}

/// Uploads the built fonts to OpenGL. In the first frame the ImGui backend does it.
inline void renew_font_texture(bool first) {
#ifdef IMGUI_HAS_TEXTURES
    (void)first;  // 1.92 and later upload in every frame
#else
    ImGui_ImplOpenGL3_DestroyFontsTexture();
    if (!first) ImGui_ImplOpenGL3_CreateFontsTexture();
#endif
}

/// Returns true if a command draws from the fonts' texture, which also holds the white of solid areas.
inline bool draws_fonts(const ImDrawCmd& command) {
#ifdef IMGUI_HAS_TEXTURES
    return command.TexRef._TexData != nullptr;
#else
    return command.TextureId == ImGui::GetIO().Fonts->TexID;
#endif
}

/// Returns true if the backend will change the fonts' texture before it draws this frame.
inline bool fonts_change(const ImDrawData& frame) {
#ifdef IMGUI_HAS_TEXTURES
    if (frame.Textures == nullptr) return false;
    for (const ImTextureData* texture : *frame.Textures)
        if (texture->Status != ImTextureStatus_OK) return true;
#else
    (void)frame;
#endif
    return false;
}

/// Returns ImGui's name of an OpenGL texture. It was a pointer, and is a number since 1.91.4.
template <class Id = ImTextureID>
Id texture_id(unsigned name) {
    if constexpr (std::is_pointer_v<Id>)
        return reinterpret_cast<Id>(static_cast<std::uintptr_t>(name));
    else
        return static_cast<Id>(name);
}

// Keys had numbers of the window system until 1.87.
#if IMGUI_VERSION_NUM >= 18900
inline constexpr ImGuiKey kKeypadEnter = ImGuiKey_KeypadEnter;
/// again: also while the key is held.
inline bool is_pressed(ImGuiKey key, bool again = true) {
    return ImGui::IsKeyPressed(key, again);
}
#else
inline constexpr ImGuiKey_ kKeypadEnter = ImGuiKey_KeyPadEnter;
inline bool is_pressed(ImGuiKey key, bool again = true) {
    return ImGui::IsKeyPressed(ImGui::GetKeyIndex(key), again);
}
#endif

/// Makes text fields copy and paste through these functions. Call after the platform backend, which sets its
/// own.
template <const char* (*get)(), void (*set)(const char*)>
void use_clipboard() {
#if IMGUI_VERSION_NUM >= 19110
    ImGui::GetPlatformIO().Platform_GetClipboardTextFn = [](ImGuiContext*) { return get(); };
    ImGui::GetPlatformIO().Platform_SetClipboardTextFn = [](ImGuiContext*, const char* text) { set(text); };
#else
    ImGui::GetIO().GetClipboardTextFn = [](void*) { return get(); };
    ImGui::GetIO().SetClipboardTextFn = [](void*, const char* text) { set(text); };
#endif
}

}  // namespace keyhole::imgui_compat
