/// Runs a command of Keyhole in a process of its own, for a background job. Any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

/// Returns when the command has ended. goes_on: called several times a second with what it printed; returns
/// false to end it. environment: as for ChildProcess. Throws Error(io) with its last line if it failed, and
/// Error(cancelled). name: of what it makes, for messages.
void run_child(const std::vector<std::string>& command,
               const std::vector<std::pair<std::string, std::string>>& environment, std::string_view name,
               const std::function<bool(std::string_view)>& goes_on);

}  // namespace keyhole
