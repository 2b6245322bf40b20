#include "app/panels/panel.h"

#include "app/actions/menus.h"
#include "app/gl/imgui_items.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/base/wrapped_lines.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace keyhole {

namespace {

void draw_batch(const ImDrawList*, const ImDrawCmd* command) {
    const auto& batch = *static_cast<const HeatBatch*>(command->UserCallbackData);
    const ImVec4& clip = command->ClipRect;
    batch.painter->draw_kept(batch.quads, batch.frame_height,
                             {clip.x * batch.scale.x, clip.y * batch.scale.y,
                              (clip.z - clip.x) * batch.scale.x, (clip.w - clip.y) * batch.scale.y});
}

}  // namespace

PixelRect frame_rect(const PanelContext& context, ImVec2 min, ImVec2 max) {
    return {min.x * context.frame_scale.x, min.y * context.frame_scale.y,
            (max.x - min.x) * context.frame_scale.x, (max.y - min.y) * context.frame_scale.y};
}

std::uint64_t keep_picture(const ImDrawCmd& command) {
    const auto& batch = *static_cast<const HeatBatch*>(command.UserCallbackData);
    const ImU32 c = theme::colors().panel;
    const Rgb8 background{static_cast<std::uint8_t>(c >> IM_COL32_R_SHIFT),
                          static_cast<std::uint8_t>(c >> IM_COL32_G_SHIFT),
                          static_cast<std::uint8_t>(c >> IM_COL32_B_SHIFT)};
    if (!batch.painter->keep(batch.quads, batch.frame_width, batch.frame_height, background,
                             batch.shared->panes_may_lag))
        batch.shared->panes_lag = true;
    return batch.painter->kept_number(batch.quads);
}

void paint_heat(const PanelContext& context, HeatPainter& painter, ImDrawList& list,
                std::vector<HeatQuad> quads) {
    const ImGuiIO& io = ImGui::GetIO();
    const PixelRect clip = frame_rect(context, list.GetClipRectMin(), list.GetClipRectMax());
    for (HeatQuad& quad : quads) quad.clip = clip;
    HeatBatch& batch = context.shared.batches.emplace_back();
    batch.painter = &painter;
    batch.shared = &context.shared;
    batch.quads = std::move(quads);
    batch.scale = context.frame_scale;
    batch.frame_width = io.DisplaySize.x * context.frame_scale.x;
    batch.frame_height = io.DisplaySize.y * context.frame_scale.y;
    list.AddCallback(draw_batch, &batch);
    list.AddCallback(ImDrawCallback_ResetRenderState, nullptr);
}

void run(const PanelContext& context, std::string_view text) {
    context.run_action(text);
}

void pick(const PanelContext& context, Pick cell, bool adds) {
    run(context, fmt::format("pick {} {} {}", cell.row, cell.position, adds ? "add" : "only"));
}

namespace {

constexpr float kTooltipWidth = 340;

/// Places the next tooltip where it hides neither the last item nor its neighbours: beside a narrow pane, a
/// list or a menu, where items stand one below the other; else below the item, or above it. On a large item
/// it stays at the pointer.
void place_tooltip(const PanelContext& context, std::string_view text) {
    const ImVec2 low = ImGui::GetItemRectMin(), high = ImGui::GetItemRectMax(),
                 screen = ImGui::GetIO().DisplaySize, pad = ImGui::GetStyle().WindowPadding;
    const ImVec2 window = ImGui::GetWindowPos();
    const float right = window.x + ImGui::GetWindowWidth(), gap = context.px(6);
    const bool tall = high.y - low.y > context.px(70), wide = high.x - low.x > context.px(120);
    if (tall && wide) return;
    const ScopedFont font(context.fonts.book);
    const ImVec2 words =
        ImGui::CalcTextSize(text.data(), text.data() + text.size(), false, context.px(kTooltipWidth) - pad.x);
    const ImVec2 size(words.x + 2 * pad.x, words.y + 2 * pad.y);
    const float y = std::clamp(low.y, gap, std::max(gap, screen.y - size.y - gap));
    const bool narrow = right - window.x < context.px(460);
    const float from = narrow ? window.x : low.x, to = narrow ? right : high.x;
    if (narrow || tall) {
        if (to + gap + size.x <= screen.x) return ImGui::SetNextWindowPos({to + gap, y});
        if (from - gap - size.x >= 0) return ImGui::SetNextWindowPos({from - gap - size.x, y});
    }
    const float x = std::clamp(low.x, gap, std::max(gap, screen.x - size.x - gap));
    const bool below = high.y + gap + size.y <= screen.y;
    ImGui::SetNextWindowPos({x, below ? high.y + gap : low.y - gap}, ImGuiCond_Always,
                            {0, below ? 0.0f : 1.0f});
}

}  // namespace

