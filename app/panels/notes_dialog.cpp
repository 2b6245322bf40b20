#include "app/panels/notes_dialog.h"

#include <imgui_stdlib.h>

namespace keyhole {

void draw_notes(const PanelContext& context, bool opening) {
    const AppState& app = context.app;
    heading(context, "Bookmarks");
    ImGui::SameLine();
    action_button(context, "bookmark", "add this view");
    std::string asked;
    for (std::size_t i = 0; i < app.annotations.bookmarks.size(); ++i) {
        const ScopedId id(static_cast<int>(i));
        if (ImGui::SmallButton("–")) asked = fmt::format("bookmark.drop {}", i + 1);
        ImGui::SameLine();
        if (ImGui::Selectable(app.glyphs.text(app.annotations.bookmarks[i].name).c_str()))
            asked = fmt::format("bookmark.go {}", i + 1);
        mark_item(context, fmt::format("bookmark {}", i + 1));
    }
    if (app.annotations.bookmarks.empty()) dim_text(context, "none yet");
    ImGui::Separator();
    heading(context, "Notes");
    std::string notes = for_field(app.annotations.notes);
    if (opening) ImGui::SetKeyboardFocusHere();
    if (ImGui::InputTextMultiline("##notes", &notes, {-1, context.px(150)}))
        run(context, "notes.set " + from_field(notes));
    if (!app.run.live() && ImGui::IsItemDeactivatedAfterEdit()) run(context, "notes.keep");
    mark_item(context, "notes");
    dim_text(context, app.run.live() ? "Saved beside the trace when you save the run."
                                     : "Saved beside the trace: " +
                                           annotations_file(app.run.opened_file).filename().string());
    if (!app.recent.paths.empty()) {
        ImGui::Separator();
        heading(context, "Recent files");
        for (std::size_t i = 0; i < app.recent.paths.size(); ++i) {
            const ScopedId id(static_cast<int>(1000 + i));
            if (ImGui::Selectable(fitted(app.recent.paths[i], ImGui::GetContentRegionAvail().x).c_str()))
                asked = fmt::format("recent {}", i + 1);
            mark_item(context, fmt::format("recent {}", i + 1));
        }
    }
    if (!asked.empty()) run(context, asked);
}

}  // namespace keyhole
