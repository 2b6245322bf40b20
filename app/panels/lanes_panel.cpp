#include "app/panels/lanes_panel.h"

#include "engine/base/error.h"

#include <imgui_stdlib.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

namespace {

constexpr std::array kPresets = {Preset::full, Preset::window, Preset::sink,      Preset::key,
                                 Preset::h2o,  Preset::tova,   Preset::keyformer, Preset::a2sf};

/// A card's widgets edit a draft; the change is sent when one is let go.
struct Editor {
    const PanelContext& context;
    PolicyParams& policy;
    bool committed = false;
    bool active = false;
    float label_width = 0;

    void label(const char* text, const char* help) {
        ImGui::AlignTextToFramePadding();
        ImGui::PushStyleColor(ImGuiCol_Text, theme::kDim);
        ImGui::TextUnformatted(text);
        ImGui::PopStyleColor();
        tooltip(context, help);
        ImGui::SameLine(label_width);
    }
    void after_drag() {
        active |= ImGui::IsItemActive();
        committed |= ImGui::IsItemDeactivatedAfterEdit();
    }
    template <class Enum, std::size_t n>
    void choice(const char* id, Enum& value, const std::array<const char*, n>& names, float width) {
        ImGui::SetNextItemWidth(width);
        int index = static_cast<int>(value);
        if (ImGui::Combo(id, &index, names.data(), static_cast<int>(n))) {
            value = static_cast<Enum>(index);
            committed = true;
        }
    }
    void amount(const char* id, Amount& value, bool is_budget) {
        const float unit_width = context.px(88);
        const bool counts = value.unit == Amount::Unit::tokens || value.unit == Amount::Unit::percent;
        if (counts) {
            ImGui::SetNextItemWidth(ImGui::GetContentRegionAvail().x - unit_width - context.px(4));
            float number = static_cast<float>(value.value);
            const bool percent = value.unit == Amount::Unit::percent;
            if (ImGui::DragFloat(id, &number, percent ? 0.5f : 1.0f, 0, percent ? 100.0f : 100000.0f,
                                 percent ? "%.0f" : "%.0f"))
                value.value = std::max(0.0, std::round(double(number)));
            after_drag();
            ImGui::SameLine(0, context.px(4));
        }
        // all, rest, tokens, percent; a budget has no rest, a recent window no all.
        const std::array<Amount::Unit, 3> units = {Amount::Unit::tokens, Amount::Unit::percent,
                                                   is_budget ? Amount::Unit::all : Amount::Unit::rest};
        const std::array<const char*, 3> names = {"tokens", is_budget ? "% prompt" : "% budget",
                                                  is_budget ? "all" : "the rest"};
        const auto now = std::find(units.begin(), units.end(), value.unit);
        int index = now == units.end() ? 0 : static_cast<int>(now - units.begin());
        ImGui::SetNextItemWidth(counts ? unit_width : -1);
        ImGui::PushID(id);
        if (ImGui::Combo("##unit", &index, names.data(), 3)) {
            value.unit = units[static_cast<std::size_t>(index)];
            if (value.unit == Amount::Unit::percent) value.value = 50;
            if (value.unit == Amount::Unit::tokens && value.value < 1) value.value = is_budget ? 64 : 0;
            committed = true;
        }
        ImGui::PopID();
    }
};

void plot_tau(const PanelContext& context, const TauSchedule& tau, int horizon, int now) {
    const ImVec2 min = ImGui::GetCursorScreenPos();
    const ImVec2 size(ImGui::GetContentRegionAvail().x, context.px(34));
    ImGui::Dummy(size);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.AddRectFilled(min, {min.x + size.x, min.y + size.y}, theme::rgb(30, 33, 40), 3);
    ResolvedPolicy policy;
    policy.tau = tau;
    policy.horizon = std::max(horizon, 1);
    policy.n_prompt = 1;
    const int span = policy.horizon + policy.horizon / 4;
    float low = 1e30f, high = -1e30f;
    std::array<float, 65> values{};
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = policy.tau_at(static_cast<int>(static_cast<std::size_t>(span) * i / (values.size() - 1)));
        low = std::min(low, values[i]);
        high = std::max(high, values[i]);
    }
    if (high - low < 1e-3f) low -= 0.5f, high += 0.5f;
    const auto point = [&](double t, float value) {
        return ImVec2(min.x + 4 + (size.x - 8) * static_cast<float>(t),
                      min.y + size.y - 5 - (size.y - 10) * (value - low) / (high - low));
    };
    for (std::size_t i = 1; i < values.size(); ++i)
        list.AddLine(point(double(i - 1) / 64, values[i - 1]), point(double(i) / 64, values[i]),
                     theme::kAccent, 1.5f);
    const double t = std::clamp(double(now) / span, 0.0, 1.0);
    const float value = policy.tau_at(std::min(now, span));
    list.AddCircleFilled(point(t, value), 3.5f, theme::kWarm);
    tooltip(context,
            fmt::format(
                "Temperature of the score softmax over {} decode rows, held after. Now row {}: tau {:.3g}",
                policy.horizon, now, double(value)));
}

