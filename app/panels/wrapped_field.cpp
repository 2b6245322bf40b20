#include "app/panels/wrapped_field.h"

#include "engine/base/index.h"

#include <imgui_stdlib.h>

namespace keyhole {

namespace {

/// Wraps the lines to the field's width.
int break_lines(ImGuiInputTextCallbackData* data) {
    WrappedField& field = *static_cast<WrappedField*>(data->UserData);
    if (data->EventFlag == ImGuiInputTextFlags_CallbackEdit) {
        const std::string_view now(data->Buf, to_index(data->BufTextLen));
        const std::size_t cursor =
            field.lines.edited(now, field.cursor, to_index(data->CursorPos), drawn_width);
        if (now != field.lines.shown()) {
            data->DeleteChars(0, data->BufTextLen);
            data->InsertChars(0, field.lines.shown().c_str());
            data->CursorPos = data->SelectionStart = data->SelectionEnd = static_cast<int>(cursor);
        }
    }
    field.cursor = to_index(data->CursorPos);
    return 0;
}

}  // namespace

float drawn_width(std::string_view text) {
    return ImGui::CalcTextSize(text.data(), text.data() + text.size()).x;
}

float room_for_lines(float field_width) {
    return field_width - 2 * ImGui::GetStyle().FramePadding.x - ImGui::GetStyle().ScrollbarSize;
}

void draw_wrapped_field(const char* id, WrappedField& field, std::string shown, ImVec2 size) {
    ImGui::InputTextMultiline(id, &shown, size,
                              ImGuiInputTextFlags_CallbackEdit | ImGuiInputTextFlags_CallbackAlways |
                                  ImGuiInputTextFlags_NoUndoRedo,
                              break_lines, &field);
}

}  // namespace keyhole
