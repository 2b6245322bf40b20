#include "app/panels/text_panel.h"

#include "app/view/story_text.h"
#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"
#include "engine/model/chat_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

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

/// Computes what the colours and lines of the words show, unless it is known for this state.
void update(TextPanel& panel, const AppState& app, int lane, int n) {
    const RunHistory& history = app.run.history;
    const std::tuple shown(history.generation(), lane, app.view.row, app.run.last_row());
    if (panel.share_of == shown) return;
    panel.share_of = shown;
    panel.share.resize(to_index(n));
    kept_share(history, lane, app.view.row, 0, history.layout(lane).n_kv_heads(), panel.share);
    panel.own_choice.assign(to_index(n), -1);
    for (int p = history.n_prompt(); p < n; ++p)
        panel.own_choice[to_index(p)] = choice_passed_over(history, lane, p);
    panel.in_template = template_tokens_of(app, lane, n);
    panel.any_forced =
        std::any_of(panel.own_choice.begin(), panel.own_choice.end(), [](int id) { return id >= 0; });
}

/// Explains the lines through and below words, behind the choice of colours.
void draw_signs(const TextPanel& panel, const PanelContext& context) {
    if (ImGui::GetWindowWidth() < context.px(420)) return;
    ImGui::SameLine(0, context.px(12));
    if (context.app.view.arrangement == Arrangement::compare) {
        dim_text(context, "bar above: only this lane keeps it in the focused head");
        ImGui::SameLine(0, context.px(12));
    }
    dim_text(
        context,
        panel.any_forced
            ? "struck through: evicted everywhere · grey, with the lane's own word above: it was fed lane 0's"
            : "struck through: evicted everywhere · drag over words to watch them");
}

/// The words of a lane up to the shown step, and what colours them.
struct Words {
    TextPanel& panel;
    const PanelContext& context;
    int lane = 0, n = 0;
    TextColor by = TextColor::share;
    std::vector<float> score = {};  ///< [position]; empty: not known, or not asked for
    float most = 0;                 ///< the highest score
    TokenSpan dragged = {};
    float least_ink = 0.4f;  ///< of a word that no head keeps

    const AppState& app() const { return context.app; }
    bool gone(int p) const { return panel.share[to_index(p)] == 0; }
    bool dimmed(int p) const { return panel.in_template[to_index(p)]; }
    /// Returns 0 to 1: how much of the colour's measure the token has.
    float tone(int p) const {
        if (by == TextColor::age)
            return 1 - std::log1p(static_cast<float>(app().view.row - p)) / std::log1p(static_cast<float>(n));
        if (by == TextColor::share) return panel.share[to_index(p)];
        const bool counts = !score.empty() && score[to_index(p)] > 0 && most > 0;
        return counts ? std::max(0.0f, 1 + std::log10(score[to_index(p)] / most) / 3) : 0;
    }
};

Words words_of(TextPanel& panel, const PanelContext& context, int lane, int n) {
    const AppState& app = context.app;
    Words words{panel, context, lane, n, app.view.text_color};
    words.dragged = panel.dragged();
    if (words.by != TextColor::score) return words;
    words.score.resize(to_index(n));
    if (!score_values(app.run.history, lane, app.view.row, app.focused_kv_head(), words.score))
        words.score.clear();
    for (const float s : words.score)
        if (s > words.most) words.most = s;
    return words;
}

/// The rectangle of a word on the screen.
struct WordBox {
    ImVec2 min, max;
};

