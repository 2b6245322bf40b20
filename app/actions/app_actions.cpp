#include "app/actions/action_areas.h"

#include "app/base/assets.h"
#include "app/state/memory_use.h"
#include "engine/base/mapped_file.h"
#include "engine/base/resource_use.h"

#include <nlohmann/json.hpp>

#include <array>

namespace keyhole {

namespace {

using namespace key;

void begin_measurement(AppState& app, std::string_view) {
    app.frames.begin();
    app.notify("measuring frames; the action Frame times shows the result");
}

void end_measurement(AppState& app, std::string_view arguments) {
    const FrameMeter::Report r = app.frames.report();
    app.notify(frame_text(r));
    if (arguments.empty()) return;
    const std::string path(arguments);
    const ResidentMemory resident = resident_memory();
    nlohmann::json parts;
    for (const MemoryPart& part : memory_parts(app)) parts[std::string(part.id)] = part.bytes;
    const nlohmann::json out = {{"frames", r.n_frames},
                                {"seconds", r.seconds},
                                {"frames_per_s", r.frames_per_s},
                                {"median_ms", r.median_ms},
                                {"p99_ms", r.p99_ms},
                                {"longest_ms", r.longest_ms},
                                {"thread_cpu_ms", r.thread_cpu_ms},
                                {"longest_cpu_ms", r.longest_cpu_ms},
                                {"process_cpu_ms", r.process_cpu_ms},
                                {"process_cpu_share", r.process_cpu_share},
                                {"rows", app.run.has_steps() ? app.run.n_decoded() : 0},
                                {"resident_bytes", resident.now_bytes},
                                {"peak_resident_bytes", resident.peak_bytes},
                                {"memory", parts},
                                {"texture_bytes", app.texture_bytes},
                                {"record_bytes", app.run.record_use.rows},
                                {"record_budget_bytes", app.run.record_use.row_budget}};
    write_text_file(path, out.dump(1) + "\n");
}

/// Returns the place in the manual that describes a pane.
std::string_view manual_place_of_pane(std::string_view name) {
    const PaneRow* row = find_pane(name);
    return row != nullptr ? row->manual : name.empty() ? "index" : "window#panes";
}

void open_manual(AppState& app, std::string_view arguments) {
    if (arguments.empty() && app.dialog == Dialog::manual) {
        app.dialog = Dialog::none;
        return;
    }
    const ManualPlace place =
        parse_manual_place(arguments.empty() ? manual_place_of_pane(app.hovered_pane) : arguments);
    app.manual.page = read_manual_place(find_assets() / "manual", place);
    app.manual.place = place;
    app.dialog = Dialog::manual;
}

constexpr std::array kAppActions = {
    UserAction{"measure.begin",
               "Measure frame times",
               "Measures the time of frames from now on; “Frame times” shows the result.",
               {},
               begin_measurement,
               {.elsewhere = "a measurement for scripts"}},
    UserAction{"measure.end",
               "Frame times",
               "[FILE.json]: number and duration of frames since “Measure frame times”, bytes of textures "
               "and records.",
               {},
               end_measurement,
               {.elsewhere = "a measurement for scripts"}},
    UserAction{"help.manual",
               "Manual",
               "[PAGE[#HEADING]]: opens the page of the pane under the pointer, or the named one.",
               {kF1, 0},
               open_manual,
               {.menu = {MenuGroup::help_manual, 1}}},
    UserAction{"dialog.close",
               "Close the dialog",
               "",
               {},
               [](AppState& app, std::string_view) { app.dialog = Dialog::none; },
               {.elsewhere = "the close button of each dialog"}},
    UserAction{"copy",
               "Copy a text",
               "TEXT: to the clipboard.",
               {},
               [](AppState& app, std::string_view text) { copy_text(app, std::string(text)); }},
};

}  // namespace

std::span<const UserAction> app_actions() {
    return kAppActions;
}

}  // namespace keyhole
