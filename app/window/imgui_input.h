/// Hands what a person did to Dear ImGui, in place of its GLFW backend, which samples pointer and keys once a frame. The one file that
/// knows how versions of Dear ImGui take input. Window thread.
#pragma once

#include "app/window/input_queue.h"

#include <imgui.h>

#include <array>
#include <span>

struct GLFWwindow;

namespace keyhole {

class ImGuiInput {
  public:
    /// After ImGui_ImplGlfw_InitForOpenGL(window, false): the backend makes cursors and sizes, and samples nothing.
    explicit ImGuiInput(GLFWwindow* window);
    /// Between ImGui_ImplGlfw_NewFrame and ImGui::NewFrame, in each frame: the events that are for ImGui.
    void hand_over(std::span<const InputEvent> frame);

  private:
    ImVec2 pointer_;
    std::array<bool, 5> buttons_{};
    double pressed_at_s_ = -1e9;
    void set_modifiers(int mods);
    void set_button(const InputEvent& event);
};

/// A text field is being edited.
bool text_field_active();
int n_open_popups();
/// The innermost menu, list or popup.
void close_top_popup();
/// The field keeps what was typed.
void leave_text_field();

}  // namespace keyhole
