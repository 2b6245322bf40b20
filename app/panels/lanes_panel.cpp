#include "app/panels/lanes_panel.h"

#include "app/panels/measure_plot.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/option_help.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

namespace {

void draw_line(const std::string& text, ImU32 color, float right) {
    const ScopedColor ink(ImGuiCol_Text, color);
    const ScopedTextWrap wrap(right - ImGui::GetWindowPos().x);
    ImGui::TextUnformatted(text.data(), text.data() + text.size());
}

/// Returns whether the lane's next word is that of lane 0, and how far the probabilities of all words are.
std::string next_word_text(const AppState& app, const LaneRecord& record) {
    const Preset preset = app.run.lane_editor.lanes().front().policy.preset;
    const std::string_view first = preset == Preset::full ? "full" : "lane 0";
    const std::string words = !record.agrees   ? ""
                              : *record.agrees ? fmt::format("same next word as {}", first)
                                               : fmt::format("other next word than {}", first);
    constexpr double kLeast = 0.00005;  // nats: 0.0000 says no more than the words
    if (double(*record.kl) < kLeast && !words.empty()) return words;
    return fmt::format("{}{}KL {:.4f} nats", words, words.empty() ? "" : " · ", double(*record.kl));
}

constexpr const char* kNoNumbers = "NaN: there is no next token; see the model's warnings";

/// For a projector: draws why the lane says nothing; its words are among the answers.
void draw_silence(const LaneRecord* record, float right) {
    const std::string why = record == nullptr             ? "it has no step yet"
                            : !record->failure.empty()    ? record->failure
                            : std::isnan(record->entropy) ? kNoNumbers
                            : record->ended               ? "ended: the model closed its text"
                                                          : "";
    if (!why.empty()) draw_line(why, theme::colors().warm, right);
}

/// Draws the lane's settings and measures in small print.
void draw_words(const PanelContext& context, int index, const LaneRecord* record, float right) {
    const AppState& app = context.app;
    const bool focused = app.view.lane == index;
    const ScopedFont font(context.fonts.small);
    const auto line = [&](const std::string& text, ImU32 color) { draw_line(text, color, right); };
    if (record == nullptr) {
        const LaneOnShow& shown = app.shown().at(index);
        line(shown.source == LaneOnShow::Source::own      ? "not present at this step"
             : shown.source == LaneOnShow::Source::parent ? words_before_first_step(app.run)
                                                          : shown.note,
             theme::colors().dim);
    } else {
        if (!record->failure.empty()) line(record->failure, theme::colors().fault);
        if (record->failure.empty() && std::isnan(record->entropy)) line(kNoNumbers, theme::colors().fault);
        if (record->ended) line("ended: the model closed its text", theme::colors().dim);
        constexpr int kFew = 4;  // of more, only the focused one says all, so that the names stay in sight
        if (!focused && app.run.lane_editor.n_lanes() > kFew) return;
        if (app.view.advanced) line(record->info->effective, theme::colors().dim);
        if (!focused)
            line(accounting_text(record->info->policy), theme::colors().dim);  // else the policy card does
        if (index > 0 && record->kl) {
            line(next_word_text(app, *record),
                 record->agrees && !*record->agrees ? theme::colors().warm : theme::colors().dim);
            tooltip(context, "Against lane 0. " + measure_tooltip("kl"));
        }
    }
}

/// Draws the contents of a lane's card. min: its upper left corner.
void draw_card_inside(LanesPanel& panel, const PanelContext& context, int index, ImVec2 min, float width) {
    const AppState& app = context.app;
    const LaneSpec& lane = app.run.lane_editor.lanes()[to_index(index)];
    const Preset preset = lane.policy.preset;
    const LaneOnShow& shown = app.shown().at(index);
    const LaneRecord* record = shown.record.get();
    const bool focused = app.view.lane == index;
    const float pad = context.px(9);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ScopedItemWidth item_width(width - 2 * pad);
    const ScopedClip clip(min, {min.x + width, min.y + context.px(1400)});
    // Heading: the lane's name and main measures.
    const float right = min.x + width - pad;
    const bool brief = app.for_projector();
    heading(context, fmt::format("{}  {}", index, lane.name.empty() ? preset_name(preset) : lane.name));
    float kept_width = 0;
    if (record != nullptr) {
        const int n_kv = app.run.history.layout(*shown.known).n_kv_heads();
        const std::string kept = fmt::format("{:.0f} of {}{}", double(record->use.stored_tokens) / n_kv,
                                             app.view.row + 1, brief ? "" : " kept");
        const ScopedFont font(context.fonts.small);
        const float text_width = ImGui::CalcTextSize(kept.c_str()).x;
        kept_width = text_width + pad;
        list.AddText({right - text_width, min.y + pad * 0.7f + context.px(context.from_afar() ? 0 : 2)},
                     theme::colors().dim, kept.c_str());
    }
    if (brief) {  // all in one line, so that three lanes fit on a projector
        ImGui::SameLine(0, context.px(10));
        draw_silence(record, right - kept_width);
        ImGui::NewLine();
    }
    // The settings in which the lane differs from others of its preset; the preset of one with a name.
    const std::string name =
        lane.name.empty() ? app.run.lane_editor.name(index) : fmt::format("name {}", preset_name(preset));
    if (const std::size_t blank = name.find(' '); blank != std::string::npos) {
        const ScopedFont font(context.fonts.small);
        draw_line(name.substr(blank + 1), lane_ink(context, index), right);
    }
    if (record != nullptr) {
        // Fill level: share of the tokens so far that are stored.
        const int n_kv = app.run.history.layout(*shown.known).n_kv_heads();
        const float share = static_cast<float>(double(record->use.stored_tokens) / n_kv / (app.view.row + 1));
        const ImVec2 bar = ImGui::GetCursorScreenPos();
        list.AddRectFilled(bar, {right, bar.y + context.px(3)}, theme::colors().inset, 2);
        list.AddRectFilled(bar,
                           {bar.x + (right - bar.x) * std::clamp(share, 0.0f, 1.0f), bar.y + context.px(3)},
                           lane_ink(context, index), 2);
        ImGui::Dummy({0, context.px(4)});
    }
    if (record != nullptr && record->info->merged) {  // first, since it qualifies all numbers below
        const ScopedFont font(context.fonts.small);
        draw_line(fmt::format("merged ({}) without training: a damaged model", record->info->kv),
                  theme::colors().warm, right);
    }
    if (record != nullptr && !shown.mark.empty()) {  // whose numbers these are
        const ScopedFont font(context.fonts.small);
        draw_line(fmt::format("{}: {}", shown.mark, shown.name), theme::colors().warm, right);
        tooltip(context, shown.note);
    }
    if (!brief) draw_words(context, index, record, right);
    if (focused)
        brief ? draw_brief(panel.card, context, index, right) : draw(panel.card, context, index, right);
}

void draw_card(LanesPanel& panel, const PanelContext& context, int index) {
    const AppState& app = context.app;
    const bool focused = app.view.lane == index, brief = app.for_projector();
    const ScopedId id(index);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float width = ImGui::GetContentRegionAvail().x, pad = context.px(9);
    const ImVec2 min = ImGui::GetCursorScreenPos();
    list.ChannelsSplit(2);
    list.ChannelsSetCurrent(1);
    ImGui::SetCursorScreenPos({min.x + pad, min.y + pad * 0.7f});
    ImGui::BeginGroup();
    draw_card_inside(panel, context, index, min, width);
    ImGui::EndGroup();
    const ImVec2 max(min.x + width, ImGui::GetItemRectMax().y + pad * 0.8f);
    list.ChannelsSetCurrent(0);
    list.AddRectFilled(min, max, focused ? theme::colors().card_focused : theme::colors().card,
                       context.px(5));
    list.AddRectFilled(min, {min.x + context.px(4), max.y}, lane_ink(context, index), context.px(5),
                       ImDrawFlags_RoundCornersLeft);
    list.ChannelsMerge();
    if (ImGui::IsMouseHoveringRect(min, max) && ImGui::IsWindowHovered() && ImGui::IsMouseClicked(0) &&
        !ImGui::IsAnyItemHovered() && index != app.view.lane)
        run(context, fmt::format("lane.focus {}", index));
    ImGui::SetCursorScreenPos({min.x, max.y + context.px(brief ? 3 : 6)});
    ImGui::Dummy({0, 0});
}

/// Says which lanes have other settings than those that processed the prompt, and what applies them to it.
/// Stands below the cards, so that a change of settings moves nothing under the pointer.
class NewSettingsStrip {
  public:
    explicit NewSettingsStrip(const AppState& app) {
        for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane)
            if (const std::optional<RunState::NewSettings> change = app.run.new_settings(lane))
                lines_.push_back({lane, change->from, change->before,
                                  format_lane_spec(app.run.lane_editor.lanes()[to_index(lane)])});
    }
    /// Returns the room that it takes below the cards.
    float height(const PanelContext& context) const {
        if (lines_.empty()) return 0;
        const float width = ImGui::GetContentRegionAvail().x, gap = ImGui::GetStyle().ItemSpacing.y;
        float sum = ImGui::GetFrameHeightWithSpacing() + context.px(4);
        for (std::size_t i = 0; i < n_shown(); ++i) sum += height_of(context, lines_[i], width) + gap;
        return sum;
    }
    void draw(const PanelContext& context) const {
        if (lines_.empty()) return;
        const float right = ImGui::GetCursorScreenPos().x + ImGui::GetContentRegionAvail().x;
        {
            const ScopedFont font(context.fonts.small);
            for (std::size_t i = 0; i < n_shown(); ++i) draw_change(context, lines_[i], right);
        }
        action_button(context, "run.restart",
                      n_shown() < lines_.size()
                          ? fmt::format("Restart to apply {} lanes to the prompt", lines_.size()).c_str()
                          : "Restart to apply to the prompt",
                      false, right - ImGui::GetCursorScreenPos().x);
    }

