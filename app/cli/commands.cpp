#include "app/cli/commands.h"

namespace keyhole {

void add_commands(CLI::App& app) {
    add_decode_command(app);
    add_replay_command(app);
    add_eval_command(app);
    add_sweep_command(app);
    add_figure_command(app);
    add_bench_command(app);
    add_info_command(app);
    add_convert_command(app);
    add_get_command(app);
    add_lesson_command(app);
    add_selftest_command(app);
    add_completion_command(app);
    add_help_command(app);
}

}  // namespace keyhole
