/// What a thread leaves for a report of a crash. Any thread; knows nothing of the rest.
#pragma once

#include <string_view>

namespace keyhole {

/// One line, cut at 400 bytes; of several the first stays. Without text of the user. Allocates nothing.
void set_last_words(std::string_view words) noexcept;
/// "" where there are none. Async-signal-safe.
const char* last_words() noexcept;

/// Signals of this thread are handled on a stack of their own from now on, so that the overflow of its stack
/// is reported too.
void guard_stack();

}  // namespace keyhole
