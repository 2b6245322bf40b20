/// What the module's two halves know of each other: nvcc compiles the kernels alone, the rest is ordinary C++.
#pragma once

#include "engine/backend/cuda/executor.h"

struct CUstream_st;

namespace keyhole::cuda {

/// Launches one kernel; cudaGetLastError() says whether that worked.
void launch_kernel(const Launch& launch, CUstream_st* stream);
/// One of the kernels, to ask whether the device can run this build's code.
const void* some_kernel();

}  // namespace keyhole::cuda
