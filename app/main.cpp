#include "app/base/assets.h"
#include "app/base/command_text.h"
#include "app/base/crash_report.h"
#include "app/base/termination.h"
#include "app/base/version.h"
#include "app/cli/command.h"
#include "app/cli/commands.h"
#include "app/cli/help_form.h"
#include "app/cli/output.h"
#include "app/cli/typed_arguments.h"
#include "app/window/gui_command.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/processor.h"
#include "engine/base/user_folder.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace {

/// Returns whether the first word is a trace to look at, as a file manager gives it.
bool is_trace(const std::string& word) {
    return word.ends_with(".keyhole");
}

int run(std::vector<std::string> arguments) {
    if (const std::string set = keyhole::lacking_instruction_set(); !set.empty()) {
        keyhole::print_note(
            "keyhole: this program was built for a processor with {} and this one lacks it; build it again "
            "on this machine, or for all processors: cmake --preset release -DKH_SIMD=ALL\n",
            set);
        return 1;
    }
    const keyhole::CommandLine program(
        "keyhole",
        "Keyhole: a playground for KV-cache eviction. Without a command it opens the window; help "
        "prints the manual.",
        keyhole::program_version());
    keyhole::add_gui_command(program);
    keyhole::add_commands(program);
    keyhole::give_help_its_form(program);

    if (!arguments.empty() && arguments[0] == "version") arguments[0] = "--version";
    const bool asks_of_program = !arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h" ||
                                                        arguments[0] == "--version" || arguments[0] == "-V");
    if (arguments.empty() || (arguments[0].starts_with("-") && !asks_of_program) || is_trace(arguments[0]))
        arguments.insert(arguments.begin(), "gui");
    const keyhole::CliCommand chosen = program.command(arguments[0]);
    if (!chosen && !asks_of_program) {
        keyhole::print_note("keyhole: {}\n", keyhole::unknown_command_text(program, arguments[0]));
        return 2;
    }
    const std::string command = arguments[0];
    try {
        if (chosen) keyhole::check_typed(chosen, std::span(arguments).subspan(1));
        return program.run(arguments);
    } catch (const keyhole::Error& error) {
        keyhole::print_note("keyhole: {}\n", keyhole::printable_text(error.what()));
        return error.code() == keyhole::ErrorCode::wrong_use ? 2 : 1;
    } catch (const std::bad_alloc&) {
        keyhole::print_note(
            "keyhole: {}: there is no memory left for it; ask for fewer lanes or tokens, or free some\n",
            keyhole::printable_text(command));
        return 1;
    } catch (const std::filesystem::filesystem_error& error) {
        keyhole::print_note("keyhole: {}: {}; check the path and its permissions\n",
                            keyhole::printable_text(error.path1().string()), error.code().message());
        return 1;
    } catch (const std::system_error& error) {
        // For example too many threads (`ulimit -u`), or any other system error without a better message.
        keyhole::print_note("keyhole: the system refused what is needed: {}; check its limits (ulimit -a)\n",
                            error.what());
        return 1;
    } catch (const std::exception& error) {
        keyhole::print_note("keyhole: unexpected failure: {}\n", keyhole::printable_text(error.what()));
        return 1;
    }
}

}  // namespace

int main(int argc, char** argv) {
    keyhole::begin_output();
    std::vector<std::string> arguments(argv + 1, argv + argc);
    std::transform(arguments.begin(), arguments.end(), arguments.begin(), keyhole::own_file);
    const std::filesystem::path state = keyhole::user_folder(keyhole::UserFolder::state);
    keyhole::install_crash_report(state, arguments);
    keyhole::handle_termination_signals();
    keyhole::keep_command_line(arguments);
    for (const std::filesystem::path& report : keyhole::new_crash_reports(state))
        keyhole::print_note("keyhole: an earlier run crashed; what helps to find out why is in {}\n",
                            report.string());
    keyhole::crash_on_request();
    const int status = keyhole::end_output(run(arguments));
    keyhole::end_by_signal();
    return status;
}
