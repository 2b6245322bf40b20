#include "app/panels/inspector_panel.h"

#include "app/window/run_rows.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Place of values[index] among those that are not NaN, largest first, and how many there are.
std::pair<int, int> rank_of(const std::vector<float>& values, std::size_t index) {
    int above = 0, n = 0;
    for (const float value : values) {
        if (std::isnan(value)) continue;
        ++n;
        if (value > values[index]) ++above;
    }
    return {above + 1, n};
}

void row(const PanelContext& context, const char* name, const std::string& value,
         ImU32 color = theme::kText) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    ImGui::PushStyleColor(ImGuiCol_Text, theme::kDim);
    ImGui::TextUnformatted(name);
    ImGui::PopStyleColor();
    ImGui::TableNextColumn();
    ImGui::PushStyleColor(ImGuiCol_Text, color);
    const std::string cut = fitted(value, ImGui::GetContentRegionAvail().x);
    ImGui::TextUnformatted(cut.c_str());
    ImGui::PopStyleColor();
    if (cut != value) tooltip(context, value);
}

void draw_cell(const PanelContext& context) {
    AppState& app = context.app;
    const std::optional<Pick> shown = context.shared.hovered ? context.shared.hovered : app.view.pick;
    heading(context, context.shared.hovered || !app.view.pick ? "Cell" : "Picked cell");
    if (!shown || shown->row > app.last_row() || shown->position > shown->row) {
        ImGui::PushFont(context.fonts.small);
        ImGui::PushStyleColor(ImGuiCol_Text, theme::kDim);
        ImGui::TextWrapped("Point at a cell of the heat map or a word of the text; a click picks it.");
        ImGui::PopStyleColor();
        ImGui::PopFont();
        return;
    }
    const int lane = app.shown_lane(), g = app.focused_kv_head();
    const Pick cell = *shown;
    const std::size_t p = static_cast<std::size_t>(cell.position);
    if (!ImGui::BeginTable("cell", 2, ImGuiTableFlags_SizingFixedFit)) return;
    ImGui::TableSetupColumn("name", 0, context.px(76));
    ImGui::TableSetupColumn("value", ImGuiTableColumnFlags_WidthStretch);
    row(context, "query",
        fmt::format("“{}”  row {}", visible(token_text(app.history, lane, cell.row)), cell.row));
    row(context, "key",
        fmt::format("“{}”  position {}", visible(token_text(app.history, lane, cell.position)),
                    cell.position));
    const std::int32_t evicted = app.history.evicted_at(lane, g, cell.position);
    const bool attended = app.history.attended(lane, g, cell.position, cell.row);
    std::vector<float> values(static_cast<std::size_t>(cell.row) + 1);
    if (!attended) {
        row(context, "attention", "none: the token is gone", theme::kDim);
    } else if (attention_values(app.history, lane, cell.row, app.view.layer, app.view.head, values)) {
        const auto [rank, n] = rank_of(values, p);
        row(context, "attention", fmt::format("{}   rank {} of {}", number_text(double(values[p])), rank, n));
    } else {
        row(context, "attention", "not recorded", theme::kDim);
    }
    if (attended && score_values(app.history, lane, cell.row, g, values)) {
        const auto [rank, n] = rank_of(values, p);
        row(context, "score", fmt::format("{}   rank {} of {}", number_text(double(values[p])), rank, n));
        const float threshold = threshold_at(app.history, lane, cell.row, g);
        if (!std::isnan(threshold))
            row(context, "threshold",
                fmt::format("{}   {}", number_text(double(threshold)),
                            values[p] < threshold ? "below" : "at or above"),
                values[p] < threshold ? theme::kWarm : theme::kText);
    } else {
        row(context, "score",
            cell.row < app.history.n_prompt() - 1 ? "not recorded for prompt rows"
            : attended                            ? "not recorded"
                                                  : "–",
            theme::kDim);
    }
    const LaneRecord* record =
        app.history.lane_record(std::max(evicted >= 0 ? evicted : app.view.row, app.first_row()), lane);
    if (record == nullptr) record = app.record(app.view.lane);
    row(context, "born",
        cell.position < app.history.n_prompt() ? fmt::format("in the prompt, row {}", cell.position)
                                               : fmt::format("decoded at row {}", cell.position));
    if (evicted < 0)
        row(context, "evicted", "never: still held", theme::kGood);
    else
        row(context, "evicted",
            fmt::format(
                "at row {} “{}”{}", evicted, visible(token_text(app.history, lane, evicted)),
                record != nullptr
                    ? fmt::format(" by {}", preset_name(parse_lane_spec(record->info->spec).policy.preset))
                    : ""),
            theme::kWarm);
    const int n_kv = app.history.run().layout.n_kv_heads();
    int holders = 0;
    for (int i = 0; i < n_kv; ++i)
        holders += app.history.stored(lane, i, cell.position, app.view.row) ? 1 : 0;
    row(context, "held by", fmt::format("{} of {} KV heads at row {}", holders, n_kv, app.view.row));
    ImGui::EndTable();
}

