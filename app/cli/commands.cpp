#include "app/cli/commands.h"

namespace keyhole {

void add_commands(const CliCommand& program) {
    add_decode_command(program);
    add_replay_command(program);
    add_eval_command(program);
    add_sweep_command(program);
    add_attribute_command(program);
    add_search_command(program);
    add_merge_command(program);
    add_figure_command(program);
    add_bench_command(program);
    add_presets_command(program);
    add_info_command(program);
    add_convert_command(program);
    add_get_command(program);
    add_lesson_command(program);
    add_check_command(program);
    add_selftest_command(program);
    add_completion_command(program);
    add_help_command(program);
}

}  // namespace keyhole