namespace {

/// Returns whether a question hides what the pointer is at: a tooltip would say it. Menus lie above covers.
bool is_covered(const PanelShared& shared) {
    if (ImGui::IsPopupOpen("", ImGuiPopupFlags_AnyPopup)) return false;
    return std::ranges::any_of(shared.covers, [](const ImVec4& cover) {
        return ImGui::IsMouseHoveringRect({cover.x, cover.y}, {cover.z, cover.w}, false);
    });
}

}  // namespace

void tooltip(const PanelContext& context, std::string_view text) {
    std::optional<ImVec4>& pressed = context.shared.pressed;
    if (pressed && !ImGui::IsMouseHoveringRect({pressed->x, pressed->y}, {pressed->z, pressed->w}, false))
        pressed.reset();
    if (!ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled)) return;
    // What a press changes is often below, where the tooltip would hide it.
    if (ImGui::IsItemActive()) {
        const ImVec2 low = ImGui::GetItemRectMin(), high = ImGui::GetItemRectMax();
        pressed = {low.x, low.y, high.x, high.y};
    }
    if (pressed) return;
    place_tooltip(context, text);
    show_tooltip(context, text);
}

void show_tooltip(const PanelContext& context, std::string_view text) {
    if (is_covered(context.shared)) return;
    const ScopedVar opaque(ImGuiStyleVar_Alpha, 1);  // that of a disabled item would show what is behind it
    const ScopedTooltip tip;
    const ImVec2 at = ImGui::GetWindowPos(), size = ImGui::GetWindowSize();
    mark_area(context, "tooltip", at, {at.x + size.x, at.y + size.y});
    const ScopedFont font(context.fonts.book);
    const ScopedTextWrap wrap(context.px(kTooltipWidth));
    ImGui::TextUnformatted(text.data(), text.data() + text.size());
}

std::string pane_at(const PanelShared& shared, ImVec2 at) {
    constexpr std::string_view kPrefix = "pane ";
    for (const auto& [name, item] : shared.items)
        if (name.starts_with(kPrefix) && at.x >= item.min.x && at.x < item.max.x && at.y >= item.min.y &&
            at.y < item.max.y)
            return name.substr(kPrefix.size());
    return "";
}

namespace {

/// Draws the ring of the keyboard around the last item, and scrolls to it when the ring comes.
void draw_ring(const PanelContext& context, std::string_view name) {
    if (context.shared.tabs.takes_sight(name)) {
        scroll_to_last_item();
        context.shared.panes_lag = true;
    }
    const ImVec2 low = ImGui::GetItemRectMin(), high = ImGui::GetItemRectMax();
    const float away = context.px(1);
    ImGui::GetWindowDrawList()->AddRect({low.x - away, low.y - away}, {high.x + away, high.y + away},
                                        theme::colors().accent, context.px(3), 0, context.px(2));
}

void mark_stop(const PanelContext& context, std::string_view name, unsigned id, bool takes_text) {
    mark_plot(context, name);
    const LastItem item = last_item();
    if (id == 0 || !item.is_enabled) return;
    context.shared.tabs.add({std::string(name), id, takes_text, item.window, item.root_window});
    if (name == context.shared.tabs.ring()) draw_ring(context, name);
}

}  // namespace

void mark_item(const PanelContext& context, std::string_view name) {
    const LastItem item = last_item();
    mark_stop(context, name, item.id, item.takes_text);
}

void mark_field(const PanelContext& context, std::string_view name, const char* label) {
    mark_stop(context, name, ImGui::GetID(label), true);
}

void mark_plot(const PanelContext& context, std::string_view name) {
    mark_area(context, name, ImGui::GetItemRectMin(), ImGui::GetItemRectMax());
}

void mark_area(const PanelContext& context, std::string_view name, ImVec2 min, ImVec2 max) {
    const ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 low = list.GetClipRectMin(), high = list.GetClipRectMax();
    context.shared.items[std::string(name)] = {min,
                                               max,
                                               {std::max(min.x, low.x), std::max(min.y, low.y)},
                                               {std::min(max.x, high.x), std::min(max.y, high.y)}};
}

std::string capitalised(std::string text) {
    if (!text.empty() && text.front() >= 'a' && text.front() <= 'z')
        text.front() = static_cast<char>(text.front() - 'a' + 'A');
    return text;
}

