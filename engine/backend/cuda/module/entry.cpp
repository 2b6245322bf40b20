// The entries of a CUDA module, and the functions of the engine that the module has from the program.
#include "engine/backend/cuda/device.h"
#include "engine/backend/cuda/device_executor.h"
#include "engine/base/crash_message.h"
#include "engine/model/seeded_model.h"

#include <exception>

namespace keyhole {
namespace {

/// Returns what the first call was given.
const ProgramCalls& program(const ProgramCalls& given = {}) {
    static const ProgramCalls calls = given;
    return calls;
}

}  // namespace

std::optional<SeededWeight> seeded_weight(const Weight& weight) {
    return program().seeded_weight(weight);
}

void set_crash_message(std::string_view words) noexcept {
    program().set_crash_message(words);
}

extern "C" const char* keyhole_cuda_abi() {
    return cuda_module_abi();
}

extern "C" CudaDevice* keyhole_cuda_open(const ProgramCalls& calls, int device, std::string& reason) {
    (void)program(calls);
    try {
        std::shared_ptr<cuda::Executor> executor;
        if (device == kHostDevice)
            executor = cuda::make_host_executor(77);
        else if (device == kIdleDevice)
            executor = cuda::make_idle_executor();
        else
            executor = cuda::make_device_executor(device, reason);
        return executor == nullptr ? nullptr : cuda::make_cuda_device(std::move(executor)).release();
    } catch (const std::exception& error) {
        reason = error.what();
        return nullptr;
    }
}

}  // namespace keyhole
