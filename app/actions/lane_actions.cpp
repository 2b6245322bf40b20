#include "app/actions/action_areas.h"

#include "app/actions/history_actions.h"
#include "app/base/saved_policies.h"
#include "app/base/version.h"
#include "app/view/override_grid.h"
#include "engine/analysis/formula_preview.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/live/engine.h"
#include "engine/policy/option_table.h"
#include "engine/policy/preset_table.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using namespace key;

/// An opened trace has the lanes that it recorded: others would wait for a step that never comes.
void need_run_for_lanes(const AppState& app) {
    if (!app.run.live()) fail(ErrorCode::wrong_use, "{}", need::live_run(app));
}

/// In mid-run the words that the lanes have chosen so far stay.
void say_from_when_lanes_follow(AppState& app) {
    if (!app.run.live() || app.run.n_decoded() == 0) return;
    app.notify(fmt::format(
        "From the next step on {}. The text up to here stays; Restart compares the lanes "
        "from the prompt on",
        app.run.lane_editor.follow() ? "all lanes read lane 0's words" : "each lane reads its own words"));
}

void duplicate_lane(AppState& app, std::string_view) {
    need_run_for_lanes(app);
    if (app.run.lane_editor.n_lanes() > 0)
        app.run.lane_editor.add(app.run.lane_editor.lanes()[to_index(app.view.lane)]);
}

void remove_lane(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        if (app.view.lane == 0) fail(ErrorCode::wrong_use, "lane 0 is the reference and stays");
        app.run.lane_editor.remove(app.view.lane);
    } else {
        engine_command(app, "remove", arguments);
    }
}

/// arguments: INDEX SPEC, or INDEX alone, which ends it.
void try_settings(AppState& app, std::string_view arguments) {
    const std::size_t blank = std::min(arguments.find(' '), arguments.size());
    const int lane = whole_numbers(arguments.substr(0, blank), 1, 1)[0];
    if (lane < 0 || lane >= app.run.lane_editor.n_lanes())
        fail(ErrorCode::wrong_use, "lanes are 0 to {}", app.run.lane_editor.n_lanes() - 1);
    const std::string_view spec = arguments.substr(std::min(blank + 1, arguments.size()));
    app.run.try_settings(
        lane, spec.empty() ? std::nullopt : std::optional(parse_lane_spec(with_saved_policy(spec))));
}

/// arguments: INDEX KV_HEAD OPTION FORMULA
void rank_by(AppState& app, std::string_view arguments) {
    std::array<std::string_view, 3> words;
    for (std::string_view& word : words) {
        const std::size_t blank = std::min(arguments.find(' '), arguments.size());
        word = arguments.substr(0, blank);
        arguments = arguments.substr(std::min(blank + 1, arguments.size()));
    }
    const int lane = whole_numbers(words[0], 1, 1)[0], kv_head = whole_numbers(words[1], 1, 1)[0];
    const std::optional<int> recorded = app.run.history_lane(lane);
    const auto option = std::ranges::find(lane_options(), words[2], &LaneOption::name);
    const std::optional<FormulaUse> use = option != lane_options().end() ? use_of(*option) : std::nullopt;
    if (!use) fail(ErrorCode::wrong_use, "'{}' is no formula: score, choose or protect", words[2]);
    if (!recorded || kv_head < 0 || kv_head >= app.run.history.layout(*recorded).n_kv_heads())
        fail(ErrorCode::wrong_use, "no lane {} with a KV head {} has a step", lane, kv_head);
    const PolicyParams& policy = app.run.lane_editor.lanes()[to_index(lane)].policy;
    FormulaFault fault;
    const FormulaRef typed = formula_of(*option, {std::string(arguments)}, formula_setting(policy), &fault);
    if (!fault.what.empty()) fail(ErrorCode::wrong_use, "{}: {}", words[2], fault.what);
    const FormulaPreview preview =
        preview_formula(app.run.history, *recorded, kv_head, app.run.last_row(), *use, typed);
    if (preview.asks) app.run.request_ranks({lane, kv_head, *preview.asks});
}

