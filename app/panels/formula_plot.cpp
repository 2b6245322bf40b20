#include "app/panels/formula_plot.h"

#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Returns whether the engine can rank what the plot is to show: it knows the newest row alone.
bool engine_can_rank(const FormulaPlot& plot, const RunState& run) {
    return plot.asks && run.recorded() && run.status.has_session && !run.running() &&
           plot.row == run.last_row();
}

/// Renews the preview if the text can be read and something has changed.
void renew(FormulaPlot& plot, const AppState& app, int lane, const LaneOption& option,
           const PolicyParams& policy, const std::string& text, bool is_of_head) {
    const FormulaUse use = *use_of(option);
    const RunHistory& history = app.run.history;
    const int kv_head = app.focused_kv_head(), row = app.view.row;
    if (plot.text == text && plot.use == use && plot.generation == history.generation() &&
        plot.lane == lane && plot.kv_head == kv_head && plot.row == row && plot.is_of_head == is_of_head)
        return;
    FormulaFault fault;
    const FormulaRef typed = formula_of(option, {text}, formula_setting(policy), &fault);
    const bool same_tokens = plot.lane == lane && plot.kv_head == kv_head && plot.row == row &&
                             plot.generation == history.generation() && plot.is_of_head == is_of_head;
    if (!fault.what.empty()) {  // a picture of other tokens would say something that is not so
        if (!same_tokens) plot = {};
        return;
    }
    FormulaPlot next{text, use, history.generation(), lane, kv_head, row, is_of_head};
    next.typed = typed;
    next.preview = preview_formula(history, lane, kv_head, row, use, typed);
    next.of = text;
    next.asks = next.preview.asks;
    // The last picture of the same tokens stays until the engine has ranked them.
    if (same_tokens && !plot.preview.tokens.empty() && engine_can_rank(next, app.run)) {
        next.preview = std::move(plot.preview);
        next.of = plot.of;
        next.is_ranked = plot.is_ranked;
    }
    plot = std::move(next);
}

/// Asks the engine for what records lack, and shows its answer. lane: of the editor.
void ask_engine(FormulaPlot& plot, const PanelContext& context, int lane, const LaneOption& option) {
    const RunState& run = context.app.run;
    const std::shared_ptr<const Ranks>& known = run.status.ranks;
    if (plot.ranks != nullptr) {
        if (known == nullptr) plot = {};  // they were of other settings, or of another row
        return;
    }
    if (!engine_can_rank(plot, run)) return plot.asked.reset();
    const RanksRequest wanted{lane, plot.kv_head, *plot.asks};
    const bool is_answered = known != nullptr && known->asked == wanted;
    if (is_answered && known->row == plot.row) {
        plot.ranks = known;
        plot.of = plot.text;
        plot.is_ranked = true;
        plot.preview = preview_formula(run.history, plot.lane, plot.kv_head, plot.row, plot.use, plot.typed,
                                       known.get());
    } else if (plot.asked != wanted || (!is_answered && run.has_taken_requests())) {
        plot.asked = wanted;  // or again: the engine passes over a question where something else waits
        keyhole::run(context,
                     fmt::format("lane.rank {} {} {} {}", lane, plot.kv_head, option.name, plot.text));
    }
}

/// Returns the formula that an override gives the shown head; null: it has the lane's.
const std::string* formula_of_head(const AppState& app, int lane, const LaneOption& option,
                                   const PolicyParams& policy) {
    const KvHead& head = app.run.history.layout(lane).kv_head(app.focused_kv_head());
    const Override* own = policy.override_at(*option.by_head, head.readers.front().layer,
                                             head.readers.front().head, head.index);
    return own != nullptr ? &own->formula.text : nullptr;
}

/// The values that competing tokens have, without infinities: the plot's lower and upper edge.
std::pair<float, float> range_of(const FormulaPreview& preview) {
    float low = INFINITY, high = -INFINITY;
    for (const PreviewedToken& token : preview.tokens)
        if (std::isfinite(token.value)) {
            low = std::min(low, token.value);
            high = std::max(high, token.value);
        }
    return {std::min(low, 0.0f), high > low ? high : low + 1};
}

std::string place_words(const FormulaPlot& plot, const KvLayout& layout) {
    const FormulaPreview& preview = plot.preview;
    const std::string where = fmt::format("after step {}, {}", plot.row, kv_head_text(layout, plot.kv_head));
    if (plot.is_ranked)
        return fmt::format("The {} tokens that stay {}, as the engine ranks them.",
                           plot.preview.tokens.size(), where);
    return preview.n_leaving == 0
               ? fmt::format("None of {} tokens would leave {}.", preview.tokens.size(), where)
               : fmt::format("{} of {} tokens would leave {}.", preview.n_leaving, preview.tokens.size(),
                             where);
}

