#include "app/panels/inspector_panel.h"

#include "app/panels/cell_view.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

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
    draw_cell_view(context);
    ImGui::Dummy({0, context.px(6)});
    draw_memory(context);
    ImGui::Dummy({0, context.px(6)});
    draw_divergence(context);
}

}  // namespace keyhole