/// Draws a word with its colour, struck through if no head keeps it.
void draw_word(const Words& words, ImDrawList& list, int p, const WordBox& box) {
    const auto& [min, max] = box;
    const bool gone = words.gone(p), dimmed = words.dimmed(p), by_share = words.by == TextColor::share;
    const float u = words.tone(p), place = 0.08f + 0.8f * u;
    if (!gone && !dimmed) list.AddRectFilled(min, max, by_share ? share_color(u) : heat(place), 2);
    const bool on_light = !by_share && light(place) && !dimmed;
    // A token that few heads hold looks nearly gone.
    const float ink = words.least_ink + (1 - words.least_ink) * words.panel.share[to_index(p)];
    const bool fed = words.panel.own_choice[to_index(p)] >= 0;  // another word than its own
    const ImU32 color = gone || dimmed || fed ? theme::colors().faint
                        : on_light            ? theme::kOnBright
                        : by_share            ? theme::faded(theme::colors().text, ink)
                                              : theme::kOnDark;
    list.AddText({min.x, min.y + words.context.px(1)}, color,
                 token_words(words.app(), words.lane, p).c_str());
    if (gone) list.AddLine({min.x, (min.y + max.y) / 2}, {max.x, (min.y + max.y) / 2}, theme::colors().faint);
}

/// Draws the signs on a word: forced, end of the prompt, watched, dragged over, picked, hovered.
void draw_word_signs(const Words& words, ImDrawList& list, int p, const WordBox& box) {
    const PanelContext& context = words.context;
    const ViewState& view = words.app().view;
    const auto& [min, max] = box;
    const auto frame = [&](ImU32 color, float thick) {
        list.AddRect({min.x - 1, min.y - 1}, {max.x + 1, max.y + 1}, color, 2, 0, thick);
    };
    if (words.panel.own_choice[to_index(p)] >= 0)  // forced: the lane did not choose this token
        list.AddLine({min.x, max.y - context.px(1)}, {max.x, max.y - context.px(1)}, theme::colors().warm,
                     context.px(1.5f));
    if (p == words.app().run.history.n_prompt())
        list.AddLine({min.x - 1, min.y - 1}, {min.x - 1, max.y + 1}, theme::colors().warm, 2);
    if (view.watched && view.watched->holds(p))
        list.AddRectFilled({min.x, max.y}, {max.x + 1, max.y + context.px(2)}, theme::colors().warm);
    if (words.dragged.size() > 1 && words.dragged.holds(p))
        list.AddRectFilled(min, {max.x + 1, max.y}, theme::faded(theme::colors().warm, 0.35f), 2);
    if (view.has_picked(p)) frame(theme::colors().warm, 1.5f);
    if (const std::optional<Pick>& over = context.shared.hovered; over && over->position == p)
        frame(theme::colors().text, 1);
    if (const int alone = lone_holder(words.app(), p); alone >= 0)
        list.AddRectFilled({min.x, min.y - context.px(1)}, {max.x, min.y + context.px(1.5f)},
                           lane_ink(context, alone));
}

std::string tooltip_of(const Words& words, int p) {
    const AppState& app = words.app();
    const std::size_t i = to_index(p);
    std::string text = fmt::format("position {}, {} steps old: kept by {:.0f} % of the KV heads", p,
                                   app.view.row - p, double(words.panel.share[i]) * 100);
    if (!words.score.empty() && words.score[i] >= 0)
        text += fmt::format("\nscore {}", number_text(double(words.score[i])));
    if (words.panel.own_choice[i] >= 0)
        text += fmt::format("\nlane {} had to consume this; it would have chosen “{}”", app.view.lane,
                            visible(token_words(app, words.panel.own_choice[i])));
    if (words.dimmed(p)) text += "\nwritten by the chat template";
    if (const int alone = lone_holder(app, p); alone >= 0)
        text += fmt::format("\nin the focused head only lane {} keeps it", alone);
    return text;
}

/// Takes clicks and drags on the word under the pointer.
void take_pointer(const Words& words, int p) {
    const PanelContext& context = words.context;
    const Pick cell{words.app().view.row, p};
    TextPanel& panel = words.panel;
    context.shared.next_hovered = cell;
    if (ImGui::IsMouseClicked(0)) {
        pick(context, cell, ImGui::GetIO().KeyShift);
        panel.drag_first = panel.drag_last = p;
    }
    if (panel.drag_first >= 0 && ImGui::IsMouseDown(0)) panel.drag_last = p;
    if (ImGui::IsMouseClicked(1)) {
        pick(context, cell, words.app().view.has_picked(p));  // among several, they stay picked
        context.shared.open_token_menu = true;
    }
    ImGui::SetTooltip("%s", tooltip_of(words, p).c_str());
}

