/// Passes user input to Dear ImGui. Replaces its GLFW backend, which samples pointer and keys only once a
/// frame. Only imgui_input.cpp knows how versions of Dear ImGui take input. Window thread.
#pragma once

#include "app/window/input_queue.h"

#include <imgui.h>

#include <array>
#include <span>
#include <string_view>

struct GLFWwindow;

namespace keyhole {

class ImGuiInput {
  public:
    /// Call after ImGui_ImplGlfw_InitForOpenGL(window, false): the backend then handles cursors and sizes,
    /// but no input.
    explicit ImGuiInput(GLFWwindow* window);
    /// Passes a frame's events to ImGui. Call in each frame between ImGui_ImplGlfw_NewFrame and
    /// ImGui::NewFrame.
    void hand_over(std::span<const InputEvent> frame);

  private:
    ImVec2 pointer_;
    std::array<bool, 5> buttons_{};
    double pressed_at_s_ = -1e9;
    void set_modifiers(int mods);
    void set_button(const InputEvent& event);
};

/// Returns true while a text field is edited.
bool text_field_active();
int n_open_popups();
/// Closes the innermost menu, list or popup.
void close_top_popup();
/// Returns whether a window of this title, or a part of it, has the focus.
bool has_focus(std::string_view title);
/// Scrolls the window that has the focus, or the part of it that scrolls most, by an arrow key, Page Up, Page
/// Down, Home or End.
void scroll_focused(int key_code);
/// Ends editing; the field keeps the typed text.
void leave_text_field();

}  // namespace keyhole