std::string help_without_arguments(const UserAction& action) {
    const std::size_t colon = action.help.find(": ");
    const std::string_view head = action.help.substr(0, colon);
    // Arguments are in capitals, choices such as on|off, or in brackets, which may hold any word; "or" stands
    // between some.
    bool are_arguments = true;
    int depth = 0;
    std::string word;
    for (const char c : std::string(head) + " ") {
        depth += c == '[' ? 1 : c == ']' ? -1 : 0;
        if (depth > 0 || c == ']') continue;
        if (c != ' ') {
            word += c;
            continue;
        }
        const bool has_small =
            std::ranges::any_of(word, [](char letter) { return letter >= 'a' && letter <= 'z'; });
        are_arguments = are_arguments && (!has_small || word == "or" || word.find('|') != std::string::npos);
        word.clear();
    }
    if (!are_arguments) return std::string(action.help);
    return colon == std::string_view::npos ? "" : capitalised(std::string(action.help.substr(colon + 2)));
}

bool needs_arguments(const UserAction& action) {
    return !action.help.starts_with("[") && help_without_arguments(action) != action.help;
}

void action_tooltip(const PanelContext& context, std::string_view id) {
    if (!ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled)) return;
    const UserAction* action = find_action(id);
    if (action == nullptr) return;
    std::string text(action->title);
    if (action->shortcut.code != 0) text += "   " + shortcut_text(action->shortcut);
    if (const std::string help = help_without_arguments(*action); !help.empty()) text += "\n" + help;
    const ActionState state = action_state(context.app, {action});
    if (!state.possible()) text += "\n" + capitalised(std::string(state.lacks)) + ".";
    tooltip(context, text);
}

bool lit_button(const char* label, bool lit, float width) {
    const ScopedColor background(ImGuiCol_Button, theme::colors().lit, lit),
        hovered(ImGuiCol_ButtonHovered, theme::colors().lit_hovered, lit),
        ink(ImGuiCol_Text, theme::colors().on_lit, lit);
    return ImGui::Button(label, ImVec2(width, 0));
}

bool action_button(const PanelContext& context, std::string_view id, const char* label, bool lit,
                   float width) {
    const UserAction* action = find_action(id);
    const ScopedDisabled disabled(action != nullptr && !action_state(context.app, {action}).possible());
    const bool pressed = lit_button(label, lit, width);
    mark_item(context, id);
    action_tooltip(context, id);
    if (pressed) run(context, id);
    return pressed;
}

bool bar_slider(const PanelContext& context, const char* id, float& value, float low, float high,
                const char* format, ImGuiSliderFlags flags) {
    const ImGuiID typing = ImGui::GetID(id) + 1;
    ImGuiStorage& storage = *ImGui::GetStateStorage();
    bool changed = false;
    {
        const ScopedVar thin(ImGuiStyleVar_FramePadding, {ImGui::GetStyle().FramePadding.x, context.px(1)});
        const ScopedColor hidden(ImGuiCol_Text, 0, !storage.GetBool(typing));
        changed = ImGui::SliderFloat(id, &value, low, high, format, flags | ImGuiSliderFlags_AlwaysClamp);
    }
    storage.SetBool(typing, ImGui::IsItemActive() && ImGui::GetIO().WantTextInput);
    return changed;
}

void next_to(const char* label, float gap) {
    const float width = ImGui::CalcTextSize(label).x + 2 * ImGui::GetStyle().FramePadding.x;
    const float end = ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x;
    if (ImGui::GetItemRectMax().x + gap + width <= end) ImGui::SameLine(0, gap);
}

void dim_text(const PanelContext& context, std::string_view text) {
    const std::string_view part = [&] {
        const ScopedFont font(context.fonts.small);
        const std::string_view fitting = fitting_clauses(text, ImGui::GetContentRegionAvail().x);
        colored_text(theme::colors().dim, fitting);
        return fitting;
    }();
    if (part != text) tooltip(context, text);
}

void colored_text(ImU32 color, std::string_view text) {
    const ScopedColor ink(ImGuiCol_Text, color);
    ImGui::TextUnformatted(text.data(), text.data() + text.size());
}

void small_words(const PanelContext& context, std::string_view text, ImU32 color) {
    const ScopedFont font(context.fonts.small);
    const ScopedColor ink(ImGuiCol_Text, color);
    const float width = ImGui::GetContentRegionAvail().x;
    std::string lines;
    for (const std::string& line : wrapped_lines(text, [&](std::string_view part) {
             return ImGui::CalcTextSize(part.data(), part.data() + part.size()).x <= width;
         }))
        lines += (lines.empty() ? "" : "\n") + line;
    const ScopedTextWrap wrap(0);  // a word may be wider than the panel
    ImGui::TextUnformatted(lines.data(), lines.data() + lines.size());
}

