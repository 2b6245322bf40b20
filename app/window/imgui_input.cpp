#include "app/window/imgui_input.h"

#include "app/state/keys.h"
#include "app/view/glyphs.h"
#include "engine/base/index.h"

#define GLFW_INCLUDE_NONE
#include <GLFW/glfw3.h>
#include <backends/imgui_impl_glfw.h>
#include <imgui_internal.h>

#include <algorithm>
#include <cfloat>
#include <functional>
#include <iterator>
#include <utility>

namespace keyhole {

namespace {

const ImVec2 kNowhere{-FLT_MAX, -FLT_MAX};
constexpr double kDoubleClickS = 0.3;

#if IMGUI_VERSION_NUM >= 18900
/// The keys that Dear ImGui uses.
constexpr std::array kKeys = {std::pair{GLFW_KEY_TAB, ImGuiKey_Tab},
                              std::pair{GLFW_KEY_LEFT, ImGuiKey_LeftArrow},
                              std::pair{GLFW_KEY_RIGHT, ImGuiKey_RightArrow},
                              std::pair{GLFW_KEY_UP, ImGuiKey_UpArrow},
                              std::pair{GLFW_KEY_DOWN, ImGuiKey_DownArrow},
                              std::pair{GLFW_KEY_PAGE_UP, ImGuiKey_PageUp},
                              std::pair{GLFW_KEY_PAGE_DOWN, ImGuiKey_PageDown},
                              std::pair{GLFW_KEY_HOME, ImGuiKey_Home},
                              std::pair{GLFW_KEY_END, ImGuiKey_End},
                              std::pair{GLFW_KEY_INSERT, ImGuiKey_Insert},
                              std::pair{GLFW_KEY_DELETE, ImGuiKey_Delete},
                              std::pair{GLFW_KEY_BACKSPACE, ImGuiKey_Backspace},
                              std::pair{GLFW_KEY_SPACE, ImGuiKey_Space},
                              std::pair{GLFW_KEY_ENTER, ImGuiKey_Enter},
                              std::pair{GLFW_KEY_KP_ENTER, ImGuiKey_KeypadEnter},
                              std::pair{GLFW_KEY_A, ImGuiKey_A},
                              std::pair{GLFW_KEY_C, ImGuiKey_C},
                              std::pair{GLFW_KEY_V, ImGuiKey_V},
                              std::pair{GLFW_KEY_X, ImGuiKey_X},
                              std::pair{GLFW_KEY_Y, ImGuiKey_Y},
                              std::pair{GLFW_KEY_Z, ImGuiKey_Z}};

void set_key(const InputEvent& event) {
    for (const auto& [code, key] : kKeys)
        if (code == event.code) ImGui::GetIO().AddKeyEvent(key, event.is_press());
}
#else
void set_key(const InputEvent& event) {
    ImGuiIO& io = ImGui::GetIO();
    if (event.code >= 0 && event.code < IM_ARRAYSIZE(io.KeysDown)) io.KeysDown[event.code] = event.is_press();
}
#endif

}  // namespace

ImGuiInput::ImGuiInput([[maybe_unused]] GLFWwindow* window) : pointer_(kNowhere) {
#if IMGUI_VERSION_NUM >= 18900
    // Without this the backend queries the pointer once a frame.
    ImGui_ImplGlfw_CursorEnterCallback(window, GLFW_TRUE);
    ImGui::GetIO().ConfigInputTrickleEventQueue = false;  // InputQueue spreads events over frames
#endif
}

void ImGuiInput::set_modifiers(int mods) {
    ImGuiIO& io = ImGui::GetIO();
    const bool shift = (mods & GLFW_MOD_SHIFT) != 0, ctrl = (mods & GLFW_MOD_CONTROL) != 0,
               alt = (mods & GLFW_MOD_ALT) != 0, super = (mods & GLFW_MOD_SUPER) != 0;
#if IMGUI_VERSION_NUM >= 18900
    io.AddKeyEvent(ImGuiMod_Shift, shift);
    io.AddKeyEvent(ImGuiMod_Ctrl, ctrl);
    io.AddKeyEvent(ImGuiMod_Alt, alt);
    io.AddKeyEvent(ImGuiMod_Super, super);
#else
    io.KeyShift = shift, io.KeyCtrl = ctrl, io.KeyAlt = alt, io.KeySuper = super;
#endif
}

void ImGuiInput::set_button(const InputEvent& event) {
    const bool press = event.action == InputEvent::Action::press;
    const auto button = to_index(event.code);
    if (button >= buttons_.size()) return;
    // A double-click depends on the times of the clicks, not on the times of slow frames.
    if (press)
        ImGui::GetIO().MouseDoubleClickTime =
            event.time_s - std::exchange(pressed_at_s_, event.time_s) < kDoubleClickS ? FLT_MAX : 0;
    buttons_[button] = press;
#if IMGUI_VERSION_NUM >= 18900
    ImGui::GetIO().AddMouseButtonEvent(event.code, press);
#endif
}

void ImGuiInput::hand_over(std::span<const InputEvent> frame) {
    ImGuiIO& io = ImGui::GetIO();
    for (const InputEvent& event : frame) {
        set_modifiers(event.mods);
        switch (event.kind) {
            case InputEvent::Kind::move:
                pointer_ = {static_cast<float>(event.x), static_cast<float>(event.y)};
                break;
            case InputEvent::Kind::leave:
                if (std::ranges::none_of(buttons_, std::identity{})) pointer_ = kNowhere;
                break;
            case InputEvent::Kind::button:
                set_button(event);
                break;
            case InputEvent::Kind::wheel:
#if IMGUI_VERSION_NUM >= 18900
                io.AddMouseWheelEvent(static_cast<float>(event.x), static_cast<float>(event.y));
#else
                io.MouseWheelH += static_cast<float>(event.x);
                io.MouseWheel += static_cast<float>(event.y);
#endif
                break;
            case InputEvent::Kind::key:
                set_key(event);
                break;
            case InputEvent::Kind::text:
                break;
        }
        if (event.character != 0) io.AddInputCharactersUTF8(for_field(event.character).c_str());
    }
#if IMGUI_VERSION_NUM >= 18900
    io.AddMousePosEvent(pointer_.x, pointer_.y);
#else
    io.MousePos = pointer_;
    std::copy(buttons_.begin(), buttons_.end(), std::begin(io.MouseDown));
#endif
}

bool text_field_active() {
    return ImGui::GetActiveID() != 0 && ImGui::GetInputTextState(ImGui::GetActiveID()) != nullptr;
}

int n_open_popups() {
    return ImGui::GetCurrentContext()->OpenPopupStack.Size;
}

void close_top_popup() {
    // A list within a menu closes with its menu: under the pointer, it would open again at once.
    const auto& popups = ImGui::GetCurrentContext()->OpenPopupStack;
    int level = popups.Size - 1;
    while (level > 0 && popups[level].Window != nullptr &&
           (popups[level].Window->Flags & ImGuiWindowFlags_ChildMenu) != 0)
        --level;
    ImGui::ClosePopupToLevel(level, true);
}

bool has_focus(std::string_view title) {
    const ImGuiWindow* focused = ImGui::GetCurrentContext()->NavWindow;
    return focused != nullptr && title == focused->RootWindow->Name;
}

void scroll_focused(int key_code) {
    const ImGuiContext& gui = *ImGui::GetCurrentContext();
    if (gui.NavWindow == nullptr) return;
    ImGuiWindow* page = gui.NavWindow->RootWindow;
    for (ImGuiWindow* window : gui.Windows)
        if (window->WasActive && window->RootWindow == gui.NavWindow->RootWindow &&
            window->ScrollMax.y > page->ScrollMax.y)
            page = window;
    constexpr float kLines = 3;
    const float line = kLines * gui.FontSize, screen = page->InnerRect.GetHeight() - line;
    const float to = key_code == key::kHome       ? 0
                     : key_code == key::kEnd      ? page->ScrollMax.y
                     : key_code == key::kUp       ? page->Scroll.y - line
                     : key_code == key::kDown     ? page->Scroll.y + line
                     : key_code == key::kPageUp   ? page->Scroll.y - screen
                     : key_code == key::kPageDown ? page->Scroll.y + screen
                                                  : page->Scroll.y;
    ImGui::SetScrollY(page, std::clamp(to, 0.0f, page->ScrollMax.y));
}

void leave_text_field() {
    ImGui::ClearActiveID();
}

}  // namespace keyhole
