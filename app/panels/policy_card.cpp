#include "app/panels/policy_card.h"

#include "app/panels/sharing_view.h"
#include "app/view/model_words.h"
#include "app/view/override_grid.h"
#include "engine/analysis/selection_counts.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/preset_table.h"
#include "engine/policy/spec_copies.h"

#include <imgui_stdlib.h>

#include <algorithm>

namespace keyhole {

namespace {

/// Draws the saved policies below the presets. A taken one is read as the command line reads its name.
void choose_saved(PolicyCard& panel, PolicyEditor& edit, ScopedCombo& combo) {
    const PanelContext& context = edit.context;
    const std::vector<ListedPolicy>& saved = panel.saved.now();
    if (!saved.empty()) dim_text(context, "saved");
    for (const auto& [file, policy, fault] : saved) {
        const ScopedDisabled disabled(!fault.empty());
        if (combo.item(policy.name.c_str(), false))
            run(context, fmt::format("lane {} {}", edit.lane, policy.name));
        mark_item(context, "preset " + policy.name);
        tooltip(context, fault.empty() ? fmt::format("{}{}{}", policy.about, policy.about.empty() ? "" : "\n",
                                                     policy.spec)
                                       : fault);
    }
}

void choose_preset(PolicyCard& panel, PolicyEditor& edit) {
    PolicyParams& policy = edit.policy;
    ScopedCombo combo("##preset", std::string(preset_name(policy.preset)).c_str(),
                      ImGuiComboFlags_HeightLargest);
    if (!combo.open()) return mark_item(edit.context, "preset");
    for (const PresetGroup& group : preset_groups()) {
        dim_text(edit.context, fmt::format("look at {}", group.name));
        for (const PresetRow* row : presets_that_look_at(group.looks_at)) {
            const std::string name(row->name);
            const std::string words = row->title.empty() ? name : fmt::format("{} – {}", name, row->title);
            if (combo.item(words.c_str(), row->preset == policy.preset) && row->preset != policy.preset) {
                policy = with_preset(policy, row->preset);
                edit.committed = true;
            }
            mark_item(edit.context, "preset " + name);
            tooltip(edit.context, row->help);
        }
    }
    choose_saved(panel, edit, combo);
}

void draw_preset(PolicyCard& panel, PolicyEditor& edit, bool with_words) {
    PolicyParams& policy = edit.policy;
    edit.label("preset");
    const float gap = edit.context.px(4), button = ImGui::GetFrameHeight();
    ImGui::SetNextItemWidth(edit.room() - button - gap);
    choose_preset(panel, edit);
    if (!with_words) tooltip(edit.context, preset_help(policy.preset));
    ImGui::SameLine(0, gap);
    action_button(edit.context, "policies", "?", edit.context.app.dialog == Dialog::policies, button);
    if (with_words) small_words(edit.context, preset_help(policy.preset));
}

/// Draws two buttons, and a sentence on the difference between the dialects. Greyed with its reason if the
/// policy's authors released no code.
void draw_dialects(PolicyEditor& edit) {
    PolicyParams& policy = edit.policy;
    const PanelContext& context = edit.context;
    const std::string idle = no_effect_reason(policy, "dialect");
    edit.label("dialect");
    const float gap = context.px(3), width = (edit.room() - gap) / 2;
    for (const Dialect dialect : {Dialect::paper, Dialect::released}) {
        if (dialect == Dialect::released) ImGui::SameLine(0, gap);
        const bool off = dialect == Dialect::released && !idle.empty(), lit = policy.dialect == dialect;
        const std::string name(dialect_name(dialect));
        {
            const ScopedDisabled disabled(off);
            if (lit_button(name.c_str(), lit, width) && !lit) {
                policy.dialect = dialect;
                edit.committed = true;
            }
        }
        mark_item(context, "dialect " + name);
        tooltip(context, option_tooltip("dialect", idle));
    }
    small_words(context, dialect_help(policy.preset),
                policy.dialect == Dialect::released ? theme::colors().text : theme::colors().dim);
}

/// Shows what the draft would store and attend to on this prompt, before it is in force.
void draw_accounting(const PolicyEditor& edit) {
    const AppState& app = edit.context.app;
    if (!app.run.has_steps()) return;
    const ResolvedPolicy policy =
        resolve(edit.policy, app.run.history.n_prompt(), app.run.history.run().n_generate);
    small_words(edit.context, accounting_text(policy), theme::colors().text);
    tooltip(edit.context,
            fmt::format("Tokens of a KV head once the budget is full: stored = in the cache after a step's "
                        "eviction; attended = visible to the step's query, its own token included.{}",
                        policy.keeps_memory ? " The released code only masks tokens and frees nothing: its "
                                              "memory grows like a full cache."
                                            : ""));
    if (const std::string words = sliding_words(app.run.history.run().config, policy.budget); !words.empty())
        small_words(edit.context, words, theme::colors().text);
}

/// Says of a lane with a formula how many of its scores are NaN or tie at the cut, at the shown row.
void draw_selection(PolicyCard& panel, const PolicyEditor& edit) {
    const AppState& app = edit.context.app;
    const LaneRecord* record = app.record(edit.lane);
    const auto has_formula = [](const ResolvedPolicy& one) { return one.choose || one.score; };
    if (record != nullptr && record->info->policy.any(has_formula))
        if (const auto lane = app.run.history_lane(edit.lane)) {
            const std::uint64_t generation = app.run.history.generation();
            if (panel.selection_of != generation || panel.selection_lane != *lane ||
                panel.selection_row != app.view.row) {
                const auto counts = last_selection(app.run.history, *lane, app.view.row);
                panel.selection = counts ? selection_words(*counts, app.run.history.layout(*lane)) : "";
                panel.selection_of = generation;
                panel.selection_lane = *lane;
                panel.selection_row = app.view.row;
            }
            if (!panel.selection.empty()) small_words(edit.context, panel.selection, theme::colors().warm);
        }
}

/// Draws the budget as a slider in its own unit, with the share of the text, or the tokens, that it is.
void draw_budget(PolicyEditor& edit) {
    Amount& budget = edit.policy.budget;
    const PanelContext& context = edit.context;
    const AppState& app = context.app;
    if (!no_effect_reason(edit.policy, "budget").empty()) return;
    if (budget.unit != Amount::Unit::tokens && budget.unit != Amount::Unit::percent)
        return edit.row({"budget"});
    const int n_prompt = app.run.has_steps() ? app.run.history.n_prompt() : 512;
    const bool percent = budget.unit == Amount::Unit::percent;
    const int most = percent ? 100 : std::max({n_prompt, 128, static_cast<int>(budget.value)});
    float value = static_cast<float>(budget.value);
    edit.label("budget");
    ImGui::SetNextItemWidth(edit.room());
    if (bar_slider(context, "##budget slider", value, 1, static_cast<float>(most), "%.0f"))
        budget.value = std::round(double(value));
    edit.after_drag();
    mark_item(context, "budget slider");
    tooltip(context,
            "Tokens that a KV head keeps, and their share of the prompt. Ctrl+click types a number.");
    small_words(
        context,
        percent ? fmt::format("{} % of the prompt, {} tokens", budget.value,
                              static_cast<int>(budget.value * n_prompt / 100))
        : budget.value >= n_prompt
            ? fmt::format("{} tokens, more than the prompt's {}", budget.value, n_prompt)
            : fmt::format("{} tokens, {:.0f} % of the prompt", budget.value, 100 * budget.value / n_prompt),
        theme::colors().text);
}

/// Shows how many ranges of heads have overrides, and a button that opens the matrix.
void draw_overrides(const PolicyEditor& edit) {
    const std::size_t n = edit.policy.overrides.size();
    action_button(edit.context, "lane.overrides", "by head…", edit.context.app.dialog == Dialog::overrides);
    ImGui::SameLine();
    ImGui::AlignTextToFramePadding();
    std::string text = n == 0 ? "no head has an override" : "";
    for (const Override& o : edit.policy.overrides)
        text += fmt::format("{}{}@{}", text.empty() ? "" : ", ", override_field_name(o.field),
                            format_override_heads(o));
    {
        const ScopedFont font(edit.context.fonts.small);
        colored_text(n == 0 ? theme::colors().faint : theme::colors().text, fitted(text, edit.room()));
    }
    tooltip(edit.context, text);
}

constexpr const char* kSave = "save…";

/// Draws the button that saves the lane's policy under its name.
void draw_save(const PanelContext& context, const std::string& name, float width) {
    {
        const ScopedDisabled disabled(name.empty());
        ImGui::Button(kSave, {width, 0});
        // At the press: a click that also ends the field names the lane, whose card then moves.
        if (ImGui::IsItemActivated()) run(context, "lane.save " + name);
    }
    mark_item(context, "save policy");
    tooltip(context,
            name.empty()
                ? "Give the policy a name first; then this saves it."
                : fmt::format("Saves all settings of the lane as {}, a file that can be sent. Its name "
                              "then stands among the presets, here and in --lane.",
                              saved_policy_file(name).string()));
}

/// Draws the lane's name, which stands for its settings wherever lanes are named. Enter or leaving the field
/// applies it.
void draw_name(PolicyCard& panel, PolicyEditor& edit) {
    const PanelContext& context = edit.context;
    const AppState& app = context.app;
    const std::string& now = app.run.lane_editor.lanes()[to_index(edit.lane)].name;
    if (panel.name_lane != edit.lane || !panel.names) {
        panel.name = now;
        panel.name_lane = edit.lane;
    }
    ImGui::AlignTextToFramePadding();
    colored_text(theme::colors().dim, "name");
    ImGui::SameLine(edit.label_width);
    const float gap = context.px(4);
    const float button = ImGui::CalcTextSize(kSave).x + 2 * ImGui::GetStyle().FramePadding.x;
    ImGui::SetNextItemWidth(edit.room() - button - gap);
    const ScopedDisabled disabled(!app.run.live());
    ImGui::InputTextWithHint("##name", app.run.lane_editor.name(edit.lane).c_str(), &panel.name);
    panel.names = ImGui::IsItemActive();
    if (ImGui::IsItemDeactivatedAfterEdit() && panel.name != now) run(context, "lane.name " + panel.name);
    mark_item(context, "lane name");
    tooltip(context, "What the lane is called in titles, legends and files. Empty: by its settings.");
    ImGui::SameLine(0, gap);
    draw_save(context, panel.name, button);
}

/// Draws the lane's spec as text. Enter applies it.
void draw_spec(PolicyCard& panel, PolicyEditor& edit) {
    const PanelContext& context = edit.context;
    if (panel.spec_lane != edit.lane || !ImGui::GetIO().WantTextInput) {
        panel.spec_text = format_lane_spec(panel.draft);
        panel.spec_lane = edit.lane;
    }
    ImGui::AlignTextToFramePadding();
    colored_text(theme::colors().dim, "spec");
    tooltip(context, "The lane as text, for the command line and for other lanes. Enter applies it.");
    ImGui::SameLine(edit.label_width);
    ImGui::SetNextItemWidth(edit.room());
    const ScopedFont font(context.fonts.small);
    if (ImGui::InputText("##spec", &panel.spec_text, ImGuiInputTextFlags_EnterReturnsTrue))
        run(context, fmt::format("lane {} {}", edit.lane, panel.spec_text));
    mark_item(context, "spec");
}

/// Draws `content`, which edits a draft. While a widget is dragged, the lane's answer follows it; when it is
/// released, the lane gets the draft.
template <class Content>
void edit_lane(PolicyCard& panel, const PanelContext& context, int lane, float right, Content content) {
    const AppState& app = context.app;
    const LaneSpec in_force = app.run.lane_editor.lanes()[to_index(lane)];
    if (panel.edited != lane) panel.draft = in_force;
    PolicyEditor edit{context, panel.draft.policy, in_force.policy, panel.tau_drag, panel.formula, {}};
    if (app.run.has_steps()) edit.heads = head_grid(app.layout(lane));
    edit.lane = lane;
    edit.right = right;
    // A narrow card needs its room for the widgets.
    edit.label_width =
        std::clamp((right - ImGui::GetCursorScreenPos().x) * 0.3f, context.px(54), context.px(70));

    {
        const ScopedTextWrap wrap(right - ImGui::GetWindowPos().x);
        content(edit);
    }
    panel.edited = edit.active ? lane : -1;
    if (edit.committed) panel.edited = -1;
    if (edit.active && !edit.committed) return try_settings(panel.tried, context, lane, panel.draft);
    if (edit.committed) run(context, fmt::format("lane {} {}", lane, format_lane_spec(panel.draft)));
    end_trying(panel.tried, context, lane);
}

}  // namespace

void draw(PolicyCard& panel, const PanelContext& context, int lane, float right) {
    edit_lane(panel, context, lane, right, [&](PolicyEditor& edit) {
        draw_preset(panel, edit, true);
        draw_name(panel, edit);
        draw_budget(edit);
        for (const std::string_view name : front_options(edit.policy.preset)) edit.front(lane_option(name));
        draw_accounting(edit);
        draw_selection(panel, edit);
        draw_sharing(panel.draft.sharing, edit);
        const bool advanced = context.app.view.advanced;
        action_button(context, "lane.advanced", advanced ? "▾ Advanced" : "▸ Advanced");
        if (!advanced) return;
        draw_dialects(edit);
        edit.rows();
        edit.idle_options();
        draw_overrides(edit);
        draw_spec(panel, edit);
    });
}

void draw_brief(PolicyCard& panel, const PanelContext& context, int lane, float right) {
    edit_lane(panel, context, lane, right, [&](PolicyEditor& edit) {
        draw_preset(panel, edit, false);
        edit.row({"budget"});
    });
}

}  // namespace keyhole
