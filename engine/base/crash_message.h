/// A message that a failing thread leaves for the crash report. Any thread; knows nothing of the other
/// folders.
#pragma once

#include <string_view>

namespace keyhole {

/// Stores one line, cut at 400 bytes. Only the first call has an effect. The line must hold no text of the
/// user. Allocates nothing.
void set_crash_message(std::string_view words) noexcept;
/// Returns the stored line, or "". Async-signal-safe.
const char* crash_message() noexcept;

/// Gives this thread a separate stack for signal handlers, so that an overflow of its own stack is reported
/// too.
void guard_stack();

}  // namespace keyhole
