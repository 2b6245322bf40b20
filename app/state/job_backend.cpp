#include "app/state/job_backend.h"

#include "engine/backend/backend.h"
#include "engine/device/make_backend.h"

namespace keyhole {

std::shared_ptr<Backend> JobBackend::get(const std::shared_ptr<const Model>& model) const {
    return of_run != nullptr ? of_run : std::shared_ptr<Backend>(make_backend(model, options, nullptr));
}

}  // namespace keyhole
