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

/// Draws the buttons of the shown step, and those of branches.
void draw_step_buttons(const PanelContext& context) {
    action_button(context, "time.first", "|◀");
    ImGui::SameLine(0, context.px(2));
    action_button(context, "time.back", "◀");
    ImGui::SameLine(0, context.px(2));
    action_button(context, "run.step", "▶");
    ImGui::SameLine(0, context.px(2));
    action_button(context, "time.last", "▶|");
    ImGui::SameLine(0, context.px(6));
    action_button(context, "time.follow", "newest", context.app.view.follows_newest);
    ImGui::SameLine(0, context.px(10));
    draw_branch_buttons(context);
    ImGui::SameLine(0, context.px(10));
}

/// The rectangle in which the rows of the run are drawn, from left to right.
struct RowScale {
    int first = 0, last = 0;  // rows
    ImVec2 min, size;
    float left = 0, width = 0;  // of the rows: a margin remains on both sides

    int n_rows() const { return last - first + 1; }
    ImVec2 max() const { return {min.x + size.x, min.y + size.y}; }
    float x_of(double row) const {
        return left + width * static_cast<float>((row - first) / std::max(n_rows() - 1, 1));
    }
    int row_at(float x) const {
        const double row = first + double(x - left) / double(width) * std::max(n_rows() - 1, 1);
        return std::clamp(static_cast<int>(std::lround(row)), first, last);
    }
};

/// Draws the focused lane's evictions as ticks from below, whose height is the share of KV heads that
/// evicted, and the user's changes as triangles.
void draw_evictions_and_changes(const PanelContext& context, ImDrawList& list, const RowScale& scale) {
    const AppState& app = context.app;
    const std::optional<int> lane = app.shown_lane();
    const float n_kv = static_cast<float>(app.layout(app.view.lane).n_kv_heads());
    const float top = scale.min.y, bottom = scale.max().y - 2;
    for (const auto& step : app.run.history.steps()) {
        const float x = scale.x_of(step->row);
        if (const LaneRecord* record = lane ? app.run.history.lane_record(step->row, *lane) : nullptr;
            record != nullptr && !record->evictions.empty()) {
            const float share = std::min(1.0f, static_cast<float>(record->evictions.size()) / n_kv);
            list.AddLine({x, bottom}, {x, bottom - (scale.size.y * 0.42f) * share},
                         theme::faded(theme::colors().warm, 0.55f), scale.n_rows() > 400 ? 1.0f : 2.0f);
        }
        if (!step->commands.empty())
            list.AddTriangleFilled({x - 4, top + 1}, {x + 4, top + 1}, {x, top + 8}, theme::colors().accent);
    }
}

/// Marks along the upper edge where branches leave (diamonds) and where lanes were forked (in the lane's
/// colour).
void draw_forks(const PanelContext& context, ImDrawList& list, const RowScale& scale) {
    const AppState& app = context.app;
    const auto diamond = [&](int row, ImU32 color) {
        const float r = context.px(4), x = scale.x_of(row), y = scale.min.y + r + 1;
        list.AddQuadFilled({x, y - r}, {x + r, y}, {x, y + r}, {x - r, y}, color);
    };
    for (const Branch& branch : other_branches(app))
        if (branch.from_row <= app.run.last_row()) diamond(branch.from_row, theme::colors().good);
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane)
        if (const std::optional<int> known = app.run.history_lane(lane)) {
            const RunHistory::Lane& l = app.run.history.lanes()[to_index(*known)];
            if (l.forked_from >= 0) diamond(l.forked_at, lane_ink(context, lane));
        }
}

/// Returns the place in the list of a lane of the history, whose colour it has; -1: it is not listed.
int place_in_list(const AppState& app, int lane) {
    for (int i = 0; i < app.run.lane_editor.n_lanes(); ++i)
        if (app.run.history_lane(i) == lane) return i;
    return -1;
}

/// Draws the KL of every lane to lane 0.
void draw_kl(const PanelContext& context, ImDrawList& list, const RowScale& scale) {
    const AppState& app = context.app;
    const RunHistory& history = app.run.history;
    float largest = 1e-3f;
    for (const auto& step : history.steps())
        for (const LaneRecord& record : step->lanes)
            if (record.kl) largest = std::max(largest, *record.kl);
    for (int lane = 1; lane < static_cast<int>(history.lanes().size()); ++lane) {
        const int listed = place_in_list(app, lane);
        if (listed < 0) continue;
        LaneCurve line(context, list, listed, 1.2f);
        for (const auto& step : history.steps()) {
            const LaneRecord* record = history.lane_record(step->row, lane);
            if (record == nullptr || !record->kl) {
                line.lift();
                continue;
            }
            const float share = std::sqrt(std::min(1.0f, std::max(0.0f, *record->kl) / largest));
            line.to({scale.x_of(step->row), scale.max().y - 3 - (scale.size.y - 8) * share});
        }
    }
}

/// Returns what is known of a step, and what the marks mean.
std::string step_text(const AppState& app, int row) {
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
    return text +
           "\n\nLines: KL to lane 0 (square root). Ticks: evictions of the focused lane. "
           "Triangles: changes. Diamonds: branches and forks.\nDragging only shows earlier "
           "steps; the button Rewind goes back.";
}

/// Shows the step to which the pointer drags, and says what is known of the one under it.
void draw_scrubber(const PanelContext& context, ImDrawList& list, const RowScale& scale) {
    const AppState& app = context.app;
    const float top = scale.min.y, bottom = scale.max().y;
    ImGui::SetCursorScreenPos(scale.min);
    ImGui::InvisibleButton("scrub", scale.size);
    mark_plot(context, "scrub");
    const int row = scale.row_at(ImGui::GetMousePos().x);
    if (ImGui::IsItemActive() && row != app.view.row) run(context, fmt::format("time.show {}", row));
    const float handle = scale.x_of(app.view.row);
    list.AddLine({handle, top}, {handle, bottom}, theme::colors().text, 1.5f);
    list.AddCircleFilled({handle, top + 5}, context.px(4), theme::colors().text);
    if (!ImGui::IsItemHovered() || ImGui::IsItemActive()) return;
    const float x = scale.x_of(row);
    list.AddLine({x, top}, {x, bottom}, theme::faded(theme::colors().text, 0.4f));
    tooltip(context, step_text(app, row));
}

}  // namespace

void draw(TimeBar&, const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.run.has_steps()) return;
    ImGui::AlignTextToFramePadding();
    heading(context, "Time");
    ImGui::SameLine();
    draw_step_buttons(context);

    RowScale scale;
    scale.first = app.run.first_row();
    scale.last = app.run.last_row();
    scale.min = ImGui::GetCursorScreenPos();
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const ScopedFont font(context.fonts.small);
    const float label_width = ImGui::CalcTextSize("step 00000").x + context.px(8);
    scale.size = {room.x - label_width, room.y};
    scale.left = scale.min.x + context.px(6);
    scale.width = scale.size.x - context.px(12);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.AddRectFilled(scale.min, scale.max(), theme::colors().inset, 4);
    draw_evictions_and_changes(context, list, scale);
    draw_forks(context, list, scale);
    draw_kl(context, list, scale);
    draw_scrubber(context, list, scale);
    list.AddText({scale.max().x + context.px(8), scale.min.y + (scale.size.y - ImGui::GetFontSize()) / 2},
                 theme::colors().text, fmt::format("step {}", app.view.row).c_str());
}

}  // namespace keyhole
