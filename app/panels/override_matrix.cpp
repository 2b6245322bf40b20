#include "app/panels/override_matrix.h"

#include "engine/analysis/run_rows.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/figure/colormap.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/option_table.h"

#include <imgui_stdlib.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

namespace {

void set_focused_lane(const PanelContext& context, const LaneSpec& spec) {
    run(context, fmt::format("lane {} {}", context.app.view.lane, format_lane_spec(spec)));
}

constexpr std::array kFields = {Override::Field::budget, Override::Field::recent, Override::Field::alpha,
                                Override::Field::tau,    Override::Field::gain,   Override::Field::read,
                                Override::Field::score,  Override::Field::choose, Override::Field::protect};
static_assert(kFields.size() == OverrideMatrix::kFields);

/// Returns the number of a cell: that of its formula among the lane's, or its value in force.
double cell_value(const OverrideGrid& grid, const ResolvedPolicy& policy, Override::Field field, int layer,
                  int head, int row) {
    return Override::is_formula(field) ? grid.formula_index(layer, head)
                                       : effective_value(policy, field, layer, head, row);
}

std::string cell_text(double value, Override::Field field) {
    if (Override::is_formula(field) && value < 26) return {static_cast<char>('a' + static_cast<int>(value))};
    if (std::isinf(value)) return "all";
    if (field == Override::Field::budget || field == Override::Field::recent ||
        field == Override::Field::read)
        return fmt::format("{:.0f}", value);
    std::string text = fmt::format("{:.2f}", value);
    if (text.starts_with("0.")) text.erase(0, 1);  // the cells are narrow
    return text;
}

/// Edits the formula to paint with: the last text without a fault. Returns the fault of the text.
std::string draw_formula_brush(const PolicyEditor& edit, Override::Field field, std::string& text,
                               OverrideValue& brush) {
    const LaneOption& option = lane_option(field);
    ImGui::SetNextItemWidth(edit.context.px(260));
    ImGui::InputText("##formula", &text);
    FormulaFault fault;
    (void)formula_of(option, {text}, formula_setting(edit.policy), &fault);
    if (!fault.what.empty()) return brief_fault(fault);
    brush.formula.text = text;
    return {};
}

/// Edits the value to paint with. Returns the fault of what is typed; empty: none.
std::string draw_brush(OverrideMatrix& panel, PolicyEditor& edit) {
    std::optional<OverrideValue>& brush = panel.brushes[to_index(panel.field)];
    std::string& text = panel.texts[to_index(panel.field)];
    if (!brush) {
        brush = own_value(edit.policy, panel.field);
        text = panel.field == Override::Field::tau ? "1..2" : brush->formula.text;
    }
    const std::string name(override_field_name(panel.field));
    const float width = edit.context.px(190);
    std::string fault;
    ImGui::AlignTextToFramePadding();
    ImGui::TextUnformatted("paint");
    ImGui::SameLine();
    switch (panel.field) {
        case Override::Field::budget:
        case Override::Field::recent:
        case Override::Field::read:
            edit.amount(name, brush->amount, width);
            break;
        case Override::Field::alpha:
            edit.number("brush", brush->value, 0.005f, 0, 1, "%.2f", width);
            break;
        case Override::Field::gain:
            edit.number("brush", brush->value, 0.01f, 0, 20, "%.2f", width);
            break;
        case Override::Field::tau: {
            ImGui::SetNextItemWidth(width);
            ImGui::InputTextWithHint("##tau", "1.5, 1..2, 1..2@cosine", &text);
            try {
                brush->tau = parse_lane_spec("keyformer:tau=(" + text + ")").policy.tau;
            } catch (const Error&) {
                fault = "1.5, 1..2, 1..2@cosine or (0:1 20:1.4)";
            }
            break;
        }
        case Override::Field::score:
        case Override::Field::choose:
        case Override::Field::protect:
            fault = draw_formula_brush(edit, panel.field, text, *brush);
            break;
    }
    mark_item(edit.context, "override brush");
    return fault;
}

/// Maps the pointer to cells of the grid and its labels.
struct GridPlace {
    ImVec2 min;
    float label = 0, cell_width = 0, cell_height = 0;
    int n_layers = 0, n_heads = 0;
    ImVec2 corner(int layer, int head) const {
        return {min.x + label + cell_width * static_cast<float>(head),
                min.y + cell_height * static_cast<float>(layer + 1)};
    }
    /// Returns layer and head under the pointer; -1 stands for the label of a row or column.
    std::optional<std::pair<int, int>> under(ImVec2 mouse) const {
        const int head =
            mouse.x < min.x + label ? -1 : static_cast<int>((mouse.x - min.x - label) / cell_width);
        const int layer = static_cast<int>(std::floor((mouse.y - min.y) / cell_height)) - 1;
        if (mouse.x < min.x || layer < -1 || head >= n_heads || layer >= n_layers) return std::nullopt;
        return std::pair(layer, head);
    }
};

void draw_grid(const OverrideMatrix& panel, const PanelContext& context, const GridPlace& place,
               const OverrideGrid& grid, const ResolvedPolicy& policy,
               std::optional<std::pair<int, int>> hovered) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const int row = context.app.view.row;
    double low = 1e300, high = -1e300;
    for (int l = 0; l < place.n_layers; ++l)
        for (int h = 0; h < place.n_heads; ++h) {
            const double value = cell_value(grid, policy, panel.field, l, h, row);
            if (std::isinf(value)) continue;
            low = std::min(low, value);
            high = std::max(high, value);
        }
    if (panel.field == Override::Field::alpha) low = 0, high = 1;
    const ScopedFont font(context.fonts.small);
    const float line = ImGui::GetFontSize();
    const auto centred = [&](ImVec2 corner, float width, ImU32 color, const std::string& text) {
        const ImVec2 size = ImGui::CalcTextSize(text.c_str());
        if (size.x + 2 <= width)
            list.AddText({corner.x + (width - size.x) / 2, corner.y + (place.cell_height - line) / 2}, color,
                         text.c_str());
    };
    for (int h = 0; h < place.n_heads; ++h)
        centred(place.corner(-1, h), place.cell_width, theme::colors().dim, fmt::format("H{}", h));
    for (int l = 0; l < place.n_layers; ++l) {
        centred({place.min.x, place.corner(l, 0).y}, place.label, theme::colors().dim, fmt::format("L{}", l));
        for (int h = 0; h < place.n_heads; ++h) {
            const double value = cell_value(grid, policy, panel.field, l, h, row);
            const double u = high > low ? std::clamp((value - low) / (high - low), 0.0, 1.0) : 0.5;
            const Rgb8 c = colormap_table(Colormap::viridis)[static_cast<std::size_t>(20 + u * 225)];
            const ImVec2 a = place.corner(l, h), b(a.x + place.cell_width - 2, a.y + place.cell_height - 2);
            list.AddRectFilled(a, b, theme::rgb(c.r, c.g, c.b, grid.at(l, h) ? 255 : 110), 2);
            // A cell without a value of its own is pale: the page shows through it.
            const ImU32 own = u > 0.6 ? theme::kOnBright : theme::kOnDark;
            centred(a, place.cell_width - 2, grid.at(l, h) ? own : theme::colors().text,
                    cell_text(value, panel.field));
            if (grid.at(l, h)) list.AddRect(a, b, theme::colors().text, 2);
            if (hovered && (hovered->first == l || hovered->first < 0) &&
                (hovered->second == h || hovered->second < 0))
                list.AddRect({a.x - 1, a.y - 1}, {b.x + 1, b.y + 1}, theme::colors().warm, 2, 0, 1.5f);
        }
    }
}

