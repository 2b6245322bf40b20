/// Runs a sweep with the options as typed, or as a paper's figure needs them.
/// Main thread; knows no window.
#pragma once

#include "app/cli/command.h"

#include "app/cli/eval_options.h"
#include "app/study/sweep_plot.h"
#include "engine/base/staged_folder.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace keyhole {

/// How plots are drawn and where.
struct PlotChoice {
    std::string title;  ///< empty: the measured quantity
    int width = 0;      ///< in pixels; 0: the usual one
    bool dark = false;  ///< the background
    PrintForm print = {};
    std::string made_by = {};  ///< is kept in the files, see made_by.h
};

struct SweepOptions {
    EvalOptions eval;
    std::vector<std::string> models;  ///< as typed; empty: that of `eval`
    std::vector<std::string> varies;
    std::string out;
    bool json = false;
    bool quiet = false;           ///< prints no table: another command prints the result
    bool map = false;             ///< a task by depth and length
    std::string lengths, depths;  ///< of the map, lists as --vary takes them; empty: from the model
    PlotChoice plots;
    std::vector<double> share_lines;  ///< tasks: level lines at these shares of the first lane's accuracy
    /// Returns sentences for captions and the terminal. Empty: none.
    std::function<std::vector<std::string>(const SweepResult&)> notes = {};
    /// Texts, first key a budget: a baseline that cuts the text into pieces of so many tokens and evicts
    /// nothing (TOVA, figure 3).
    bool has_shorter_context = false;
    /// The name of the pictures of a figure; a suffix names the quantity. Empty: that of the questions.
    std::string picture_name = {};
    /// Writes more into the staged folder, and publishes it. models: their marks, see made_by.h. Empty: the
    /// plots are those of a sweep.
    std::function<void(StagedFolder&, const std::vector<SweepResult>&,
                       const std::vector<std::string>& models)>
        publish = {};
};

/// Returns the name of the pictures of one of so many results, without the quantity's suffix.
std::string picture_name(const SweepOptions& options, const SweepResult& result, std::size_t n_results);

/// Returns what was measured, a result for each set of questions.
std::vector<SweepResult> run_sweep(const SweepOptions& options);

/// Adds --model, which may be repeated, in place of that of EvalOptions.
void add_models_option(const CliCommand& command, SweepOptions& options);
/// Adds --width and --dark to a command that draws plots.
void add_plot_options(const CliCommand& command, PlotChoice& plots);
/// Returns the names of the files of a plot: `name` with these endings.
std::vector<std::string> plot_files(const std::string& name);
/// Write a plot as `path` with the endings .svg, .png and, where the program has it, .pdf.
void write_plot_files(CurvePlot plot, const PlotChoice& choice, const std::filesystem::path& path);
void write_plot_files(ValueMap map, const PlotChoice& choice, const std::filesystem::path& path);

}  // namespace keyhole
