#include "app/panels/story_lane.h"

#include "app/panels/heat_part.h"
#include "app/panels/strip_view.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

using Mark = ShownAnswer::Mark;

/// How an answer stands on a lane's card: in one large line, or in smaller lines where it is longer.
struct LaidAnswer {
    float font_size = 0;
    ImVec2 size{0, 0};
};

LaidAnswer laid_answer(const PanelContext& context, const std::string& text, float room) {
    constexpr float kSmaller = 0.6f;
    ImFont* font = context.fonts.large;
    const float large = answer_font_size(context);
    const ImVec2 line = font->CalcTextSizeA(large, FLT_MAX, 0, text.c_str());
    if (line.x <= room) return {large, line};
    const float small = std::round(std::max(large * kSmaller, ImGui::GetFontSize()));
    return {small, font->CalcTextSizeA(small, FLT_MAX, room, text.c_str())};
}

std::string shown_answer_text(const PanelContext& context, const StoryLane& lane) {
    return context.app.glyphs.text(answer_words(lane.shown.answer));
}

/// Returns how wide the mark is that says whether an answer is right.
float mark_width(const PanelContext& context, const StoryLane& lane) {
    if (lane.shown.mark == Mark::none) return 0;
    const char* mark = lane.shown.mark == Mark::right ? "✓" : "✗";
    return context.fonts.large->CalcTextSizeA(answer_font_size(context), FLT_MAX, 0, mark).x + context.px(6);
}

/// Draws name, what it keeps, and the answer in large type.
void draw_head(const PanelContext& context, const StoryLane& lane, ImVec2 at, float width) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float pad = context.px(8), right = at.x + width - pad;
    float y = at.y + context.px(4);
    {
        const ScopedFont font(context.fonts.bold);
        const std::string title = fmt::format("{} {}", lane.lane, lane.name);
        list.AddText({at.x + pad, y}, lane_ink(context, lane.lane), fitted(title, width - 2 * pad).c_str());
        y += ImGui::GetFontSize() + context.px(2);
    }
    {
        const ScopedFont font(context.fonts.small);
        const std::string words = lane.mark.empty() ? "keeps " + lane.keeps : lane.mark;
        list.AddText({at.x + pad, y}, lane.mark.empty() ? theme::colors().dim : theme::colors().warm,
                     fitted(words, width - 2 * pad).c_str());
        y += ImGui::GetFontSize() + context.px(3);
    }
    ImFont* font = context.fonts.large;
    if (lane.shown.mark != Mark::none) {
        const bool is_right = lane.shown.mark == Mark::right;
        list.AddText(font, answer_font_size(context), {at.x + pad, y},
                     is_right ? theme::colors().good : theme::colors().fault, is_right ? "✓" : "✗");
    }
    const ImVec2 words(at.x + pad + mark_width(context, lane), y);
    const std::string text = shown_answer_text(context, lane);
    const LaidAnswer laid = laid_answer(context, text, right - words.x);
    list.AddText(font, laid.font_size, words,
                 lane.shown.answer.failure.empty() ? theme::colors().text : theme::colors().fault,
                 text.c_str(), nullptr, right - words.x);
    mark_area(context, fmt::format("story answer {}", lane.lane), words,
              {words.x + laid.size.x, words.y + laid.size.y});
}

/// Draws a square a KV head, lit if it held all watched words when the lane began to answer.
void draw_head_squares(const PanelContext& context, const Story& story, const StoryLane& lane, ImVec2 at,
                       float width, float height) {
    const AppState& app = context.app;
    const ScopedFont font(context.fonts.small);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float pad = context.px(8), line = ImGui::GetFontSize() + context.px(3);
    const std::string words = lane.holds.empty() ? "heads: not known yet"
                                                 : fmt::format("{} of {} heads had “{}”", lane.n_holding,
                                                               lane.holds.size(), story.words);
    list.AddText({at.x + pad, at.y}, theme::colors().dim, fitted(words, width - 2 * pad).c_str());
    if (lane.holds.empty()) return;
    const KvLayout& layout = app.layout(lane.lane);
    const SquareGrid grid = square_grid(app.run.history.run().layout, static_cast<int>(lane.holds.size()));
    const float side =
        std::floor(std::min({(width - 2 * pad) / static_cast<float>(grid.across),
                             (height - line) / static_cast<float>(grid.down), context.px(18)}));
    const int shown = layout.kv_head_from_head(app.view.layer, app.view.head);
    for (std::size_t g = 0; g < lane.holds.size(); ++g) {
        const int index = static_cast<int>(g);
        const auto [column, row] = grid.place(index);
        const ImVec2 min(at.x + pad + static_cast<float>(column) * side,
                         at.y + line + static_cast<float>(row) * side),
            max(min.x + side - 1, min.y + side - 1);
        list.AddRectFilled(min, max, lane.holds[g] ? theme::colors().warm : theme::colors().gone, 1);
        if (index == shown)
            list.AddRect({min.x - 1, min.y - 1}, {max.x + 1, max.y + 1}, theme::colors().text);
    }
    const ImVec2 from(at.x + pad, at.y + line),
        to(from.x + side * static_cast<float>(grid.across), from.y + side * static_cast<float>(grid.down));
    mark_area(context, fmt::format("story heads {}", lane.lane), from, to);
    if (!ImGui::IsMouseHoveringRect(from, to) || !ImGui::IsWindowHovered()) return;
    show_tooltip(context, fmt::format("A square for each KV head, {}. Lit: it held all of “{}” when the lane "
                                      "began to answer. Framed: the head of the map.",
                                      grid.layers_down ? "a line for each layer" : "a column for each layer",
                                      story.words));
}

