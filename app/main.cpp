#include "app/commands/commands.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    CLI::App app(
        "Keyhole: a playground for KV-cache eviction. Without a command it opens the window; help "
        "prints the manual.",
        "keyhole");
    app.set_version_flag("--version", keyhole::program_version());
    app.require_subcommand(1);
    keyhole::add_commands(app);

    std::vector<std::string> arguments(argv + 1, argv + argc);
    const bool asks_for_help = !arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h" ||
                                                      arguments[0] == "--version");
    if (arguments.empty() || (arguments[0].starts_with("-") && !asks_for_help))
        arguments.insert(arguments.begin(), "gui");
    const auto known = app.get_subcommands([](const CLI::App*) { return true; });
    const bool is_known =
        asks_for_help || std::any_of(known.begin(), known.end(), [&](const CLI::App* command) {
            return command->get_name() == arguments[0];
        });
    if (!is_known) {
        std::string names;
        for (const CLI::App* command : known) names += " " + command->get_name();
        fmt::print(stderr, "keyhole: there is no command '{}'; commands are:{}\n",
                   keyhole::shown_text(arguments[0]), names);
        return 2;
    }
    const std::string command = arguments[0];
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    try {
        app.parse(arguments);
        return 0;
    } catch (const CLI::Success& success) {
        return app.exit(success);
    } catch (const CLI::ParseError& error) {
        fmt::print(stderr, "keyhole: {}; see keyhole --help\n", keyhole::printable_text(error.what()));
        return 2;
    } catch (const keyhole::Error& error) {
        fmt::print(stderr, "keyhole: {}\n", keyhole::printable_text(error.what()));
        return error.code() == keyhole::ErrorCode::wrong_use ? 2 : 1;
    } catch (const std::bad_alloc&) {
        fmt::print(
            stderr,
            "keyhole: {}: there is no memory left for it; ask for fewer lanes or tokens, or free some\n",
            keyhole::printable_text(command));
        return 1;
    } catch (const std::filesystem::filesystem_error& error) {
        fmt::print(stderr, "keyhole: {}: {}; check the path and its permissions\n",
                   keyhole::printable_text(error.path1().string()), error.code().message());
        return 1;
    } catch (const std::exception& error) {
        fmt::print(stderr, "keyhole: unexpected failure: {}\n", keyhole::printable_text(error.what()));
        return 1;
    }
}
