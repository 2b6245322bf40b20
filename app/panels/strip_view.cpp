#include "app/panels/strip_view.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

using Mark = AnswerLine::Mark;

constexpr float kSide = 11, kLineSide = 9;  // of a cell, unscaled

std::string cell_words(const PanelContext& context, const AnswerStrip& strip, int index) {
    const StripCell& cell = strip.cells[to_index(index)];
    std::string words = fmt::format("{}={}", context.app.view.strip_key, cell.value);
    if (cell.answer == nullptr)
        words += ": not tried yet";
    else if (!cell.answer->failure.empty())
        words += ": " + context.app.glyphs.text(cell.answer->failure);
    else
        words += fmt::format(":{}{}", cell.answer->text.starts_with(' ') ? "" : " ",
                             context.app.glyphs.text(cell.answer->text));
    if (index == strip.now) return words + "\nThe lane has this value.";
    return words + "\nA click gives the lane this value.";
}

/// Draws a mark that can be told without its colour: full for right, a cross for wrong, a dot for unknown.
void draw_mark(ImDrawList& list, const StripCell& cell, ImVec2 min, ImVec2 max) {
    const ImVec2 middle((min.x + max.x) / 2, (min.y + max.y) / 2);
    const float half = std::min(max.x - min.x, max.y - min.y) / 2;
    switch (cell.mark) {
        case Mark::right:
            list.AddRectFilled({min.x + 1, min.y + 1}, {max.x - 1, max.y - 1}, theme::colors().good, 2);
            break;
        case Mark::wrong: {
            const float arm = half * 0.6f;
            list.AddLine({middle.x - arm, middle.y - arm}, {middle.x + arm, middle.y + arm},
                         theme::colors().fault, 1.5f);
            list.AddLine({middle.x - arm, middle.y + arm}, {middle.x + arm, middle.y - arm},
                         theme::colors().fault, 1.5f);
            break;
        }
        case Mark::none:
            list.AddCircleFilled(middle, std::max(half * 0.25f, 1.0f), theme::colors().dim);
            break;
    }
}

void draw_cells(const PanelContext& context, int lane, ImVec2 at, ImVec2 size) {
    const AnswerStrip& strip = context.app.strips.of(lane);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float wide = size.x / static_cast<float>(strip.cells.size());
    for (std::size_t i = 0; i < strip.cells.size(); ++i) {
        const ScopedId id(static_cast<int>(i));
        const ImVec2 min(std::round(at.x + static_cast<float>(i) * wide), at.y),
            max(std::round(at.x + static_cast<float>(i + 1) * wide), at.y + size.y);
        draw_mark(list, strip.cells[i], min, max);
        const int index = static_cast<int>(i);
        if (index == strip.now) list.AddRect(min, max, theme::colors().text, 2);
        ImGui::SetCursorScreenPos(min);
        if (ImGui::InvisibleButton("cell", {std::max(max.x - min.x, 1.0f), size.y}) && index != strip.now)
            run(context, fmt::format("strips.take {} {}", lane, strip.cells[i].value));
        mark_plot(context,
                  fmt::format("strip {} {}", lane, strip.cells[i].value));  // the slider does the same
        if (ImGui::IsItemHovered()) {
            list.AddRect(min, max, theme::colors().dim, 2);
            show_tooltip(context, cell_words(context, strip, index));
        }
    }
    mark_area(context, fmt::format("strip {}", lane), at, {at.x + size.x, at.y + size.y});
}

}  // namespace

float strip_height(const PanelContext& context) {
    if (context.app.view.strip_key.empty() || context.app.for_projector()) return 0;
    const ScopedFont font(context.fonts.small);
    return context.px(kSide + 6) + ImGui::GetFontSize() + context.px(3);
}

void draw_strip(const PanelContext& context, int lane, ImVec2 at, float width) {
    const AnswerStrip& strip = context.app.strips.of(lane);
    if (strip.cells.empty()) return;
    const ScopedId id(lane);
    const float side = context.px(kSide),
                wide = std::min(width, static_cast<float>(strip.cells.size()) * context.px(kSide + 5));
    draw_cells(context, lane, at, {wide, side + context.px(2)});
    const ScopedFont font(context.fonts.small);
    std::string words = strip.words;
    if (ImGui::CalcTextSize(words.c_str()).x > width)  // the cells say which values they are
        words.erase(0, words.find(": ") + 2);
    ImGui::GetWindowDrawList()->AddText({at.x, at.y + side + context.px(5)}, theme::colors().dim,
                                        fitted(words, width).c_str());
}

float strip_width(const PanelContext& context, int lane) {
    return static_cast<float>(context.app.strips.of(lane).cells.size()) * context.px(kLineSide);
}

void draw_strip_in_line(const PanelContext& context, int lane, ImVec2 at, float height) {
    if (context.app.strips.of(lane).cells.empty()) return;
    const ScopedId id(lane);
    const float side = std::min(context.px(kLineSide + 2), height);
    draw_cells(context, lane, {at.x, at.y + (height - side) / 2}, {strip_width(context, lane), side});
}

void draw_strip_choice(const PanelContext& context) {
    const std::string& now = context.app.view.strip_key;
    const auto question = [](const std::string& key) {
        return fmt::format("which {}{}?", key, key == "recent" ? " window" : "");
    };
    const std::string preview = now.empty() ? "no strip" : question(now);
    ImGui::SetNextItemWidth(ImGui::CalcTextSize(kWidestStripQuestion).x + 2 * ImGui::GetFrameHeight());
    const bool tries = context.app.run.live();
    {
        const ScopedDisabled disabled(!tries);
        ScopedCombo list("##strips", preview.c_str(), ImGuiComboFlags_HeightLargest);
        if (list.open()) {
            if (list.item("no strip", now.empty()) && !now.empty()) run(context, "strips off");
            for (const StripOption& option : kStripOptions) {
                const std::string key(option.key);
                if (list.item(question(key).c_str(), now == key) && now != key) run(context, "strips " + key);
                mark_item(context, "strips " + key);
            }
            return;
        }
    }
    mark_item(context, "strips");
    tooltip(
        context,
        "Beside each answer: is it right with other values of this option? Full: right. Cross: wrong. " +
            fmt::format("Framed: the lane's own value. Copies of the lanes try them while the run rests; a "
                        "click on one gives the lane that value.{}",
                        tries ? "" : "\nAn opened trace has no copies that could try them; start a run."));
}

}  // namespace keyhole
