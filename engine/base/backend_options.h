/// Which backend computes, and how. Plain values; any thread.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>

namespace keyhole {

enum class BackendChoice { automatic, cpu, cuda };

/// In what products are computed: floats, or what the weights have. `weights` on CUDA: the type of 16-bit
/// weights, for tensor cores, in prompts and for many lanes; on the CPU: integers where they are quantised.
/// `automatic`: integers on the CPU; on CUDA floats where the model is small.
enum class Precision { automatic, floats, weights };

/// The words of --backend and --precision, in the order of the values.
inline constexpr std::array<std::string_view, 3> kBackendWords = {"auto", "cpu", "cuda"},
                                                 kPrecisionWords = {"auto", "float", "weights"};

struct BackendOptions {
    BackendChoice choice = BackendChoice::automatic;
    int n_threads = 0;  ///< 0: all cores this process may use
    int device = 0;     ///< CUDA device by index
    Precision precision = Precision::automatic;
    /// Lets `automatic` run the proof of a device that has none (prover.h): it is called again and again
    /// meanwhile, and returns false to stop the proof. Empty: such a device is not taken.
    std::function<bool(double share, const std::string& what)> prove{};
};

/// Returns the options for what is measured, such as figures, tables and lessons: floats unless the user
/// chose, so that both backends give the same.
inline BackendOptions for_measures(BackendOptions options) {
    if (options.precision == Precision::automatic) options.precision = Precision::floats;
    return options;
}

}  // namespace keyhole
