#include "app/gl/imgui_items.h"

#include <imgui.h>
#include <imgui_internal.h>

#include <string_view>

namespace keyhole {

namespace {

/// Returns the flags of the last item, whose name changed in 1.91.9.
template <class Data>
int flags_of(const Data& data) {
    if constexpr (requires { data.ItemFlags; })
        return data.ItemFlags;
    else
        return data.InFlags;
}

/// Hides the frame around the item that the arrow keys are at; its field changed in 1.91.4.
template <class Context>
void hide_item_frame(Context& gui) {
    if constexpr (requires { gui.NavCursorVisible; })
        gui.NavCursorVisible = false;
    else
        gui.NavDisableHighlight = true;
}

}  // namespace

LastItem last_item() {
    const ImGuiContext& gui = *ImGui::GetCurrentContext();
    const int flags = flags_of(gui.LastItemData);
    return {gui.LastItemData.ID, (flags & ImGuiItemFlags_Inputable) != 0,
            (flags & ImGuiItemFlags_Disabled) == 0, gui.CurrentWindow->ID,
            gui.CurrentWindow->RootWindow->Name};
}

unsigned active_item() {
    return ImGui::GetCurrentContext()->ActiveId;
}

void press_item(unsigned id, bool takes_text) {
    ImGuiContext& gui = *ImGui::GetCurrentContext();
    gui.NavNextActivateId = id;
    gui.NavNextActivateFlags = takes_text ? ImGuiActivateFlags_PreferInput : ImGuiActivateFlags_None;
}

void scroll_to_last_item() {
    const ImGuiWindow& window = *ImGui::GetCurrentContext()->CurrentWindow;
    const ImVec2 low = ImGui::GetItemRectMin(), high = ImGui::GetItemRectMax();
    if (low.y < window.InnerRect.Min.y || high.y > window.InnerRect.Max.y)
        ImGui::SetScrollFromPosY((low.y + high.y) / 2 - window.Pos.y, 0.5f);
    if (low.x < window.InnerRect.Min.x || high.x > window.InnerRect.Max.x)
        ImGui::SetScrollFromPosX((low.x + high.x) / 2 - window.Pos.x, 0.5f);
}

void let_keys_move_in_menus() {
    ImGuiContext& gui = *ImGui::GetCurrentContext();
    bool in_menu = false;
    for (const ImGuiPopupData& popup : gui.OpenPopupStack)  // lists that drop down have keys of their own
        in_menu = popup.Window != nullptr && !std::string_view(popup.Window->Name).starts_with("##Combo");
    if (in_menu) {
        gui.IO.ConfigFlags |= ImGuiConfigFlags_NavEnableKeyboard;
        return;
    }
    gui.IO.ConfigFlags &= ~ImGuiConfigFlags_NavEnableKeyboard;
    hide_item_frame(gui);
}

bool keys_move_in_menu() {
    return (ImGui::GetIO().ConfigFlags & ImGuiConfigFlags_NavEnableKeyboard) != 0;
}

}  // namespace keyhole
