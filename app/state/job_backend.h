/// The backend of a background job that replays the run. Made on the window's thread, used on the job's.
#pragma once

#include "engine/base/backend_options.h"

#include <memory>

namespace keyhole {

class Backend;
class Model;

struct JobBackend {
    BackendOptions options;
    /// The run's own, if it is on a device, whose memory need not hold the weights twice; else null.
    std::shared_ptr<Backend> of_run;

    /// Throws as make_backend() does.
    std::shared_ptr<Backend> get(const std::shared_ptr<const Model>& model) const;
};

}  // namespace keyhole
