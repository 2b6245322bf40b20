/// Runs a sweep with the options as typed, or as a paper's figure needs them.
/// Main thread; knows no window.
#pragma once

#include "app/cli/eval_options.h"
#include "engine/figure/curves.h"

#include <filesystem>
#include <string>
#include <vector>

namespace keyhole {

struct SweepOptions {
    EvalOptions eval;
    std::vector<std::string> varies;
    std::string out;
    bool json = false;
    std::string title;                ///< of the plots; empty: the measured quantity
    int width = 0;                    ///< of the plots, in pixels; 0: the usual one
    bool dark = false;                ///< the plots' ground
    std::vector<double> share_lines;  ///< tasks: level lines at these shares of the first lane's accuracy
};

void run_sweep(const SweepOptions& options);

/// Adds --width and --dark to a command that draws plots.
void add_plot_options(CLI::App& command, SweepOptions& options);
/// Writes a plot as `path` with the endings .svg, .png and, where the program has it, .pdf.
void write_plot_files(CurvePlot plot, const SweepOptions& options, const std::filesystem::path& path);

}  // namespace keyhole
