#include "app/panels/policy_widgets.h"

#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/preset_table.h"

#include <fmt/format.h>
#include <imgui_stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace keyhole {

namespace {

std::string_view label_of(const LaneOption& option) {
    return option.label.empty() ? option.name : option.label;
}

std::string_view label_of(const OptionWord& word) {
    return word.label.empty() ? word.text : word.label;
}

/// Returns the width of a choice that shows its whole word; 0: the option is none.
float width_of_choice(const LaneOption& option, const PolicyParams& policy) {
    const auto* of = std::get_if<WordsOf<PolicyParams>>(&option.member);
    if (of == nullptr || of->is_switch) return 0;
    float wide = 0;
    for (const OptionWord& word : of->words)
        if (word.value == of->get(policy)) wide = ImGui::CalcTextSize(std::string(label_of(word)).c_str()).x;
    return wide + ImGui::GetFrameHeight() + 2 * ImGui::GetStyle().FramePadding.x;
}

/// Returns the widths of the parts of a row: equal ones, but none below its need. The needs have room.
std::vector<float> parts_of_row(float room, const std::vector<float>& needs) {
    std::vector<float> parts(needs.size(), room / static_cast<float>(needs.size()));
    for (std::size_t i = 0; i < parts.size(); ++i)
        for (std::size_t j = 0; j < parts.size(); ++j) {
            const float moved = std::clamp(needs[i] - parts[i], 0.0f, std::max(parts[j] - needs[j], 0.0f));
            parts[i] += moved;
            parts[j] -= moved;
        }
    return parts;
}

/// Rounds as the widget prints the value, so that the spec stays short.
double rounded(double value, double steps) {
    return std::round(value * steps) / steps;
}

}  // namespace

std::string option_tooltip(std::string_view option, std::string_view idle) {
    const LaneOption& row = lane_option(option);
    const std::string values = option_values(row);
    std::string text = fmt::format("{}\n{}\nFrom: {}.\nSpec: {}", row.name, row.help, row.paper,
                                   option == "preset" ? values : fmt::format("{}=…   {}", row.name, values));
    if (!idle.empty()) text += fmt::format("\n\nNo effect here: {}", idle);
    return text;
}

void PolicyEditor::label(std::string_view option) {
    const float x = ImGui::GetCursorPosX();
    ImGui::AlignTextToFramePadding();
    colored_text(theme::colors().dim, label_of(lane_option(option)));
    tooltip(context, option_tooltip(option, no_effect_reason(in_force, option, heads)));
    ImGui::SameLine();
    ImGui::SetCursorPosX(x + label_width);
}

void PolicyEditor::word(const LaneOption& option, float least) {
    const std::string text(option.word.empty() ? label_of(option) : option.word);
    const std::string key = option.word.empty() ? "" : fmt::format(" · {}", option.name);
    const float gap = context.px(8), start = ImGui::GetCursorScreenPos().x;
    const float end = start + ImGui::CalcTextSize((text + key).c_str()).x + gap;
    const bool beside = end + least <= right;
    if (beside) ImGui::AlignTextToFramePadding();
    ImGui::BeginGroup();
    colored_text(theme::colors().text, text);
    if (!key.empty()) {
        ImGui::SameLine(0, 0);
        colored_text(theme::colors().dim, key);
    }
    ImGui::EndGroup();
    tooltip(context, option_tooltip(option.name, no_effect_reason(in_force, option.name, heads)));
    if (!beside) return;
    ImGui::SameLine();
    // Widgets that are short stand below one another.
    ImGui::SetCursorScreenPos({std::max(end, right - context.px(140)), ImGui::GetCursorScreenPos().y});
}

void PolicyEditor::front(const LaneOption& option) {
    if (!no_effect_reason(in_force, option.name, heads).empty()) return;
    const bool is_amount = std::holds_alternative<Amount PolicyParams::*>(option.member),
               is_curve = std::holds_alternative<TauSchedule PolicyParams::*>(option.member),
               is_formula = std::holds_alternative<FormulaText PolicyParams::*>(option.member);
    word(option, std::max(context.px(is_curve || is_formula ? 4000.0f
                                     : is_amount            ? 140.0f
                                                            : 76.0f),
                          width_of_choice(option, policy)));
    widget(option, room());
    mark_item(context, option.name);
    if (!is_curve && !ImGui::IsItemActive()) tooltip(context, option_tooltip(option.name, {}));
    if (is_formula) draw_below_formula(*this, option);
}