void set_options(AppState& app, std::string_view items) {
    if (app.run.lane_editor.n_lanes() == 0) fail(ErrorCode::wrong_use, "no lane yet");
    if (items.empty()) fail(ErrorCode::wrong_use, "give KEY=VALUE, for example dialect=released");
    const LaneSpec& now = app.run.lane_editor.lanes()[to_index(app.view.lane)];
    app.run.lane_editor.set(app.view.lane, changed_lane_spec(now, items));
}

void set_shadows(AppState& app, std::string_view text) {
    const bool any_off = std::any_of(app.run.lane_editor.lanes().begin(), app.run.lane_editor.lanes().end(),
                                     [](const LaneSpec& lane) { return !lane.policy.shadow; });
    const bool on = on_or_off(text, !any_off);
    for (int i = 0; i < app.run.lane_editor.n_lanes(); ++i) {
        LaneSpec spec = app.run.lane_editor.lanes()[to_index(i)];
        spec.policy.shadow = on;
        app.run.lane_editor.set(i, spec);
    }
    app.notify(on ? "shadows on: measures begin with the next step" : "shadows off");
}

/// Names the focused lane; without a name it is called by its settings.
void name_lane(AppState& app, std::string_view name) {
    if (app.run.lane_editor.n_lanes() == 0) fail(ErrorCode::wrong_use, "no lane yet");
    LaneSpec spec = app.run.lane_editor.lanes()[to_index(app.view.lane)];
    spec.name.clear();
    if (!name.empty()) {
        if (name.find_first_of("=:") != std::string_view::npos)
            fail(ErrorCode::wrong_use, "a lane's name has neither '=' nor ':', which end it in a spec");
        spec = parse_lane_spec(fmt::format("{}={}", name, format_lane_spec(spec)));
    }
    app.run.lane_editor.set(app.view.lane, spec);
}

/// Saves the focused lane's policy; what is written about an older one of the name stays.
void save_lane(AppState& app, std::string_view name) {
    if (app.run.lane_editor.n_lanes() == 0) fail(ErrorCode::wrong_use, "no lane yet");
    const LaneSpec& lane = app.run.lane_editor.lanes()[to_index(app.view.lane)];
    SavedPolicy policy{
        std::string(name.empty() ? lane.name : name), format_lane_spec(lane), {}, program_version()};
    if (policy.name.empty()) fail(ErrorCode::wrong_use, "give a name: lane.save NAME");
    for (const ListedPolicy& old : list_saved_policies())
        if (old.policy.name == policy.name) policy.about = old.policy.about;
    const std::string before = save_policy(policy);
    app.notify(fmt::format("saved as {}{}", saved_policy_file(policy.name).string(),
                           before.empty() ? "" : fmt::format("; before it was {}", before)));
}

void unsave_policy(AppState& app, std::string_view name) {
    remove_saved_policy(name);
    app.notify(fmt::format("removed {}", saved_policy_file(name).string()));
}

void drop_overrides(AppState& app, std::string_view field) {
    if (app.run.lane_editor.n_lanes() == 0) fail(ErrorCode::wrong_use, "no lane yet");
    LaneSpec spec = app.run.lane_editor.lanes()[to_index(app.view.lane)];
    std::erase_if(spec.policy.overrides,
                  [&](const Override& o) { return field.empty() || override_field_name(o.field) == field; });
    app.run.lane_editor.set(app.view.lane, spec);
}

void focus_lane(AppState& app, std::string_view arguments) {
    const int lane = whole_numbers(arguments, 1, 1)[0];
    if (lane < 0 || lane >= app.run.lane_editor.n_lanes())
        fail(ErrorCode::wrong_use, "lanes are 0 to {}", app.run.lane_editor.n_lanes() - 1);
    app.view.lane = lane;
}

void move_lane(AppState& app, int by) {
    app.view.lane = std::clamp(app.view.lane + by, 0, std::max(app.run.lane_editor.n_lanes() - 1, 0));
}

void copy_lane(AppState& app, std::string_view) {
    if (app.run.lane_editor.n_lanes() == 0) return;
    copy_text(app, format_lane_spec(app.run.lane_editor.lanes()[to_index(app.view.lane)]));
}

