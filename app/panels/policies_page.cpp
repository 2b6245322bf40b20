#include "app/panels/policies_page.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/preset_table.h"
#include "engine/policy/spec_copies.h"

#include <algorithm>

namespace keyhole {

namespace {

constexpr float kNameWidth = 190;  // unscaled

void read_once(PoliciesPage& page) {
    if (std::exchange(page.read, true)) return;
    try {
        page.pictures = shipped_kept_pictures();
    } catch (const Error& error) {
        page.fault = error.what();
    }
}

/// Draws a line of cells, one a token, bright where it is kept, and ticks below the watched words.
void draw_kept(const PanelContext& context, const KeptPictures& pictures, const KeptPicture& kept) {
    const theme::Colors& colors = theme::colors();
    const float width = ImGui::GetContentRegionAvail().x, height = context.px(16), tick = context.px(3);
    const ImVec2 min = ImGui::GetCursorScreenPos();
    ImGui::InvisibleButton("kept", {width, height + tick});
    mark_plot(context, "kept " + kept.preset);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const auto x_of = [&](int p) {
        return min.x + width * static_cast<float>(p) / static_cast<float>(pictures.tokens.size());
    };
    list.AddRectFilled(min, {min.x + width, min.y + height}, colors.card);
    for (const int p : kept.positions)
        list.AddRectFilled({x_of(p), min.y}, {x_of(p + 1), min.y + height}, colors.accent);
    for (const int p : pictures.watched)
        list.AddRectFilled({x_of(p), min.y + height}, {x_of(p + 1), min.y + height + tick}, colors.warm);
    if (!ImGui::IsItemHovered()) return;
    const auto n = static_cast<float>(pictures.tokens.size());
    const int p = std::clamp(static_cast<int>((ImGui::GetMousePos().x - min.x) / width * n), 0,
                             static_cast<int>(n) - 1);
    show_tooltip(context, fmt::format("“{}”, position {}: {}", pictures.tokens[to_index(p)], p,
                                      std::ranges::binary_search(kept.positions, p) ? "kept" : "evicted"));
}

/// Draws the button that gives a policy to the focused lane, or adds a lane beside the reference. Returns
/// whether it is pressed.
bool use_button(const PanelContext& context, std::string_view name) {
    const AppState& app = context.app;
    const ScopedDisabled disabled(app.run.lane_editor.lanes().empty());
    const int lane = app.view.lane;
    const bool pressed =
        ImGui::SmallButton(lane == 0 ? "Add a lane" : fmt::format("Use in lane {}", lane).c_str());
    mark_item(context, fmt::format("use {}", name));
    return pressed;
}

void draw_use(const PanelContext& context, const PresetRow& row) {
    if (!use_button(context, row.name)) return;
    const AppState& app = context.app;
    const int lane = app.view.lane;
    if (lane == 0) {
        run(context, row.preset == Preset::full ? "add full" : fmt::format("add {}:budget=64", row.name));
    } else {
        LaneSpec spec = app.run.lane_editor.lanes()[to_index(lane)];
        spec.policy = with_preset(spec.policy, row.preset);
        run(context, fmt::format("lane {} {}", lane, format_lane_spec(spec)));
    }
}

/// Draws a saved policy with what it is, and the buttons that use it and remove its file.
void draw_saved(const PanelContext& context, const ListedPolicy& saved, int index) {
    const std::string& name = saved.policy.name;
    const ScopedId id(index);
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    {
        const ScopedFont font(context.fonts.bold);
        colored_text(theme::colors().text, name);
    }
    tooltip(context, saved.file.string());
    const int lane = context.app.view.lane;
    if (saved.fault.empty() && use_button(context, name))
        run(context, lane == 0 ? "add " + name : fmt::format("lane {} {}", lane, name));
    if (saved.fault.empty()) ImGui::SameLine();
    if (ImGui::SmallButton("Remove")) run(context, "lane.unsave " + name);
    mark_item(context, "remove " + name);
    ImGui::TableNextColumn();
    if (!saved.policy.about.empty()) small_words(context, saved.policy.about, theme::colors().text);
    small_words(context, saved.fault.empty() ? saved.policy.spec : saved.fault);
}

void draw_all_saved(PoliciesPage& page, const PanelContext& context) {
    const std::vector<ListedPolicy>& all = page.saved.now();
    if (all.empty()) return;
    heading(context, "Saved", theme::colors().accent);
    small_words(context, fmt::format("Yours, in {}. The button save… of a lane's card adds one.",
                                     saved_policies_folder().string()));
    if (!ImGui::BeginTable("saved", 2)) return;
    ImGui::TableSetupColumn("name", ImGuiTableColumnFlags_WidthFixed, context.px(kNameWidth));
    ImGui::TableSetupColumn("what", ImGuiTableColumnFlags_WidthStretch);
    for (std::size_t i = 0; i < all.size(); ++i) draw_saved(context, all[i], static_cast<int>(i));
    ImGui::EndTable();
    ImGui::Spacing();
}

void draw_row(const PoliciesPage& page, const PanelContext& context, const PresetRow& row) {
    const ScopedId id(static_cast<int>(row.preset));
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    {
        const ScopedFont font(context.fonts.bold);
        colored_text(theme::colors().text, row.name);
    }
    if (!row.title.empty()) small_words(context, row.title);
    draw_use(context, row);
    ImGui::TableNextColumn();
    const KeptPicture* kept = page.pictures.find(row.name);
    if (kept != nullptr && kept->why_not.empty())
        draw_kept(context, page.pictures, *kept);
    else if (kept != nullptr)
        small_words(context, "No picture: " + kept->why_not);
    small_words(context, row.help, theme::colors().text);
}

std::string caption_of(const PoliciesPage& page) {
    if (!page.fault.empty()) return "There are no pictures: " + page.fault;
    const KeptPictures& p = page.pictures;
    return fmt::format(
        "Bright: what a policy keeps of {} tokens of {} with budget {}, and Quest reads of them, in the "
        "first "
        "step after the prompt, in layer {}, head {} of {}. Ticks: the words that the answer needs.",
        p.tokens.size(), p.prompt, p.budget, p.layer, p.head, p.model);
}

}  // namespace

void draw(PoliciesPage& page, const PanelContext& context) {
    read_once(page);
    small_words(context, caption_of(page));
    const ScopedChild child("groups", {0, ImGui::GetIO().DisplaySize.y * 0.7f});
    draw_all_saved(page, context);
    for (const PresetGroup& group : preset_groups()) {
        heading(context, fmt::format("They look at {}", group.name), theme::colors().accent);
        small_words(context, group.help);
        if (!ImGui::BeginTable(group.name.data(), 2)) continue;
        ImGui::TableSetupColumn("name", ImGuiTableColumnFlags_WidthFixed, context.px(kNameWidth));
        ImGui::TableSetupColumn("picture", ImGuiTableColumnFlags_WidthStretch);
        for (const PresetRow* row : presets_that_look_at(group.looks_at)) draw_row(page, context, *row);
        ImGui::EndTable();
        ImGui::Spacing();
    }
}

}  // namespace keyhole
