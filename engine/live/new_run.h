/// What a run needs before its prompt is processed: model, backend, session. Used on the engine's thread.
#pragma once

#include "engine/backend/backend.h"
#include "engine/base/backend_options.h"
#include "engine/session/session.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace keyhole {

struct NewRun {
    std::shared_ptr<const Model> model;
    std::shared_ptr<Backend> backend;  // null: the current one serves this model
    std::unique_ptr<Session> session;
    std::string notice;  // what the user should know of model and backend; may be empty
};

/// What a new run may take over from the current one. Both are null before the first run.
struct CurrentRun {
    std::shared_ptr<const Model> model;
    Backend* backend = nullptr;
};

/// Loads the model, unless the current one has the same files, and checks prompt and lanes. Changes nothing
/// that the current run uses. new_backend: makes one where the current would do. on_loading: called before
/// files are read, and meanwhile with the share that has been.
/// Throws Error with the reason if model, device, prompt or lanes are refused.
NewRun prepare_run(const CurrentRun& current, const BackendOptions& options,
                   const std::filesystem::path& model_folder, const RunSpec& run, bool new_backend,
                   const std::function<void(double share)>& on_loading);

}  // namespace keyhole
