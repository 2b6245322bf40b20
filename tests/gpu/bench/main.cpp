// keyhole_bench: `keyhole bench` as a program of its own, for a GPU machine without desktop libraries.
#include "app/cli/command.h"
#include "app/cli/commands.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    const keyhole::CommandLine program("keyhole_bench", "Keyhole's bench alone");
    keyhole::add_bench_command(program);
    try {
        return program.run(std::vector<std::string>(argv + 1, argv + argc));
    } catch (const std::exception& error) {
        fmt::print(stderr, "keyhole_bench: {}\n", error.what());
        return 1;
    }
}
