/// Proves a CUDA device once, in a process of its own, and keeps the verdict: `--backend auto` takes a device
/// only after that. A faulty driver may hang or end the process that asks it; here that is a child with a
/// time limit. Any thread; a proof takes seconds. Knows no window.
#pragma once

#include "engine/backend/selftest_line.h"

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

/// The facts about a device. They are valid for one device, driver, module and kProofVersion.
struct DeviceVerdict {
    bool passed = false;
    /// The time of a step in a proof that passed. A kept verdict that passed without it does not count.
    std::optional<TimedStep> step;
    bool available = true;         ///< false: there is no device, or it cannot be opened; see `reason`
    int index = 0;                 ///< of the device when it was proven
    DeviceIdentity device;         ///< empty where the device could not say what it is
    std::string reason;            ///< a clause: what failed, with its numbers; empty when it passed
    std::filesystem::path report;  ///< file with every line, to attach to a report; empty: none could be kept
    bool is_new = false;           ///< from a proof just now, not from the cache folder
    double seconds = 0;            ///< duration of the proof
    std::vector<SelfTestLine> lines;  ///< none after a crash or a hang
    /// `--backend auto` takes a device that passed and is faster than the CPU.
    bool is_taken() const { return passed && step && step->device_ms < step->cpu_ms; }
};

struct ProofSetup {
    std::filesystem::path program;  ///< with the command selftest; empty: keyhole beside the running program
    std::filesystem::path module;
    int device = 0;
    std::filesystem::path folder;  ///< where verdicts are kept; empty: they are not
    /// The process is ended when it is silent for so long (PTX of a new device may compile for minutes), or
    /// takes so long in all.
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

/// Returns one line: "NVIDIA H200 failed its proof: ... ; report in FILE", or "NVIDIA H200 passed its proof
/// in 5.1 s; a step of its model takes 0.21 ms there and 4.3 ms on the CPU".
std::string text_of(const DeviceVerdict& verdict);

/// Returns the two times of a step, {"device": ms, "cpu": ms}, as files and `selftest --json` hold them; null
/// without a step.
nlohmann::json json_of(const std::optional<TimedStep>& step);

}  // namespace keyhole
