#include "app/panels/formula_field.h"

#include "app/gl/imgui_compat.h"
#include "app/panels/policy_widgets.h"
#include "engine/base/index.h"

#include <imgui_internal.h>
#include <imgui_stdlib.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace keyhole {

namespace {

constexpr int kMostWords = 6;  // of a list, in sight

FormulaText PolicyParams::*member_of(const LaneOption& option) {
    return std::get<FormulaText PolicyParams::*>(option.member);
}

/// Returns the fault of a text; at npos: one of the lane's options together.
FormulaFault fault_of(const PolicyEditor& edit, const LaneOption& option, const std::string& text) {
    FormulaFault fault;
    (void)formula_of(option, {text}, formula_setting(edit.policy), &fault);
    if (!fault.what.empty() || option.fault == nullptr) return fault;
    PolicyParams with = edit.policy;
    (with.*member_of(option)).text = text;
    return {std::string::npos, option.fault(with)};
}

bool is_of(const FormulaField& field, const PolicyEditor& edit, const LaneOption& option) {
    return field.option == option.name && field.lane == edit.lane;
}

/// Puts a word in the place of the one at the cursor.
void insert_word(FormulaField& field, ImGuiInputTextCallbackData* data) {
    const FormulaWords& words = field.words;
    const std::string& word = words.words[to_index(field.marked)].text;
    field.text.replace(words.begin, words.end - words.begin, word);
    field.cursor = words.begin + word.size();
    field.offers = false;
    if (data == nullptr) return;
    data->DeleteChars(static_cast<int>(words.begin), static_cast<int>(words.end - words.begin));
    data->InsertChars(static_cast<int>(words.begin), word.c_str());
    data->CursorPos = data->SelectionStart = data->SelectionEnd = static_cast<int>(field.cursor);
}

void move_mark(FormulaField& field, int by) {
    const int n = static_cast<int>(field.words.words.size());
    if (field.offers && n > 0) field.marked = (field.marked + by + n) % n;
}

int take_key(ImGuiInputTextCallbackData* data) {
    FormulaField& field = *static_cast<FormulaField*>(data->UserData);
    if (data->EventFlag == ImGuiInputTextFlags_CallbackHistory) {
        move_mark(field, data->EventKey == ImGuiKey_UpArrow ? -1 : 1);
    } else if (data->EventFlag == ImGuiInputTextFlags_CallbackCompletion) {
        if (field.offers)
            insert_word(field, data);
        else
            field.leaves = true;
    } else if (field.takes_focus) {  // a clicked word is in: go on behind it
        data->CursorPos = data->SelectionStart = data->SelectionEnd = static_cast<int>(field.cursor);
        field.takes_focus = false;
    }
    field.cursor = to_index(data->CursorPos);
    return 0;
}

/// Underlines the faulty word in the field that was drawn last. scroll: of the text, in pixels.
void mark_fault(const PanelContext& context, const std::string& text, std::size_t at, float scroll) {
    const ImVec2 min = ImGui::GetItemRectMin(), max = ImGui::GetItemRectMax();
    const std::size_t end = end_of_fault(text, at);
    const auto width_to = [&](std::size_t n) {
        const float shown = ImGui::CalcTextSize(text.c_str(), text.c_str() + std::min(n, text.size())).x;
        return shown + (n > text.size() ? ImGui::CalcTextSize("x").x : 0);
    };
    const float pad = ImGui::GetStyle().FramePadding.x, start = min.x + pad - scroll;
    const float least = context.px(4);  // seen also where the text is scrolled
    const float left = std::clamp(start + width_to(at), min.x + pad, max.x - pad - least),
                right = std::clamp(start + width_to(end), left + least, max.x);
    const float y = max.y - context.px(3);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImU32 color = theme::colors().fault;
    list.AddRectFilled({left, y}, {right, y + context.px(2)}, color);
    list.AddTriangleFilled({left, max.y + context.px(4)}, {left + context.px(6), max.y + context.px(4)},
                           {left + context.px(3), max.y - context.px(1)}, color);
    mark_area(context, "formula fault mark", {left, y}, {right, y + context.px(2)});
}

/// Takes a click on a word of the list, which ends the field's activity in this frame.
bool takes_click(const FormulaField& field) {
    return field.offers && ImGui::IsMouseClicked(0) &&
           ImGui::IsMouseHoveringRect(field.list_min, field.list_max);
}

void edit_text(PolicyEditor& edit, FormulaField& field, const LaneOption& option, const std::string& before) {
    const std::optional<FormulaUse> use = use_of(option);
    if (std::exchange(edit.context.shared.closes_word_list, false)) field.offers = false;
    if (field.text != before) {
        field.offers = true;
        field.marked = 0;
    }
    if (!field.offers || !use) return;
    field.words = words_at(field.text, field.cursor, *use, edit.policy.spans.text);
    field.offers = !field.words.words.empty();
    field.marked = std::min(field.marked, std::max(static_cast<int>(field.words.words.size()) - 1, 0));
}

/// Returns the index of the first word in sight: the marked one is.
int first_in_sight(const FormulaField& field) {
    const int n = static_cast<int>(field.words.words.size());
    return std::clamp(field.marked - kMostWords + 1, 0, std::max(n - kMostWords, 0));
}

/// Draws the words, the marked one among them.
void draw_words(const PolicyEditor& edit, FormulaField& field) {
    const PanelContext& context = edit.context;
    const ScopedFont font(context.fonts.small);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const int n = static_cast<int>(field.words.words.size());
    const int first = first_in_sight(field);
    const float line = ImGui::GetTextLineHeight() + context.px(4), pad = context.px(5);
    field.list_min = ImGui::GetCursorScreenPos();
    const int last = std::min(n, first + kMostWords);
    field.list_max = {edit.right, field.list_min.y + line * static_cast<float>(last - first)};
    list.AddRectFilled(field.list_min, field.list_max, theme::colors().inset, context.px(3));
    list.AddRect(field.list_min, field.list_max, theme::colors().line, context.px(3));
    for (int i = first; i < last; ++i) {
        const FormulaWord& word = field.words.words[to_index(i)];
        const ImVec2 at(field.list_min.x, field.list_min.y + line * static_cast<float>(i - first));
        const ImVec2 end(edit.right, at.y + line);
        const bool hovered = ImGui::IsMouseHoveringRect(at, end);
        if (i == field.marked) list.AddRectFilled(at, end, theme::colors().lit, context.px(3));
        const ImU32 color = i == field.marked ? theme::colors().on_lit : theme::colors().text;
        const std::string form(word.form.empty() ? std::string_view(word.text) : word.form);
        list.AddText({at.x + pad, at.y + context.px(2)}, color, form.c_str());
        const float x = at.x + pad + ImGui::CalcTextSize(form.c_str()).x + context.px(8);
        list.AddText({x, at.y + context.px(2)}, i == field.marked ? color : theme::colors().dim,
                     fitted(word.help, edit.right - pad - x).c_str());
        mark_area(context, "formula word " + word.text, at, end);
        if (hovered) show_tooltip(context, fmt::format("{}: {}", form, word.help));
    }
    ImGui::Dummy({edit.right - field.list_min.x, field.list_max.y - field.list_min.y});
}

/// Returns the index of the word under the pointer.
int word_at_pointer(const FormulaField& field) {
    const int n = static_cast<int>(field.words.words.size());
    const int first = first_in_sight(field);
    const int in_sight = std::min(n, kMostWords);
    const float share =
        (ImGui::GetMousePos().y - field.list_min.y) / std::max(field.list_max.y - field.list_min.y, 1.0f);
    return std::clamp(first + static_cast<int>(share * static_cast<float>(in_sight)), 0, n - 1);
}

bool is_enter_pressed() {
    return imgui_compat::is_pressed(ImGuiKey_Enter) || imgui_compat::is_pressed(imgui_compat::kKeypadEnter);
}

/// The field was left: a good text is applied, one with a fault stays.
void leave(PolicyEditor& edit, FormulaField& field, const LaneOption& option, FormulaText& value) {
    const std::string& kept = (edit.in_force.*member_of(option)).text;
    field.edited = field.offers = false;
    field.holds = !fault_of(edit, option, field.text).what.empty();
    field.in_force = kept;
    if (field.holds)
        value.text = kept;
    else
        edit.committed = true;
}

}  // namespace