/// Says which heads are painted together.
const char* unit_sentence(Scope scope, const HeadGrid& heads) {
    switch (scope) {
        case Scope::layer:
            return "scope=layer keeps one set of tokens in each layer, so a layer is painted as a whole.";
        case Scope::shared:
            return "scope=shared keeps one set of tokens in the model, so the model is painted as a whole.";
        case Scope::column:
            return "scope=column keeps one set for KV heads of equal number, so all layers are painted.";
        case Scope::head:
            break;
    }
    const int n_kv = *std::max_element(heads.kv_head.begin(), heads.kv_head.end()) + 1;
    return n_kv < heads.n_layers * heads.n_heads ? "Heads that share one KV head are painted together." : "";
}

/// Paints with the left button and clears with the right one. One press to release is one change.
void paint(OverrideMatrix& panel, const PanelContext& context, const LaneSpec& lane, const HeadGrid& heads,
           const std::optional<std::pair<int, int>>& under) {
    if (!panel.painting && ImGui::IsItemHovered() && under)
        for (int button : {0, 1})
            if (ImGui::IsMouseClicked(button)) {
                panel.painting = true;
                panel.clearing = button == 1;
                panel.draft = lane.policy;
                panel.last_cell = *under;
            }
    if (!panel.painting) return;
    if (under) {
        OverrideGrid grid(panel.draft, panel.field, heads);
        const auto [layer, head] = *under;
        const auto [layer_before, head_before] = std::exchange(panel.last_cell, *under);
        const int n_steps = std::max({std::abs(layer - layer_before), std::abs(head - head_before), 1});
        for (int i = 1; i <= n_steps; ++i) {
            const int l = layer_before + (layer - layer_before) * i / n_steps;
            const int h = head_before + (head - head_before) * i / n_steps;
            grid.paint(l < 0 ? 0 : l, l < 0 ? heads.n_layers - 1 : l, h < 0 ? 0 : h,
                       h < 0 ? heads.n_heads - 1 : h,
                       panel.clearing ? std::nullopt : panel.brushes[to_index(panel.field)]);
        }
        panel.draft = grid.written(panel.draft);
    }
    if (ImGui::IsMouseDown(panel.clearing ? 1 : 0)) return;
    panel.painting = false;
    set_focused_lane(context, {panel.draft, lane.sharing, lane.name});
}

