#include "app/panels/story_panel.h"

#include "app/panels/heatmap_panel.h"
#include "app/panels/story_lane.h"
#include "app/panels/strip_view.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

void update_story(StoryPanel& panel, const AppState& app) {
    StoryPanel::MadeOf now{answers_made_of(app), app.run.lane_editor.follow(), app.run.status.counterfactual};
    if (panel.made_of == now) return;
    panel.made_of = std::move(now);
    panel.story = story_of(app);
}

/// Shows how far model and prompt are, while the story of the run before is still on show or none is.
void draw_progress(const PanelContext& context) {
    const EngineStatus& status = context.app.run.status;
    if (!context.app.run.live()) return;
    const bool loads = status.phase == EnginePhase::loading, reads = status.phase == EnginePhase::prefill;
    if (!loads && !reads) return;
    const std::string words = loads ? "loading the model" : "reading the prompt";
    ImGui::ProgressBar(loads ? 0.0f : static_cast<float>(status.progress),
                       {ImGui::GetContentRegionAvail().x, ImGui::GetFrameHeight()}, words.c_str());
    mark_item(context, "story progress");
}

void draw_question(const PanelContext& context, const std::string& question) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const ScopedFont font(context.fonts.large);
    const ScopedTextWrap wrap(0);
    colored_text(theme::colors().text, question);
    mark_area(context, "story question", at, ImGui::GetItemRectMax());
}

/// Draws the question, and the text around the watched words.
void draw_question_and_text(StoryPanel& panel, const PanelContext& context) {
    const Story& story = panel.story;
    draw_question(context, story.question);
    if (story.text.size() < 1) {
        small_words(context,
                    "No words are watched: drag over words of the text (F2 shows it all), or pick them "
                    "and press W.");
        return;
    }
    const ImVec2 from = ImGui::GetCursorScreenPos();
    draw_parts(panel.text, context, story.text);
    mark_area(context, "story text", from,
              {from.x + ImGui::GetContentRegionAvail().x, ImGui::GetItemRectMax().y});
}

/// The lanes that have room side by side: lane 0 first, the focused one always.
std::vector<int> lanes_in_sight(const PanelContext& context, const Story& story, float width) {
    constexpr float kLeastWidth = 228;
    const int n = static_cast<int>(story.lanes.size()), focused = context.app.view.lane;
    const int fit = std::clamp(static_cast<int>(width / context.px(kLeastWidth)), 1, std::max(n, 1));
    std::vector<int> lanes;
    for (int i = 0; i < std::min(fit, n); ++i) lanes.push_back(i);
    if (focused >= fit && focused < n) lanes.back() = focused;
    return lanes;
}

/// Names the lanes that have no room; a click shows one.
void draw_other_lanes(const PanelContext& context, const Story& story, const std::vector<int>& in_sight) {
    bool first = true;
    for (const StoryLane& lane : story.lanes) {
        if (std::find(in_sight.begin(), in_sight.end(), lane.lane) != in_sight.end()) continue;
        const std::string label = fmt::format("{} {} {}", lane.lane, lane.name,
                                              lane.shown.mark == ShownAnswer::Mark::right   ? "✓"
                                              : lane.shown.mark == ShownAnswer::Mark::wrong ? "✗"
                                                                                            : "");
        if (!first) next_to(label.c_str(), context.px(4));
        const ScopedColor ink(ImGuiCol_Text, lane_ink(context, lane.lane));
        if (ImGui::Button(label.c_str())) run(context, fmt::format("lane.focus {}", lane.lane));
        mark_item(context, fmt::format("story other {}", lane.lane));
        tooltip(context, context.app.glyphs.text(lane.shown.answer.text));
        first = false;
    }
}

/// Says what the cells of the maps show.
std::string cells_text(const ViewState& view) {
    if (view.mode == HeatMode::mask) return "Plain: kept. Hatched: evicted.";
    return fmt::format("Bright: {}, on a {} scale. {}.",
                       view.mode == HeatMode::score ? "a high score" : "attended to",
                       view.range().logarithmic ? "logarithmic" : "linear",
                       view.mask_overlay ? "Hatched: evicted" : "M hatches evicted cells");
}

