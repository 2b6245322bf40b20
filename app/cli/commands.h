/// Registers the commands of the command line. Each adds its options and runs if chosen; failures are thrown
/// as Error. Main thread.
#pragma once

#include "app/cli/command.h"

namespace keyhole {

/// Adds all commands that need no window, in the order of `keyhole --help`.
void add_commands(const CliCommand& program);

void add_decode_command(const CliCommand& program);
void add_replay_command(const CliCommand& program);
void add_bench_command(const CliCommand& program);
void add_eval_command(const CliCommand& program);
void add_sweep_command(const CliCommand& program);
void add_attribute_command(const CliCommand& program);
void add_search_command(const CliCommand& program);
void add_merge_command(const CliCommand& program);
void add_figure_command(const CliCommand& program);
void add_presets_command(const CliCommand& program);
void add_info_command(const CliCommand& program);
void add_convert_command(const CliCommand& program);
void add_get_command(const CliCommand& program);
void add_lesson_command(const CliCommand& program);
void add_check_command(const CliCommand& program);
void add_selftest_command(const CliCommand& program);
void add_completion_command(const CliCommand& program);
void add_help_command(const CliCommand& program);

}  // namespace keyhole
