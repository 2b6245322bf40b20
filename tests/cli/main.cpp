// The command line without the window: links only while no command needs GL, ImGui or the window's state.
#include "app/cli/command.h"
#include "app/cli/commands.h"

#include <string>
#include <vector>

int main(int argc, char** argv) {
    const keyhole::CommandLine program("keyhole_cli_alone", "Keyhole's commands alone");
    keyhole::add_commands(program);
    return program.run(std::vector<std::string>(argv + 1, argv + argc));
}
