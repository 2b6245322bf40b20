#include "app/actions/menus.h"

#include "app/actions/action_areas.h"

#include "engine/device/prover.h"

#include <algorithm>
#include <array>
#include <filesystem>

namespace keyhole {

namespace {

std::vector<Menu> make_menu_bar() {
    return {
        {"File",
         {{"", {{"file.browse open", "Open…"}, {"file.open"}, {"recent"}, {"file.save"}}},
          {"", {{"file.export"}, {"file.picture"}, {"screenshot"}, {"file.copy"}}},
          {"Save a part",
           {{"file.curves"},
            {"file.atlas"},
            {"file.answers"},
            {"file.overlap"},
            {"file.frames"},
            {"file.gif"},
            {"file.gif-view"}}},
          {"", {{"export.cancel"}, {"model.cancel"}}},
          {"", {{"quit"}}}}},
        {"Edit",
         {{"", {{"undo"}, {"redo"}}},
          {"", {{"find"}, {"goto"}, {"pick.clear"}}},
          {"", {{"lane.copy"}, {"lane.paste"}, {"picture.copy"}}},
          {"", {{"bookmark"}, {"bookmarks"}}}}},
        {"View",
         {{"", {{"view.explore"}, {"view.compare"}, {"view.teach"}}},
          {"", {{"mode.attention"}, {"mode.mask"}, {"mode.score"}}},
          {"", {{"diff"}, {"blink"}, {"compare.next"}, {"compare.all"}, {"compare.first-difference"}}},
          {"Layer and head", {{"layer.previous"}, {"layer.next"}, {"head.previous"}, {"head.next"}}},
          {"Rows of the heat map", {{"view.fit"}, {"view.decoded"}}},
          {"Colours of the heat map",
           {{"range.log"},
            {"range.auto"},
            {"range.fit"},
            {"range.sinks"},
            {"range.clips"},
            {"range.nan"},
            {"mask.overlay"},
            {"colors viridis", "Viridis"},
            {"colors cividis", "Cividis"},
            {"colors gray", "Grey"}}},
          {"Colours of the text",
           {{"text.color share", "Share of the heads that keep a token"},
            {"text.color score", "Score in the focused head"},
            {"text.color age", "Age in steps"}}},
          {"Curves and atlas", {{"curves"}, {"atlas.color"}}},
          {"", {{"view.side"}, {"view.reset"}, {"ui.theme"}, {"ui.larger"}, {"ui.smaller"}}}}},
        {"Run",
         {{"", {{"run.toggle"}, {"run.step"}, {"run.step10"}, {"run.restart"}}},
          {"Speed",
           {{"run.speed0"},
            {"run.speed1"},
            {"run.speed2"},
            {"run.speed3"},
            {"run.speed4"},
            {"run.speed5"},
            {"run.speed6"},
            {"run.speed7"},
            {"run.speed8"},
            {"run.speed9"}}},
          {"", {{"say"}, {"prompt.chat"}}},
          {"", {{"time.back"}, {"time.back10"}, {"time.first"}, {"time.last"}, {"time.follow"}}},
          {"", {{"rewind"}, {"fork.here"}}},
          {"", {{"device.prove"}, {"device.use"}}}}},
        {"Lanes",
         {{"", {{"add"}, {"lane.duplicate"}, {"remove"}}},
          {"", {{"lane.previous"}, {"lane.next"}}},
          {"", {{"lane.advanced"}, {"lane.overrides"}}},
          {"", {{"follow"}, {"shadow"}}}}},
        {"Token",
         {{"", {{"why"}, {"why.kept"}, {"why.shadow"}}},
          {"", {{"watch"}, {"watch.clear"}}},
          {"Evict", {{"evict"}, {"evict.layer"}, {"evict.all"}}},
          {"Pin", {{"pin"}, {"pin.all"}, {"unpin"}, {"unpin.all"}}},
          {"", {{"token.edit"}}}}},
        {"Lessons",
         {{"", {{"lesson"}}},
          {"",
           {{"lesson.next"},
            {"lesson.back"},
            {"lesson.reset"},
            {"lesson.notes"},
            {"lesson.edit"},
            {"lesson.close"}}},
          {"", {{"lesson.save"}, {"lesson.print"}}}}},
        {"Help",
         {{"", {{"help.manual"}, {"help.keys"}, {"help.about"}}},
          {"", {{"papers"}, {"papers.cancel"}}},
          {"", {{"palette"}}},
          {"", {{"doctor"}}}}},
    };
}

bool all_measured(const AppState& app) {
    const std::vector<LaneSpec>& lanes = app.run.lane_editor.lanes();
    return std::all_of(lanes.begin(), lanes.end(), [](const LaneSpec& lane) { return lane.policy.shadow; });
}

/// An action that switches something on and off, or chooses one of several.
struct Switch {
    std::string_view action;
    bool (*is_on)(const AppState&);
};

constexpr std::array kSwitches = {
    Switch{"lesson.notes", [](const AppState& app) { return app.lesson.shows_notes; }},
    Switch{"lesson.edit", [](const AppState& app) { return app.lesson.edits; }},
    Switch{"mode.attention", [](const AppState& app) { return app.view.mode == HeatMode::attention; }},
    Switch{"mode.mask", [](const AppState& app) { return app.view.mode == HeatMode::mask; }},
    Switch{"mode.score", [](const AppState& app) { return app.view.mode == HeatMode::score; }},
    Switch{"view.explore", [](const AppState& app) { return app.view.arrangement == Arrangement::explore; }},
    Switch{"view.compare", [](const AppState& app) { return app.view.arrangement == Arrangement::compare; }},
    Switch{"view.teach", [](const AppState& app) { return app.view.arrangement == Arrangement::teach; }},
    Switch{"view.fit",
           [](const AppState& app) { return app.view.heat.fitted && app.first_fitted_row() == 0; }},
    Switch{"view.decoded",
           [](const AppState& app) { return app.view.heat.fitted && app.first_fitted_row() > 0; }},
    Switch{"mask.overlay", [](const AppState& app) { return app.view.mask_overlay; }},
    Switch{"range.log", [](const AppState& app) { return app.view.range().logarithmic; }},
    Switch{"range.auto", [](const AppState& app) { return app.view.range().automatic; }},
    Switch{"range.clips", [](const AppState& app) { return app.view.marks_clips; }},
    Switch{"range.nan", [](const AppState& app) { return app.view.marks_nan; }},
    Switch{"range.sinks", [](const AppState& app) { return app.view.range().sinks_count; }},
    Switch{"diff", [](const AppState& app) { return app.view.difference; }},
    Switch{"blink", [](const AppState& app) { return app.view.blink; }},
    Switch{"compare.all", [](const AppState& app) { return app.view.compares_all; }},
    Switch{"compare.watched", [](const AppState& app) { return app.compares_watched(); }},
    Switch{"colors viridis", [](const AppState& app) { return app.view.colors == Colormap::viridis; }},
    Switch{"colors cividis", [](const AppState& app) { return app.view.colors == Colormap::cividis; }},
    Switch{"colors gray", [](const AppState& app) { return app.view.colors == Colormap::gray; }},
    Switch{"text.color share", [](const AppState& app) { return app.view.text_color == TextColor::share; }},
    Switch{"text.color score", [](const AppState& app) { return app.view.text_color == TextColor::score; }},
    Switch{"text.color age", [](const AppState& app) { return app.view.text_color == TextColor::age; }},
    Switch{"ui.theme", [](const AppState& app) { return app.view.background == Background::light; }},
    Switch{"time.follow", [](const AppState& app) { return app.view.follows_newest; }},
    Switch{"prompt.chat", [](const AppState& app) { return app.run.setup.chat; }},
    Switch{"lane.advanced", [](const AppState& app) { return app.view.advanced; }},
    Switch{"follow", [](const AppState& app) { return app.run.lane_editor.follow(); }},
    Switch{"shadow", all_measured},
};

bool has_pick(const AppState& app) {
    return app.view.pick.has_value();
}
bool is_live(const AppState& app) {
    return app.run.live();
}
bool has_steps(const AppState& app) {
    return app.run.has_steps();
}
bool has_lesson(const AppState& app) {
    return app.lesson.shown.has_value();
}
bool has_lanes(const AppState& app) {
    return app.run.lane_editor.n_lanes() > 0;
}
bool has_others(const AppState& app) {
    return app.run.lane_editor.n_lanes() > 1;
}
bool picked_and_live(const AppState& app) {
    return has_pick(app) && is_live(app);
}

/// The requirements of actions. Actions that are not listed need nothing.
struct Need {
    std::string_view action;
    bool (*is_met)(const AppState&);
};

constexpr std::array kNeeds = {
    Need{"undo", [](const AppState& app) { return !app.undo_history.next_undo().empty(); }},
    Need{"redo", [](const AppState& app) { return !app.undo_history.next_redo().empty(); }},
    Need{"remove", [](const AppState& app) { return app.view.lane > 0; }},
    Need{"device.prove",
         [](const AppState& app) {
             std::error_code error;
             return std::filesystem::exists(proof_setup(app.run.backend_options.device).module, error);
         }},
    Need{"device.use",
         [](const AppState& app) {
             const auto verdict = app.device_proof.verdict();
             return verdict != nullptr && verdict->is_taken() && !app.device_proof.running();
         }},
    Need{"papers.cancel", [](const AppState& app) { return app.papers.running(); }},
    Need{"model.cancel", [](const AppState& app) { return app.jobs.getting(); }},
    Need{"export.cancel",
         [](const AppState& app) { return app.jobs.export_job.running() || app.jobs.opening(); }},
    Need{"pick.clear", has_pick},
    Need{"why", has_pick},
    Need{"why.kept", picked_and_live},
    Need{"why.shadow", picked_and_live},
    Need{"watch", has_pick},
    Need{"watch.clear", [](const AppState& app) { return app.view.watched.has_value(); }},
    Need{"evict", picked_and_live},
    Need{"evict.layer", picked_and_live},
    Need{"evict.all", picked_and_live},
    Need{"pin", picked_and_live},
    Need{"pin.all", picked_and_live},
    Need{"unpin", picked_and_live},
    Need{"unpin.all", picked_and_live},
    Need{"token.edit", picked_and_live},
    Need{"run.toggle", is_live},
    Need{"run.restart", is_live},
    Need{"say", is_live},
    Need{"prompt.chat", is_live},
    Need{"rewind", is_live},
    Need{"fork.here", is_live},
    Need{"add", is_live},
    Need{"lane.duplicate", is_live},
    Need{"lane.paste", is_live},
    Need{"follow", is_live},
    Need{"shadow", is_live},
    Need{"lane.copy", has_lanes},
    Need{"lane.overrides", has_lanes},
    Need{"lesson.next", has_lesson},
    Need{"lesson.back", has_lesson},
    Need{"lesson.reset", has_lesson},
    Need{"lesson.close", has_lesson},
    Need{"lesson.print", has_lesson},
    Need{"lesson.save", has_steps},
    Need{"diff", has_others},
    Need{"blink", has_others},
    Need{"compare.next", has_others},
    Need{"compare.all", has_others},
    Need{"compare.first-difference", has_others},
    Need{"file.save", has_steps},
    Need{"file.export", has_steps},
    Need{"file.picture", has_steps},
    Need{"picture.copy", has_steps},
    Need{"file.curves", has_steps},
    Need{"file.atlas", has_steps},
    Need{"file.answers", has_steps},
    Need{"file.overlap", has_others},
    Need{"file.frames", has_steps},
    Need{"file.gif", has_steps},
    Need{"file.gif-view", has_steps},
    Need{"goto", has_steps},
    Need{"find", has_steps},
    Need{"bookmark", has_steps},
};

constexpr std::string_view kSpeedAction = "run.speed";

}  // namespace

std::string_view MenuItem::arguments() const {
    const std::size_t blank = action.find(' ');
    return blank == std::string_view::npos ? std::string_view() : action.substr(blank + 1);
}

std::span<const Menu> menu_bar() {
    static const std::vector<Menu> bar = make_menu_bar();
    return bar;
}

std::string_view menu_of(std::string_view action_id) {
    for (const Menu& menu : menu_bar())
        for (const MenuGroup& group : menu.groups)
            for (const MenuItem& item : group.items)
                if (item.id() == action_id) return menu.title;
    return {};
}

ActionState action_state(const AppState& app, const MenuItem& item) {
    ActionState state;
    for (const Need& need : kNeeds)
        if (need.action == item.id()) state.possible = need.is_met(app);
    for (const Switch& one : kSwitches)
        if (one.action == item.action) state.ticked = one.is_on(app);
    if (item.id() == "undo") state.object = app.undo_history.next_undo();
    if (item.id() == "redo") state.object = app.undo_history.next_redo();
    if (item.action.starts_with(kSpeedAction) && item.action.size() == kSpeedAction.size() + 1)
        state.ticked = app.run.speed == speed_of_digit(item.action.back() - '0');
    return state;
}

}  // namespace keyhole
