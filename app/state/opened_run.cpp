#include "app/state/opened_run.h"

#include "engine/base/error.h"
#include "engine/run/command.h"
#include "engine/trace/trace_file.h"

#include <system_error>

namespace keyhole {

OpenedRun opened_run(const StepList& steps, const std::filesystem::path& from) {
    if (steps.empty()) fail(ErrorCode::bad_file, "opening {}: it has no steps", from.string());
    OpenedRun run;
    run.from = from;
    run.history.update(steps);
    run.curves.update(run.history);
    if (!from.empty()) {
        run.annotations = load_annotations(annotations_file(from));
        run.annotations.trace = from;
        std::error_code ignored;
        if (std::filesystem::is_regular_file(from, ignored))
            run.answers = parse_trace_answers(read_trace_answers(from), from.string());
    }
    for (const LaneRecord& record : steps.back()->lanes)
        run.lanes.push_back(parse_stored_lane_spec(record.info->spec));
    run.follow = run.history.run().start.follow;
    const std::string on = format_command(SetFollow{true}), off = format_command(SetFollow{false});
    for (const auto& step : steps)
        for (const std::string& command : step->commands)
            if (command == on || command == off) run.follow = command == on;
    return run;
}

OpenedRun open_run(const std::filesystem::path& trace, const std::function<bool(double)>& progress) {
    if (!std::filesystem::is_directory(trace)) return opened_run(read_trace(trace, progress), trace);
    // If this is the spool of an interrupted run, makes its trace first.
    const std::filesystem::path made = recover_spool(trace, [&](double done) { return progress(done / 2); });
    return opened_run(read_trace(made, [&](double done) { return progress(0.5 + done / 2); }), made);
}

}  // namespace keyhole
