#include "app/state/export_job.h"

#include "app/base/version.h"
#include "engine/base/error.h"
#include "engine/export/exporter.h"
#include "engine/run/prompt.h"
#include "engine/session/run_answers.h"
#include "engine/session/session.h"
#include "engine/trace/recorder.h"
#include "engine/trace/run_history.h"

#include <algorithm>

namespace keyhole {

namespace {

RunExport export_of(const ExportRequest& request, bool of_records = false) {
    RunExport out;
    out.files.folder = request.folder;
    out.files.all_rows = request.all_rows;
    out.files.layers = request.layers;
    out.files.heads = request.heads;
    out.files.pictures = request.pictures;
    out.files.program = program_name();
    out.files.command = request.command;
    parse_run_export(request.list, out, of_records);
    out.how.folder = request.folder;
    out.how.layers = request.layers;
    out.how.heads = request.heads;
    out.how.pictures = request.pictures;
    out.how.all_rows = request.all_rows;
    out.how.right_answer = request.right;
    return out;
}

/// Returns the lanes' own answers, as `decode` computes them.
std::vector<ShownAnswer> answers_for(std::shared_ptr<const Model> model, Backend& backend, const RunSpec& run,
                                     int last_row, const std::string& right,
                                     const std::function<void(double)>& progress) {
    std::vector<ShownAnswer> answers;
    const auto report = [&](double done) {
        progress(done);
        return true;
    };
    for (LaneAnswer& answer : answers_of_run(std::move(model), backend, run, last_row,
                                             run.answer_end.value_or(AnswerEnd{}), report))
        answers.push_back({static_cast<int>(answers.size()), std::move(answer), {}, {}});
    mark_answers(answers, right);
    return answers;
}

/// Replays the shown run and writes its files. progress: 0..1, throws to stop. Returns a message on what was
/// done.
std::string export_run(std::shared_ptr<const Model> model, RunSpec run, int last_row,
                       const JobBackend& of_job, const ExportRequest& request,
                       const std::function<void(double)>& progress) {
    RunExport exports = export_of(request);
    run.requested = exports.requested();
    if (exports.files.next) run.n_top = 64;
    const std::shared_ptr<Backend> backend = of_job.get(model);
    const int n_prompt = static_cast<int>(prompt_tokens(*model, run).size());
    const ModelConfig& config = model->config();
    exports.check({config.n_layers, config.n_heads,
                   run.commands.empty() ? static_cast<int>(run.lanes.size()) : -1, n_prompt - 1, last_row});
    ExportSink sink(exports.files, {model->layout(), n_prompt, static_cast<int>(run.lanes.size()), last_row,
                                    layouts_of(*model, run.lanes), config.head_dim});
    constexpr double kAnswers = 0.2, kDecoding = 0.7;  // shares of the bar; the rest is writing
    const double begin = exports.has_answers() ? kAnswers : 0;
    if (exports.has_answers())
        exports.how.answers = answers_for(model, *backend, run, last_row, request.right,
                                          [&](double done) { progress(kAnswers * done); });
    Recorder recorder(Recorder::kExportBudgetBytes);
    const auto replayed = [&](double n_rows) {
        progress(begin + (kDecoding - begin) * n_rows / (last_row + 1));
        return true;
    };
    replay(
        model, *backend, run, last_row, &sink,
        [&](std::shared_ptr<const StepTrace> step) {
            const int n_rows = step->row + 1;
            recorder.push(std::move(step));
            replayed(n_rows);
        },
        [&](double done) { return replayed(done * n_prompt); });
    const auto kept = recorder.snapshot();
    RunHistory history;
    history.update(kept.steps);
    sink.finish(
        history, [&](double done, const std::string&) { progress(kDecoding + (1 - kDecoding) * done); },
        exports.write_views_of(history, kept.stride, kept.dense_from));
    const std::string folder = std::filesystem::absolute(request.folder).string();
    if (last_row + 1 == n_prompt && !exports.files.all_rows)
        return fmt::format(
            "exported to {}, without rows and pictures: no token is decoded yet. Decode some, "
            "or include the prompt's rows",
            folder);
    return fmt::format("exported the steps up to {} to {}", last_row, folder);
}

}  // namespace

void ExportJob::start(std::shared_ptr<const Model> model, RunSpec run, int last_row, JobBackend backend,
                      std::function<void()> wake) {
    job_.begin(
        [model = std::move(model), run = std::move(run), last_row, backend = std::move(backend),
         w = request](const BackgroundJob<std::string>::Progress& progress) {
            return export_run(model, run, last_row, backend, w, [&](double done) {
                if (!progress(done))
                    fail(ErrorCode::cancelled, "the export to {} was cancelled", w.folder.string());
            });
        },
        std::move(wake));
}

void ExportJob::start(RunHistory history, std::function<void()> wake) {
    job_.begin(
        [history = std::move(history), w = request](const BackgroundJob<std::string>::Progress& progress) {
            RunExport exports = export_of(w, true);
            exports.check(view_limits(history));
            exports.how.answers = answers_in_record(history);
            mark_answers(exports.how.answers, w.right);
            export_history(
                history, exports.files,
                [&](double done, const std::string&) {
                    if (!progress(done))
                        fail(ErrorCode::cancelled, "the export to {} was cancelled", w.folder.string());
                },
                exports.write_views_of(history, 1, history.steps().front()->row));
            return fmt::format("exported the trace's records, attention in half precision, to {}",
                               std::filesystem::absolute(w.folder).string());
        },
        std::move(wake));
}

void ExportJob::save(std::filesystem::path path, std::function<void()> write, std::function<void()> wake) {
    job_.begin(
        [path = std::move(path), write = std::move(write)](const auto&) {
            write();
            return "saved " + std::filesystem::absolute(path).string();
        },
        std::move(wake));
}

std::string ExportJob::result() const {
    if (failed()) return job_.fault();
    const auto done = job_.result();
    return done == nullptr ? "" : *done;
}

}  // namespace keyhole
