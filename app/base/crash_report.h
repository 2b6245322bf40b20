/// Writes a report when the program crashes: one file with version, build, signal, stack and the last
/// actions. The terminal names it at once, and again at the next start. It holds no text of the user
/// (prompts, forced or watched words, file names) unless KEYHOLE_CRASH_TEXT=1 is set. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Handles SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT and std::terminate: writes the file below `folder`, then
/// lets the process end as it would have done. A handler that is installed later works with it, if it passes
/// on the signals that are not its own. arguments: of the command line.
void install_crash_report(const std::filesystem::path& folder, const std::vector<std::string>& arguments);

/// Stores an action of the window for the report: its id, and its arguments if they are plain, which is to
/// say without text or path of the user. is_drag: it takes the place of the last one if that has the same id,
/// so that a drag does not displace the others. Allocates nothing.
void note_action(std::string_view id, std::string_view arguments, bool arguments_are_plain,
                 bool is_drag) noexcept;

/// Returns the crash reports that no earlier start has named, and marks them as named. Keeps the newest ten
/// files.
std::vector<std::filesystem::path> new_crash_reports(const std::filesystem::path& folder);

/// Returns the report that was written within a minute of a time; empty: none.
std::filesystem::path crash_report_near(const std::filesystem::path& folder,
                                        std::filesystem::file_time_type time);

/// For tests: crashes if KEYHOLE_CRASH_TEST is segv, bus, fpe, ill, abort, terminate, assert or stack. Does
/// nothing in a program without assertions.
void crash_on_request();

}  // namespace keyhole
