/// Holds the window's background jobs: writing files, reading a trace, computing a shadow's attention,
/// downloading a model. Window thread.
#pragma once

#include "app/state/background_job.h"
#include "app/state/export_job.h"
#include "app/state/opened_run.h"
#include "app/state/shadow_job.h"

#include <filesystem>
#include <optional>
#include <string>

namespace keyhole {

struct Jobs {
    ExportJob export_job;
    ShadowJob shadow_job;
    BackgroundJob<OpenedRun> open_job;
    BackgroundJob<std::filesystem::path> get_job;
    BackgroundJob<std::optional<std::filesystem::path>> choose_job;  ///< the desktop's file dialog
    std::string chosen_for;  ///< the action that gets the chosen path; empty: none is asked for
    std::filesystem::path written_file, read_file;  ///< empty: none
    std::string wanted_model;                       ///< name of the model that get_job gets; empty: none

    bool choosing() const { return !chosen_for.empty(); }
    bool saving() const { return !written_file.empty(); }
    bool opening() const { return !read_file.empty(); }
    bool getting() const { return !wanted_model.empty(); }
    bool any() const { return opening() || export_job.running() || shadow_job.running() || getting(); }

    // For AppState::refresh(), which reports how a job ended.
    bool was_exporting = false, was_asking_shadow = false;
};

}  // namespace keyhole
