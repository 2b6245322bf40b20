/// Handles SIGINT, SIGTERM and SIGHUP. A command that is writing files gets time to end by itself, so that
/// no unfinished file stays; any other command ends at once. The process ends by the signal in both cases.
/// Any thread.
#pragma once

#include <csignal>
#include <string_view>

namespace keyhole {

/// Call once, at the start.
void handle_termination_signals();

/// While a TerminationGuard exists, the first signal sets termination_requested(), and the process has five
/// seconds to unwind.
class TerminationGuard {
  public:
    TerminationGuard();
    ~TerminationGuard();
    TerminationGuard(const TerminationGuard&) = delete;
    TerminationGuard& operator=(const TerminationGuard&) = delete;
};

bool termination_requested();
/// Throws Error(cancelled) with the signal and the note if a signal has asked the process to end.
void check_termination();

/// Sets a note to print when the process ends by a signal or a crash: where the run is stored. One line
/// without its line end; "": no note.
void set_termination_note(std::string_view note) noexcept;
/// The note of a command that goes on for long: what a signal leaves of its work. It goes with the object.
class KeptNote {
  public:
    explicit KeptNote(std::string_view note) { set_termination_note(note); }
    ~KeptNote();
    KeptNote(const KeptNote&) = delete;
    KeptNote& operator=(const KeptNote&) = delete;
    void set(std::string_view note) { set_termination_note(note); }
};
/// Returns the note. Async-signal-safe.
const char* termination_note() noexcept;

/// Call last: ends the process by the signal that asked it to end. Returns if there was none.
void end_by_signal();

/// For signal handlers: write to stderr, and end the process by the signal that is being handled.
void write_line(const char* text) noexcept;
void clear_progress_line() noexcept;
[[noreturn]] void die_by(int signal) noexcept;

}  // namespace keyhole
