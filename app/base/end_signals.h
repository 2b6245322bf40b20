/// Handles SIGINT, SIGTERM and SIGHUP. A command that is writing files gets time to end by itself, so that
/// no unfinished file stays; any other command ends at once. The process ends by the signal in both cases.
/// Any thread.
#pragma once

#include <csignal>
#include <string_view>

namespace keyhole {

/// Call once, at the start.
void handle_end_signals();

/// While an EndGuard exists, the first signal sets end_asked(), and the process has two seconds to unwind.
class EndGuard {
  public:
    EndGuard();
    ~EndGuard();
    EndGuard(const EndGuard&) = delete;
    EndGuard& operator=(const EndGuard&) = delete;
};

bool end_asked();
/// Throws Error(cancelled) with the signal and the note if a signal has asked the process to end.
void check_end();

/// Sets a note to print when the process ends by a signal or a crash: where the run is stored. One line
/// without its line end; "": no note.
void set_end_note(std::string_view note) noexcept;
/// Returns the note. Async-signal-safe.
const char* end_note() noexcept;

/// Call last: ends the process by the signal that asked it to end. Returns if there was none.
void end_by_signal();

/// For signal handlers: write to stderr, and end the process by the signal that is being handled.
void write_line(const char* text) noexcept;
void clear_progress_line() noexcept;
[[noreturn]] void die_by(int signal) noexcept;

}  // namespace keyhole
