#include "app/panels/interrupted_run.h"

#include "app/base/crash_report.h"
#include "app/panels/notice_strip.h"
#include "engine/base/user_folder.h"

#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>

namespace keyhole {

namespace {

std::string date_text(std::filesystem::file_time_type time) {
    using std::chrono::system_clock;
    const auto of_system =
        std::chrono::time_point_cast<system_clock::duration>(std::chrono::file_clock::to_sys(time));
    const std::time_t seconds = system_clock::to_time_t(of_system);
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts);
    return text.data();
}

void look_at(InterruptedRuns& panel, const std::filesystem::path& spool) {
    panel = {};
    panel.spool = spool;
    panel.words = RunBackups::words_of(spool);
    std::error_code error;
    const auto written = std::filesystem::last_write_time(spool / "frames.bin", error);
    if (error) return;
    panel.date = date_text(written);
    panel.crash_report = crash_report_near(user_folder(UserFolder::state), written);
}

/// Returns what stands behind "run": " of 2026-11-29 15:40 (keyhole-base, “Once upon a time…”)".
std::string named(const InterruptedRuns& panel) {
    return (panel.date.empty() ? "" : " of " + panel.date) +
           (panel.words.empty() ? "" : " (" + panel.words + ")");
}

/// Asks whether the run may be deleted, since nothing brings it back.
void ask_to_discard(InterruptedRuns& panel, NoticeStrip& strip, RunBackups& runs,
                    const PanelContext& context) {
    strip.text(fmt::format("Delete the run{}? Nothing brings it back.", named(panel)));
    if (strip.button("Delete")) {
        runs.discard(panel.spool);
        panel.asks = false;
    }
    mark_item(context, "left run delete");
    if (strip.button("Keep it")) panel.asks = false;
    mark_item(context, "left run keep");
}

}  // namespace

void draw_interrupted_runs(InterruptedRuns& panel, RunBackups& runs, const PanelContext& context) {
    if (runs.left().empty() || context.app.jobs.opening()) return;
    const std::filesystem::path spool = runs.left().front();
    if (panel.spool != spool) look_at(panel, spool);
    NoticeStrip strip(context, "##left run");
    if (panel.asks) return ask_to_discard(panel, strip, runs, context);
    const std::size_t n = runs.left().size();
    strip.text(n == 1
                   ? fmt::format("A run{} was open when Keyhole ended. Its records are kept.", named(panel))
                   : fmt::format("{} runs were open when Keyhole ended. Their records are kept. The "
                                 "newest is the run{}.",
                                 n, named(panel)));
    tooltip(context, panel.crash_report.empty()
                         ? spool.string()
                         : fmt::format("{}\nKeyhole crashed then; what helps to find out why is in {}",
                                       spool.string(), panel.crash_report.string()));
    if (strip.button("Open")) {
        run(context, "file.open " + spool.string());
        if (context.app.jobs.opening()) runs.forget(spool);
    }
    tooltip(context, "Makes a trace of the records and shows it in place of the current run.");
    mark_item(context, "left run open");
    if (strip.button("Discard…")) panel.asks = true;
    tooltip(context, "Asks first, then deletes the records.");
    mark_item(context, "left run discard");
    if (strip.button("Later")) runs.put_off();
    tooltip(context, "Closes this notice; the next start shows it again.");
    mark_item(context, "left run later");
}

}  // namespace keyhole
