/// Runs work in a child process with a limit on memory, for files that request too much. It forks: the child
/// has only the calling thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace reference {

/// Returns the result of `work`, or "Error: " and the message that it throws, or "signal N" if the child ends
/// by one. The child's address space is limited to the process's present size plus `more_bytes`, except under
/// sanitizers, which need terabytes.
std::string in_small_memory(std::size_t more_bytes, const std::function<std::string()>& work);

}  // namespace reference
