#include "app/panels/time_bar.h"

#include "app/panels/lane_curve.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace keyhole {

namespace {

/// Returns the branches other than the shown one: from the engine for a live run, from the last record for a
/// trace.
std::span<const Branch> other_branches(const AppState& app) {
    if (app.run.live()) return app.run.status.other_branches;
    const auto& known = app.run.history.steps().back()->other_branches;
    return known == nullptr ? std::span<const Branch>() : std::span<const Branch>(*known);
}

std::string branch_text(const Branch& branch) {
    std::string text = fmt::format("branch {}: begins after step {}, ends at step {}", branch.id,
                                   branch.from_row, branch.last_row);
    for (const RunCommand& command : branch.commands)
        text += fmt::format("\n   after {}: {}", command.row, command.text);
    return text;
}

void draw_rewind_buttons(const PanelContext& context) {
    const AppState& app = context.app;
    const ScopedDisabled disabled(!app.run.live());
    action_button(context, "rewind", fmt::format("Rewind to {}", app.view.row).c_str());
    if (app.view.row < app.run.last_row() && app.run.settings_differ_at(app.view.row)) {
        ImGui::SameLine(0, context.px(2));
        if (ImGui::Button("and keep settings")) run(context, fmt::format("rewind {} keep", app.view.row));
        mark_item(context, "rewind keep");
        tooltip(context, fmt::format("Goes back to step {0} and keeps the current settings of lanes, follow "
                                     "and sampling. “Rewind to {0}” restores the settings of that step.",
                                     app.view.row));
    }
    ImGui::SameLine(0, context.px(2));
    action_button(context, "fork.here", "fork");
}

/// Draws the buttons to rewind, to fork, and to go to other branches.
void draw_branch_buttons(const PanelContext& context) {
    const AppState& app = context.app;
    const std::span<const Branch> branches = other_branches(app);
    draw_rewind_buttons(context);
    if (branches.empty()) return;
    ImGui::SameLine(0, context.px(2));
    if (ImGui::Button(fmt::format("branches: {}", branches.size()).c_str())) ImGui::OpenPopup("branches");
    mark_item(context, "branches");
    tooltip(context, "Branches that rewinding left. Choose one to continue from its end.");
    const ScopedPopup popup("branches");
    if (!popup.open()) return;
    for (const Branch& branch : branches) {
        if (ImGui::MenuItem(branch_text(branch).c_str(), nullptr, false, app.run.live()))
            run(context, fmt::format("branch {}", branch.id));
        mark_item(context, fmt::format("branch {}", branch.id));
    }
}

/// Marks along the upper edge where branches leave (diamonds) and where lanes were forked (in the lane's
/// colour).
void draw_forks(const PanelContext& context, ImDrawList& list, float top, const auto& x_of) {
    const AppState& app = context.app;
    const auto diamond = [&](float x, ImU32 color) {
        const float r = context.px(4), y = top + r + 1;
        list.AddQuadFilled({x, y - r}, {x + r, y}, {x, y + r}, {x - r, y}, color);
    };
    for (const Branch& branch : other_branches(app))
        if (branch.from_row <= app.run.last_row()) diamond(x_of(branch.from_row), theme::colors().good);
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane)
        if (const std::optional<int> known = app.run.history_lane(lane)) {
            const RunHistory::Lane& l = app.run.history.lanes()[to_index(*known)];
            if (l.forked_from >= 0) diamond(x_of(l.forked_at), theme::lane_color(lane));
        }
}

}  // namespace

