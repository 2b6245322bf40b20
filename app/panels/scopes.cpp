#include "app/panels/scopes.h"

#include "app/gl/imgui_compat.h"
#include "app/gl/theme.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

namespace {

// Keys of what a list stores in its window.
constexpr ImGuiID kMarked = 1, kCount = 2;

}  // namespace

ScopedCombo::ScopedCombo(const char* id, const char* preview, ImGuiComboFlags flags)
    : open_(ImGui::BeginCombo(id, preview, flags)) {
    if (!open_) return;
    ImGuiStorage& storage = *ImGui::GetStateStorage();
    appears_ = ImGui::IsWindowAppearing();
    marked_ = appears_ ? -1 : storage.GetInt(kMarked, -1);
    // The entries of this frame are not drawn yet; the list seldom changes while it is open.
    const int last = storage.GetInt(kCount) - 1, before = marked_;
    const auto pressed = [](ImGuiKey key) { return imgui_compat::is_pressed(key); };
    if (pressed(ImGuiKey_DownArrow)) marked_ = std::min(marked_ + 1, last);
    if (pressed(ImGuiKey_UpArrow)) marked_ = marked_ < 0 ? last : std::max(marked_ - 1, 0);
    if (pressed(ImGuiKey_Home)) marked_ = std::min(0, last);
    if (pressed(ImGuiKey_End)) marked_ = last;
    moved_ = marked_ != before;
    enter_ = !appears_ && (pressed(ImGuiKey_Enter) || pressed(imgui_compat::kKeypadEnter));
}

ScopedCombo::~ScopedCombo() {
    if (!open_) return;
    ImGuiStorage& storage = *ImGui::GetStateStorage();
    storage.SetInt(kMarked, marked_);
    storage.SetInt(kCount, n_items_);
    ImGui::EndCombo();
}

bool ScopedCombo::item(const char* label, bool chosen) {
    const int index = n_items_++;
    if (appears_ && chosen && marked_ < 0) marked_ = index;
    bool takes = ImGui::Selectable(label, chosen);
    const ImVec2 moved = ImGui::GetIO().MouseDelta;
    if (ImGui::IsItemHovered() && (moved.x != 0 || moved.y != 0)) marked_ = index;
    if (index != marked_) return takes;
    ImGui::GetWindowDrawList()->AddRect(ImGui::GetItemRectMin(), ImGui::GetItemRectMax(),
                                        theme::colors().accent);
    if (moved_ || appears_) ImGui::SetScrollHereY();
    if (enter_) {
        ImGui::CloseCurrentPopup();
        takes = true;
    }
    return takes;
}

ScopedChild::ScopedChild(const char* id, ImVec2 size, bool border, ImGuiWindowFlags flags)
    : color_(ImGui::GetColorU32(ImGuiCol_ChildBg)) {
    const bool is_filled =
        outer_ != nullptr && outer_->list_ == ImGui::GetWindowDrawList() && outer_->color_ == color_;
    ImGui::BeginChild(id, size, border, flags | (is_filled ? ImGuiWindowFlags_NoBackground : 0));
    list_ = ImGui::GetWindowDrawList();
    innermost_ = this;
}

ScopedChild::~ScopedChild() {
    innermost_ = outer_;
    ImGui::EndChild();
}

bool combo(const char* id, int& index, std::span<const char* const> names) {
    const int before = index;
    ScopedCombo list(id, names[to_index(index)]);
    if (!list.open()) return false;
    for (int i = 0; i < static_cast<int>(names.size()); ++i)
        if (list.item(names[to_index(i)], i == before)) index = i;
    return index != before;
}

}  // namespace keyhole
