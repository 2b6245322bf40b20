/// Work in a child process that may take so much memory and no more: for files that ask for too much.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace reference {

/// What `work` returns, or "Error: " and the message of what it throws; "signal N" where the child ends by
/// one. Its address space is limited to what the process has and `more_bytes`, except under sanitizers, which
/// need terabytes.
std::string in_small_memory(std::size_t more_bytes, const std::function<std::string()>& work);

}  // namespace reference