void draw_next_tokens(const PanelContext& context) {
    AppState& app = context.app;
    heading(context, "Next token");
    ImGui::SameLine();
    dim_text(context, fmt::format("after row {}", app.view.row));
    const int n = std::min(app.desk.n_lanes(), 4);
    if (n == 0 ||
        !ImGui::BeginTable("next", n, ImGuiTableFlags_SizingStretchSame | ImGuiTableFlags_BordersInnerV))
        return;
    // The lanes in view: around the focused one when there are more.
    const int first = std::clamp(app.view.lane - n + 1, 0, std::max(0, app.desk.n_lanes() - n));
    ImGui::TableNextRow();
    for (int i = first; i < first + n; ++i) {
        ImGui::TableNextColumn();
        ImGui::PushStyleColor(ImGuiCol_Text, theme::lane_color(i));
        ImGui::TextUnformatted(
            fitted(fmt::format("{} {}", i,
                               preset_name(app.desk.lanes()[static_cast<std::size_t>(i)].policy.preset)),
                   ImGui::GetContentRegionAvail().x)
                .c_str());
        ImGui::PopStyleColor();
    }
    ImGui::PushFont(context.fonts.small);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    for (std::size_t k = 0; k < 7; ++k) {
        ImGui::TableNextRow();
        for (int i = first; i < first + n; ++i) {
            ImGui::TableNextColumn();
            const LaneRecord* record = app.record(i);
            if (record == nullptr || k >= record->top.size()) continue;
            const float p = std::exp(record->top[k].log_prob);
            const ImVec2 at = ImGui::GetCursorScreenPos();
            const float width = ImGui::GetContentRegionAvail().x, line = ImGui::GetFontSize();
            list.AddRectFilled({at.x - 2, at.y}, {at.x - 2 + (width - context.px(26)) * p, at.y + line + 1},
                               theme::faded(theme::lane_color(i), 0.25f), 2);
            const std::string share = p >= 0.0995f ? fmt::format("{:.0f}%", double(p) * 100)
                                                   : fmt::format("{:.1f}", double(p) * 100);
            const float share_width = ImGui::CalcTextSize(share.c_str()).x;
            const std::string text =
                visible(app.history.run().token_display[static_cast<std::size_t>(record->top[k].id)]);
            ImGui::TextUnformatted(fitted(text, width - share_width - context.px(4)).c_str());
            list.AddText({at.x + width - share_width, at.y}, theme::kDim, share.c_str());
        }
    }
    ImGui::PopFont();
    ImGui::EndTable();
}

void draw_memory(const PanelContext& context) {
    AppState& app = context.app;
    heading(context, "Memory");
    ImGui::SameLine();
    dim_text(context, "K and V, all layers");
    if (!ImGui::BeginTable("memory", 4, ImGuiTableFlags_SizingStretchProp)) return;
    ImGui::PushFont(context.fonts.small);
    ImGui::TableNextRow();
    for (const char* title : {"", "tokens a head", "stored", "allocated"}) {
        ImGui::TableNextColumn();
        ImGui::PushStyleColor(ImGuiCol_Text, theme::kDim);
        ImGui::TextUnformatted(title);
        ImGui::PopStyleColor();
    }
    const int n_kv = app.history.run().layout.n_kv_heads();
    for (int i = 0; i < app.desk.n_lanes(); ++i) {
        const LaneRecord* record = app.record(i);
        if (record == nullptr) continue;
        ImGui::TableNextRow();
        ImGui::TableNextColumn();
        ImGui::PushStyleColor(ImGuiCol_Text, theme::lane_color(i));
        ImGui::TextUnformatted(
            fmt::format("{} {}", i, preset_name(app.desk.lanes()[static_cast<std::size_t>(i)].policy.preset))
                .c_str());
        ImGui::PopStyleColor();
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(fmt::format("{:.0f} / {:.0f}", double(record->use.stored_tokens) / n_kv,
                                           double(record->attended_tokens) / n_kv)
                                   .c_str());
        tooltip(context,
                fmt::format("stored after the row / attended in it, mean over KV heads\n{} / {} in all",
                            record->use.stored_tokens, record->attended_tokens));
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(bytes_text(record->use.stored_bytes).c_str());
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(bytes_text(record->use.allocated_bytes).c_str());
        tooltip(context, "what the system has given, scores included");
    }
    ImGui::PopFont();
    ImGui::EndTable();
}