std::string token_words(const FormulaPlot& plot, const RunHistory& history, const PreviewedToken& token) {
    const std::string rank = token.rank == 0
                                 ? "does not compete: always kept"
                                 : fmt::format("rank {} of {}: {}", token.rank, plot.preview.n_competing,
                                               token.stays ? "stays" : "would leave");
    return fmt::format("{} “{}”\nvalue {:.4g}\n{}", token.position,
                       token_text(history, plot.lane, token.position), double(token.value), rank);
}

/// Draws two bars for each token: a pale one by rank, the best the highest, and in front of it one by value.
/// A line lies at the rank below which tokens would leave.
void draw_bars(const FormulaPlot& plot, const PanelContext& context, ImVec2 min, ImVec2 size) {
    const auto [low, high] = range_of(plot.preview);
    const auto& tokens = plot.preview.tokens;
    const float step = size.x / static_cast<float>(tokens.size()), foot = context.px(2);
    const float width = std::max(step * (step > 3 ? 0.8f : 1.0f), 1.0f), room = size.y - foot - context.px(2);
    const auto n_competing = static_cast<float>(std::max(plot.preview.n_competing, 1));
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const auto bar = [&](float x, float share, ImU32 color) {
        const float height = foot + (std::isnan(share) ? 0.0f : std::clamp(share, 0.0f, 1.0f) * room);
        list.AddRectFilled({x, min.y + size.y - height}, {x + width, min.y + size.y}, color);
    };
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const PreviewedToken& token = tokens[i];
        const float x = min.x + step * static_cast<float>(i);
        const ImU32 color = !token.stays      ? theme::colors().warm
                            : token.rank == 0 ? theme::colors().faint
                                              : lane_ink(context, context.app.view.lane);
        const float beaten = n_competing - static_cast<float>(token.rank);
        if (token.rank > 0) bar(x, beaten / n_competing, theme::faded(color, 0.35f));
        bar(x, (token.value - low) / (high - low), color);
    }
    if (plot.preview.n_leaving == 0) return;
    const float y = min.y + size.y - foot -
                    std::min(static_cast<float>(plot.preview.n_leaving) / n_competing, 1.0f) * room;
    list.AddLine({min.x, y}, {min.x + size.x, y}, theme::colors().dim);
}

}  // namespace

void draw_formula_plot(FormulaPlot& plot, const PanelContext& context, int lane, const LaneOption& option,
                       const PolicyParams& policy, const std::string& typed, float right) {
    const AppState& app = context.app;
    const auto known = app.run.history_lane(lane);
    if (!app.run.has_steps() || !known) return;
    const std::string* of_head = formula_of_head(app, *known, option, policy);
    const std::string& text = of_head != nullptr ? *of_head : typed;
    renew(plot, app, *known, option, policy, text, of_head != nullptr);
    if (plot.lane != *known) return;
    ask_engine(plot, context, lane, option);
    if (!plot.preview.why_not.empty()) {
        if (plot.asked && plot.ranks == nullptr) return small_words(context, "The engine ranks it…");
        const bool may_ask = plot.asks && app.run.live() && plot.row != app.run.last_row();
        small_words(context, plot.preview.why_not +
                                 (may_ask ? " At the newest step (End) it is ranked while you type." : ""));
        return mark_item(context, "formula preview lacks");
    }
    if (plot.preview.tokens.empty()) return;
    const ImVec2 min = ImGui::GetCursorScreenPos(), size(right - min.x, context.px(44));
    ImGui::GetWindowDrawList()->AddRectFilled(min, {right, min.y + size.y}, theme::colors().inset);
    draw_bars(plot, context, min, size);
    ImGui::Dummy(size);
    mark_item(context, "formula preview");
    if (ImGui::IsItemHovered()) {
        const float share = (ImGui::GetMousePos().x - min.x) / size.x;
        const std::size_t n = plot.preview.tokens.size();
        const std::size_t at =
            std::min(static_cast<std::size_t>(std::max(share, 0.0f) * static_cast<float>(n)), n - 1);
        show_tooltip(context, token_words(plot, app.run.history, plot.preview.tokens[at]));
    }
    small_words(context, (plot.is_of_head   ? fmt::format("This head has its own, “{}”: ", plot.text)
                          : plot.of == text ? ""
                                            : fmt::format("By “{}”: ", plot.of)) +
                             place_words(plot, app.run.history.layout(*known)));
    mark_item(context, "formula preview words");
}

}  // namespace keyhole