ScopedChild words_child(const PanelContext& context, const char* id, float padding) {
    const ScopedColor background(ImGuiCol_ChildBg, theme::colors().inset);
    const ScopedVar edge(ImGuiStyleVar_WindowPadding, {context.px(8), context.px(padding)});
    return ScopedChild(id, {0, 0}, true, ImGuiWindowFlags_AlwaysUseWindowPadding);
}

ImU32 lane_ink(const PanelContext& context, int lane) {
    return theme::lane_color(context.app.shown().at(lane).look);
}

void heading(const PanelContext& context, std::string_view text, ImU32 color) {
    const ScopedFont font(context.fonts.bold);
    colored_text(color, text);
}

std::string fitted(std::string_view text, float width) {
    const auto wide = [](std::string_view t) { return ImGui::CalcTextSize(t.data(), t.data() + t.size()).x; };
    if (wide(text) <= width) return std::string(text);
    const std::string dots = "…";
    std::size_t low = 0, high = text.size();
    while (low < high) {
        const std::size_t middle = (low + high + 1) / 2;
        if (wide(text.substr(0, middle)) + wide(dots) <= width)
            low = middle;
        else
            high = middle - 1;
    }
    while (low > 0 && (static_cast<unsigned char>(text[low]) & 0xC0) == 0x80)
        --low;  // not inside a character
    return std::string(text.substr(0, low)) + dots;
}

std::string_view fitting_clauses(std::string_view text, float width) {
    const auto fits = [&](std::string_view t) {
        return ImGui::CalcTextSize(t.data(), t.data() + t.size()).x <= width;
    };
    constexpr std::string_view kEnds[] = {" · ", ", ", "; ", " ("};
    while (!text.empty() && !fits(text)) {
        std::size_t end = 0;
        for (const std::string_view mark : kEnds)
            if (const std::size_t at = text.rfind(mark); at != std::string_view::npos)
                end = std::max(end, at);
        text = text.substr(0, end);
    }
    return text;
}

void text_upward(ImDrawList& list, ImVec2 at, ImU32 color, const char* text) {
    at = ImVec2(std::round(at.x), std::round(at.y));
    const int first = list.VtxBuffer.Size;
    // Leaves no character out, since ImGui would test where it stands before it is turned. The scissor clips.
    constexpr float kFar = 1e6f;
    ImGui::GetFont()->RenderText(&list, ImGui::GetFontSize(), at, color, {-kFar, -kFar, kFar, kFar}, text,
                                 text + std::strlen(text));
    for (int i = first; i < list.VtxBuffer.Size; ++i) {
        ImVec2& v = list.VtxBuffer[i].pos;
        v = ImVec2(at.x + (v.y - at.y), at.y - (v.x - at.x));
    }
}

float splitter(const char* id, bool vertical, ImVec2 at, float length, float thickness) {
    ImGui::SetCursorScreenPos(at);
    ImGui::InvisibleButton(id, vertical ? ImVec2(thickness, length) : ImVec2(length, thickness));
    const bool active = ImGui::IsItemActive(), hovered = ImGui::IsItemHovered();
    if (active || hovered)
        ImGui::SetMouseCursor(vertical ? ImGuiMouseCursor_ResizeEW : ImGuiMouseCursor_ResizeNS);
    // A short line in the middle shows where to take hold of the border; under the pointer all of it is
    // drawn.
    const float part = active || hovered ? length : std::min(length, thickness * 8);
    const ImVec2 size = vertical ? ImVec2(2, part) : ImVec2(part, 2);
    const float before = (length - part) / 2;
    const ImVec2 from = vertical ? ImVec2(at.x + thickness / 2 - 1, at.y + before)
                                 : ImVec2(at.x + before, at.y + thickness / 2 - 1);
    const theme::Colors& colors = theme::colors();
    ImGui::GetWindowDrawList()->AddRectFilled(from, ImVec2(from.x + size.x, from.y + size.y),
                                              active    ? colors.accent
                                              : hovered ? colors.dim
                                                        : colors.line);
    // The border stays where the pointer took hold of it, however the movement falls into frames. The frame
    // of the release counts too.
    const float away = vertical ? ImGui::GetMousePos().x - at.x : ImGui::GetMousePos().y - at.y;
    float* hold = ImGui::GetStateStorage()->GetFloatRef(ImGui::GetID(id));
    if (ImGui::IsItemActivated()) *hold = away;
    return active || ImGui::IsItemDeactivated() ? away - *hold : 0;
}

const std::string& token_words(const AppState& app, int id) {
    return app.glyphs.token(app.run.history.run(), id);
}

