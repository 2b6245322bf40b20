/// Proves that a device computes what the CPU computes: every kernel against its host twin, whole runs of a
/// tiny model against the CPU backend, the same run twice, and memory that comes back. Engine thread of the
/// process that proves. Takes seconds. Knows neither files nor processes; see prover.h.
#pragma once

#include "engine/base/device_verdict.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

namespace cuda {
class Executor;
}

/// Receives the share that is done, 0..1, and what comes next ("AttendSplit<Fp16>, 1 to 601 slots"), before
/// that runs: after a hang or a crash the last report names the part that failed.
using ProofProgress = std::function<void(double share, const std::string& what)>;

/// Runs the whole proof. Returns the lines of run_selftest() and then those of the tiny model, whose `kernel`
/// is the measure ("logits of h2o") and whose `shape` is where it was worst ("row 312"). A failing part gives
/// a line; nothing throws.
std::vector<SelfTestLine> run_proof(const std::shared_ptr<cuda::Executor>& executor,
                                    const ProofProgress& progress = {});

/// Times steps of a small model whose weights no processor's cache holds (64 MB), on the device and on the
/// CPU with all its threads, in turns. Steps mostly read weights, on both. Throws Error(device) where the
/// device fails.
TimedStep time_step(const std::shared_ptr<cuda::Executor>& executor, const ProofProgress& progress = {});

/// Returns a clause on the first failed line, with its numbers ("AttendSplit<Fp16> (300 slots) is off by
/// 3.1e-02, 2e-06 is allowed"), and how many others failed; empty when all passed.
std::string proof_failure(const std::vector<SelfTestLine>& lines);

}  // namespace keyhole
