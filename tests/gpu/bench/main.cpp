// keyhole_bench: `keyhole bench` as a program of its own, for a GPU machine without desktop libraries.
#include "app/cli/commands.h"
#include "engine/base/error.h"

#include <CLI/CLI.hpp>

#include <exception>

int main(int argc, char** argv) {
    CLI::App app("Keyhole's bench alone", "keyhole_bench");
    app.require_subcommand(1);
    keyhole::add_bench_command(app);
    try {
        app.parse(argc, argv);
        return 0;
    } catch (const CLI::ParseError& error) {
        return app.exit(error);
    } catch (const std::exception& error) {
        fmt::print(stderr, "keyhole_bench: {}\n", error.what());
        return 1;
    }
}
