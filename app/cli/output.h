/// What the command line prints: results to stdout, notes and progress to stderr. A full disk or a closed
/// pipe never ends a command in its middle: it is told when the command is done. Any thread.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace keyhole {

void write_output(std::string_view text) noexcept;
void write_note(std::string_view text) noexcept;

template <class... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
    write_output(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void print_note(fmt::format_string<Args...> format, Args&&... args) {
    write_note(fmt::format(format, std::forward<Args>(args)...));
}

/// First of all, before any file is opened: gives descriptors 0 to 2 that are closed to /dev/null, or else a
/// file that is opened would get their number and what is printed. What is printed to a closed stdout counts
/// as lost. Lets writes to a closed pipe fail.
void begin_output();

/// Last of all. status where everything printed has arrived. Otherwise one line, and 1 in place of 0; after a
/// reader that went away (`| head`) no line, and the process ends by SIGPIPE, as it would have at once.
int end_output(int status);

}  // namespace keyhole