const std::string& token_words(const AppState& app, int lane, int position) {
    static const std::string kNothing;
    const std::vector<int>& tokens = app.run.history.lanes()[to_index(lane)].tokens;
    if (position < 0 || to_index(position) >= tokens.size()) return kNothing;
    return token_words(app, tokens[to_index(position)]);
}

std::string visible(std::string_view token) {
    if (token.empty() || token.find_first_not_of(' ') != std::string_view::npos) return std::string(token);
    std::string text;
    for (std::size_t i = 0; i < token.size(); ++i) text += "␣";
    return text;
}

std::string bytes_text(std::int64_t bytes) {
    const double b = static_cast<double>(bytes);
    if (b < 1024) return fmt::format("{} B", bytes);
    if (b < 100 * 1024 && bytes % 1024 != 0) return fmt::format("{:.1f} KB", b / 1024);
    if (b < 1024 * 1024) return fmt::format("{:.0f} KB", b / 1024);
    if (b < 1024.0 * 1024 * 1024) return fmt::format("{:.2f} MB", b / 1024 / 1024);
    return fmt::format("{:.2f} GB", b / 1024 / 1024 / 1024);
}

void finish_row_plot(ImDrawList& list, ImVec2 min, ImVec2 size, float shown, int first_row, int last_row) {
    list.AddLine({shown, min.y}, {shown, min.y + size.y}, theme::faded(theme::colors().text, 0.5f));
    list.PopClipRect();
    if (first_row == last_row) {  // one step makes no curve
        const std::string words = fitted("Space runs; curves need more steps", size.x - 16);
        const ImVec2 wide = ImGui::CalcTextSize(words.c_str());
        list.AddText({min.x + (size.x - wide.x) / 2, min.y + (size.y - wide.y) / 2}, theme::colors().dim,
                     words.c_str());
    }
    const std::string begin = fmt::format("step {}", first_row), end = fmt::format("{}", last_row);
    list.AddText({min.x, min.y + size.y + 2}, theme::colors().dim, begin.c_str());
    list.AddText({min.x + size.x - ImGui::CalcTextSize(end.c_str()).x, min.y + size.y + 2},
                 theme::colors().dim, end.c_str());
}

std::string half_text(double value) {
    if (!std::isfinite(value)) return number_text(value);
    const std::uint16_t stored = fp16_from_float(static_cast<float>(value));
    constexpr int kMost = 4;  // digits of a half
    for (int digits = 1; digits < kMost; ++digits) {
        const std::string text = fmt::format("{:.{}g}", value, digits);
        if (fp16_from_float(std::strtof(text.c_str(), nullptr)) == stored) return text;
    }
    return fmt::format("{:.{}g}", value, kMost);
}

void draw_lane_title(const PanelContext& context, int lane) {
    const LaneOnShow& shown = context.app.shown().at(lane);
    const std::string cut = fitted(shown.title, ImGui::GetContentRegionAvail().x);
    colored_text(lane_ink(context, lane), cut);
    const std::string whole = cut == shown.title ? "" : shown.title;
    const std::string words =
        whole.empty() || shown.note.empty() ? whole + shown.note : whole + "\n" + shown.note;
    if (!words.empty()) tooltip(context, words);
}

void draw_lane_mark(const PanelContext& context, int lane, bool titled) {
    const LaneOnShow& shown = context.app.shown().at(lane);
    if (shown.mark.empty()) return;
    const std::string text = titled ? fmt::format("{} · {}", shown.title, shown.mark) : shown.mark;
    ImGui::SameLine(0, context.px(8));
    if (ImGui::GetContentRegionAvail().x < context.px(60)) ImGui::NewLine();
    const std::string cut = fitted(text, ImGui::GetContentRegionAvail().x);
    colored_text(theme::colors().warm, cut);
    tooltip(context, cut == text ? shown.note : text + "\n" + shown.note);
}

void note_shown_lane(const PanelContext& context, std::string_view pane, int lane) {
    const RunOnShow& run = context.app.shown();
    const LaneOnShow& shown = run.at(lane);
    context.shared.panes.insert_or_assign(
        std::string(pane), DrawnPane{run.run, lane, shown.id.value_or(-1), run.row, shown.title, shown.mark});
}

bool shows_lane(const PanelContext& context, std::string_view pane, int lane) {
    note_shown_lane(context, pane, lane);
    const LaneOnShow& shown = context.app.shown().at(lane);
    if (shown.known) return true;
    const ScopedColor color(ImGuiCol_Text, theme::colors().dim);
    ImGui::TextWrapped("%s: %s.", shown.title.c_str(), shown.note.c_str());
    return false;
}

}  // namespace keyhole