/// Adds a lane; without a spec one of a policy that no lane has, so that a few clicks compare them all.
void add_lane(AppState& app, std::string_view spec) {
    need_run_for_lanes(app);
    if (!spec.empty()) return engine_command(app, "add", spec);
    const std::vector<Preset> wanted = offered_presets();
    const std::vector<LaneSpec>& lanes = app.run.lane_editor.lanes();
    const auto is_missing = [&](Preset preset) {
        return std::none_of(lanes.begin(), lanes.end(),
                            [&](const LaneSpec& lane) { return lane.policy.preset == preset; });
    };
    const auto missing = std::find_if(wanted.begin(), wanted.end(), is_missing);
    const Preset preset = missing == wanted.end() ? wanted.front() : *missing;
    engine_command(app, "add",
                   preset == Preset::full ? "full" : fmt::format("{}:budget=64", preset_name(preset)));
}

std::string_view needs_other_than_lane_0(const AppState& app) {
    return app.view.lane > 0 ? "" : "lane 0 stays; focus another lane";
}

bool all_measured(const AppState& app) {
    const std::vector<LaneSpec>& lanes = app.run.lane_editor.lanes();
    return std::all_of(lanes.begin(), lanes.end(), [](const LaneSpec& lane) { return lane.policy.shadow; });
}

