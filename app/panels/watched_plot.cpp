#include "app/panels/watched_plot.h"

#include "app/panels/lane_curve.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace keyhole {

namespace {

constexpr float kLeastPlotLines = 3;  // height of the plot, in lines of text

std::string when(const std::optional<int>& row) {
    return row ? fmt::format("step {}", *row) : "never";
}

/// Returns what a lane keeps of the span after a step, and what became of it. step: index of the record.
std::string watched_words(const SpanLifetime& lifetime, int step) {
    if (!lifetime.is_read) return "not yet read at this step";
    const bool known = step >= 0 && to_index(step) < lifetime.share.size();
    if (!known || std::isnan(lifetime.share[to_index(step)])) return "no step here";
    return fmt::format("{:.0f} % left; {}", double(lifetime.share[to_index(step)]) * 100,
                       span_verdict(lifetime));
}

/// A lane's line below the plot.
struct WatchedNote {
    int lane = 0;
    std::string text, tooltip;
    std::optional<SpanLifetime> lifetime;  ///< of its records
};

WatchedNote note_of_lane(const AppState& app, int lane, TokenSpan span, int first_row) {
    const LaneOnShow& shown = app.shown().at(lane);
    const auto known = app.run.history_lane(lane);
    if (!known) {
        const bool joins = shown.source == LaneOnShow::Source::parent;
        const std::string text =
            fmt::format("{}  {}", shown.title, joins ? words_before_first_step(app.run) : shown.note);
        return {lane, text, text, std::nullopt};
    }
    WatchedNote note{lane, "", "", span_lifetime(app.run.history, *known, span, app.view.row)};
    const SpanLifetime& lifetime = *note.lifetime;
    note.text =
        fmt::format("{}{}  {}", shown.title, shown.mark.empty() ? "" : fmt::format(" ({})", shown.mark),
                    watched_words(lifetime, app.view.row - first_row));
    const std::string other =
        lifetime.first_other_token ? fmt::format("at {}", *lifetime.first_other_token + 1) : "nowhere";
    note.tooltip = fmt::format(
        "Lane {}, the counts after step {}\n× no head stores all of them from: {}\nno "
        "head stores any of them from: {}\n○ the lane's own word first differs from "
        "lane 0's: {}",
        lane, app.view.row, when(lifetime.no_head_has_all), when(lifetime.all_gone), other);
    return note;
}

/// Returns the notes that have room below a plot, the focused lane's always, and the height that they take.
std::pair<std::vector<WatchedNote>, float> notes_in_room(std::vector<WatchedNote> notes, int focused,
                                                         ImVec2 room) {
    const auto height = [&](const WatchedNote& note) {
        return ImGui::CalcTextSize(note.text.c_str(), nullptr, false, room.x).y;
    };
    float sum = 0;
    for (const WatchedNote& note : notes) sum += height(note);
    if (sum > room.y)
        std::ranges::stable_partition(notes, [&](const WatchedNote& note) { return note.lane == focused; });
    std::string more;
    while (sum > room.y && notes.size() > 1) {
        sum -= height(notes.back());
        more = "\n" + notes.back().text + more;
        notes.pop_back();
    }
    if (!more.empty())
        for (WatchedNote& note : notes) note.tooltip += "\n\nA taller pane lists the other lanes too:" + more;
    return {std::move(notes), sum};
}

}  // namespace

