#include "app/panels/policy_widgets.h"

#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Returns a shorter label for some options, since the card is narrow.
std::string_view short_name(std::string_view option) {
    return option == "score_dtype"  ? "sums in"
           : option == "kv_dtype"   ? "K, V in"
           : option == "compensate" ? "grow MLP"
                                    : option;
}

/// Rounds as the widget prints the value, so that the spec stays short.
double rounded(double value, double steps) {
    return std::round(value * steps) / steps;
}

}  // namespace

std::string option_tooltip(std::string_view option, std::string_view idle) {
    const OptionHelp& help = option_help(option);
    std::string text = fmt::format(
        "{}\n{}\nFrom: {}.\nSpec: {}", help.name, help.help, help.paper,
        option == "preset" ? std::string(help.values) : fmt::format("{}=…   {}", help.name, help.values));
    if (!idle.empty()) text += fmt::format("\n\nNo effect here: {}", idle);
    return text;
}

void PolicyEditor::label(std::string_view option) {
    const float x = ImGui::GetCursorPosX();
    ImGui::AlignTextToFramePadding();
    colored_text(theme::colors().dim, short_name(option));
    tooltip(context, option_tooltip(option, no_effect_reason(policy, option, heads)));
    ImGui::SameLine();
    ImGui::SetCursorPosX(x + label_width);
}

void PolicyEditor::after_drag() {
    active |= ImGui::IsItemActive();
    committed |= ImGui::IsItemDeactivatedAfterEdit();
}

