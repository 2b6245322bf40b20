/// Proves that a device computes what the CPU computes: every kernel against its host twin, whole runs of a
/// tiny model against the CPU backend, the same run twice, and memory that comes back. Engine thread of the
/// process that proves. Takes seconds. Knows neither files nor processes; see prover.h.
#pragma once

#include "engine/backend/module/cuda_module.h"
#include "engine/base/device_verdict.h"

#include <string>
#include <vector>

namespace keyhole {

/// Runs the whole proof. Returns the lines of check_kernels() and then those of the tiny model, whose
/// `kernel` is the measure ("logits of h2o") and whose `shape` is where it was worst ("row 312"). A failing
/// part gives a line; nothing throws.
std::vector<SelfTestLine> run_proof(CudaDevice& device, const ProofProgress& progress = {});

/// Times steps of a small model whose weights no processor's cache holds (64 MB), on the device and on the
/// CPU with all its threads, in turns. Steps mostly read weights, on both. Throws Error(device) where the
/// device fails.
TimedStep time_step(CudaDevice& device, const ProofProgress& progress = {});

/// Returns a clause on the first failed line, with its numbers ("AttendSplit<Fp16> (300 slots) is off by
/// 3.1e-02, 2e-06 is allowed"), and how many others failed; empty when all passed.
std::string proof_failure(const std::vector<SelfTestLine>& lines);

}  // namespace keyhole