/// Returns what paints a lane's map; null: there is none in this frame.
std::optional<HeatPane> pane_of(const PanelContext& context, int lane) {
    const AppState& app = context.app;
    const std::optional<int> drawn = app.run.drawn_lane(lane);
    if (!drawn) return std::nullopt;
    // A click in this frame may have focused another lane than the maps are of.
    const int id = app.run.history.lanes()[to_index(*drawn)].id;
    if (lane == app.view.lane)
        return app.maps.lane.lane_id() == id
                   ? std::optional(HeatPane{lane, -1, app.maps.lane, context.painters.focus})
                   : std::nullopt;
    const std::vector<int> others = app.compared_lanes();
    const auto at = static_cast<std::size_t>(std::find(others.begin(), others.end(), lane) - others.begin());
    if (at >= others.size() || at >= app.maps.others.size() || at >= context.painters.others.size() ||
        app.maps.others[at].lane_id() != id)
        return std::nullopt;
    return HeatPane{lane, -1, app.maps.others[at], context.painters.others[at]};
}

/// Returns the columns that have room for their words, around the watched ones.
TokenSpan columns_in(const PanelContext& context, const Story& story, float width) {
    const TokenSpan& words = *context.app.view.watched;
    constexpr int kLeast = 4;
    const int room = (columns_with_words(context, width) - words.size()) / 2;
    const int around = std::clamp(room, kLeast, Story::kAround);
    return {std::max(words.first - around, story.text.first), std::min(words.last + around, story.text.last)};
}

void draw_map(const PanelContext& context, const Story& story, const StoryLane& lane, ImVec2 at, float width,
              float height) {
    if (!context.app.view.watched) return;
    const ScopedFont font(context.fonts.small);
    ImGui::SetCursorScreenPos(at);
    note_shown_lane(context, fmt::format("story map {}", lane.lane), lane.lane);
    if (const std::optional<HeatPane> pane = pane_of(context, lane.lane))
        draw_heat_part(context, *pane, {columns_in(context, story, width), story.first_row, lane.rows},
                       {width, height});
}

}  // namespace

namespace {

float size_of(ImFont* font) {
    const ScopedFont pushed(font);
    return ImGui::GetFontSize();
}

}  // namespace

float answer_font_size(const PanelContext& context) {
    // Large enough for the back row in Teach, and in proportion to the window elsewhere.
    const bool far = context.app.view.arrangement == Arrangement::teach;
    const float part = ImGui::GetIO().DisplaySize.y / (far ? 25.0f : 30.0f) + 1;
    return std::round(std::clamp(part, context.px(far ? 0.0f : 24.0f), far ? part : context.px(44)));
}

float story_head_height(const PanelContext& context, const Story& story, std::span<const int> lanes,
                        float width) {
    float answer = answer_font_size(context);
    for (const int i : lanes) {
        const StoryLane& lane = story.lanes[to_index(i)];
        const float room = width - 2 * context.px(8) - mark_width(context, lane);
        answer = std::max(answer, laid_answer(context, shown_answer_text(context, lane), room).size.y);
    }
    return size_of(context.fonts.bold) + size_of(context.fonts.small) + answer + context.px(16);
}

float story_heads_height(const PanelContext& context, float side) {
    const AppState& app = context.app;
    int down = 1;
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane) {
        down = std::max(down, square_grid(app.run.history.run().layout, app.layout(lane).n_kv_heads()).down);
    }
    return size_of(context.fonts.small) + context.px(6) +
           std::min(static_cast<float>(down) * side, context.px(120));
}

void draw_story_lane(const PanelContext& context, const Story& story, const StoryLane& lane, float width,
                     const StoryHeights& heights) {
    const ScopedId id(lane.lane);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const bool focused = context.app.view.lane == lane.lane;
    if (focused)
        list.AddRectFilled(at, {at.x + width, at.y + heights.head}, theme::colors().card_focused,
                           context.px(4));
    list.AddRectFilled(at, {at.x + context.px(4), at.y + heights.head}, lane_ink(context, lane.lane), 2);
    if (ImGui::InvisibleButton("lane", {width, heights.head}))
        run(context, fmt::format("lane.focus {}", lane.lane));
    mark_item(context, fmt::format("story lane {}", lane.lane));
    std::string words =
        fmt::format("{} {}\nkeeps {}\n{}", lane.lane, lane.name, lane.keeps, answer_words(lane.shown.answer));
    if (lane.shown.mark == Mark::wrong)
        words += fmt::format("\nThe right answer is {}.", right_answer(context.app));
    if (lane.is_fed) words += "\nIts map is of lane 0's words, which it is fed; the rows name its own.";
    tooltip(context, words);
    draw_head(context, lane, at, width);
    float y = at.y + heights.head + context.px(4);
    if (heights.strip > 0) {
        const float pad = context.px(8);
        draw_strip(context, lane.lane, {at.x + pad, y}, width - 2 * pad);
        y += heights.strip + context.px(4);
    }
    if (heights.map > 0) draw_map(context, story, lane, {at.x, y}, width, heights.map);
    y += heights.map > 0 ? heights.map + context.px(4) : 0;
    if (heights.heads > 0) draw_head_squares(context, story, lane, {at.x, y}, width, heights.heads);
}

void draw_story_map(const PanelContext& context, const Story& story, const StoryLane& lane,
                    const ImVec2& size) {
    const ScopedId id(lane.lane);
    draw_map(context, story, lane, ImGui::GetCursorScreenPos(), size.x, size.y);
}

}  // namespace keyhole