void draw_watched_plot(const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.view.watched) {
        dim_text(context, "Pick words in the text (Shift adds more) and press W to watch them.");
        return;
    }
    const TokenSpan span = *app.view.watched;
    std::string words;
    for (int p = span.first; p <= std::min(span.last, span.first + 24); ++p)
        words += token_words(app, app.text_lane(), p);
    const ScopedFont font(context.fonts.small);
    ImGui::TextUnformatted(
        fitted(fmt::format("“{}”  {}", words, span.text()), ImGui::GetContentRegionAvail().x).c_str());
    const float line = ImGui::GetFontSize();
    const ImVec2 origin = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
    // The plot comes first: of many lanes only some have their words below it.
    const int n_lanes = app.run.lane_editor.n_lanes(), first_row = app.run.first_row();
    std::vector<WatchedNote> all;
    for (int lane = 0; lane < n_lanes; ++lane) all.push_back(note_of_lane(app, lane, span, first_row));
    // The numbers at the ends of many lines go on below the plot: no note reaches under them.
    const float notes_width = room.x - kLineEndRoom * context.scale;
    const auto [notes, notes_height] = notes_in_room(
        all, app.view.lane, {notes_width, room.y - context.px(14) - (kLeastPlotLines + 1) * line});
    const float left = context.px(context.from_afar() ? 48 : 38), below = notes_height + line + context.px(8);
    const ImVec2 min(origin.x + left, origin.y + context.px(4)),
        size(notes_width - left, room.y - below - context.px(6));
    ImDrawList& list = *ImGui::GetWindowDrawList();
    if (size.x < 30 || size.y < 24) return;
    list.AddRectFilled(min, {min.x + size.x, min.y + size.y}, theme::colors().inset, 3);
    mark_area(context, "watched plot", min, {min.x + size.x, min.y + size.y});
    const StepList& steps = app.run.history.steps();
    const int first = steps.front()->row, last = std::max(steps.back()->row, first + 1);
    const auto at = [&](int row, float share) {
        return ImVec2(min.x + size.x * static_cast<float>(row - first) / static_cast<float>(last - first),
                      min.y + context.px(3) + (size.y - context.px(6)) * (1 - share));
    };
    for (const float share : {0.0f, 0.5f, 1.0f}) {
        const float y = at(first, share).y;
        list.AddLine({min.x, y}, {min.x + size.x, y}, theme::colors().grid);
        if (share == 0.5f && size.y < 2.5f * line) continue;
        list.AddText({origin.x, y - line / 2}, theme::colors().dim,
                     fmt::format("{:.0f} %", share * 100).c_str());
    }
    list.PushClipRect(min, {min.x + size.x, min.y + size.y}, true);
    float text_y = min.y + size.y + line + context.px(6);
    std::vector<LineEnd> ends;
    for (const WatchedNote& note : all) {
        if (!note.lifetime) continue;
        const int lane = note.lane;
        const SpanLifetime& lifetime = *note.lifetime;
        note_shown_lane(context, fmt::format("watched {}", lane), lane);
        const ImU32 color = lane_ink(context, lane);
        LaneCurve drawn(context, list, lane, lane == app.view.lane ? 2.4f : 1.5f);
        std::optional<ImVec2> end;
        for (std::size_t i = 0; i < lifetime.share.size(); ++i) {
            if (std::isnan(lifetime.share[i])) {
                drawn.lift();
                continue;
            }
            end = at(steps[i]->row, lifetime.share[i]);
            drawn.to(*end);
        }
        drawn.lift();
        if (end) ends.push_back({lane, end->y});
        const auto share_at = [&](int row) {
            const int i = std::clamp(row - first, 0, static_cast<int>(lifetime.share.size()) - 1);
            return lifetime.share[to_index(i)];
        };
        const float r = context.px(4);
        if (lifetime.no_head_has_all && *lifetime.no_head_has_all >= first) {
            const ImVec2 mark = at(*lifetime.no_head_has_all, share_at(*lifetime.no_head_has_all));
            list.AddLine({mark.x - r, mark.y - r}, {mark.x + r, mark.y + r}, color, 2);
            list.AddLine({mark.x - r, mark.y + r}, {mark.x + r, mark.y - r}, color, 2);
        }
        if (lifetime.first_other_token && *lifetime.first_other_token >= first)
            list.AddCircle(at(*lifetime.first_other_token, share_at(*lifetime.first_other_token)), r, color,
                           0, 2);
    }
    finish_row_plot(list, min, size, at(app.view.row, 0).x, first, steps.back()->row);
    label_line_ends(context, list, std::move(ends), {min.x + size.x + context.px(3), min.y}, size.y);
    for (const WatchedNote& note : notes) {
        ImGui::SetCursorScreenPos({origin.x, text_y});
        {
            const ScopedColor ink(ImGuiCol_Text, lane_ink(context, note.lane));
            const ScopedTextWrap wrap(ImGui::GetCursorPosX() + notes_width);
            ImGui::TextUnformatted(note.text.c_str());
        }
        tooltip(context, note.tooltip);
        text_y = ImGui::GetItemRectMax().y;
    }
}

}  // namespace keyhole
