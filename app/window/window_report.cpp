#include "app/window/window_report.h"

#include "app/window/screen_text.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

std::string_view phase_name(const AppState& app) {
    if (!app.run.live()) return "trace";
    switch (app.run.status.phase) {
        case EnginePhase::idle:
            return "idle";
        case EnginePhase::loading:
            return "loading";
        case EnginePhase::prefill:
            return "prefill";
        case EnginePhase::running:
            return "running";
        case EnginePhase::finished:
            return "finished";
        case EnginePhase::failed:
            return "failed";
    }
    return "";
}

std::string_view dialog_name(Dialog dialog) {
    const DialogRow* row = dialog_row(dialog);
    return row == nullptr ? "none" : row->name;
}

/// Returns the visible part of each named widget: left, top, right, bottom in window pixels.
nlohmann::json items_in_sight(const PanelShared& shared) {
    nlohmann::json items = nlohmann::json::object();
    for (const auto& [name, item] : shared.items)
        if (item.seen_min.x < item.seen_max.x && item.seen_min.y < item.seen_max.y)
            items[name] = {std::lround(item.seen_min.x), std::lround(item.seen_min.y),
                           std::lround(item.seen_max.x), std::lround(item.seen_max.y)};
    return items;
}

/// Returns the texts of each pane in reading order, a line of the screen in one string. A pane within another
/// has its own; "" holds those of menus, the status line and dialogs.
nlohmann::json texts_of_panes(std::vector<ScreenText> texts, const PanelShared& shared) {
    nlohmann::json panes = nlohmann::json::object();
    for (const auto& [pane, lines] : lines_of_panes(std::move(texts), shared)) panes[pane] = lines;
    return panes;
}

/// Returns the texts of each pane that do not fit into their room.
nlohmann::json short_texts(const std::vector<ScreenText>& texts, const PanelShared& shared) {
    nlohmann::json panes = nlohmann::json::object();
    for (const ScreenText& text : texts)
        if (const std::string pane = pane_of(text, shared); text.is_short() && !pane.empty())
            panes[pane].push_back(text.text);
    return panes;
}

/// Returns the size of the smallest type on the screen, in window pixels.
int smallest_type(const std::vector<ScreenText>& texts) {
    float least = 0;
    for (const ScreenText& text : texts)
        if (least == 0 || text.size < least) least = text.size;
    return static_cast<int>(std::lround(least));
}

std::string_view records_name(RunState::Records records) {
    return records == RunState::Records::current   ? "current"
           : records == RunState::Records::reading ? "reading"
                                                   : "unread";
}

/// Returns the lanes as they are listed, each with what the window says of it.
nlohmann::json lanes_on_show(const AppState& app) {
    nlohmann::json lanes = nlohmann::json::array();
    for (const LaneOnShow& shown : app.shown().lanes) {
        const LaneRecord* record = shown.record.get();
        nlohmann::json lane = {
            {"title", shown.title},
            {"spec", format_lane_spec(shown.spec)},
            {"mark", shown.mark},
            {"source", shown.source == LaneOnShow::Source::own      ? "own"
                       : shown.source == LaneOnShow::Source::parent ? "parent"
                                                                    : "none"},
            {"id", shown.id ? nlohmann::json(*shown.id) : nlohmann::json()},
            {"stored", record ? nlohmann::json(record->use.stored_tokens) : nlohmann::json()},
            {"next", record ? nlohmann::json(record->predicted) : nlohmann::json()},
            {"kl", nlohmann::json()}};
        if (record != nullptr && record->kl) lane["kl"] = double(*record->kl);
        lanes.push_back(std::move(lane));
    }
    return lanes;
}

/// Returns where the pointer is, in window pixels; null outside the window.
nlohmann::json pointer_place() {
    if (!ImGui::IsMousePosValid()) return {};
    const ImVec2 place = ImGui::GetIO().MousePos;
    return {std::lround(place.x), std::lround(place.y)};
}

/// Returns what each pane drew: the run, the lane and the step.
nlohmann::json panes_on_show(const PanelShared& shared) {
    nlohmann::json panes = nlohmann::json::object();
    for (const auto& [name, pane] : shared.panes)
        panes[name] = {{"run", pane.run},  {"lane", pane.lane},   {"id", pane.id},
                       {"step", pane.row}, {"title", pane.title}, {"mark", pane.mark}};
    return panes;
}

}  // namespace