/// Draws the fields to choose from.
void draw_fields(OverrideMatrix& panel, const PanelContext& context, const PolicyParams& policy,
                 const HeadGrid& heads) {
    for (const Override::Field field : kFields) {
        if (field != Override::Field::score) ImGui::SameLine();  // formulas have a line of their own
        const std::string name(override_field_name(field));
        if (ImGui::RadioButton(name.c_str(), panel.field == field)) panel.field = field;
        mark_item(context, "override field " + name);
        tooltip(context, option_tooltip(name, no_effect_reason(policy, name, heads)));
    }
}

void draw_clear_button(const OverrideMatrix& panel, const PanelContext& context, const LaneSpec& lane,
                       const HeadGrid& heads) {
    const ScopedDisabled disabled(OverrideGrid(panel.draft, panel.field, heads).empty());
    if (ImGui::Button("clear the grid")) {
        OverrideGrid clear(lane.policy, panel.field, heads);
        clear.paint(0, heads.n_layers - 1, 0, heads.n_heads - 1, std::nullopt);
        set_focused_lane(context, {clear.written(lane.policy), lane.sharing, lane.name});
    }
    mark_item(context, "override clear");
}

/// Draws the brush and the button that clears, and says why they may have no effect.
void draw_tools(OverrideMatrix& panel, const PanelContext& context, const LaneSpec& lane,
                const HeadGrid& heads) {
    PolicyParams brush_params = lane.policy;
    TauDrag unused;
    FormulaField no_formula;  // the brush has a plain field
    PolicyEditor edit{context, brush_params, brush_params, unused, no_formula, heads};
    const std::string fault = draw_brush(panel, edit);
    const std::string idle = no_effect_reason(lane.policy, override_field_name(panel.field), heads);
    ImGui::SameLine();
    draw_clear_button(panel, context, lane, heads);
    if (!fault.empty()) {
        small_words(context, fault, theme::colors().fault);
        mark_item(context, "override fault");
    }
    if (!idle.empty()) small_words(context, "No effect here: " + idle, theme::colors().warm);
}

GridPlace place_of(const PanelContext& context, const HeadGrid& heads) {
    GridPlace place;
    place.min = ImGui::GetCursorScreenPos();
    place.n_layers = heads.n_layers;
    place.n_heads = heads.n_heads;
    place.label = context.px(34);
    place.cell_width =
        std::clamp((ImGui::GetContentRegionAvail().x - place.label) / static_cast<float>(heads.n_heads),
                   context.px(9), context.px(56));
    place.cell_height =
        std::clamp(context.px(430) / static_cast<float>(heads.n_layers + 1), context.px(9), context.px(24));
    return place;
}