/// Says what the words of the text show, at the shown step.
std::string words_text(const AppState& app) {
    const std::string_view color = app.view.text_color == TextColor::score ? "Bright words: a high score. "
                                   : app.view.text_color == TextColor::age ? "Bright words: read of late. "
                                                                           : "";
    const std::string step =
        app.view.row < app.run.last_row() ? fmt::format(" at step {}", app.view.row) : "";
    return fmt::format("{}Struck through: no head of lane {} keeps it{}.", color, app.view.lane, step);
}

std::string legend_of(const PanelContext& context, const Story& story) {
    const AppState& app = context.app;
    return fmt::format("Rows: the words that a lane chooses. Columns: the text. {} {} Layer {}, head {}{}.",
                       cells_text(app.view), words_text(app), app.view.layer, app.view.head,
                       app.story_run.head == HeadPlace{app.view.layer, app.view.head} && !story.words.empty()
                           ? fmt::format(", where the full cache attends most to “{}”", story.words)
                           : "");
}

/// Returns whether the lane that the sentence is about had evicted something: other shared heads or another
/// stored type alone leave nothing to give back.
bool explains_by_eviction(const Story& story) {
    return std::any_of(story.lanes.begin(), story.lanes.end(), [&](const StoryLane& lane) {
        return lane.lane == story.explained && lane.shown.answer.had_evicted();
    });
}

float words_height(ImFont* font, const std::string& text, float width) {
    const ScopedFont pushed(font);
    return ImGui::CalcTextSize(text.c_str(), nullptr, false, width).y + ImGui::GetStyle().ItemSpacing.y;
}

/// Returns the height of what *Give it back* shows below the buttons. It is kept free before, so that the
/// buttons stay under the pointer; what lanes answered says how long it may be.
float given_back_height(const PanelContext& context, const Story& story, float width) {
    if (!explains_by_eviction(story)) return 0;
    // On a projector the type is large, and the maps need the room.
    if (story.given_back.empty() && context.app.for_projector()) return 0;
    std::string longest;
    for (const StoryLane& lane : story.lanes)
        if (lane.shown.answer.text.size() > longest.size()) longest = lane.shown.answer.text;
    return std::max(words_height(context.fonts.bold, given_back_sentence(story, longest, true), width),
                    words_height(context.fonts.bold, story.given_back, width));
}

/// Returns the height of the sentence and what stands below it.
float sentence_height(const PanelContext& context, const Story& story, float width) {
    return words_height(context.fonts.bold, story.sentence, width) + 2 * ImGui::GetFrameHeightWithSpacing() -
           ImGui::GetFrameHeight() + given_back_height(context, story, width);
}

/// Draws what happened in one sentence, and what to do about it.
void draw_sentence(const PanelContext& context, const Story& story) {
    const AppState& app = context.app;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    {
        const ScopedFont font(context.fonts.bold);
        const ScopedTextWrap wrap(0);
        colored_text(story.warns ? theme::colors().warm : theme::colors().text, story.sentence);
    }
    mark_area(context, "story sentence", at, ImGui::GetItemRectMax());
    if (explains_by_eviction(story)) {
        if (ImGui::Button("Why?")) run(context, fmt::format("why.answer {}", story.explained));
        mark_item(context, "story why");
        tooltip(context, "Opens the page on the token that this lane evicted: its score, head by head.");
        next_to("Give it back", context.px(4));
        const ScopedDisabled disabled(!app.run.live() || !app.view.watched || app.run.is_replaying());
        if (ImGui::Button("Give it back")) run(context, fmt::format("story.give {}", story.explained));
        mark_item(context, "story give");
        tooltip(context, "Answers once more, with the watched words back in the lane's cache.");
        next_to("Rewind to the prompt", context.px(12));
    }
    action_button(context, "rewind.prompt", "Rewind to the prompt");
    next_to("All views", context.px(4));
    action_button(context, "view.explore", "All views");
    if (!context.app.for_projector()) {
        next_to(fmt::format("{}    ", kWidestStripQuestion).c_str(), context.px(12));
        draw_strip_choice(context);
    }
    const float height = given_back_height(context, story, ImGui::GetContentRegionAvail().x);
    if (height == 0) return;
    // Below the buttons, whose tooltips stand above them.
    const ImVec2 below = ImGui::GetCursorScreenPos();
    if (!story.given_back.empty()) {
        const ScopedFont font(context.fonts.bold);
        const ScopedTextWrap wrap(0);
        colored_text(theme::colors().good, story.given_back);
    }
    ImGui::SetCursorScreenPos(below);
    ImGui::Dummy({0, height - ImGui::GetStyle().ItemSpacing.y});
}

