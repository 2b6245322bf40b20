/// What a self test found of a device. Plain values; any thread. Knows neither kernels nor devices.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// A device and its driver, which a verdict of the proof is about (prover.h).
struct DeviceIdentity {
    std::string name;    ///< "NVIDIA H200"
    std::string uuid;    ///< "GPU-8f0c...", of this very device
    std::string driver;  ///< "13.0 580.65.06": of CUDA and, where it is known, of the kernel
};

struct SelfTestLine {
    std::string kernel;    ///< "AttendSplit<Bf16>", the function of the executor, or the measure
    std::string shape;     ///< of the case, or where it was worst
    double worst = 0;      ///< largest difference, as a share of the host's largest value
    double tolerance = 0;  ///< 0: the bits must be the same
    bool passed = false;
    std::string failure;  ///< the device's error message, if any
};

/// The time of one decode step of a model, at best.
struct TimedStep {
    double device_ms = 0, cpu_ms = 0;
};

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

/// Returns one line: "NVIDIA H200 failed its proof: ... ; report in FILE", or "NVIDIA H200 passed its proof
/// in 5.1 s; a step of its model takes 0.21 ms there and 4.3 ms on the CPU".
std::string text_of(const DeviceVerdict& verdict);

/// Returns the lines as a table with the number of failures.
std::string selftest_table(const std::vector<SelfTestLine>& lines);

}  // namespace keyhole
