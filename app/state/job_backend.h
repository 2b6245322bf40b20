/// The backend of a background job that replays the run. Made on the window's thread, used on the job's.
#pragma once

#include "engine/backend/backend.h"

#include <memory>

namespace keyhole {

struct JobBackend {
    BackendOptions options;
    /// The run's own, if it is on a device, whose memory need not hold the weights twice; else null.
    std::shared_ptr<Backend> of_run;

    /// Throws as make_backend() does.
    std::shared_ptr<Backend> get(const std::shared_ptr<const Model>& model) const {
        return of_run != nullptr ? of_run : std::shared_ptr<Backend>(make_backend(model, options, nullptr));
    }
};

}  // namespace keyhole
