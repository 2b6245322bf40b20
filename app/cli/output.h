/// Prints results to stdout, and notes and progress to stderr. A full disk or a closed pipe never ends a
/// command in the middle: end_output() reports it when the command is done. Any thread.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace keyhole {

void write_output(std::string_view text) noexcept;
void write_note(std::string_view text) noexcept;

/// Sends on what was printed to stdout, so that a reader has it while the command goes on.
void flush_output() noexcept;
/// Draws a bar in the terminal's last line, in place of the one before; empty: removes it. What is printed
/// removes it too.
void show_bar(std::string_view text) noexcept;

template <class... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
    write_output(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void print_note(fmt::format_string<Args...> format, Args&&... args) {
    write_note(fmt::format(format, std::forward<Args>(args)...));
}

/// Call first, before any file is opened. Opens /dev/null for each closed descriptor among 0 to 2; otherwise
/// a file opened later would get that number and receive printed text. Text printed to a closed stdout
/// counts as lost. Makes writes to a closed pipe fail instead of ending the process.
void begin_output();

/// Call last. Returns `status` if everything printed has arrived. Otherwise prints one line and returns 1 in
/// place of 0. If the reader went away (`| head`), prints nothing and ends the process by SIGPIPE.
int end_output(int status);

}  // namespace keyhole