/// All settings of the focused card.
void draw_settings(LanesPanel& panel, const PanelContext& context, int index) {
    AppState& app = context.app;
    if (panel.edited != index) panel.draft = app.desk.lanes()[static_cast<std::size_t>(index)];
    PolicyParams& policy = panel.draft.policy;
    Editor edit{context, policy};
    edit.label_width = context.px(64);
    const float row_width = ImGui::GetContentRegionAvail().x;

    edit.label("preset", "The named policy that the settings start from. Choosing one sets its defaults.");
    ImGui::SetNextItemWidth(-1);
    if (ImGui::BeginCombo("##preset", std::string(preset_name(policy.preset)).c_str())) {
        for (Preset preset : kPresets) {
            if (ImGui::Selectable(std::string(preset_name(preset)).c_str(), preset == policy.preset) &&
                preset != policy.preset) {
                const Amount budget = policy.budget;
                policy = preset_params(preset);
                // A budget that was set by hand stays.
                if (preset != Preset::full && budget.unit == Amount::Unit::tokens) policy.budget = budget;
                edit.committed = true;
            }
            tooltip(context, preset_help(preset));
        }
        ImGui::EndCombo();
    }
    ImGui::PushFont(context.fonts.small);
    ImGui::PushStyleColor(ImGuiCol_Text, theme::kDim);
    ImGui::TextWrapped("%s", std::string(preset_help(policy.preset)).c_str());
    ImGui::PopStyleColor();
    ImGui::PopFont();

    if (policy.preset != Preset::full) {
        edit.label("budget", "Tokens that a KV head keeps after each row.");
        edit.amount("##budget", policy.budget, true);
        edit.label("recent", "The newest tokens, always kept, within the budget.");
        edit.amount("##recent", policy.recent, false);
        edit.label("sinks", "The first tokens, always kept, within the budget.");
        ImGui::SetNextItemWidth((row_width - edit.label_width) / 2 - context.px(30));
        ImGui::DragInt("##sinks", &policy.sinks, 0.1f, 0, 4096);
        edit.after_drag();
        ImGui::SameLine();
        ImGui::PushStyleColor(ImGuiCol_Text, theme::kDim);
        ImGui::TextUnformatted("every");
        ImGui::PopStyleColor();
        tooltip(context, "Rows between evictions.");
        ImGui::SameLine();
        ImGui::SetNextItemWidth(-1);
        ImGui::DragInt("##every", &policy.every, 0.1f, 1, 1024);
        edit.after_drag();

        edit.label("alpha",
                   "Forgetting factor of the scores (A2SF): 1 sums all rows, 0 keeps the last row only.");
        ImGui::SetNextItemWidth(-1);
        float alpha = static_cast<float>(policy.alpha);
        if (ImGui::SliderFloat("##alpha", &alpha, 0, 1, "%.3f"))
            policy.alpha = std::round(double(alpha) * 1000) / 1000;
        edit.after_drag();

        edit.label("tau", "Temperature of the score softmax, as a schedule over decode rows (Keyformer).");
        const float third = (ImGui::GetContentRegionAvail().x - context.px(8)) / 3;
        edit.choice("##shape", policy.tau.shape,
                    std::array<const char*, 4>{"constant", "linear", "cosine", "points"},
                    policy.tau.shape == TauSchedule::Shape::constant ? third * 2 : third * 1.4f);
        if (policy.tau.shape == TauSchedule::Shape::points && policy.tau.points.empty())
            policy.tau.points = {{0, policy.tau.begin}, {100, policy.tau.end}};
        ImGui::SameLine(0, context.px(4));
        float begin = static_cast<float>(policy.tau.begin), end = static_cast<float>(policy.tau.end);
        const bool constant = policy.tau.shape == TauSchedule::Shape::constant;
        ImGui::SetNextItemWidth(constant ? -1 : third * 0.8f);
        if (ImGui::DragFloat("##begin", &begin, 0.01f, 0.05f, 20, "%.2f")) {
            policy.tau.begin = std::max(0.05, std::round(double(begin) * 100) / 100);
            if (constant) policy.tau.end = policy.tau.begin;
        }
        edit.after_drag();
        ImGui::SameLine(0, context.px(4));
        ImGui::SetNextItemWidth(-1);
        if (!constant) {
            if (ImGui::DragFloat("##end", &end, 0.01f, 0.05f, 20, "%.2f"))
                policy.tau.end = std::max(0.05, std::round(double(end) * 100) / 100);
            edit.after_drag();
        } else {
            policy.tau.end = policy.tau.begin;
            ImGui::Dummy({0, 0});
        }
        if (!constant) {
            const LaneRecord* record = app.record(index);
            const int horizon = policy.horizon > 0  ? policy.horizon
                                : record != nullptr ? record->info->policy.horizon
                                                    : 256;
            plot_tau(context, policy.tau, horizon, std::max(0, app.view.row - app.history.n_prompt() + 1));
            edit.label("horizon",
                       "Decode rows until the schedule ends; 0: what the session generates, 256 when open.");
            ImGui::SetNextItemWidth(-1);
            ImGui::DragInt("##horizon", &policy.horizon, 1, 0, 100000, policy.horizon == 0 ? "auto" : "%d");
            edit.after_drag();
        }
        edit.label("noise",
                   "Added to the logits before the score softmax: Gumbel noise makes the kept set a random "
                   "draw (Keyformer).");
        const float half = (ImGui::GetContentRegionAvail().x - context.px(4)) / 2;
        edit.choice("##noise", policy.noise,
                    std::array<const char*, 4>{"none", "gumbel", "gaussian", "constant"},
                    policy.noise == NoiseKind::none ? -1 : half);
        if (policy.noise != NoiseKind::none) {
            ImGui::SameLine(0, context.px(4));
            edit.choice("##draw", policy.draw, std::array<const char*, 2>{"per token", "per row"}, -1);
            edit.label("gain", "Factor on the noise.");
            float gain = static_cast<float>(policy.gain);
            ImGui::SetNextItemWidth(half);
            if (ImGui::DragFloat("##gain", &gain, 0.01f, 0, 20, "%.2f"))
                policy.gain = std::round(double(gain) * 100) / 100;
            edit.after_drag();
            ImGui::SameLine(0, context.px(4));
            int seed = static_cast<int>(policy.seed);
            ImGui::SetNextItemWidth(-1);
            if (ImGui::DragInt("##seed", &seed, 0.1f, 0, 1 << 30, "seed %d"))
                policy.seed = static_cast<std::uint64_t>(std::max(seed, 0));
            edit.after_drag();
        }
        edit.label("scope",
                   "One kept set per KV head, per layer, or for the whole model; and how query heads that "
                   "share it are pooled.");
        edit.choice("##scope", policy.scope, std::array<const char*, 3>{"head", "layer", "shared"}, half);
        ImGui::SameLine(0, context.px(4));
        edit.choice("##pool", policy.pool, std::array<const char*, 3>{"mean", "sum", "max"}, -1);
    }

    // The same as text.
    if (panel.spec_lane != index || !ImGui::GetIO().WantTextInput) {
        panel.spec_text = format_lane_spec(panel.draft);
        panel.spec_lane = index;
    }
    edit.label("spec", "The same as text, for the command line and for other lanes. Enter takes it over.");
    ImGui::SetNextItemWidth(-1);
    ImGui::PushFont(context.fonts.small);
    if (ImGui::InputText("##spec", &panel.spec_text, ImGuiInputTextFlags_EnterReturnsTrue))
        run(context, fmt::format("lane {} {}", index, panel.spec_text));
    ImGui::PopFont();

    panel.edited = edit.active ? index : -1;
    if (edit.committed) {
        const std::vector<std::string> faults = validate(policy);
        if (faults.empty())
            app.desk.set(index, panel.draft);
        else
            app.say(faults.front(), true);
        panel.edited = -1;
    }
}

