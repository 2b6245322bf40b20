// Every kernel of kernel_list.h, compiled for the device and launched by its number.

#include "engine/backend/cuda/module/kernels.h"

#include <array>
#include <cstring>
#include <type_traits>

namespace keyhole::cuda {
namespace {

/// Returns whether a kernel is compiled: all, or for a test of PTX those whose source has other code for
/// Turing, by __CUDA_ARCH__ or where CUDA rounds to bf16.
template <class Kernel>
constexpr bool is_compiled() {
#ifdef KH_TURING_KERNELS
    return kernel_name<Kernel>().starts_with("Prompt") || std::is_same_v<Kernel, Narrow<Bf16>> ||
           std::is_same_v<Kernel, MakeWeight<Bf16>> || std::is_same_v<Kernel, KeepPrompt<Bf16>> ||
           std::is_same_v<Kernel, AttendSplit<Bf16>> || std::is_same_v<Kernel, BoundPages<Bf16>> ||
           std::is_same_v<Kernel, LaidTiles>;
#else
    return true;
#endif
}

using LaunchOnDevice = void (*)(const Launch& launch, cudaStream_t stream);

template <class Kernel>
void launch_one(const Launch& launch, cudaStream_t stream) {
    Kernel kernel;
    std::memcpy(static_cast<void*>(&kernel), launch.arguments, sizeof(kernel));
    cuda::launch(kernel, launch.grid, launch.n_threads, stream);
}

struct ListKernels {
    std::array<LaunchOnDevice, Kernels::kSize>& table;
    std::size_t n = 0;
    template <class Kernel>
    void operator()() {
        if constexpr (is_compiled<Kernel>()) table[n] = &launch_one<Kernel>;
        ++n;
    }
};

const std::array<LaunchOnDevice, Kernels::kSize>& device_kernels() {
    static const auto table = [] {
        std::array<LaunchOnDevice, Kernels::kSize> out{};
        Kernels::for_each(ListKernels{out});
        return out;
    }();
    return table;
}

}  // namespace

void launch_kernel(const Launch& launch, cudaStream_t stream) {
    device_kernels()[static_cast<std::size_t>(launch.kernel)](launch, stream);
}

const void* some_kernel() {
    return reinterpret_cast<const void*>(&run_kernel<AddNorm>);
}

}  // namespace keyhole::cuda