/// KL to lane 0 of every lane against the row, in the room that is left.
void draw_divergence(const PanelContext& context) {
    AppState& app = context.app;
    const StepList& steps = app.history.steps();
    if (app.desk.n_lanes() < 2 || ImGui::GetContentRegionAvail().y < context.px(120)) return;
    heading(context, "Divergence");
    ImGui::SameLine();
    dim_text(context, "KL to lane 0, nats");
    ImGui::PushFont(context.fonts.small);
    const float line = ImGui::GetFontSize(), left = context.px(42);
    const ImVec2 origin = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
    const ImVec2 min(origin.x + left, origin.y + context.px(3));
    const ImVec2 size(room.x - left - context.px(4),
                      std::min(room.y - line - context.px(8), context.px(230)));
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.AddRectFilled(min, {min.x + size.x, min.y + size.y}, theme::rgb(26, 28, 34), 3);
    constexpr float kLow = 1e-5f;
    float high = 1e-3f;
    for (const auto& step : steps)
        for (const LaneRecord& record : step->lanes)
            if (record.kl) high = std::max(high, *record.kl);
    const float log_low = std::log10(kLow), log_high = std::ceil(std::log10(high) * 2) / 2;
    const int first = steps.front()->row, last = std::max(steps.back()->row, first + 1);
    const auto x_of = [&](int r) {
        return min.x + size.x * static_cast<float>(r - first) / static_cast<float>(last - first);
    };
    const auto y_of = [&](float v) {
        return min.y + size.y * (1 - (std::log10(std::max(v, kLow)) - log_low) / (log_high - log_low));
    };
    for (int e = -5; e <= static_cast<int>(std::floor(log_high)); ++e) {
        const float y = y_of(std::pow(10.0f, static_cast<float>(e)));
        list.AddLine({min.x, y}, {min.x + size.x, y}, theme::rgb(42, 46, 55));
        const std::string text = e >= -2 ? number_text(std::pow(10.0, e)) : fmt::format("1e{}", e);
        list.AddText({min.x - ImGui::CalcTextSize(text.c_str()).x - context.px(4), y - line / 2}, theme::kDim,
                     text.c_str());
    }
    list.PushClipRect(min, {min.x + size.x, min.y + size.y}, true);
    for (int card = 1; card < app.desk.n_lanes(); ++card) {
        const std::optional<int> lane = app.history_lane(card);
        if (!lane) continue;
        std::optional<ImVec2> before;
        for (const auto& step : steps) {
            const LaneRecord* record = app.history.lane_record(step->row, *lane);
            if (record == nullptr || !record->kl) {
                before.reset();
                continue;
            }
            const ImVec2 here(x_of(step->row), y_of(*record->kl));
            if (before) list.AddLine(*before, here, theme::lane_color(card), 1.4f);
            before = here;
        }
    }
    finish_row_plot(list, min, size, x_of(app.view.row), first, steps.back()->row);
    ImGui::PopFont();
}

}  // namespace

void draw(InspectorPanel&, const PanelContext& context) {
    if (!context.app.has_run()) return;
    draw_next_tokens(context);
    ImGui::Dummy({0, context.px(6)});
    draw_cell(context);
    ImGui::Dummy({0, context.px(6)});
    draw_memory(context);
    ImGui::Dummy({0, context.px(6)});
    draw_divergence(context);
}

}  // namespace keyhole