constexpr std::array kLaneActions = {
    UserAction{"lane.previous",
               "Previous lane",
               "",
               {kUp, 0},
               [](AppState& app, std::string_view) { move_lane(app, -1); },
               {.menu = {MenuGroup::lanes_focus, 1}}},
    UserAction{"lane.next",
               "Next lane",
               "",
               {kDown, 0},
               [](AppState& app, std::string_view) { move_lane(app, 1); },
               {.menu = {MenuGroup::lanes_focus, 2}}},
    UserAction{"lane.focus", "Focus a lane", "INDEX", {}, focus_lane, {.arguments_are_plain = true}},
    UserAction{"lane",
               "Change a lane",
               "INDEX SPEC: takes effect before the next step.",
               {},
               [](AppState& app, std::string_view a) { engine_command(app, "lane", a); },
               {.arguments_are_plain = true}},
    UserAction{"lane.try",
               "Show the answer with other settings",
               "INDEX [SPEC]: the lane's answer is that with this spec; the lane stays as it is.",
               {},
               try_settings,
               {.elsewhere = "the sliders of a lane, while they are dragged",
                .arguments_are_plain = true,
                .is_drag = true}},
    UserAction{"lane.rank",
               "Rank by a formula that is not in force",
               "INDEX KV_HEAD OPTION FORMULA: what the lane stores now, for the picture below the field.",
               {},
               rank_by,
               {.elsewhere = "the field of a formula, while it is typed",
                .arguments_are_plain = true,
                .is_drag = true}},
    UserAction{"lane.set",
               "Set options of the focused lane",
               "KEY=VALUE[,KEY=VALUE]: for example dialect=released, alpha@L0-3=0.5. Other options stay.",
               {},
               set_options,
               {.arguments_are_plain = true}},
    UserAction{"lane.name",
               "Name the focused lane",
               "[NAME]: shown in place of its settings in titles, legends and files. Without: its settings.",
               {},
               name_lane,
               {.elsewhere = "the field name of a lane's card",
                .lacks = need::live_run,
                .arguments_are_plain = true}},
    UserAction{"lane.save",
               "Save the lane's policy",
               "[NAME]: as a file; its name then stands among the presets (default: the lane's name).",
               {},
               save_lane,
               {.elsewhere = "the button save… of a lane's card", .lacks = need::lanes}},
    UserAction{"lane.unsave",
               "Remove a saved policy",
               "NAME: removes its file.",
               {},
               unsave_policy,
               {.elsewhere = "the dialog Policies"}},
    UserAction{"lane.overrides",
               "Override single heads…",
               "Sets budget, recent, alpha, tau, gain, read and formulas by layer and head.",
               {'H', 0},
               open_dialog<Dialog::overrides>,
               {.menu = {MenuGroup::lanes_options, 2}, .lacks = need::lanes}},
    UserAction{"lane.even",
               "Drop the lane's overrides",
               "[FIELD]: such as budget or choose (default: all of them).",
               {},
               drop_overrides,
               {.elsewhere = "the dialog Overrides by head"}},
    UserAction{"add",
               "Add a lane",
               "[SPEC]: with these settings. Without: with the next preset that no lane has, and a budget of "
               "64 tokens.",
               {'N', kCtrl},
               add_lane,
               {.menu = {MenuGroup::lanes_add, 1}, .lacks = need::live_run, .arguments_are_plain = true}},
    UserAction{"lane.advanced",
               "Show all options of a lane",
               "[on|off]: or only what makes its preset what it is.",
               {},
               [](AppState& app, std::string_view a) { app.view.advanced = on_or_off(a, app.view.advanced); },
               {.menu = {MenuGroup::lanes_options, 1},
                .is_on = [](const AppState& app) { return app.view.advanced; }}},
    UserAction{"lane.duplicate",
               "Duplicate the lane",
               "",
               {'D', kCtrl},
               duplicate_lane,
               {.menu = {MenuGroup::lanes_add, 2}, .lacks = need::live_run}},
    UserAction{
        "remove",
        "Remove the lane",
        "[INDEX]: of the lane (default: the focused one).",
        {'W', kCtrl},
        remove_lane,
        {.menu = {MenuGroup::lanes_add, 3}, .lacks = needs_other_than_lane_0, .arguments_are_plain = true}},
    UserAction{"restore",
               "Bring a removed lane back",
               "INDEX SPEC: to the place that it had, with its history. Undo does so too.",
               {},
               [](AppState& app, std::string_view a) { engine_command(app, "restore", a); }},
    UserAction{"lane.copy",
               "Copy the lane's spec",
               "",
               {'C', kCtrl},
               copy_lane,
               {.menu = {MenuGroup::edit_copy, 1}, .lacks = need::lanes}},
    UserAction{"lane.paste",
               "Paste a spec into the lane",
               "",
               {'V', kCtrl},
               [](AppState& app, std::string_view) { app.requests.paste_to_lane = app.view.lane; },
               {.menu = {MenuGroup::edit_copy, 2}, .lacks = need::live_run}},
    UserAction{"lane.undo",
               "Undo the last change of lanes",
               "Leaves the view as it is. Evicted tokens stay evicted.",
               {},
               [](AppState& app, std::string_view) {
                   const std::string what = app.run.lane_editor.next_undo();
                   const RequestId before = app.run.engine().last_request();
                   if (!app.run.lane_editor.undo()) return app.notify("nothing to undo");
                   announce_undo(app, what, before);
               },
               {.elsewhere = "Undo does the same for lanes and view"}},
    UserAction{"lane.redo",
               "Redo the last change of lanes",
               "Leaves the view as it is.",
               {},
               [](AppState& app, std::string_view) {
                   const std::string what = app.run.lane_editor.next_redo();
                   const RequestId before = app.run.engine().last_request();
                   if (!app.run.lane_editor.redo()) return app.notify("nothing to redo");
                   announce_redo(app, what, before);
               },
               {.elsewhere = "Redo does the same for lanes and view"}},
    UserAction{"follow",
               "All lanes read lane 0's words",
               "[on|off]: all lanes read lane 0's tokens; off: each reads its own.",
               {},
               [](AppState& app, std::string_view a) {
                   app.run.lane_editor.set_follow(on_or_off(a, app.run.lane_editor.follow()));
                   say_from_when_lanes_follow(app);
               },
               {.menu = {MenuGroup::lanes_all, 1},
                .lacks = need::live_run,
                .is_on = [](const AppState& app) { return app.run.lane_editor.follow(); }}},
    UserAction{"shadow",
               "Measure against full attention",
               "[on|off]: switches their shadows. A lane that starts one is replayed.",
               {},
               set_shadows,
               {.menu = {MenuGroup::lanes_all, 2}, .lacks = need::live_run, .is_on = all_measured}},
    UserAction{"sampling",
               "Sampling",
               "temperature=T,top_k=K,top_p=P,repetition_penalty=R,no_repeat_ngram=N,min_tokens=N",
               {},
               [](AppState& app, std::string_view a) { engine_command(app, "sampling", a); },
               {.elsewhere = "the palette, with arguments", .arguments_are_plain = true}},
};

}  // namespace

std::span<const UserAction> lane_actions() {
    return kLaneActions;
}

}  // namespace keyhole
