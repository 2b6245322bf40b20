#include "engine/backend/backend.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/error.h"

namespace keyhole {

std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model, const BackendOptions& options, std::string* notice) {
    if (options.choice == BackendChoice::cuda)
        fail(ErrorCode::device, "this build has no CUDA backend; start with --backend cpu or build where nvcc is installed");
    if (notice != nullptr) notice->clear();
    return make_cpu_backend(std::move(model), options.n_threads);
}

}  // namespace keyhole