void draw_card(LanesPanel& panel, const PanelContext& context, int index) {
    AppState& app = context.app;
    const LaneSpec spec = app.desk.lanes()[static_cast<std::size_t>(index)];
    const LaneRecord* record = app.record(index);
    const bool focused = app.view.lane == index;
    ImGui::PushID(index);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float width = ImGui::GetContentRegionAvail().x, pad = context.px(9);
    const ImVec2 min = ImGui::GetCursorScreenPos();
    list.ChannelsSplit(2);
    list.ChannelsSetCurrent(1);
    ImGui::SetCursorScreenPos({min.x + pad, min.y + pad * 0.7f});
    ImGui::BeginGroup();
    ImGui::PushItemWidth(width - 2 * pad);
    ImGui::PushClipRect(min, {min.x + width, min.y + context.px(900)}, true);

    // Heading: what it is, and how it does.
    const float right = min.x + width - pad;
    heading(context, fmt::format("{}  {}", index, preset_name(spec.policy.preset)));
    if (record != nullptr) {
        const int n_kv = app.history.run().layout.n_kv_heads();
        const std::string kept =
            fmt::format("{:.0f} of {} kept", double(record->use.stored_tokens) / n_kv, app.view.row + 1);
        ImGui::PushFont(context.fonts.small);
        const float text_width = ImGui::CalcTextSize(kept.c_str()).x;
        list.AddText({right - text_width, min.y + pad * 0.7f + context.px(2)}, theme::kDim, kept.c_str());
        ImGui::PopFont();
        // How full: share of the tokens so far.
        const float share = static_cast<float>(double(record->use.stored_tokens) / n_kv / (app.view.row + 1));
        const ImVec2 bar = ImGui::GetCursorScreenPos();
        list.AddRectFilled(bar, {right, bar.y + context.px(3)}, theme::rgb(28, 31, 37), 2);
        list.AddRectFilled(bar,
                           {bar.x + (right - bar.x) * std::clamp(share, 0.0f, 1.0f), bar.y + context.px(3)},
                           theme::lane_color(index), 2);
        ImGui::Dummy({0, context.px(4)});
    }
    ImGui::PushFont(context.fonts.small);
    const auto line = [&](const std::string& text, ImU32 color) {
        ImGui::PushStyleColor(ImGuiCol_Text, color);
        const std::string cut = fitted(text, right - ImGui::GetCursorScreenPos().x);
        ImGui::TextUnformatted(cut.c_str());
        if (cut != text) tooltip(context, text);
        ImGui::PopStyleColor();
    };
    if (record == nullptr) {
        line(app.history_lane(index) ? "not there yet at this row" : "joins with the next row", theme::kWarm);
    } else {
        if (!record->failure.empty()) line(record->failure, theme::kFault);
        if (record->ended) line("ended: the model closed its text", theme::kDim);
        const bool latest = app.view.row == app.last_row();
        if (latest && app.live() && format_lane_spec(spec) != record->info->spec &&
            spec != parse_lane_spec(record->info->spec))
            line("asked: " + format_lane_spec(spec) + " (from the next row)", theme::kWarm);
        line(record->info->effective, theme::kDim);
        if (index > 0 && record->kl)
            line(fmt::format(
                     "KL {:.4f} nats to lane 0{}", double(*record->kl),
                     record->agrees ? (*record->agrees ? " · agrees" : " · would say another word") : ""),
                 record->agrees && !*record->agrees ? theme::kWarm : theme::kDim);
    }
    ImGui::PopFont();
    if (focused) draw_settings(panel, context, index);

    ImGui::PopClipRect();
    ImGui::PopItemWidth();
    ImGui::EndGroup();
    const ImVec2 max(min.x + width, ImGui::GetItemRectMax().y + pad * 0.8f);
    list.ChannelsSetCurrent(0);
    list.AddRectFilled(min, max, focused ? theme::kCardFocused : theme::kCard, context.px(5));
    list.AddRectFilled(min, {min.x + context.px(4), max.y}, theme::lane_color(index), context.px(5),
                       ImDrawFlags_RoundCornersLeft);
    list.ChannelsMerge();
    if (ImGui::IsMouseHoveringRect(min, max) && ImGui::IsWindowHovered() && ImGui::IsMouseClicked(0) &&
        !ImGui::IsAnyItemHovered())
        app.view.lane = index;
    ImGui::SetCursorScreenPos({min.x, max.y + context.px(6)});
    ImGui::Dummy({0, 0});
    ImGui::PopID();
}

}  // namespace