/// The position that is to be in sight, and its place within the window's height.
struct Sight {
    int position = 0;
    float place = 0;
};

/// The newest token is in sight; before the first decoded one, the watched words are.
Sight sight_of(const AppState& app) {
    const int row = app.view.row;
    const auto& in_lesson = app.lesson.in_sight;
    const bool at_prompt = app.view.watched && app.run.n_decoded() == 0;
    if (in_lesson && in_lesson->second == row) return {std::min(in_lesson->first, row), 0.6f};
    if (at_prompt) return {std::min(app.view.watched->last, row), 0.6f};
    return {row, 0.9f};
}

/// Returns the room above a word for the one that the lane would have chosen; 0: no word needs it.
float room_above(const Words& words) {
    const ScopedFont font(words.context.fonts.small);
    return words.panel.any_forced ? ImGui::GetFontSize() : 0;
}

float line_of(const Words& words) {
    return ImGui::GetFontSize() + words.context.px(7) + room_above(words);
}

float word_width(const Words& words, int p) {
    const AppState& app = words.app();
    const float fed =
        std::max(ImGui::CalcTextSize(token_words(app, words.lane, p).c_str()).x, words.context.px(4));
    const int own = words.panel.own_choice[to_index(p)];
    if (own < 0) return fed;
    const ScopedFont font(words.context.fonts.small);
    return std::max(fed, ImGui::CalcTextSize(visible(token_words(app, own)).c_str()).x + 2);
}

/// Draws a word with its signs, and above it the word of the lane's own where it was fed another one.
void draw_whole_word(const Words& words, ImDrawList& list, int p, ImVec2 at, float wide, float line) {
    const PanelContext& context = words.context;
    const ImVec2 min(at.x, at.y + room_above(words)), max(at.x + wide, at.y + line - context.px(3));
    draw_word(words, list, p, {min, max});
    draw_word_signs(words, list, p, {min, max});
    if (const int own = words.panel.own_choice[to_index(p)]; own >= 0) {
        const ScopedFont font(context.fonts.small);
        list.AddText(at, theme::colors().warm, visible(token_words(words.app(), own)).c_str());
    }
    mark_area(context, fmt::format("token {}", p), min, max);
    const ImVec2 mouse = ImGui::GetMousePos();
    if (ImGui::IsWindowHovered() && mouse.x >= at.x && mouse.x <= max.x && mouse.y >= at.y &&
        mouse.y < at.y + line)
        take_pointer(words, p);
}

/// Watches the words over which the pointer was drawn, once it is released.
void watch_dragged(const Words& words) {
    if (words.panel.drag_first < 0 || ImGui::IsMouseDown(0)) return;
    if (words.dragged.size() > 1)
        run(words.context, fmt::format("watch {} {}", words.dragged.first, words.dragged.last));
    words.panel.drag_first = -1;
}

/// Draws before the words what belongs to none: the share of the step's attention that the focused head's
/// learned sink takes. Returns its width; 0: there is none.
float draw_sink_word(const Words& words, ImVec2 at, float line) {
    const AppState& app = words.app();
    const float share =
        learned_sink_share(app.run.history, words.lane, app.view.row, app.view.layer, app.view.head);
    if (std::isnan(share)) return 0;
    const std::string text = fmt::format("[sink {:.0f} %]", 100 * double(share));
    const ImVec2 min(at.x, at.y + room_above(words)),
        max(at.x + ImGui::CalcTextSize(text.c_str()).x, at.y + line - words.context.px(3));
    ImGui::GetWindowDrawList()->AddText({min.x, min.y + words.context.px(1)}, theme::colors().dim,
                                        text.c_str());
    mark_area(words.context, "sink word", min, max);
    if (ImGui::IsWindowHovered() && ImGui::IsMouseHoveringRect(min, max))
        ImGui::SetTooltip(
            "Sink, no token: what the focused head's learned sink takes of the shown step's "
            "attention.\nIt is neither kept nor lost.");
    return max.x - min.x + words.context.px(4);
}

