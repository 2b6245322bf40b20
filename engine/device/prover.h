/// Proves a CUDA device once, in a process of its own, and keeps the verdict: `--backend auto` takes a device
/// only after that. A faulty driver may hang or end the process that asks it; here that is a child with a
/// time limit. Any thread; a proof takes seconds. Knows no window.
#pragma once

#include "engine/base/device_verdict.h"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// Changes with what a proof covers: older verdicts then no longer count.
inline constexpr int kProofVersion = 3;

struct ProofSetup {
    std::filesystem::path program;  ///< with the command selftest; empty: keyhole beside the running program
    std::filesystem::path module;
    int device = 0;
    std::filesystem::path folder;  ///< where verdicts are kept; empty: they are not
    /// The process is ended when it is silent for so long, or takes so long in all. While a driver compiles
    /// the kernels, it counts as not silent.
    std::chrono::milliseconds silence{120000}, most{600000};
    bool again = false;  ///< a kept verdict does not count
};

/// Returns the setup for a device: the module of cuda_module_path(), and the folder keyhole/proofs below
/// $XDG_CACHE_HOME or ~/.cache.
ProofSetup proof_setup(int device);

/// Returns whether the system may have a CUDA device. False: opening the module says why at once and without
/// risk.
bool driver_may_be_here();

/// Returns the verdict on the device that an executor runs on; nullopt: none is kept.
std::optional<DeviceVerdict> kept_verdict(const ProofSetup& setup, const DeviceIdentity& device);
/// Returns whether any device is taken with the module. Reads files alone, as the next one does.
bool any_device_taken(const ProofSetup& setup);
/// Returns a verdict by which the device of that index is not taken with the module; nullopt: none is kept.
/// Another device may have the index by now.
std::optional<DeviceVerdict> kept_refusal(const ProofSetup& setup);

/// Runs the proof in a child process, or takes the kept verdict on the same device. A crash, a hang and a
/// device that cannot be opened are verdicts too. progress: may be empty; when it returns false the proof
/// ends with Error(cancelled). Throws Error(io) where no process can be started.
DeviceVerdict prove_device(const ProofSetup& setup,
                           const std::function<bool(double share, const std::string& what)>& progress);

/// The child's half: proves the device of cuda_module_path(), prints what it does, and writes `report`.
void prove_as_child(int device, const std::filesystem::path& report);

/// Returns the two times of a step, {"device": ms, "cpu": ms}, as files and `selftest --json` hold them; null
/// without a step.
nlohmann::json json_of(const std::optional<TimedStep>& step);

}  // namespace keyhole
