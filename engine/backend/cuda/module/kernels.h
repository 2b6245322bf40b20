/// The interface between the module's two halves: nvcc compiles only the kernels; the rest is ordinary C++.
/// Engine thread only.
#pragma once

#include "engine/backend/cuda/executor.h"

struct CUstream_st;

namespace keyhole::cuda {

/// Launches one kernel; cudaGetLastError() reports whether that worked.
void launch_kernel(const Launch& launch, CUstream_st* stream);
/// Returns one of the kernels, to check whether the device can run this build's code.
const void* some_kernel();

}  // namespace keyhole::cuda