  private:
    struct Line {
        int lane, from;
        std::string before, now;
    };
    std::vector<Line> lines_;
    std::size_t n_shown() const { return std::min<std::size_t>(lines_.size(), 2); }

    static std::string text_of(const Line& change) {
        return change.from < 0
                   ? fmt::format("Lane {} from the next step: {}", change.lane, change.now)
                   : fmt::format("Lane {} since step {}: {}", change.lane, change.from, change.now);
    }
    /// Returns the height of a change, whose text may take several lines.
    static float height_of(const PanelContext& context, const Line& change, float width) {
        const ScopedFont font(context.fonts.small);
        const float wrap = width - 2 * context.px(5);
        return ImGui::CalcTextSize(text_of(change).c_str(), nullptr, false, wrap).y + context.px(6);
    }

    static void draw_change(const PanelContext& context, const Line& change, float right) {
        const ImVec2 min = ImGui::GetCursorScreenPos();
        const std::string text = text_of(change);
        const float height = height_of(context, change, right - min.x), pad = context.px(5);
        ImDrawList& list = *ImGui::GetWindowDrawList();
        list.AddRectFilled(min, {right, min.y + height}, theme::faded(theme::colors().warm, 0.2f),
                           context.px(4));
        list.AddText(ImGui::GetFont(), ImGui::GetFontSize(), {min.x + pad, min.y + context.px(3)},
                     theme::colors().warm, text.c_str(), nullptr, right - min.x - 2 * pad);
        ImGui::Dummy({right - min.x, height});
        mark_item(context, fmt::format("new settings {}", change.lane));
        tooltip(context, fmt::format("{}\nIt processed the prompt as {}. Text, curves and next tokens are of "
                                     "this run; Answers are with the new settings from the prompt on.",
                                     text, change.before));
    }
};