void PolicyEditor::after_drag() {
    active |= ImGui::IsItemActive();
    committed |= ImGui::IsItemDeactivatedAfterEdit();
}

void PolicyEditor::choice(const LaneOption& option, const WordsOf<PolicyParams>& of, float width) {
    const std::string id = fmt::format("##{}", option.name);
    if (of.is_switch) {
        bool on = of.get(policy) != 0;
        if (ImGui::Checkbox(id.c_str(), &on)) {
            of.set(policy, on ? 1 : 0);
            committed = true;
        }
        ImGui::SameLine(0, context.px(4));
        dim_text(context, fitted(of.beside, room()));
        return;
    }
    std::vector<std::string> labels;
    std::vector<const char*> names;
    int index = 0;
    for (const OptionWord& word : of.words) {
        if (word.value == of.get(policy)) index = static_cast<int>(labels.size());
        labels.emplace_back(label_of(word));
    }
    for (const std::string& label : labels) names.push_back(label.c_str());
    ImGui::SetNextItemWidth(width);
    if (combo(id.c_str(), index, names)) {
        of.set(policy, of.words[to_index(index)].value);
        committed = true;
    }
}

void PolicyEditor::number(std::string_view option, double& value, float speed, float low, float high,
                          const char* format, float width) {
    ImGui::SetNextItemWidth(width);
    float shown = static_cast<float>(value);
    if (ImGui::DragFloat(fmt::format("##{}", option).c_str(), &shown, speed, low, high, format,
                         ImGuiSliderFlags_AlwaysClamp))
        value = rounded(double(shown), 1000);
    after_drag();
}

void PolicyEditor::integer(std::string_view option, int& value, int low, int high, const char* format,
                           float width) {
    ImGui::SetNextItemWidth(width);
    ImGui::DragInt(fmt::format("##{}", option).c_str(), &value, 0.1f, low, high, format,
                   ImGuiSliderFlags_AlwaysClamp);
    after_drag();
}

void PolicyEditor::amount(std::string_view option, Amount& value, float width) {
    const bool is_budget = option == "budget";
    const float unit_width = context.px(98);
    const bool counts = value.unit != Amount::Unit::all && value.unit != Amount::Unit::rest;
    const std::string id = fmt::format("##{}", option);
    if (counts) {
        ImGui::SetNextItemWidth(width - unit_width - context.px(4));
        float shown = static_cast<float>(value.value);
        const bool percent = value.unit == Amount::Unit::percent;
        if (ImGui::DragFloat(id.c_str(), &shown, percent ? 0.5f : 1.0f, 0, percent ? 100.0f : 100000.0f,
                             "%.0f", ImGuiSliderFlags_AlwaysClamp))
            value.value = std::round(double(shown));
        after_drag();
        mark_item(context, fmt::format("{} number", option));
        ImGui::SameLine(0, context.px(4));
    }
    // A budget cannot be `rest`, and a recent window cannot be `all`, nor stand beside the prompt.
    std::vector<Amount::Unit> units = {Amount::Unit::tokens, Amount::Unit::percent,
                                       is_budget ? Amount::Unit::all : Amount::Unit::rest};
    std::vector<const char*> names = {"tokens", is_budget ? "% prompt" : "% budget",
                                      is_budget ? "all" : "the rest"};
    if (is_budget) units.push_back(Amount::Unit::beside);
    if (is_budget) names.push_back("+ prompt");
    const auto now = std::find(units.begin(), units.end(), value.unit);
    int index = now == units.end() ? 0 : static_cast<int>(now - units.begin());
    ImGui::SetNextItemWidth(counts ? unit_width : width);
    if (combo((id + " unit").c_str(), index, names)) {
        value.unit = units[to_index(index)];
        if (value.unit == Amount::Unit::percent) value.value = 50;
        const bool tokens = value.unit == Amount::Unit::tokens || value.unit == Amount::Unit::beside;
        if (tokens && value.value < 1) value.value = is_budget ? 64 : 0;
        if (value.unit == Amount::Unit::all || value.unit == Amount::Unit::rest) value.value = 0;
        committed = true;
    }
}

