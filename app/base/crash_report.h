/// What a crash leaves: one file with version, build, signal, stack and the last commands, named in the
/// terminal at once and at the next start. It holds no text of the user (prompts, words said or watched, file
/// names) unless KEYHOLE_CRASH_TEXT=1 is set. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// $XDG_STATE_HOME/keyhole, else ~/.local/state/keyhole; empty when neither is known.
std::filesystem::path state_folder();

/// Handles SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT and std::terminate: writes the file below `folder`, then
/// lets the process end as it would have. A handler that is set later and passes on what is not its own works
/// with it. arguments: of the command line.
void install_crash_report(const std::filesystem::path& folder, const std::vector<std::string>& arguments);

/// Keeps a command of the window for the report: its name, and its arguments where they can be numbers and
/// lane specs alone. Allocates nothing.
void note_command(std::string_view text) noexcept;

/// Reports of crashes that no start has named yet; they count as named from now on. Keeps the newest ten
/// files.
std::vector<std::filesystem::path> new_crash_reports(const std::filesystem::path& folder);

/// For tests: crashes where KEYHOLE_CRASH_TEST is segv, bus, fpe, ill, abort, terminate, assert or stack.
void crash_on_request();

}  // namespace keyhole
