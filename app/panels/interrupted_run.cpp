#include "app/panels/interrupted_run.h"

#include <filesystem>

namespace keyhole {

void draw_interrupted_runs(RunBackups& runs, const PanelContext& context) {
    if (runs.left().empty() || context.app.jobs.opening()) return;
    const std::filesystem::path spool = runs.left().front();
    const ImVec2 size = ImGui::GetIO().DisplaySize;
    // Above the time bar, which stays in use.
    ImGui::SetNextWindowPos({size.x / 2, size.y - context.px(96)}, ImGuiCond_Always, {0.5f, 1});
    ImGui::Begin("##left run", nullptr,
                 ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_AlwaysAutoResize |
                     ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_NoFocusOnAppearing);
    const std::size_t n = runs.left().size();
    ImGui::AlignTextToFramePadding();
    ImGui::TextUnformatted(
        (n == 1 ? std::string("A run was interrupted: Keyhole crashed or was killed. Its records are kept.")
                : fmt::format("{} runs were interrupted: Keyhole crashed or was killed. The newest:", n))
            .c_str());
    tooltip(context, spool.string());
    ImGui::SameLine();
    if (ImGui::Button("Open")) {
        run(context, "file.open " + spool.string());
        if (context.app.jobs.opening()) runs.forget(spool);
    }
    tooltip(context, "Makes a trace of the records and shows it in place of the current run.");
    mark_item(context, "left run open");
    ImGui::SameLine();
    if (ImGui::Button("Discard")) runs.discard(spool);
    tooltip(context, "Deletes the records.");
    mark_item(context, "left run discard");
    ImGui::End();
}

}  // namespace keyhole