void PolicyEditor::tau(TauSchedule& value, float width) {
    const AppState& app = context.app;
    const LaneRecord* record = app.record(lane);
    const int n_prompt = app.run.has_steps() ? app.run.history.n_prompt() : 1;
    ResolvedPolicy resolved =
        resolve(policy, n_prompt, app.run.has_steps() ? app.run.history.run().n_generate : 0);
    if (record != nullptr && policy.horizon == 0) resolved.horizon = record->info->policy.horizon;
    committed |=
        edit_tau(context, value, resolved, std::max(0, app.view.row - n_prompt + 1), width, tau_drag, active);
}

bool PolicyEditor::file_buttons(std::string_view option, std::string_view asks, bool has_value) {
    {
        // The file goes to the focused lane, which is the one with this widget.
        const ScopedDisabled disabled(context.app.jobs.choosing() || lane != context.app.view.lane);
        if (ImGui::SmallButton(fmt::format("file…##{}", option).c_str()))
            run(context, fmt::format("file.browse lane.set {}=({{}})", option));
    }
    mark_item(context, fmt::format("{} file", option));
    tooltip(context, std::string(asks));
    ImGui::SameLine(0, context.px(4));
    bool empties = false;
    if (has_value) {
        empties = ImGui::SmallButton(fmt::format("none##{}", option).c_str());
        mark_item(context, fmt::format("{} none", option));
        ImGui::SameLine(0, context.px(4));
    }
    committed |= empties;
    return empties;
}

void PolicyEditor::heads_table(HeadTable& value) {
    if (file_buttons("heads",
                     "Asks for a file of budgets by head with the file dialog of the desktop: Keyhole's own, "
                     "DuoAttention's or HeadKV's.",
                     !value.empty()))
        value = {};
    dim_text(context, fitted(head_table_name(value), room()));
}

void PolicyEditor::calibration(CalibrationRef& value) {
    if (file_buttons("calibration",
                     "Asks for a file of queries with the file dialog of the desktop, as --export queries "
                     "writes them.",
                     bool(value)))
        value = {};
    const std::string name = std::filesystem::path(value.path).filename().string();
    dim_text(context, fitted(value ? name : "the lane's own queries", room()));
}

void PolicyEditor::widget(const LaneOption& option, float width) {
    const OptionDrag& drag = option.drag;
    const auto drag_integer = [&](int& value) {
        integer(option.name, value, static_cast<int>(drag.low), static_cast<int>(drag.high),
                drag.format_of(value), width);
    };
    std::visit(
        [&]<class Member>(Member member) {
            if constexpr (std::is_same_v<Member, Amount PolicyParams::*>) {
                amount(option.name, policy.*member, width);
            } else if constexpr (std::is_same_v<Member, int PolicyParams::*>) {
                drag_integer(policy.*member);
            } else if constexpr (std::is_same_v<Member, double PolicyParams::*>) {
                number(option.name, policy.*member, drag.speed, drag.low, drag.high,
                       drag.format_of(policy.*member), width);
            } else if constexpr (std::is_same_v<Member, std::uint64_t PolicyParams::*>) {
                constexpr std::uint64_t kShown = 0x7fffffff;  // the bits that an int has
                int value = static_cast<int>(policy.*member & kShown);
                drag_integer(value);
                if (static_cast<std::uint64_t>(value) != (policy.*member & kShown))
                    policy.*member = static_cast<std::uint64_t>(value);
            } else if constexpr (std::is_same_v<Member, TauSchedule PolicyParams::*>) {
                tau(policy.*member, width);
            } else if constexpr (std::is_same_v<Member, FormulaText PolicyParams::*>) {
                draw_formula_field(*this, option, policy.*member, width);
            } else if constexpr (std::is_same_v<Member, HeadTable PolicyParams::*>) {
                heads_table(policy.*member);
            } else if constexpr (std::is_same_v<Member, CalibrationRef PolicyParams::*>) {
                calibration(policy.*member);
            } else if constexpr (std::is_same_v<Member, WordsOf<PolicyParams>>) {
                choice(option, member, width);
            } else {
                KH_ASSERT(false, "no widget for option '{}'", option.name);
            }
        },
        option.member);
}

