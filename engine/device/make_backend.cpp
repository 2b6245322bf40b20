#include "engine/device/make_backend.h"

#include "engine/backend/backend.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/module.h"
#include "engine/base/error.h"
#include "engine/device/prover.h"

#include <optional>
#include <system_error>

namespace keyhole {

namespace {

/// Returns null and sets `reason` where the device cannot run the model.
std::unique_ptr<Backend> backend_on(std::shared_ptr<cuda::Executor> executor,
                                    const std::shared_ptr<const Model>& model, const BackendOptions& options,
                                    std::string& reason) {
    try {
        cuda::ProductOptions products;
        if (options.cublas_from > 0) products.cublas_from = options.cublas_from;
        products.narrow_prompt = !options.wide_prompt;
        return make_cuda_backend(model, std::move(executor), products);
    } catch (const Error& error) {
        reason = error.what();
        return nullptr;
    }
}

/// Takes the device where it has passed its proof and is faster than the CPU. Returns null and sets `text`
/// to the reason where it takes none; otherwise sets `text` when the proof is news. A device that is not
/// taken is not kept open.
std::unique_ptr<Backend> automatic_backend(const std::shared_ptr<const Model>& model,
                                           const BackendOptions& options, std::string& text) {
    const ProofSetup setup = proof_setup(options.device);
    std::error_code error;
    if (!std::filesystem::exists(setup.module, error)) {
        text = "this build has no CUDA backend";
        return nullptr;
    }
    std::shared_ptr<cuda::Executor> executor;
    std::optional<DeviceVerdict> verdict;
    if (!driver_may_be_here() || any_device_taken(setup)) {
        executor = open_cuda_executor(setup.module, options.device, text);
        if (executor == nullptr) return nullptr;
        verdict = kept_verdict(setup, executor->identity());
    }
    if (!verdict && options.prove) {
        executor.reset();  // the proof has the device for itself
        verdict = prove_device(setup, options.prove);
    } else if (!verdict && executor == nullptr) {
        verdict = kept_refusal(setup);
    }
    if (!verdict) {
        text = "the CUDA device has not passed its proof yet (keyhole selftest --backend cuda runs it)";
        return nullptr;
    }
    if (!verdict->is_taken()) {
        text = text_of(*verdict);
        if (verdict->available) text += "; --backend cuda takes it all the same";
        return nullptr;
    }
    if (executor == nullptr) executor = open_cuda_executor(setup.module, options.device, text);
    if (executor == nullptr) return nullptr;
    auto backend = backend_on(std::move(executor), model, options, text);
    if (backend != nullptr) text = verdict->is_new ? text_of(*verdict) : "";
    return backend;
}

}  // namespace

std::unique_ptr<Backend> open_cuda_backend(const std::filesystem::path& module,
                                           const std::shared_ptr<const Model>& model,
                                           const BackendOptions& options, std::string& reason) {
    std::shared_ptr<cuda::Executor> executor = open_cuda_executor(module, options.device, reason);
    return executor == nullptr ? nullptr : backend_on(std::move(executor), model, options, reason);
}

std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model, const BackendOptions& options,
                                      std::string* notice) {
    std::string text;
    std::unique_ptr<Backend> backend;
    if (options.choice == BackendChoice::cuda) {
        backend = open_cuda_backend(cuda_module_path(), model, options, text);
        if (backend == nullptr) fail(ErrorCode::device, "backend cuda: {}; take --backend cpu", text);
    } else if (options.choice == BackendChoice::automatic) {
        try {
            backend = automatic_backend(model, options, text);
        } catch (const Error& error) {  // no process for the proof, or a module that cannot be read
            text = error.what();
        }
        if (backend == nullptr) text += "; using the CPU";
    }
    if (notice != nullptr) *notice = text;
    return backend != nullptr ? std::move(backend) : make_cpu_backend(std::move(model), options.n_threads);
}

}  // namespace keyhole