/// Where the lines of some words are, and the height of all.
struct DrawnWords {
    float seen_y = 0, picked_y = 0, height = 0;
};

/// Draws the words line by line. seen, picked: the words whose lines are wanted.
DrawnWords draw_words(const Words& words, int seen, int picked, ImVec2 origin, float width, float line) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float clip_top = ImGui::GetWindowPos().y - line,
                clip_bottom = ImGui::GetWindowPos().y + ImGui::GetWindowHeight();
    float x = draw_sink_word(words, origin, line), y = 0;
    DrawnWords drawn;
    for (int p = 0; p < words.n; ++p) {
        const float wide = word_width(words, p);
        if (x + wide > width && x > 0) {
            x = 0;
            y += line;
        }
        const ImVec2 min(origin.x + x, origin.y + y);
        x += wide + 1;
        if (p <= seen) drawn.seen_y = y;
        if (p <= picked) drawn.picked_y = y;
        if (min.y + line < clip_top || min.y > clip_bottom) continue;
        draw_whole_word(words, list, p, min, wide, line);
    }
    drawn.height = y + line;
    return drawn;
}

std::optional<int> picked_position(const AppState& app) {
    return app.view.pick ? std::optional(app.view.pick->position) : std::nullopt;
}

/// Scrolls to the picked token once, if it is out of sight. y: of its line.
void bring_pick_into_sight(TextPanel& panel, const AppState& app, float y, float line) {
    if (std::exchange(panel.picked, picked_position(app)) == panel.picked || !panel.picked) return;
    const float top = ImGui::GetScrollY(), bottom = top + ImGui::GetWindowHeight();
    if (y < top || y + 2 * line > bottom) ImGui::SetScrollFromPosY(y - top + line, 0.5f);
}

/// A part of the text on one line.
struct LinePart {
    TokenSpan shown, keeps;  ///< keeps: what stays where it is cut
    float width = 0;
    /// Cuts a token off at the end that has more to lose. Returns false if none may go.
    bool cut(const Words& words) {
        const int before = keeps.first - shown.first, after = shown.last - keeps.last;
        if (before <= 0 && after <= 0) return false;
        width -= word_width(words, before > after ? shown.first++ : shown.last--) + 1;
        return true;
    }
};

/// Returns the parts that one line shows, in the order of the text.
std::vector<LinePart> line_parts(const Words& words, TokenSpan around_watched) {
    const AppState& app = words.app();
    const int last = words.n - 1;
    around_watched.last = std::min(around_watched.last, last);
    std::vector<LinePart> parts = {{around_watched, app.view.watched.value_or(around_watched)}};
    if (const std::optional<int> p = picked_position(app); p && *p <= last) {
        TokenSpan& keeps = parts[0].keeps;
        const TokenSpan around{std::max(*p - Story::kAround, 0), std::min(*p + Story::kAround, last)};
        if (around_watched.holds(*p))  // it stays too
            keeps = {std::min(keeps.first, *p), std::max(keeps.last, *p)};
        else if (*p < around_watched.first)
            parts.insert(parts.begin(),
                         LinePart{{around.first, std::min(around.last, around_watched.first - 1)}, {*p, *p}});
        else
            parts.push_back(
                LinePart{{std::max(around.first, around_watched.last + 1), around.last}, {*p, *p}});
    }
    for (LinePart& part : parts)
        for (int p = part.shown.first; p <= part.shown.last; ++p) part.width += word_width(words, p) + 1;
    return parts;
}