void draw(TimeBar&, const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.run.has_steps()) return;
    const int first = app.run.first_row(), last = app.run.last_row(), n = last - first + 1;
    ImGui::AlignTextToFramePadding();
    heading(context, "Time");
    ImGui::SameLine();
    action_button(context, "time.first", "|◀");
    ImGui::SameLine(0, context.px(2));
    action_button(context, "time.back", "◀");
    ImGui::SameLine(0, context.px(2));
    action_button(context, "run.step", "▶");
    ImGui::SameLine(0, context.px(2));
    action_button(context, "time.last", "▶|");
    ImGui::SameLine(0, context.px(6));
    action_button(context, "time.follow", "newest", app.view.follows_newest);
    ImGui::SameLine(0, context.px(10));
    draw_branch_buttons(context);
    ImGui::SameLine(0, context.px(10));

    const ImVec2 min = ImGui::GetCursorScreenPos();
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const ScopedFont font(context.fonts.small);
    const float label_width = ImGui::CalcTextSize("step 00000").x + context.px(8);
    const ImVec2 size(room.x - label_width, room.y);
    const ImVec2 max(min.x + size.x, min.y + size.y);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.AddRectFilled(min, max, theme::colors().inset, 4);
    const auto x_of = [&](double row) {
        return min.x + context.px(6) +
               (size.x - context.px(12)) * static_cast<float>((row - first) / std::max(n - 1, 1));
    };

    // Evictions of the focused lane as ticks from below. Their height is the share of KV heads that evicted.
    const std::optional<int> lane = app.shown_lane();
    const float n_kv = static_cast<float>(app.layout(app.view.lane).n_kv_heads());
    float largest_kl = 1e-3f;
    for (const auto& step : app.run.history.steps()) {
        for (const LaneRecord& record : step->lanes)
            if (record.kl) largest_kl = std::max(largest_kl, *record.kl);
        if (const LaneRecord* record = lane ? app.run.history.lane_record(step->row, *lane) : nullptr;
            record != nullptr && !record->evictions.empty()) {
            const float share = std::min(1.0f, static_cast<float>(record->evictions.size()) / n_kv);
            const float x = x_of(step->row);
            list.AddLine({x, max.y - 2}, {x, max.y - 2 - (size.y * 0.42f) * share},
                         theme::faded(theme::colors().warm, 0.55f), n > 400 ? 1.0f : 2.0f);
        }
        if (!step->commands.empty()) {
            const float x = x_of(step->row);
            list.AddTriangleFilled({x - 4, min.y + 1}, {x + 4, min.y + 1}, {x, min.y + 8},
                                   theme::colors().accent);
        }
    }
    draw_forks(context, list, min.y, x_of);
    // KL of every lane to lane 0.
    for (std::size_t i = 1; i < app.run.history.lanes().size(); ++i) {
        const auto listed = [&] {  // colours belong to the lanes as they are listed
            for (int c = 0; c < app.run.lane_editor.n_lanes(); ++c)
                if (app.run.history_lane(c) == static_cast<int>(i)) return c;
            return -1;
        }();
        if (listed < 0) continue;
        LaneCurve line(context, list, listed, 1.2f);
        for (const auto& step : app.run.history.steps()) {
            const LaneRecord* record = app.run.history.lane_record(step->row, static_cast<int>(i));
            if (record == nullptr || !record->kl) {
                line.lift();
                continue;
            }
            const ImVec2 point(
                x_of(step->row),
                max.y - 3 -
                    (size.y - 8) * std::sqrt(std::min(1.0f, std::max(0.0f, *record->kl) / largest_kl)));
            line.to(point);
        }
    }
    ImGui::SetCursorScreenPos(min);
    ImGui::InvisibleButton("scrub", size);
    mark_item(context, "scrub");
    const double under = first + double(ImGui::GetMousePos().x - min.x - context.px(6)) /
                                     double(size.x - context.px(12)) * std::max(n - 1, 1);
    const int row = std::clamp(static_cast<int>(std::lround(under)), first, last);
    if (ImGui::IsItemActive() && row != app.view.row) run(context, fmt::format("time.show {}", row));
    const float handle = x_of(app.view.row);
    list.AddLine({handle, min.y}, {handle, max.y}, theme::colors().text, 1.5f);
    list.AddCircleFilled({handle, min.y + 5}, context.px(4), theme::colors().text);
    if (ImGui::IsItemHovered() && !ImGui::IsItemActive()) {
        list.AddLine({x_of(row), min.y}, {x_of(row), max.y}, theme::faded(theme::colors().text, 0.4f));
        const StepTrace& step = app.run.history.at_row(row);
        std::string text = fmt::format("step {}", row);
        for (int i = 0; i < app.run.lane_editor.n_lanes(); ++i) {
            const std::optional<int> known = app.run.history_lane(i);
            const LaneRecord* record = known ? app.run.history.lane_record(row, *known) : nullptr;
            if (record == nullptr) continue;
            text += fmt::format("\nlane {}: {}{} evictions", i,
                                record->kl ? fmt::format("KL {:.4f}, ", double(*record->kl)) : "",
                                record->evictions.size());
        }
        for (const std::string& command : step.commands) text += "\n" + command;
        for (const Branch& branch : other_branches(app))
            if (branch.from_row == row) text += "\n" + branch_text(branch);
        tooltip(context, text +
                             "\n\nLines: KL to lane 0 (square root). Ticks: evictions of the focused lane. "
                             "Triangles: changes. Diamonds: branches and forks.\nDragging only shows earlier "
                             "steps; the button Rewind goes back.");
    }
    list.AddText({max.x + context.px(8), min.y + (size.y - ImGui::GetFontSize()) / 2}, theme::colors().text,
                 fmt::format("step {}", app.view.row).c_str());
}

}  // namespace keyhole