void WindowReport::count(std::span<const InputEvent> taken) {
    ++n_frames_;
    for (const InputEvent& event : taken) {
        n_buttons_ += event.kind == InputEvent::Kind::button ? 1 : 0;
        n_keys_ += event.is_press() ? 1 : 0;
        n_turns_ += event.kind == InputEvent::Kind::wheel ? 1 : 0;
    }
}

WindowReport::Rest WindowReport::rest_of(const AppState& app, bool waiting) {
    return {app.idle(), app.lesson.awaits_run, waiting, static_cast<int>(app.run.status.phase),
            app.run.has_steps() ? app.run.n_decoded() : 0};
}

void WindowReport::write(const AppState& app, const PanelShared& shared, const KeyFocus& keys, bool waiting) {
    if (path_.empty()) return;
    rest_ = rest_of(app, waiting);
    const ViewState& view = app.view;
    const std::vector<ScreenText> texts =
        ImGui::GetDrawData() == nullptr ? std::vector<ScreenText>() : screen_texts(*ImGui::GetDrawData());
    const nlohmann::json out = {
        {"phase", phase_name(app)},
        {"has_run", app.run.has_steps()},
        {"idle", app.idle()},
        {"rows", app.run.has_steps() ? app.run.n_decoded() : 0},
        {"row", view.row},
        {"first_row", app.run.first_row()},
        {"last_row", app.run.last_row()},
        {"run", app.shown().run},
        {"records", records_name(app.shown().records)},
        {"on_show", lanes_on_show(app)},
        {"panes", panes_on_show(shared)},
        {"lanes", app.run.lane_editor.n_lanes()},
        {"lane", view.lane},
        {"layer", view.layer},
        {"atlas_zoom", view.atlas_zoom},
        {"head", view.head},
        {"mode", mode_name(view.mode)},
        {"speed", app.run.speed},
        {"scale", view.interface_scale},
        {"zoom", {view.heat.left, view.heat.top, view.heat.cell_width}},
        {"pick", view.pick ? nlohmann::json{view.pick->row, view.pick->position} : nlohmann::json()},
        {"picked", view.curve_positions},
        {"watched",
         view.watched ? nlohmann::json{view.watched->first, view.watched->last} : nlohmann::json()},
        {"prompt", app.run.setup.prompt},
        {"notice", app.notice.text},
        {"dialog", dialog_name(keys.dialog)},
        {"lesson",
         app.lesson.shown
             ? nlohmann::json{{"name", app.lesson.shown->name},
                              {"step", app.lesson.step + 1},
                              {"revealed", app.lesson.revealed},
                              {"asks", app.lesson.asks},
                              {"busy", app.lesson.awaits_run},
                              {"measured", app.lesson.at_reveal.size()},
                              {"holds", std::all_of(app.lesson.at_reveal.begin(), app.lesson.at_reveal.end(),
                                                    [](const Measured& m) { return m.holds; })},
                              {"choice", app.lesson.choice.value_or(-1) + 1},
                              {"fault", app.lesson.fault}}
             : nlohmann::json()},
        {"manual", format_manual_place(app.manual.place)},
        {"popups", keys.n_popups},
        {"typing", keys.in_text},
        {"ring", shared.tabs.ring()},
        {"pointer", pointer_place()},
        {"texts", texts_of_panes(texts, shared)},
        {"short_texts", short_texts(texts, shared)},
        {"smallest_type", smallest_type(texts)},
        {"commands", {{"count", app.action_log.count}, {"last", app.action_log.last_ids}}},
        {"input", {{"buttons", n_buttons_}, {"keys", n_keys_}, {"turns", n_turns_}, {"waiting", waiting}}},
        {"items", items_in_sight(shared)}};
    std::string text = out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (text == written_) return;
    write_text_file(path_, fmt::format("{{\"frame\":{},{}\n", n_frames_, std::string_view(text).substr(1)));
    written_ = std::move(text);
}

}  // namespace keyhole