/// Cuts the widest part until all have room.
void fit_parts(std::vector<LinePart>& parts, const Words& words, float room) {
    const auto width = [&] {
        return std::accumulate(parts.begin(), parts.end(), 0.0f,
                               [](float sum, const LinePart& part) { return sum + part.width; });
    };
    const auto is_wider = [](const LinePart& a, const LinePart& b) { return a.width > b.width; };
    while (width() > room) {
        std::vector<LinePart*> by_width;
        for (LinePart& part : parts) by_width.push_back(&part);
        std::ranges::stable_sort(by_width, [&](auto* a, auto* b) { return is_wider(*a, *b); });
        if (std::ranges::none_of(by_width, [&](LinePart* part) { return part->cut(words); })) return;
    }
}

}  // namespace

void draw(TextPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.run.has_steps()) return;
    ImGui::AlignTextToFramePadding();
    heading(context, "Text");
    ImGui::SameLine();
    colored_text(lane_ink(context, app.view.lane), fmt::format("lane {}", app.view.lane));
    draw_lane_mark(context, app.view.lane);
    if (!shows_lane(context, "text", app.view.lane)) return;
    const int lane = *app.shown_lane(), n = n_tokens_at(app.run.history, lane, app.view.row);
    ImGui::SameLine(0, context.px(12));
    draw_color_choice(context);
    update(panel, app, lane, n);
    draw_signs(panel, context);
    const Words words = words_of(panel, context, lane, n);

    const ScopedChild child = words_child(context, "text", 6);
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x, line = line_of(words);
    const Sight sight = sight_of(app);
    const DrawnWords drawn =
        draw_words(words, sight.position, picked_position(app).value_or(-1), origin, width, line);
    ImGui::Dummy({width, drawn.height});
    watch_dragged(words);
    if (panel.last_row != sight.position || panel.width != width) {
        panel.last_row = sight.position;
        panel.width = width;
        ImGui::SetScrollFromPosY(origin.y - ImGui::GetWindowPos().y + drawn.seen_y + line, sight.place);
        panel.picked = picked_position(app);
    }
    bring_pick_into_sight(panel, app, origin.y - ImGui::GetWindowPos().y + drawn.picked_y, line);
}

void draw_parts(TextPanel& panel, const PanelContext& context, TokenSpan around_watched) {
    const AppState& app = context.app;
    if (!shows_lane(context, "text", app.view.lane)) return;
    const int lane = *app.shown_lane(), n = n_tokens_at(app.run.history, lane, app.view.row);
    update(panel, app, lane, n);
    Words words = words_of(panel, context, lane, n);
    words.least_ink = 0.8f;  // it is read first, whatever the lane keeps
    const char* const kLeftOut = "[…] ";
    const float dots = ImGui::CalcTextSize(kLeftOut).x;
    std::vector<LinePart> parts = line_parts(words, around_watched);
    fit_parts(parts, words, ImGui::GetContentRegionAvail().x - dots * static_cast<float>(parts.size() + 1));
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 origin = ImGui::GetCursorScreenPos();
    const float line = line_of(words), y = origin.y + room_above(words) + context.px(1);
    float x = origin.x;
    int next = 0;
    for (const LinePart& part : parts) {
        if (part.shown.first > next && next > 0) x += ImGui::CalcTextSize(" ").x;
        if (part.shown.first > next) list.AddText({x, y}, theme::colors().dim, kLeftOut);
        x += part.shown.first > next || next == 0 ? dots : 0;
        for (int p = part.shown.first; p <= part.shown.last; ++p) {
            const float wide_word = word_width(words, p);
            draw_whole_word(words, list, p, {x, origin.y}, wide_word, line);
            x += wide_word + 1;
        }
        next = part.shown.last + 1;
    }
    if (next <= app.run.last_row()) list.AddText({x, y}, theme::colors().dim, " […]");
    ImGui::Dummy({x - origin.x, line});
    watch_dragged(words);
}

}  // namespace keyhole
