/// Runs a sweep with the options as typed, or as a paper's figure needs them.
/// Main thread; knows no window.
#pragma once

#include "app/cli/eval_options.h"

#include <string>
#include <vector>

namespace keyhole {

struct SweepOptions {
    EvalOptions eval;
    std::vector<std::string> varies;
    std::string out;
    bool json = false;
    std::string title;                ///< of the plots; empty: the measured quantity
    std::vector<double> share_lines;  ///< tasks: level lines at these shares of the first lane's accuracy
};

void run_sweep(const SweepOptions& options);

}  // namespace keyhole