void PolicyEditor::row(std::initializer_list<std::string_view> names) {
    std::vector<const LaneOption*> options;
    for (const std::string_view name : names) options.push_back(&lane_option(name));
    row(options);
}

void PolicyEditor::row(std::span<const LaneOption* const> options) {
    std::vector<const LaneOption*> acting;
    for (const LaneOption* option : options)
        if (no_effect_reason(in_force, option->name, heads).empty()) acting.push_back(option);
    if (acting.empty()) return;
    const float gap = context.px(8);
    std::vector<float> labels, needs;
    for (const LaneOption* option : acting) {
        labels.push_back(labels.empty()
                             ? label_width
                             : ImGui::CalcTextSize(std::string(label_of(*option)).c_str()).x + context.px(6));
        const bool is_formula = std::holds_alternative<FormulaText PolicyParams::*>(option->member);
        needs.push_back(labels.back() + gap +
                        std::max(width_of_choice(*option, policy), is_formula ? room() : context.px(48)));
    }
    if (acting.size() > 1 && std::accumulate(needs.begin(), needs.end(), 0.0f) > room() + gap) {
        for (const LaneOption*& option : acting) row(std::span(&option, 1));  // below one another
        return;
    }
    const std::vector<float> parts = parts_of_row(room() + gap, needs);
    float x = ImGui::GetCursorScreenPos().x;
    for (std::size_t i = 0; i < acting.size(); ++i) {
        const LaneOption& option = *acting[i];
        if (i > 0) {
            ImGui::SameLine();
            ImGui::SetCursorScreenPos({x, ImGui::GetCursorScreenPos().y});
        }
        const float label_before = std::exchange(label_width, labels[i]);
        label(option.name);
        label_width = label_before;
        x += parts[i];
        widget(option, x - gap - ImGui::GetCursorScreenPos().x);
        mark_item(context, option.name);
        if (!std::holds_alternative<TauSchedule PolicyParams::*>(option.member) && !ImGui::IsItemActive())
            tooltip(context, option_tooltip(option.name, {}));
    }
    for (const LaneOption* option : acting) draw_below_formula(*this, *option);
}

void PolicyEditor::rows() {
    const std::vector<std::string_view> in_front = front_options(policy.preset);
    int last = 0;
    for (const LaneOption& option : lane_options()) last = std::max(last, option.card_row);
    for (int number = 1; number <= last; ++number) {
        std::vector<const LaneOption*> in_row;
        for (const LaneOption& option : lane_options())
            if (option.card_row == number && std::ranges::find(in_front, option.name) == in_front.end())
                in_row.push_back(&option);
        row(in_row);
    }
}

void PolicyEditor::idle_options() {
    std::vector<const LaneOption*> idle;
    for (const LaneOption& option : lane_options())
        if (option.card_row > 0 && !no_effect_reason(in_force, option.name, heads).empty())
            idle.push_back(&option);
    if (idle.empty()) return;
    std::stable_sort(idle.begin(), idle.end(),
                     [](const LaneOption* a, const LaneOption* b) { return a->card_row < b->card_row; });
    const ScopedFont font(context.fonts.small);
    const ScopedColor color(ImGuiCol_Text, theme::colors().faint);
    const bool open =
        ImGui::TreeNodeEx("##idle", ImGuiTreeNodeFlags_SpanAvailWidth | ImGuiTreeNodeFlags_NoTreePushOnOpen,
                          "%d options do nothing for %s", static_cast<int>(idle.size()),
                          std::string(preset_name(policy.preset)).c_str());
    mark_item(context, "idle options");
    std::string names;
    for (const LaneOption* option : idle) names += (names.empty() ? "" : ", ") + std::string(option->name);
    tooltip(context, names);
    if (!open) return;
    for (const LaneOption* option : idle) {
        const std::string_view text = label_of(*option);
        ImGui::TextUnformatted(text.data(), text.data() + text.size());
        const std::string reason = no_effect_reason(in_force, option->name, heads);
        tooltip(context, option_tooltip(option->name, reason));
        ImGui::SameLine(0, context.px(6));
        ImGui::TextWrapped("%s", reason.c_str());
    }
}

}  // namespace keyhole