constexpr float kLabels = 70;  // below and above the rows of a map

float least_map_height(const PanelContext& context, const Story& story) {
    constexpr float kLeastRow = 7;
    return context.px(kLabels + std::max(static_cast<float>(story.n_rows), 4.0f) * kLeastRow);
}

/// Shares the height out: answers first, then the maps, the strips and the heads.
StoryHeights heights_of(const PanelContext& context, const Story& story, float head, float room) {
    StoryHeights heights{head, 0, 0, 0};
    constexpr float kGoodRow = 22, kLargestRow = 110;
    const float rows = static_cast<float>(story.n_rows), gap = context.px(6);
    const float strip = strip_height(context) + (strip_height(context) > 0 ? context.px(4) : 0);
    if (story.words.empty()) {
        if (room - heights.head - strip > 0) heights.strip = strip_height(context);
        return heights;
    }
    const float least = least_map_height(context, story), good = context.px(kLabels + rows * kGoodRow),
                most = context.px(kLabels + rows * kLargestRow);
    float left = room - heights.head - 2 * gap;
    if (left - strip >= least) {  // what matters most are the maps
        heights.strip = strip_height(context);
        left -= strip;
    }
    if (left < least) return heights;
    for (const float side : {17.0f, 11.0f})
        if (const float heads = story_heads_height(context, context.px(side));
            heights.heads == 0 && left - heads - gap >= good) {
            heights.heads = heads;
            left -= heads + gap;
        }
    heights.map = std::min(left, most);
    return heights;
}

/// Draws the maps below everything else, for those who scroll: a small or scaled window has no other room.
void draw_maps_below(const PanelContext& context, const Story& story, std::span<const int> lanes, float width,
                     float gap) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float height = least_map_height(context, story);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        ImGui::SetCursorScreenPos({at.x + static_cast<float>(i) * (width + gap), at.y});
        draw_story_map(context, story, story.lanes[to_index(lanes[i])], {width, height});
    }
    ImGui::SetCursorScreenPos(at);
    ImGui::Dummy({width, height + context.px(4)});
    small_words(context, legend_of(context, story), theme::colors().text);
}

}  // namespace

void draw(StoryPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    draw_progress(context);
    if (!app.run.has_steps()) {  // what is asked is known before the model has read it
        draw_question(context, app.glyphs.text(last_sentence(app.run.setup.prompt)));
        return draw_waiting(context);
    }
    update_story(panel, app);
    const Story& story = panel.story;
    if (story.lanes.empty()) return draw_waiting(context);
    draw_question_and_text(panel, context);
    ImGui::Dummy({0, context.px(2)});
    const ImVec2 at = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
    const std::vector<int> lanes = lanes_in_sight(context, story, room.x);
    const std::string legend = legend_of(context, story);
    const float legend_height = words_height(context.fonts.small, legend, room.x),
                others = lanes.size() < story.lanes.size() ? ImGui::GetFrameHeightWithSpacing() : 0,
                below = sentence_height(context, story, room.x) + others + context.px(4);
    const float gap = context.px(10), n = static_cast<float>(lanes.size());
    const float width = std::floor((room.x - gap * (n - 1)) / n);
    const StoryHeights heights = heights_of(context, story, story_head_height(context, story, lanes, width),
                                            room.y - below - legend_height);
    const bool has_map = heights.map > 0;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        ImGui::SetCursorScreenPos({at.x + static_cast<float>(i) * (width + gap), at.y});
        draw_story_lane(context, story, story.lanes[to_index(lanes[i])], width, heights);
    }
    const float used = heights.head + (heights.strip > 0 ? heights.strip + context.px(4) : 0) +
                       (has_map ? heights.map + context.px(8) : 0) +
                       (heights.heads > 0 ? heights.heads + context.px(6) : 0) + context.px(6);
    ImGui::SetCursorScreenPos({at.x, at.y + used});
    ImGui::Dummy({0, 0});
    ImGui::SetCursorScreenPos({at.x, at.y + used});
    if (has_map) small_words(context, legend, theme::colors().text);
    if (others > 0) draw_other_lanes(context, story, lanes);
    draw_sentence(context, story);
    if (!has_map && !story.words.empty()) draw_maps_below(context, story, lanes, width, gap);
}

}  // namespace keyhole
