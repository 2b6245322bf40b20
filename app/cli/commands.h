/// Registers the commands of the command line. Each adds its options and runs if chosen; failures are thrown
/// as Error. Main thread.
#pragma once

#include <CLI/CLI.hpp>

namespace keyhole {

/// Adds all commands that need no window, in the order of `keyhole --help`.
void add_commands(CLI::App& app);

void add_decode_command(CLI::App& app);
void add_replay_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_sweep_command(CLI::App& app);
void add_figure_command(CLI::App& app);
void add_info_command(CLI::App& app);
void add_convert_command(CLI::App& app);
void add_get_command(CLI::App& app);
void add_lesson_command(CLI::App& app);
void add_selftest_command(CLI::App& app);
void add_completion_command(CLI::App& app);
void add_help_command(CLI::App& app);

}  // namespace keyhole
