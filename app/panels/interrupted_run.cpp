#include "app/panels/interrupted_run.h"

#include "app/panels/notice_strip.h"

#include <filesystem>

namespace keyhole {

void draw_interrupted_runs(RunBackups& runs, const PanelContext& context) {
    if (runs.left().empty() || context.app.jobs.opening()) return;
    const std::filesystem::path spool = runs.left().front();
    const NoticeStrip strip(context, "##left run");
    const std::size_t n = runs.left().size();
    ImGui::AlignTextToFramePadding();
    ImGui::TextUnformatted(
        (n == 1 ? std::string("Keyhole ended while a run was open. Its records are kept.")
                : fmt::format(
                      "Keyhole ended {} times while a run was open. The records are kept. The newest:", n))
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
    ImGui::SameLine();
    if (ImGui::Button("Later")) runs.put_off();
    tooltip(context, "Closes this notice; the next start shows it again.");
    mark_item(context, "left run later");
}

}  // namespace keyhole
