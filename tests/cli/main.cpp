// The command line without the window: links only while no command needs GL, ImGui or the window's state.
#include "app/cli/commands.h"

int main(int argc, char** argv) {
    CLI::App app("Keyhole's commands alone", "keyhole_cli_alone");
    app.require_subcommand(1);
    keyhole::add_commands(app);
    CLI11_PARSE(app, argc, argv);
    return 0;
}