void draw(LanesPanel& panel, const PanelContext& context) {
    AppState& app = context.app;
    ImGui::AlignTextToFramePadding();
    heading(context, "Lanes");
    ImGui::SameLine(ImGui::GetContentRegionAvail().x - context.px(119));
    command_button(context, "add", "+", false, context.px(24));
    ImGui::SameLine(0, context.px(3));
    command_button(context, "lane.duplicate", "copy", false, context.px(46));
    ImGui::SameLine(0, context.px(3));
    command_button(context, "remove", "–", false, context.px(24));
    ImGui::SameLine(0, context.px(3));
    command_button(context, "lane.undo", "↶", false, context.px(26));
    bool follow = app.desk.follow();
    if (ImGui::Checkbox("follow lane 0", &follow)) app.desk.set_follow(follow);
    command_tooltip(context, "follow");

    // Until a budget is full every policy keeps everything.
    if (app.has_run() && app.desk.n_lanes() > 1) {
        bool any = false;
        for (const RunHistory::Lane& lane : app.history.lanes())
            any = any || std::any_of(lane.evicted_at.begin(), lane.evicted_at.end(),
                                     [](std::int32_t e) { return e >= 0; });
        if (!any) {
            ImGui::PushStyleColor(ImGuiCol_Text, theme::kWarm);
            ImGui::TextWrapped(
                "No budget is full yet: until then all policies keep everything and look alike.");
            ImGui::PopStyleColor();
        }
    }
    ImGui::Spacing();
    for (int i = 0; i < app.desk.n_lanes(); ++i) draw_card(panel, context, i);
}

}  // namespace keyhole