/// Names the cells and labels for scripts.
void mark_cells(const PanelContext& context, const GridPlace& place) {
    for (int l = -1; l < place.n_layers; ++l)
        for (int h = -1; h < place.n_heads; ++h) {
            ImVec2 a = place.corner(l, std::max(h, 0));
            if (h < 0) a.x = place.min.x;
            const float width = h < 0 ? place.label : place.cell_width;
            std::string name = "override";
            if (l >= 0) name += fmt::format(" L{}", l);
            if (h >= 0) name += fmt::format(" H{}", h);
            if (l < 0 && h < 0) name += " all";
            mark_area(context, name, a, {a.x + width, a.y + place.cell_height});
        }
}

/// Says what is set in the cell under the pointer.
void draw_cell_tooltip(const OverrideMatrix& panel, const PanelContext& context, const HeadGrid& heads,
                       const OverrideGrid& grid, const ResolvedPolicy& policy,
                       const std::optional<std::pair<int, int>>& under) {
    if (!under || under->first < 0 || under->second < 0 || panel.painting) return;
    const AppState& app = context.app;
    const auto [l, h] = *under;
    const auto& known = grid.at(l, h);
    const std::string value =
        Override::is_formula(panel.field)
            ? "(" + (known ? *known : own_value(panel.draft, panel.field)).formula.text + ")"
            : cell_text(effective_value(policy, panel.field, l, h, app.view.row), panel.field);
    tooltip(
        context,
        fmt::format("Layer {}, head {} ({}): {} {}{}", l, h,
                    kv_head_text(app.layout(app.view.lane), heads.kv_head[to_index(l * heads.n_heads + h)]),
                    override_field_name(panel.field), value, known ? ", overridden" : ", as the lane"));
}

/// Says how to paint, and what the cells show.
void draw_help(const OverrideMatrix& panel, const PanelContext& context, const LaneSpec& lane,
               const HeadGrid& heads, Scope scope) {
    const char* const cells = Override::is_formula(panel.field)
                                  ? "Equal letters are equal formulas, a is the lane's own;"
                                  : "Numbers are what the lane is set to;";
    small_words(context,
                lane.policy.preset == Preset::full
                    ? "full keeps every token; choose another preset first."
                    : fmt::format("Click or drag to paint; the right button clears. A label paints its layer "
                                  "or head, the corner everything. {} framed cells have overrides. {}",
                                  cells, unit_sentence(scope, heads)),
                theme::colors().dim);
    small_words(context, format_lane_spec({panel.draft, lane.sharing}), theme::colors().text);
}

}  // namespace

void draw(OverrideMatrix& panel, const PanelContext& context, bool opening) {
    const AppState& app = context.app;
    if (!app.run.has_steps() || app.view.lane >= app.run.lane_editor.n_lanes()) return;
    const LaneSpec lane = app.run.lane_editor.lanes()[to_index(app.view.lane)];
    const HeadGrid heads = head_grid(app.layout(app.view.lane));
    if (!panel.painting) panel.draft = lane.policy;
    if (opening && !lane.policy.overrides.empty()) panel.field = lane.policy.overrides.front().field;
    heading(context, fmt::format("lane {}  {}", app.view.lane, preset_name(lane.policy.preset)),
            lane_ink(context, app.view.lane));
    draw_fields(panel, context, lane.policy, heads);
    draw_tools(panel, context, lane, heads);

    const GridPlace place = place_of(context, heads);
    const ImVec2 size(place.label + place.cell_width * static_cast<float>(heads.n_heads),
                      place.cell_height * static_cast<float>(heads.n_layers + 1));
    ImGui::InvisibleButton("grid", size,
                           ImGuiButtonFlags_MouseButtonLeft | ImGuiButtonFlags_MouseButtonRight);
    mark_plot(context, "override grid");
    const std::optional<std::pair<int, int>> under =
        ImGui::IsItemHovered() || panel.painting ? place.under(ImGui::GetMousePos()) : std::nullopt;
    mark_cells(context, place);
    if (lane.policy.preset != Preset::full) paint(panel, context, lane, heads, under);

    const ResolvedPolicy policy =
        resolve(panel.draft, app.run.history.n_prompt(), app.run.history.run().n_generate, heads);
    const OverrideGrid grid(panel.draft, panel.field, heads);
    draw_grid(panel, context, place, grid, policy, under);
    draw_cell_tooltip(panel, context, heads, grid, policy, under);
    draw_help(panel, context, lane, heads, policy.scope);
}

}  // namespace keyhole