template <class Enum, std::size_t n>
void PolicyEditor::choice(std::string_view option, Enum& value, const std::array<const char*, n>& names,
                          float width) {
    ImGui::SetNextItemWidth(width);
    int index = static_cast<int>(value);
    if (combo(fmt::format("##{}", option).c_str(), index, names)) {
        value = static_cast<Enum>(index);
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
    const float unit_width = context.px(88);
    const bool counts = value.unit == Amount::Unit::tokens || value.unit == Amount::Unit::percent;
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
    // A budget cannot be `rest`, and a recent window cannot be `all`.
    const std::array<Amount::Unit, 3> units = {Amount::Unit::tokens, Amount::Unit::percent,
                                               is_budget ? Amount::Unit::all : Amount::Unit::rest};
    const std::array<const char*, 3> names = {"tokens", is_budget ? "% prompt" : "% budget",
                                              is_budget ? "all" : "the rest"};
    const auto now = std::find(units.begin(), units.end(), value.unit);
    int index = now == units.end() ? 0 : static_cast<int>(now - units.begin());
    ImGui::SetNextItemWidth(counts ? unit_width : width);
    if (combo((id + " unit").c_str(), index, names)) {
        value.unit = units[to_index(index)];
        if (value.unit == Amount::Unit::percent) value.value = 50;
        if (value.unit == Amount::Unit::tokens && value.value < 1) value.value = is_budget ? 64 : 0;
        if (value.unit == Amount::Unit::all || value.unit == Amount::Unit::rest) value.value = 0;
        committed = true;
    }
}

void PolicyEditor::widget(std::string_view option, float width) {
    if (option == "budget") return amount(option, policy.budget, width);
    if (option == "recent") return amount(option, policy.recent, width);
    if (option == "sinks") return integer(option, policy.sinks, 0, 4096, "%d", width);
    if (option == "every")
        return integer(option, policy.every, 1, 1024, policy.every == 1 ? "1 step" : "%d steps", width);
    if (option == "alpha") return number(option, policy.alpha, 0.004f, 0, 1, "%.3f", width);
    if (option == "damping") return number(option, policy.damping, 0.005f, 0, 1, "%.2f", width);
    if (option == "gain") return number(option, policy.gain, 0.01f, 0, 20, "%.2f", width);
    if (option == "horizon")
        return integer(option, policy.horizon, 0, 100000, policy.horizon == 0 ? "auto" : "%d steps", width);
    if (option == "tau_delta")
        return number(option, policy.tau_delta, 0.001f, 0, 10,
                      policy.tau_delta == 0 ? "by horizon" : "+%.3f a step", width);
    if (option == "dilation")
        return integer(option, policy.dilation, policy.preset == Preset::dilated ? 1 : 0, 64, "%d", width);
    if (option == "noise")
        return choice(option, policy.noise,
                      std::array<const char*, 4>{"none", "gumbel", "gaussian", "constant"}, width);
    if (option == "draw")
        return choice(option, policy.draw, std::array<const char*, 2>{"per token", "per row"}, width);
    if (option == "scope")
        return choice(option, policy.scope, std::array<const char*, 3>{"head", "layer", "shared"}, width);
    if (option == "pool")
        return choice(option, policy.pool, std::array<const char*, 3>{"mean", "sum", "max"}, width);
    if (option == "prefill")
        return choice(option, policy.prefill, std::array<const char*, 2>{"oneshot", "stepwise"}, width);
    if (option == "score_dtype")
        return choice(option, policy.score_dtype, std::array<const char*, 3>{"fp32", "fp16", "bf16"}, width);
    if (option == "kv_dtype")
        return choice(option, policy.kv_dtype, std::array<const char*, 5>{"auto", "f32", "f16", "bf16", "q8"},
                      width);
    if (option == "positions")
        return choice(option, policy.positions,
                      std::array<const char*, 3>{"original", "cache index", "compressed"}, width);
    if (option == "seed") {
        int seed = static_cast<int>(policy.seed & 0x7fffffff);
        integer(option, seed, 0, 1 << 30, "%d", width);
        if (static_cast<std::uint64_t>(seed) != (policy.seed & 0x7fffffff))
            policy.seed = static_cast<std::uint64_t>(seed);
        return;
    }
    if (option == "tau") {
        const AppState& app = context.app;
        const LaneRecord* record = app.record(lane);
        const int n_prompt = app.run.has_steps() ? app.run.history.n_prompt() : 1;
        ResolvedPolicy in_force =
            resolve(policy, n_prompt, app.run.has_steps() ? app.run.history.run().n_generate : 0);
        if (record != nullptr && policy.horizon == 0) in_force.horizon = record->info->policy.horizon;
        committed |= edit_tau(context, policy.tau, in_force, std::max(0, app.view.row - n_prompt + 1), width,
                              tau_drag, active);
        return;
    }
    if (option == "shadow") {
        committed |= ImGui::Checkbox("##shadow", &policy.shadow);
        ImGui::SameLine(0, context.px(4));
        dim_text(context, fitted("measure against full attention", room()));
        return;
    }
    KH_ASSERT(false, "no widget for option '{}'", option);
}

void PolicyEditor::row(std::initializer_list<std::string_view> options) {
    std::vector<std::string_view> acting;
    for (std::string_view option : options)
        if (no_effect_reason(policy, option, heads).empty()) acting.push_back(option);
    if (acting.empty()) return;
    const float start = ImGui::GetCursorScreenPos().x, gap = context.px(8);
    const float part = (room() + gap) / static_cast<float>(acting.size());
    for (std::size_t i = 0; i < acting.size(); ++i) {
        const std::string_view option = acting[i];
        const float x = start + part * static_cast<float>(i);
        if (i > 0) {
            ImGui::SameLine();
            ImGui::SetCursorScreenPos({x, ImGui::GetCursorScreenPos().y});
        }
        const float label_before = label_width;
        if (i > 0)
            label_width = ImGui::CalcTextSize(std::string(short_name(option)).c_str()).x + context.px(6);
        label(option);
        label_width = label_before;
        widget(option, x + part - gap - ImGui::GetCursorScreenPos().x);
        mark_item(context, option);
        if (option != "tau" && !ImGui::IsItemActive()) tooltip(context, option_tooltip(option, {}));
    }
}

void PolicyEditor::idle_options(std::initializer_list<std::string_view> options) {
    std::vector<std::string_view> idle;
    for (std::string_view option : options)
        if (!no_effect_reason(policy, option, heads).empty()) idle.push_back(option);
    if (idle.empty()) return;
    const ScopedFont font(context.fonts.small);
    const ScopedColor color(ImGuiCol_Text, theme::colors().faint);
    const bool open =
        ImGui::TreeNodeEx("##idle", ImGuiTreeNodeFlags_SpanAvailWidth | ImGuiTreeNodeFlags_NoTreePushOnOpen,
                          "no effect here: %d options", static_cast<int>(idle.size()));
    mark_item(context, "idle options");
    std::string names;
    for (std::string_view option : idle) names += (names.empty() ? "" : ", ") + std::string(option);
    tooltip(context, names);
    if (open)
        for (std::string_view option : idle) {
            ImGui::TextUnformatted(short_name(option).data(),
                                   short_name(option).data() + short_name(option).size());
            const std::string reason = no_effect_reason(policy, option, heads);
            tooltip(context, option_tooltip(option, reason));
            ImGui::SameLine(0, context.px(6));
            ImGui::TextWrapped("%s", reason.c_str());
        }
}

}  // namespace keyhole
