/// SIGINT, SIGTERM and SIGHUP: a command that has files under way ends by itself, so that nothing unfinished
/// stays; any other ends at once. The process ends by the signal in both cases. Any thread.
#pragma once

#include <csignal>
#include <string_view>

namespace keyhole {

/// Once, at the start.
void handle_end_signals();

/// While one lives, the first signal sets end_asked() and the process has two seconds to unwind.
class EndGuard {
  public:
    EndGuard();
    ~EndGuard();
    EndGuard(const EndGuard&) = delete;
    EndGuard& operator=(const EndGuard&) = delete;
};

bool end_asked();
/// Throws Error(cancelled) with the signal and the note once the end was asked for.
void check_end();

/// What is worth knowing when the process ends by a signal or a crash: where the run is kept. One line
/// without its end; "": nothing.
void set_end_note(std::string_view note) noexcept;
/// Async-signal-safe.
const char* end_note() noexcept;

/// Last of all: ends the process by the signal that asked for it; returns where none did.
void end_by_signal();

/// From handlers: to stderr, and how a process ends by a signal whose handler it is in.
void write_line(const char* text) noexcept;
void clear_progress_line() noexcept;
[[noreturn]] void die_by(int signal) noexcept;

}  // namespace keyhole
