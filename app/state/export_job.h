/// Exports from the window in the background. For a live run it replays the run with all commands, on the
/// run's own backend if that is on a device, else on one of its own, so the files equal those of `keyhole
/// decode`; for an opened trace they equal those of `keyhole replay`. It can also write a trace of the
/// records. One job at a time. Started and queried on the window's thread.
#pragma once

#include "app/state/background_job.h"
#include "app/state/job_backend.h"
#include "app/view/run_export.h"
#include "engine/figure/drawing.h"
#include "engine/run/run_spec.h"
#include "engine/trace/recorder.h"
#include "engine/trace/run_history.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

struct ExportRequest {
    std::filesystem::path folder = "keyhole-out";
    std::string list = usual_export_list(2, true);  ///< as `decode --export` takes it
    bool all_rows = false;
    std::vector<int> layers, heads;  ///< as --layers and --heads; empty: all
    PictureChoice pictures = {};     ///< as --format, --width and --look dark
    std::string right = {};          ///< as --right
    std::string command = {};        ///< that makes the same files, for run.json
    bool operator==(const ExportRequest&) const = default;
};

class ExportJob {
  public:
    ExportRequest request;  ///< edited by the dialog

    /// run: from the engine's status; exports rows up to last_row. wake: called on any thread when progress
    /// moved.
    void start(std::shared_ptr<const Model> model, RunSpec run, int last_row, JobBackend backend,
               std::function<void()> wake);
    /// Exports what the records of an opened trace hold, as `keyhole replay` does.
    void start(RunHistory history, std::function<void()> wake);
    /// Writes one file from the window's data. It finishes even if cancelled, so that quitting loses
    /// nothing.
    void save(std::filesystem::path path, std::function<void()> write, std::function<void()> wake);
    void cancel() { job_.cancel(); }

    bool running() const { return job_.running(); }
    double progress() const { return job_.progress(); }
    /// Returns where the files of the last job are, or why it failed.
    std::string result() const;
    bool failed() const { return !job_.fault().empty(); }

  private:
    BackgroundJob<std::string> job_;
};

}  // namespace keyhole
