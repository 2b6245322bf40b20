#include "app/panels/text_panel.h"

#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/model/chat_parts.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

namespace {

/// Returns a token's background by kept share: the fewer heads keep it, the nearer to the pane's background.
ImU32 share_color(float u) {
    const ImVec4 none = ImGui::ColorConvertU32ToFloat4(theme::colors().kept_by_none),
                 all = ImGui::ColorConvertU32ToFloat4(theme::colors().kept_by_all);
    return ImGui::ColorConvertFloat4ToU32(
        {none.x + (all.x - none.x) * u, none.y + (all.y - none.y) * u, none.z + (all.z - none.z) * u, 1});
}

ImU32 heat(float u) {
    const Rgb8 c =
        colormap_table(Colormap::viridis)[static_cast<std::size_t>(std::clamp(u, 0.0f, 1.0f) * 255)];
    return theme::rgb(c.r, c.g, c.b, 235);
}

bool light(float u) {
    return u > 0.62f;
}

/// Returns which of two lanes side by side alone keeps the token in the focused head; -1: both or neither.
int lone_holder(const AppState& app, int position) {
    if (app.view.arrangement != Arrangement::compare || app.run.lane_editor.n_lanes() < 2) return -1;
    const auto keeps = [&](int lane) {
        const int known = lane_of_row(app.run.history, *app.run.drawn_lane(lane), app.view.row);
        const int g = app.run.history.layout(known).kv_head_from_head(app.view.layer, app.view.head);
        return app.run.history.stored(known, g, position, app.view.row);
    };
    if (!app.run.drawn_lane(app.view.lane) || !app.run.drawn_lane(app.other_lane())) return -1;
    const bool here = keeps(app.view.lane), there = keeps(app.other_lane());
    return here == there ? -1 : here ? app.view.lane : app.other_lane();
}

/// Returns which of the lane's first n tokens the chat template wrote; none without a chat.
std::vector<bool> template_tokens_of(const AppState& app, int lane, int n) {
    const RunInfo& info = app.run.history.run();
    if (info.start.chat.empty()) return std::vector<bool>(to_index(n), false);
    const std::vector<int>& tokens = app.run.history.lanes()[to_index(lane)].tokens;
    std::vector<std::string> bytes;
    for (int p = 0; p < std::min(n, static_cast<int>(tokens.size())); ++p)
        bytes.push_back(info.token_bytes[to_index(tokens[to_index(p)])]);
    std::vector<bool> marks = template_tokens(info.start.chat_parts, bytes);
    marks.resize(to_index(n), false);
    return marks;
}

/// Draws the choice of what the colours of the words show.
void draw_color_choice(const PanelContext& context) {
    struct Choice {
        TextColor color;
        const char* label;
        const char* help;
    };
    static constexpr std::array kChoices = {
        Choice{TextColor::share, "kept share", "The share of all KV heads that keep the token."},
        Choice{TextColor::score, "score", "The token's score in the focused head, on a logarithmic scale."},
        Choice{TextColor::age, "age",
               "Steps since the token was read, on a logarithmic scale; brighter is newer."}};
    const auto now = std::find_if(kChoices.begin(), kChoices.end(), [&](const Choice& choice) {
        return choice.color == context.app.view.text_color;
    });
    ImGui::SetNextItemWidth(context.px(112));
    ScopedCombo combo("##text color", now->label);
    if (!combo.open()) {
        mark_item(context, "text.color");
        return tooltip(context, std::string("What colours the words. ") + now->help);
    }
    for (const Choice& choice : kChoices) {
        if (combo.item(choice.label, &choice == &*now))
            run(context, fmt::format("text.color {}", text_color_name(choice.color)));
        mark_item(context, fmt::format("text.color {}", text_color_name(choice.color)));
        tooltip(context, choice.help);
    }
}

}  // namespace

