#include "engine/backend/backend.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/module.h"
#include "engine/base/error.h"

namespace keyhole {

std::unique_ptr<Backend> open_cuda_backend(const std::filesystem::path& module,
                                           const std::shared_ptr<const Model>& model,
                                           const BackendOptions& options, std::string& reason) {
    std::shared_ptr<cuda::Executor> executor = open_cuda_executor(module, options.device, reason);
    if (executor == nullptr) return nullptr;
    try {
        cuda::ProductOptions products;
        if (options.cublas_from > 0) products.cublas_from = options.cublas_from;
        products.narrow_prompt = options.narrow_prompt;
        return make_cuda_backend(model, std::move(executor), products);
    } catch (const Error& error) {
        reason = error.what();
        return nullptr;
    }
}

namespace {

/// False until a device has run the tests labelled gpu (tests/bench/results/README.md). Until then CUDA runs
/// only on request.
constexpr bool kProvenOnDevice = false;

}  // namespace

std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model, const BackendOptions& options,
                                      std::string* notice) {
    if (notice != nullptr) notice->clear();
    std::string reason;
    if (options.choice == BackendChoice::cuda) {
        if (auto backend = open_cuda_backend(cuda_module_path(), model, options, reason)) return backend;
        fail(ErrorCode::device, "backend cuda: {}; take --backend cpu", reason);
    }
    if (options.choice == BackendChoice::automatic) {
        if (kProvenOnDevice) {
            if (auto backend = open_cuda_backend(cuda_module_path(), model, options, reason)) return backend;
        } else if (open_cuda_executor(cuda_module_path(), options.device, reason) != nullptr) {
            reason = "the CUDA backend is new and no device has run it yet (--backend cuda takes it)";
        }
        if (notice != nullptr) *notice = reason + "; using the CPU";
    }
    return make_cpu_backend(std::move(model), options.n_threads);
}

}  // namespace keyhole
