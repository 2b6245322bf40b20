#include "app/state/export_job.h"

#include "engine/base/error.h"
#include "engine/export/exporter.h"
#include "engine/session/prompt.h"
#include "engine/trace/recorder.h"
#include "engine/trace/run_history.h"

#include <algorithm>

namespace keyhole {

namespace {

ExportOptions options_of(const ExportRequest& request, bool of_records = false) {
    ExportOptions exports;
    exports.folder = request.folder;
    exports.all_rows = request.all_rows;
    exports.layers = request.layers;
    exports.heads = request.heads;
    exports.pictures = request.pictures;
    parse_export_list(request.list, exports, of_records);
    return exports;
}

/// Replays the shown run and writes its files. progress: 0..1, throws to stop. Returns a message on what was
/// done.
std::string export_run(std::shared_ptr<const Model> model, RunSpec run, int last_row,
                       const JobBackend& of_job, const ExportRequest& request,
                       const std::function<void(double)>& progress) {
    const ExportOptions exports = options_of(request);
    run.wants = exports.wants();
    if (exports.next) run.n_top = 64;
    const std::shared_ptr<Backend> backend = of_job.get(model);
    const int n_prompt = static_cast<int>(prompt_tokens(*model, run.prompt, run.chat).size());
    ExportSink sink(exports, {model->layout(), n_prompt, static_cast<int>(run.lanes.size()), last_row,
                              layouts_of(*model, run.lanes)});
    Recorder recorder(Recorder::kExportBudgetBytes);
    constexpr double kDecoding = 0.7;  // share of the bar; the rest is writing
    replay(model, *backend, run, last_row, &sink, [&](std::shared_ptr<const StepTrace> step) {
        const double done = double(step->row + 1 - n_prompt) / std::max(last_row + 1 - n_prompt, 1);
        recorder.push(std::move(step));
        progress(kDecoding * done);
    });
    RunHistory history;
    history.update(recorder.snapshot().steps);
    sink.finish(history,
                [&](double done, const std::string&) { progress(kDecoding + (1 - kDecoding) * done); });
    const std::string folder = std::filesystem::absolute(request.folder).string();
    if (last_row + 1 == n_prompt && !exports.all_rows)
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
            export_history(history, options_of(w, true), [&](double done, const std::string&) {
                if (!progress(done))
                    fail(ErrorCode::cancelled, "the export to {} was cancelled", w.folder.string());
            });
            return fmt::format("exported the trace's records, attention in half precision, to {}",
                               std::filesystem::absolute(w.folder).string());
        },
        std::move(wake));
}

void ExportJob::save(std::filesystem::path path, std::function<void()> write, std::function<void()> wake) {
    job_.begin(
        [path = std::move(path), write = std::move(write)](const auto&) {
            write();
            return "saved " + path.string();
        },
        std::move(wake));
}

std::string ExportJob::result() const {
    if (failed()) return job_.fault();
    const auto done = job_.result();
    return done == nullptr ? "" : *done;
}

}  // namespace keyhole
