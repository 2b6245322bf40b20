#include "app/base/termination.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/decode_report.h"
#include "app/cli/export_options.h"
#include "app/cli/metrics_table.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/counted.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/export/exporter.h"
#include "engine/export/run_json.h"
#include "engine/trace/lane_failure.h"
#include "engine/trace/run_history.h"
#include "engine/trace/trace_file.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <system_error>

namespace keyhole {

namespace {

struct ReplayOptions {
    std::string file;
    bool json = false;
    ExportArguments exports;
};

void print_trace(const std::string& file, const RunHistory& history) {
    print_out("{}: {}, prompt of {}, steps {} to {}\n", printable_text(file),
              printable_text(history.run().model_path), counted(history.n_prompt(), "token"),
              history.n_prompt(), history.last_row());
    for (std::size_t i = 0; i < history.lanes().size(); ++i) {
        const RunHistory::Lane& lane = history.lanes()[i];
        const std::string text =
            text_of_tokens(history.run(), std::span(lane.tokens).subspan(to_index(history.n_prompt())));
        const LaneRecord* last = history.lane_record(lane.last_row, static_cast<int>(i));
        print_out("\nlane {}  {}\n{}\n", i, last != nullptr ? printable_text(last->info->effective) : "",
                  printable_text(text, true));
    }
    print_out("\n{}", metrics_table(history, run_metrics(history)));
}

void print_json(const std::string& file, const RunHistory& history) {
    const RunInfo& run = history.run();
    nlohmann::json json = {{"version", program_version()},    {"trace", file},
                           {"model", run.model_path},         {"model_hash", run.model_hash},
                           {"backend", run.backend},          {"prompt_tokens", history.n_prompt()},
                           {"last_step", history.last_row()}, {"seed", run.seed},
                           {"context", run.config.n_ctx},     {"follow", run.start.follow},
                           {"lanes", nlohmann::json::array()}};
    add_lanes_json(json, history);
    print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void run_replay(ReplayOptions options) {
    options.exports.of_records = true;
    (void)options.exports.parsed(1);  // what is typed wrongly is refused before a file is read or recovered
    // A killed run left its records in the spool beside the file that it did not get to write.
    const TerminationGuard guard;
    std::filesystem::path spool = options.file;
    std::error_code ignored;  // the file's reader reports its errors
    if (!std::filesystem::exists(spool, ignored)) spool += ".spool";
    if (std::filesystem::is_directory(spool, ignored)) {
        Progress progress("recover", 1);
        options.file = recover_spool(spool, [&](double done) {
                           progress.update(done);
                           return !termination_requested();
                       }).string();
        print_note("recovered {} from the spool of a run that did not end\n", printable_text(options.file));
    }
    RunHistory history;
    history.update(read_trace(options.file));
    std::vector<ShownAnswer> answers = answers_in_record(history);
    RunExport exports =
        options.exports.parsed(static_cast<int>(history.steps().back()->lanes.size()), !answers.empty());
    if (options.exports.given()) exports.check(view_limits(history));
    options.json ? print_json(options.file, history) : print_trace(options.file, history);
    flush_output();
    for (const std::string& failure : lane_failures(*history.steps().back()))
        print_note("keyhole: {}\n", failure);
    if (!options.exports.given()) return;
    print_note("exports take about {}, {} files, in {}\n",
               format_bytes(estimate_bytes(exports.files, export_shape(history))),
               estimate_files(exports.files, export_shape(history)), printable_text(options.exports.folder));
    exports.check_watch(history);
    const RunStart& start = history.run().start;
    if (options.exports.watch.empty() && watched_span(history, 0, start.watch)) exports.watch(start.watch);
    exports.how.answers = std::move(answers);
    exports.how.right_answer = options.exports.right.empty() ? start.right_answer : options.exports.right;
    mark_answers(exports.how.answers, exports.how.right_answer);
    const KeptNote note(fmt::format("{} is as it was before", printable_text(options.exports.folder)));
    std::vector<std::string> left_out;
    exports.how.left_out = &left_out;
    {
        Progress progress("export", 1);
        const std::vector<std::string> of_files = export_history(
            history, exports.files,
            [&](double done, const std::string&) {
                check_termination();
                progress.update(done);
            },
            exports.write_views_of(history, 1, history.steps().front()->row));
        left_out.insert(left_out.end(), of_files.begin(), of_files.end());
    }
    print_note("written to {}; attention has the half precision of the trace, scores are as computed\n",
               printable_text(options.exports.folder));
    for (std::string& what : left_out) what += kRestIsWritten;
    end_with(left_out);
}

}  // namespace

void add_replay_command(const CliCommand& program) {
    auto options = std::make_shared<ReplayOptions>();
    const CliCommand command =
        program.add_command("replay", "print and export what a trace holds, without the model");
    command
        .add_option(
            "FILE", options->file,
            "trace file, FILE.keyhole, or the spool that a run left which did not end, FILE.keyhole.spool")
        .required();
    options->exports.add(command);
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options] { run_replay(*options); });
}

}  // namespace keyhole
