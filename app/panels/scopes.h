/// Wraps pairs of Dear ImGui calls as scopes: the constructor pushes or begins, the destructor pops or ends.
/// BeginCombo, BeginPopup, BeginMenu and BeginChild open a window of their own, and popping a font in
/// another window than it was pushed in ends the program. Scopes end in the opposite order, so this mistake
/// cannot be written. Panels use only these (tests/window/test_panel_sources.cpp). Window thread, within a
/// frame.
#pragma once

#include <imgui.h>

#include <span>

namespace keyhole {

/// Base of the scopes. Cannot be copied or moved, since it stands for its block.
class ImGuiScope {
  public:
    ImGuiScope(const ImGuiScope&) = delete;
    ImGuiScope& operator=(const ImGuiScope&) = delete;

  protected:
    ImGuiScope() = default;
    ~ImGuiScope() = default;
};

class ScopedFont : ImGuiScope {
  public:
    explicit ScopedFont(ImFont* font) { ImGui::PushFont(font); }
    ~ScopedFont() { ImGui::PopFont(); }
};

class ScopedColor : ImGuiScope {
  public:
    /// on: false leaves the colour as it is.
    ScopedColor(ImGuiCol index, ImU32 color, bool on = true) : on_(on) {
        if (on_) ImGui::PushStyleColor(index, color);
    }
    ~ScopedColor() {
        if (on_) ImGui::PopStyleColor();
    }

  private:
    bool on_;
};

class ScopedVar : ImGuiScope {
  public:
    ScopedVar(ImGuiStyleVar index, float value) { ImGui::PushStyleVar(index, value); }
    ScopedVar(ImGuiStyleVar index, ImVec2 value) { ImGui::PushStyleVar(index, value); }
    ~ScopedVar() { ImGui::PopStyleVar(); }
};

class ScopedId : ImGuiScope {
  public:
    explicit ScopedId(int id) { ImGui::PushID(id); }
    ~ScopedId() { ImGui::PopID(); }
};

class ScopedItemWidth : ImGuiScope {
  public:
    explicit ScopedItemWidth(float width) { ImGui::PushItemWidth(width); }
    ~ScopedItemWidth() { ImGui::PopItemWidth(); }
};

/// x: from the left edge of the window, in pixels.
class ScopedTextWrap : ImGuiScope {
  public:
    explicit ScopedTextWrap(float x) { ImGui::PushTextWrapPos(x); }
    ~ScopedTextWrap() { ImGui::PopTextWrapPos(); }
};

/// Clips the current window only. A window that opens within it has its own clip rectangle.
class ScopedClip : ImGuiScope {
  public:
    ScopedClip(ImVec2 min, ImVec2 max) { ImGui::PushClipRect(min, max, true); }
    ~ScopedClip() { ImGui::PopClipRect(); }
};

/// Greys out the block and disables its input; on = false changes nothing.
class ScopedDisabled : ImGuiScope {
  public:
    explicit ScopedDisabled(bool on = true) : on_(on) {
        if (on_) ImGui::BeginDisabled();
    }
    ~ScopedDisabled() {
        if (on_) ImGui::EndDisabled();
    }

  private:
    bool on_;
};

/// The scopes from here on open a window. Draw its contents only if open() is true.
/// A list that drops down. Up, Down, Home and End move its mark, Enter takes the marked entry, and Escape
/// closes it, as in every popup (close_innermost() of the window).
class ScopedCombo : ImGuiScope {
  public:
    ScopedCombo(const char* id, const char* preview, ImGuiComboFlags flags = 0);
    ~ScopedCombo();
    bool open() const { return open_; }
    /// Draws the next entry; chosen: the one in force. Returns true if the user takes it.
    bool item(const char* label, bool chosen);

  private:
    bool open_, appears_ = false, moved_ = false, enter_ = false;
    int marked_ = -1, n_items_ = 0;
};

/// Draws a list of names. Returns true if the user takes another one than `index`.
bool combo(const char* id, int& index, std::span<const char* const> names);

class ScopedPopup : ImGuiScope {
  public:
    explicit ScopedPopup(const char* id, ImGuiWindowFlags flags = 0) : open_(ImGui::BeginPopup(id, flags)) {}
    ~ScopedPopup() {
        if (open_) ImGui::EndPopup();
    }
    bool open() const { return open_; }

  private:
    bool open_;
};

class ScopedMenuBar : ImGuiScope {
  public:
    ScopedMenuBar() : open_(ImGui::BeginMenuBar()) {}
    ~ScopedMenuBar() {
        if (open_) ImGui::EndMenuBar();
    }
    bool open() const { return open_; }

  private:
    bool open_;
};

class ScopedMenu : ImGuiScope {
  public:
    explicit ScopedMenu(const char* label, bool enabled = true) : open_(ImGui::BeginMenu(label, enabled)) {}
    ~ScopedMenu() {
        if (open_) ImGui::EndMenu();
    }
    bool open() const { return open_; }

  private:
    bool open_;
};

/// A part of a window. Within one of the same colour it has no background: without a GPU, filling its pixels
/// once more is a large part of a frame.
class ScopedChild : ImGuiScope {
  public:
    explicit ScopedChild(const char* id, ImVec2 size = {0, 0}, bool border = false,
                         ImGuiWindowFlags flags = 0);
    ~ScopedChild();

  private:
    static inline const ScopedChild* innermost_ = nullptr;
    const ScopedChild* outer_ = innermost_;
    const ImDrawList* list_ = nullptr;  // of its window, which it stands for
    ImU32 color_ = 0;
};

class ScopedTooltip : ImGuiScope {
  public:
    ScopedTooltip() { ImGui::BeginTooltip(); }
    ~ScopedTooltip() { ImGui::EndTooltip(); }
};

}  // namespace keyhole