/// Says what is special about all numbers: they are of the run before, or alike, since until a budget is full
/// every policy keeps everything.
void say_what_numbers_are(const PanelContext& context) {
    const AppState& app = context.app;
    if (app.run.records() == RunState::Records::unread) {
        small_words(context,
                    "The prompt was not read: these are the numbers of the run before. Restart reads it.",
                    theme::colors().warm);
        return;
    }
    if (!app.run.has_steps() || app.run.records() != RunState::Records::current ||
        app.run.lane_editor.n_lanes() < 2)
        return;
    if (app.lesson.shown && !app.lesson.revealed && app.lesson.at().predict) return;  // it may be the answer
    for (const LaneRecord& record : app.run.history.steps().back()->lanes) {
        const KvLayout& layout = app.run.history.layout(*app.run.history.lane_from_id(record.info->id));
        if (record.use.stored_tokens < std::int64_t{layout.n_kv_heads()} * app.run.history.n_positions())
            return;
    }
    const ScopedColor color(ImGuiCol_Text, theme::colors().dim);
    ImGui::TextWrapped("No budget is full yet, so all policies still keep everything and look alike.");
}

}  // namespace

void draw(LanesPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    const NewSettingsStrip changed(app);
    const bool brief = app.for_projector();
    if (!brief) {  // on a projector the menu has these
        ImGui::AlignTextToFramePadding();
        heading(context, "Lanes");
        ImGui::SameLine(ImGui::GetWindowContentRegionMax().x - context.px(132));
        action_button(context, "add", "+", false, context.px(24));
        ImGui::SameLine(0, context.px(3));
        action_button(context, "lane.duplicate", "duplicate", false, context.px(78));
        ImGui::SameLine(0, context.px(3));
        action_button(context, "remove", "–", false, context.px(24));
        bool follow = app.run.lane_editor.follow();
        if (ImGui::Checkbox("all read lane 0's words", &follow))
            run(context, follow ? "follow on" : "follow off");
        mark_item(context, "follow");
        action_tooltip(context, "follow");
        small_words(context, follow ? "So pictures compare step by step; own words stand in the answers."
                                    : "Off: each lane goes on with its own words.");
    }
    const float above = ImGui::GetCursorPosY();
    float cards_height = 0;
    {
        const ScopedChild cards("cards", {0, -changed.height(context)}, false, 0);
        say_what_numbers_are(context);
        if (!brief) ImGui::Spacing();
        for (int i = 0; i < app.run.lane_editor.n_lanes(); ++i) {
            const float top = ImGui::GetCursorScreenPos().y, seen = ImGui::GetWindowPos().y;
            draw_card(panel, context, i);
            // Scrolls to the card that got the focus, if it is not in sight.
            if (i != app.view.lane || panel.shown_lane == i) continue;
            if (ImGui::GetCursorScreenPos().y > seen + ImGui::GetWindowHeight())
                ImGui::SetScrollHereY(1);
            else if (top < seen)
                ImGui::SetScrollFromPosY(top - seen, 0);
        }
        panel.shown_lane = app.view.lane;
        cards_height = ImGui::GetCursorPosY();
    }
    const ImGuiStyle& style = ImGui::GetStyle();
    panel.wanted =
        above + cards_height + changed.height(context) + style.WindowPadding.y + 2 * style.ItemSpacing.y;
    changed.draw(context);
}

}  // namespace keyhole
