#include "engine/device/make_backend.h"

#include "engine/backend/backend.h"
#include "engine/backend/common/integer_products.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/memory_need.h"
#include "engine/base/error.h"
#include "engine/device/open_cuda.h"
#include "engine/device/prover.h"
#include "engine/model/model.h"

#include <optional>
#include <system_error>

namespace keyhole {

namespace {

/// A prompt of such a model is soon done in floats too.
constexpr std::int64_t kSmallModel = 500'000'000;  // parameters

bool takes_weights_precision(Precision wanted, const Model& model) {
    return wanted == Precision::weights ||
           (wanted == Precision::automatic && model.n_parameters() >= kSmallModel);
}

/// Returns null and sets `reason` where the device cannot run the model.
std::unique_ptr<Backend> backend_on(CudaDevice& device, const std::shared_ptr<const Model>& model,
                                    const cuda::ProductOptions& products, std::string& reason) {
    try {
        return device.make_backend(model, products);
    } catch (const Error& error) {
        reason = error.what();
        return nullptr;
    }
}

/// Takes the device where it has passed its proof and is faster than the CPU. Returns null and sets `text`
/// to the reason where it takes none; otherwise sets `text` when the proof is news. A device that is not
/// taken is not kept open.
std::unique_ptr<Backend> automatic_backend(const std::shared_ptr<const Model>& model,
                                           const BackendOptions& options,
                                           const cuda::ProductOptions& products, std::string& text) {
    const ProofSetup setup = proof_setup(options.device);
    std::error_code error;
    if (!std::filesystem::exists(setup.module, error)) {
        text = "this build has no CUDA backend";
        return nullptr;
    }
    std::shared_ptr<CudaDevice> device;
    std::optional<DeviceVerdict> verdict;
    if (!driver_may_be_here() || any_device_taken(setup)) {
        device = open_cuda_device(setup.module, options.device, text);
        if (device == nullptr) return nullptr;
        verdict = kept_verdict(setup, device->identity());
    }
    if (!verdict && options.prove) {
        device.reset();  // the proof has the device for itself
        verdict = prove_device(setup, options.prove);
    } else if (!verdict && device == nullptr) {
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
    if (device == nullptr) device = open_cuda_device(setup.module, options.device, text);
    if (device == nullptr) return nullptr;
    auto backend = backend_on(*device, model, products, text);
    if (backend != nullptr) text = verdict->is_new ? text_of(*verdict) : "";
    return backend;
}

}  // namespace

std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model, const BackendOptions& options,
                                      std::string* notice, const cuda::ProductOptions* products) {
    cuda::ProductOptions how = products != nullptr ? *products : cuda::ProductOptions{};
    if (model != nullptr) how.weights_precision = takes_weights_precision(options.precision, *model);
    how.integers = options.precision != Precision::floats;
    std::string text;
    std::unique_ptr<Backend> backend;
    if (options.choice == BackendChoice::cuda) {
        if (const auto device = open_cuda_device(cuda_module_path(), options.device, text))
            backend = backend_on(*device, model, how, text);
        const char* what_to_do = text.find("--backend cpu") == text.npos ? "; take --backend cpu" : "";
        if (backend == nullptr) fail(ErrorCode::device, "backend cuda: {}{}", text, what_to_do);
    } else if (options.choice == BackendChoice::automatic) {
        try {
            backend = automatic_backend(model, options, how, text);
        } catch (const Error& error) {  // no process for the proof, or a module that cannot be read
            text = error.what();
        }
        // Without a driver nobody expects a device, and a line about it would stand above every output.
        if (backend == nullptr) text = driver_may_be_here() ? text + "; using the CPU" : "";
    }
    if (backend == nullptr && options.precision == Precision::weights &&
        (model == nullptr || !has_quantised_weights(*model)))
        text += std::string(text.empty() ? "" : "; ") +
                "the CPU computes in floats: --precision weights is for quantised files there";
    if (notice != nullptr) *notice = text;
    if (backend != nullptr) return backend;
    // Products in integers are as exact as those in floats, and faster where there are registers for them.
    const bool floats =
        options.precision == Precision::floats ||
        (options.precision == Precision::automatic && best_integer_path() == IntegerPath::plain);
    return make_cpu_backend(std::move(model), options.n_threads,
                            floats ? Precision::floats : Precision::weights);
}

}  // namespace keyhole
