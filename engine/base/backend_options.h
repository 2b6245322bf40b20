/// Which backend computes, and how. Plain values; any thread.
#pragma once

#include <functional>
#include <string>

namespace keyhole {

enum class BackendChoice { automatic, cpu, cuda };

struct BackendOptions {
    BackendChoice choice = BackendChoice::automatic;
    int n_threads = 0;  ///< 0: all cores this process may use
    int device = 0;     ///< CUDA device by index
    /// Lets `automatic` run the proof of a device that has none (prover.h): it is called again and again
    /// meanwhile, and returns false to stop the proof. Empty: such a device is not taken.
    std::function<bool(double share, const std::string& what)> prove{};
};

}  // namespace keyhole