void draw(TextPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.run.has_steps()) return;
    ImGui::AlignTextToFramePadding();
    heading(context, "Text");
    ImGui::SameLine();
    colored_text(theme::lane_color(app.view.lane), fmt::format("lane {}", app.view.lane));
    draw_lane_mark(context, app.view.lane);
    if (!shows_lane(context, "text", app.view.lane)) return;
    const int lane = *app.shown_lane(), n = app.view.row + 1, g = app.focused_kv_head();
    ImGui::SameLine(0, context.px(12));
    const TextColor by = app.view.text_color;
    draw_color_choice(context);
    const bool narrow = ImGui::GetWindowWidth() < context.px(420);

    std::vector<float> score(to_index(n));
    std::vector<float>& share = panel.share;
    const std::tuple shown(app.run.history.generation(), lane, app.view.row, app.run.last_row());
    if (panel.share_of != shown) {
        panel.share_of = shown;
        share.resize(to_index(n));
        kept_share(app.run.history, lane, app.view.row, 0, app.run.history.layout(lane).n_kv_heads(), share);
        panel.own_choice.assign(to_index(n), -1);
        for (int p = app.run.history.n_prompt(); p < n; ++p)
            panel.own_choice[to_index(p)] = choice_passed_over(app.run.history, lane, p);
        panel.in_template = template_tokens_of(app, lane, n);
        panel.any_forced =
            std::any_of(panel.own_choice.begin(), panel.own_choice.end(), [](int id) { return id >= 0; });
    }
    if (!narrow) {
        ImGui::SameLine(0, context.px(12));
        if (app.view.arrangement == Arrangement::compare) {
            dim_text(context, "bar above: only this lane keeps it in the focused head");
            ImGui::SameLine(0, context.px(12));
        }
        dim_text(
            context,
            panel.any_forced
                ? "struck through: evicted everywhere · underlined: the lane would have chosen another token"
                : "struck through: evicted everywhere · drag over words to watch them");
    }
    const bool scored = by == TextColor::score && score_values(app.run.history, lane, app.view.row, g, score);
    float most = 0;
    if (scored)
        for (float s : score)
            if (s > most) most = s;

    const ScopedChild child = words_child(context, "text", 6);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x, line = ImGui::GetFontSize() + context.px(7);
    const float clip_top = ImGui::GetWindowPos().y - line,
                clip_bottom = ImGui::GetWindowPos().y + ImGui::GetWindowHeight();
    // The newest token is in view; before the first decoded one, the watched words are.
    const bool at_prompt = app.view.watched && app.run.n_decoded() == 0;
    const auto& in_lesson = app.lesson.in_sight;
    const bool by_lesson = in_lesson && in_lesson->second == app.view.row;
    const int seen = by_lesson   ? std::min(in_lesson->first, app.view.row)
                     : at_prompt ? std::min(app.view.watched->last, app.view.row)
                                 : app.view.row;
    float x = 0, y = 0, row_y = 0;
    const ImVec2 mouse = ImGui::GetMousePos();
    const bool hovered = ImGui::IsWindowHovered();
    const TokenSpan dragged = panel.dragged();
    for (int p = 0; p < n; ++p) {
        const std::string& text = token_words(app, lane, p);
        const float wide = std::max(ImGui::CalcTextSize(text.c_str()).x, context.px(4));
        if (x + wide > width && x > 0) {
            x = 0;
            y += line;
        }
        const ImVec2 min(origin.x + x, origin.y + y), max(min.x + wide, min.y + line - context.px(3));
        x += wide + 1;
        if (p == seen) row_y = y;
        if (max.y < clip_top || min.y > clip_bottom) continue;
        const std::size_t i = to_index(p);
        float u = share[i];
        if (by == TextColor::score)
            u = scored && score[i] > 0 && most > 0 ? std::max(0.0f, 1 + std::log10(score[i] / most) / 3) : 0;
        if (by == TextColor::age)
            u = 1 - std::log1p(static_cast<float>(app.view.row - p)) / std::log1p(static_cast<float>(n));
        const bool gone = share[i] == 0;
        const float place = 0.08f + 0.8f * u;
        const bool dimmed = panel.in_template[i];
        if (!gone && !dimmed)
            list.AddRectFilled(min, max, by == TextColor::share ? share_color(u) : heat(place), 2);
        const bool on_light = by != TextColor::share && light(place) && !dimmed;
        // A token that few heads hold looks nearly gone.
        const ImU32 color = gone || dimmed ? theme::colors().faint
                            : on_light     ? theme::kOnBright
                            : by == TextColor::share
                                ? theme::faded(theme::colors().text, 0.4f + 0.6f * share[i])
                                : theme::kOnDark;
        list.AddText({min.x, min.y + context.px(1)}, color, text.c_str());
        if (gone)
            list.AddLine({min.x, (min.y + max.y) / 2}, {max.x, (min.y + max.y) / 2}, theme::colors().faint);
        if (panel.own_choice[i] >= 0)  // forced: the lane did not choose this token
            list.AddLine({min.x, max.y - context.px(1)}, {max.x, max.y - context.px(1)}, theme::colors().warm,
                         context.px(1.5f));
        const bool prompt_end = p == app.run.history.n_prompt();
        if (prompt_end) list.AddLine({min.x - 1, min.y - 1}, {min.x - 1, max.y + 1}, theme::colors().warm, 2);
        const std::optional<Pick>& over = context.shared.hovered;
        const bool picked = app.view.has_picked(p);
        if (app.view.watched && app.view.watched->holds(p))
            list.AddRectFilled({min.x, max.y}, {max.x + 1, max.y + context.px(2)}, theme::colors().good);
        if (dragged.size() > 1 && dragged.holds(p))
            list.AddRectFilled(min, {max.x + 1, max.y}, theme::faded(theme::colors().good, 0.35f), 2);
        if (picked)
            list.AddRect({min.x - 1, min.y - 1}, {max.x + 1, max.y + 1}, theme::colors().warm, 2, 0, 1.5f);
        if (over && over->position == p)
            list.AddRect({min.x - 1, min.y - 1}, {max.x + 1, max.y + 1}, theme::colors().text, 2);
        const int alone = lone_holder(app, p);
        if (alone >= 0)
            list.AddRectFilled({min.x, min.y - context.px(1)}, {max.x, min.y + context.px(1.5f)},
                               theme::lane_color(alone));
        mark_area(context, fmt::format("token {}", p), min, max);
        if (hovered && mouse.x >= min.x && mouse.x <= max.x && mouse.y >= min.y && mouse.y < min.y + line) {
            context.shared.next_hovered = Pick{app.view.row, p};
            if (ImGui::IsMouseClicked(0)) {
                pick(context, {app.view.row, p}, ImGui::GetIO().KeyShift);
                panel.drag_first = panel.drag_last = p;
            }
            if (panel.drag_first >= 0 && ImGui::IsMouseDown(0)) panel.drag_last = p;
            if (ImGui::IsMouseClicked(1)) {
                pick(context, {app.view.row, p}, picked);  // among several, they stay picked
                context.shared.open_token_menu = true;
            }
            std::string words = fmt::format("position {}, {} steps old: kept by {:.0f} % of the KV heads", p,
                                            app.view.row - p, double(share[i]) * 100);
            if (scored && score[i] >= 0) words += fmt::format("\nscore {}", number_text(double(score[i])));
            if (panel.own_choice[i] >= 0)
                words += fmt::format("\nlane {} had to consume this; it would have chosen “{}”",
                                     app.view.lane, visible(token_words(app, panel.own_choice[i])));
            if (dimmed) words += "\nwritten by the chat template";
            if (alone >= 0) words += fmt::format("\nin the focused head only lane {} keeps it", alone);
            ImGui::SetTooltip("%s", words.c_str());
        }
    }
    ImGui::Dummy({width, y + line});
    if (panel.drag_first >= 0 && !ImGui::IsMouseDown(0)) {
        if (dragged.size() > 1) run(context, fmt::format("watch {} {}", dragged.first, dragged.last));
        panel.drag_first = -1;
    }
    if (panel.last_row != seen || panel.width != width) {
        panel.last_row = seen;
        panel.width = width;
        ImGui::SetScrollFromPosY(origin.y - ImGui::GetWindowPos().y + row_y + line,
                                 at_prompt || by_lesson ? 0.6f : 0.9f);
    }
}

}  // namespace keyhole
