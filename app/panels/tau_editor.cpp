#include "app/panels/policy_widgets.h"
#include "app/view/tau_curve.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

namespace {

/// Maps the curve to its place on the card, and back.
struct Plot {
    ImVec2 min, size;
    double span = 1;  ///< steps
    double low = 0, high = 1;

    ImVec2 at(double t, double tau) const {
        return {min.x + 5 + (size.x - 10) * static_cast<float>(t / span),
                min.y + size.y - 6 - (size.y - 12) * static_cast<float>((tau - low) / (high - low))};
    }
    std::pair<double, double> under(ImVec2 mouse) const {
        return {double(mouse.x - min.x - 5) / double(size.x - 10) * span,
                low + double(min.y + size.y - 6 - mouse.y) / double(size.y - 12) * (high - low)};
    }
};

/// Draws the curve with its handles. Returns true if a handle was released, added or removed.
bool edit_curve(const PanelContext& context, TauSchedule& tau, const ResolvedPolicy& in_force, int now,
                float width, TauDrag& drag, bool& active) {
    ResolvedPolicy policy = in_force;
    policy.tau = tau;
    Plot plot{ImGui::GetCursorScreenPos(), {width, context.px(46)}};
    plot.span = std::max(1.0, policy.horizon * 1.25);
    if (tau.shape == TauSchedule::Shape::points)
        plot.span = std::max(plot.span, tau.points.back().first * 1.1);
    const auto handles = tau_handles(tau, policy.horizon);
    plot.low = plot.high = tau.begin;
    for (const auto& [t, value] : handles)
        plot.low = std::min(plot.low, value), plot.high = std::max(plot.high, value);
    const double margin = std::max(0.25, (plot.high - plot.low) * 0.2);
    plot.low = std::max(0.0, plot.low - margin);
    plot.high += margin;
    if (drag.held >= 0) plot.span = drag.span, plot.low = drag.low, plot.high = drag.high;

    ImGui::InvisibleButton("curve", plot.size);
    const bool hovered = ImGui::IsItemHovered();
    mark_plot(context, "tau curve");
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.AddRectFilled(plot.min, {plot.min.x + plot.size.x, plot.min.y + plot.size.y}, theme::colors().inset,
                       3);
    list.PushClipRect(plot.min, {plot.min.x + plot.size.x, plot.min.y + plot.size.y}, true);
    constexpr int kSteps = 64;
    const auto tau_at = [&](double t) {
        return double(policy.tau_at(policy.n_prompt - 1 + static_cast<int>(std::lround(t))));
    };
    for (int i = 1; i <= kSteps; ++i) {
        const double a = plot.span * (i - 1) / kSteps, b = plot.span * i / kSteps;
        list.AddLine(plot.at(a, tau_at(a)), plot.at(b, tau_at(b)), theme::colors().accent, 1.5f);
    }
    const ImVec2 mouse = ImGui::GetMousePos();
    int nearest = -1;
    for (std::size_t i = 0; i < handles.size(); ++i) {
        const ImVec2 at = plot.at(handles[i].first, handles[i].second);
        const bool near = std::hypot(mouse.x - at.x, mouse.y - at.y) < context.px(9);
        if (hovered && near) nearest = static_cast<int>(i);
        list.AddCircle(at, context.px(4), near && hovered ? theme::colors().text : theme::colors().accent, 0,
                       1.5f);
    }
    const double shown = std::min<double>(now, plot.span);
    list.AddCircleFilled(plot.at(shown, tau_at(shown)), context.px(3), theme::colors().warm);
    list.PopClipRect();

    bool changed = false;
    const auto [t, value] = plot.under(mouse);
    const bool free = tau.shape == TauSchedule::Shape::points;
    if (ImGui::IsItemActivated() && nearest >= 0) {
        drag = {nearest, plot.span, plot.low, plot.high};
    }
    if (drag.held >= 0 && ImGui::IsItemActive()) {
        active = true;
        if (drag.held < static_cast<int>(handles.size())) move_tau_point(tau, drag.held, t, value);
    } else if (drag.held >= 0) {
        drag.held = -1;
        changed = true;
    }
    if (free && hovered && nearest < 0 && ImGui::IsMouseDoubleClicked(0))
        changed |= add_tau_point(tau, t, value) >= 0;
    if (free && hovered && nearest >= 0 && ImGui::IsMouseClicked(1)) {
        remove_tau_point(tau, nearest);
        changed = true;
    }
    if (hovered && !ImGui::IsItemActive())
        tooltip(context,
                fmt::format("tau over {} decoding steps{}. Now step {}: tau {:.3g}.\nDrag a ring{}.",
                            policy.horizon,
                            policy.tau_runs_on ? ", continued after them" : ", constant after them", now,
                            double(policy.tau_at(policy.n_prompt - 1 + now)),
                            free ? "; double-click adds a point, right-click removes one" : " up or down"));
    return changed;
}

}  // namespace

bool edit_tau(const PanelContext& context, TauSchedule& tau, const ResolvedPolicy& in_force, int now,
              float width, TauDrag& drag, bool& active) {
    bool committed = false;
    ImGui::BeginGroup();
    const float gap = context.px(4), third = (width - 2 * gap) / 3;
    const bool two = tau.shape == TauSchedule::Shape::linear || tau.shape == TauSchedule::Shape::cosine;
    ImGui::SetNextItemWidth(two                                         ? third * 1.3f
                            : tau.shape == TauSchedule::Shape::constant ? third * 2
                                                                        : width);
    int shape = static_cast<int>(tau.shape);
    static constexpr std::array<const char*, 4> kNames = {"constant", "linear", "cosine", "points"};
    if (combo("##shape", shape, kNames)) {
        tau = with_shape(tau, static_cast<TauSchedule::Shape>(shape), in_force.horizon);
        committed = true;
    }
    mark_item(context, "tau shape");
    const auto end = [&](const char* id, int index, double value, float wide) {
        ImGui::SameLine(0, gap);
        ImGui::SetNextItemWidth(wide);
        float shown = static_cast<float>(value);
        if (ImGui::DragFloat(id, &shown, 0.01f, static_cast<float>(kLowestTau), 20, "%.2f",
                             ImGuiSliderFlags_AlwaysClamp))
            move_tau_point(tau, index, 0, double(shown));
        mark_item(context, fmt::format("tau {}", index == 0 ? "begin" : "end"));
        active |= ImGui::IsItemActive();
        committed |= ImGui::IsItemDeactivatedAfterEdit();
    };
    if (tau.shape == TauSchedule::Shape::constant) end("##begin", 0, tau.begin, third);
    if (two) {
        end("##begin", 0, tau.begin, third * 0.85f);
        end("##end", 1, tau.end, third * 0.85f);
    }
    if (tau.shape != TauSchedule::Shape::constant)
        committed |= edit_curve(context, tau, in_force, now, width, drag, active);
    ImGui::EndGroup();
    return committed;
}

}  // namespace keyhole
