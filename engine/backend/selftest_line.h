/// The results of a self test of a device. Plain values; any thread. Knows neither kernels nor devices.
#pragma once

#include <string>

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

}  // namespace keyhole
