/// An export from the window: the run on show is replayed, commands and all, on a backend of its own in the
/// background, so that the files are those that `keyhole decode` writes; of an opened trace, what `keyhole replay` writes; or a trace of
/// what is recorded. One at a time. Started and asked on the window's thread.
#pragma once

#include "app/state/background_job.h"
#include "engine/backend/backend.h"
#include "engine/session/session.h"
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
    std::string list = "mask,heatmap,run";  ///< as `decode --export` takes it
    bool all_rows = false;
    std::vector<int> layers, heads;  ///< as --layers and --heads; empty: all
    bool operator==(const ExportRequest&) const = default;
};

class ExportJob {
  public:
    ExportRequest request;  ///< edited by the dialog

    /// run: as the engine's status gives it; rows up to last_row. wake: when progress moved, any thread.
    void start(std::shared_ptr<const Model> model, RunSpec run, int last_row, BackendOptions options,
               std::function<void()> wake);
    /// The same of what the records of an opened trace hold, as `keyhole replay` writes it.
    void start(RunHistory history, std::function<void()> wake);
    /// One file, of what the window has; it goes on to its end, cancelled or not, so that quitting loses nothing.
    void save(std::filesystem::path path, std::function<void()> write, std::function<void()> wake);
    void cancel() { job_.cancel(); }

    bool running() const { return job_.running(); }
    double progress() const { return job_.progress(); }
    /// Of the last job: where the files are, or what went wrong.
    std::string result() const;
    bool failed() const { return !job_.fault().empty(); }

  private:
    BackgroundJob<std::string> job_;
};

}  // namespace keyhole