void draw_formula_field(PolicyEditor& edit, const LaneOption& option, FormulaText& value, float width) {
    FormulaField& field = edit.formula_field;
    const bool was_own = is_of(field, edit, option);
    const bool keeps = was_own && (field.edited || (field.holds && field.in_force == value.text));
    if (was_own && !keeps) field = {};
    std::string text = keeps ? field.text : value.text;
    const std::string before = text;
    if (was_own && field.takes_focus && !ImGui::IsMouseDown(0)) ImGui::SetKeyboardFocusHere();
    FormulaField idle;  // takes the keys of a field that gets active only in this frame
    ImGui::SetNextItemWidth(width);
    ImGui::InputText(fmt::format("##{}", option.name).c_str(), &text,
                     ImGuiInputTextFlags_CallbackCompletion | ImGuiInputTextFlags_CallbackHistory |
                         ImGuiInputTextFlags_CallbackAlways,
                     take_key, keeps ? &field : &idle);
    const bool is_active = ImGui::IsItemActive(), ended = ImGui::IsItemDeactivated();
    if (is_active && !keeps)
        field = {.option = std::string(option.name), .lane = edit.lane, .cursor = idle.cursor};
    const bool is_left = keeps && field.edited && !is_active && !ended && !field.takes_focus && !field.leaves;
    if (is_left) {  // by Escape
        field = {};
    } else if (is_active || (keeps && field.edited)) {
        field.text = text;
        field.edited = true;
        field.holds = false;
        edit.active = true;
        edit_text(edit, field, option, before);
        value.text = text;
    }
    if (ended && keeps && takes_click(field)) {
        field.marked = word_at_pointer(field);
        insert_word(field, nullptr);
        value.text = field.text;
        field.takes_focus = true;
    } else if (ended && keeps && is_enter_pressed() && !fault_of(edit, option, field.text).what.empty()) {
        field.takes_focus = true;  // what is typed next mends the fault
    } else if (ended && keeps && !field.takes_focus) {
        leave(edit, field, option, value);
    }
    edit.context.shared.word_list |= field.offers && is_of(field, edit, option);
    if (std::exchange(field.leaves, false)) ImGui::SetKeyboardFocusHere();
    const FormulaFault fault = fault_of(edit, option, text);
    if (fault.what.empty() || fault.at > text.size()) return;
    const ImGuiInputTextState* state = is_active ? ImGui::GetInputTextState(ImGui::GetItemID()) : nullptr;
    mark_fault(edit.context, text, fault.at, state != nullptr ? state->ScrollX : 0);
}

std::string brief_fault(const FormulaFault& fault) {
    // The nearest word stands before the list of all names, which is the tooltip's.
    const std::string brief = fault.what.substr(0, fault.what.find(" ("));
    return fault.at == std::string::npos ? brief : fmt::format("character {}: {}", fault.at + 1, brief);
}

void draw_below_formula(PolicyEditor& edit, const LaneOption& option) {
    FormulaField& field = edit.formula_field;
    if (!is_of(field, edit, option) || !(field.edited || field.holds)) return;
    const FormulaFault fault = fault_of(edit, option, field.text);
    if (!fault.what.empty()) {
        small_words(edit.context, brief_fault(fault), theme::colors().fault);
        mark_item(edit.context, "formula fault");
        tooltip(edit.context, fault.what);
    }
    if (field.offers) draw_words(edit, field);
    if (use_of(option))
        draw_formula_plot(field.plot, edit.context, edit.lane, option, edit.policy, field.text, edit.right);
}

}  // namespace keyhole
