#include "app/actions/action_areas.h"

#include "app/state/memory_use.h"
#include "engine/base/mapped_file.h"
#include "engine/base/measure.h"

#include <nlohmann/json.hpp>

#include <array>

namespace keyhole {

namespace {

using namespace key;

void begin_measurement(AppState& app, std::string_view) {
    app.frames.begin();
    app.say("measuring frames; Frame times shows them");
}

void end_measurement(AppState& app, std::string_view arguments) {
    const FrameMeter::Report r = app.frames.report();
    app.say(frame_text(r));
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
                                {"rows", app.has_run() ? app.n_decoded() : 0},
                                {"resident_bytes", resident.now_bytes},
                                {"peak_resident_bytes", resident.peak_bytes},
                                {"memory", parts},
                                {"texture_bytes", app.texture_bytes},
                                {"record_bytes", app.record_bytes},
                                {"record_budget_bytes", app.record_budget_bytes}};
    write_text_file(path, out.dump(1) + "\n");
}

constexpr std::array kTable = {
    UserAction{"palette", menu::kHelp, "Command palette…", "", {'P', kCtrl}, open_dialog<Dialog::palette>},
    UserAction{"help.keys", menu::kHelp, "Keys", "", {'/', kShift}, open_dialog<Dialog::keys>},
    UserAction{"measure.begin",
               "",
               "Measure frame times",
               "From now on: what frames cost, until Frame times shows it.",
               {},
               begin_measurement},
    UserAction{
        "measure.end",
        "",
        "Frame times",
        "[FILE.json]: frames since Measure frame times, how long they took, bytes of textures and records.",
        {},
        end_measurement},
    UserAction{"help.about", menu::kHelp, "What you see", "", {kF1, 0}, open_dialog<Dialog::about>},
};

}  // namespace

std::span<const UserAction> app_actions() {
    return kTable;
}

}  // namespace keyhole
