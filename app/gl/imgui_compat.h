/// What differs between the versions of Dear ImGui that distributions have, 1.86 (Debian 12) to 1.92 (Debian unstable). Input
/// is in imgui_input.cpp; no other file asks for its version. Window thread.
#pragma once

#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

namespace keyhole::imgui_compat {

// From 1.92 on glyphs are drawn into the texture when a text needs them; before, all of them are when the fonts are built.

/// Builds the fonts that were added.
inline void build_fonts() {
#ifndef IMGUI_HAS_TEXTURES
    ImGui::GetIO().Fonts->Build();
#endif
}

/// The font draws the character itself, not a sign in its place.
inline bool has_glyph(ImFont& font, ImWchar character) {
#ifdef IMGUI_HAS_TEXTURES
    return font.IsGlyphInFont(character);
#else
    return font.FindGlyphNoFallback(character) != nullptr;
#endif
}

/// Hands the fonts that were built to OpenGL; in the first frame the backend does that itself.
inline void renew_font_texture(bool first) {
#ifdef IMGUI_HAS_TEXTURES
    (void)first;  // as in every frame
#else
    ImGui_ImplOpenGL3_DestroyFontsTexture();
    if (!first) ImGui_ImplOpenGL3_CreateFontsTexture();
#endif
}

/// Texts that fields copy and paste go through these functions. After the backend of the platform, which sets its own.
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
