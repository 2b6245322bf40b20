#include "app/panels/interrupted_run.h"

#include "app/panels/notice_strip.h"

#include <filesystem>

namespace keyhole {

void draw_interrupted_runs(RunBackups& runs, const PanelContext& context) {
    if (runs.left().empty() || context.app.jobs.opening()) return;
    const std::filesystem::path spool = runs.left().front();
    NoticeStrip strip(context, "##left run");
    const std::size_t n = runs.left().size();
    strip.text(
        n == 1 ? std::string("A run was open when Keyhole ended. Its records are kept.")
               : fmt::format("{} runs were open when Keyhole ended. Their records are kept. The newest:", n));
    tooltip(context, spool.string());
    if (strip.button("Open")) {
        run(context, "file.open " + spool.string());
        if (context.app.jobs.opening()) runs.forget(spool);
    }
    tooltip(context, "Makes a trace of the records and shows it in place of the current run.");
    mark_item(context, "left run open");
    if (strip.button("Discard")) runs.discard(spool);
    tooltip(context, "Deletes the records.");
    mark_item(context, "left run discard");
    if (strip.button("Later")) runs.put_off();
    tooltip(context, "Closes this notice; the next start shows it again.");
    mark_item(context, "left run later");
}

}  // namespace keyhole
