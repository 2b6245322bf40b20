/// Eviction doctor: what must hold of a run with eviction, looked up in its records. Broken eviction shows here before it shows in a text.
/// Pure reading; window thread; knows no GL.
#pragma once

#include "engine/trace/run_history.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct Finding {
    enum class State { good, broken, unknown };
    std::string_view name;  ///< what must hold
    State state = State::unknown;
    std::string detail;  ///< of the first fault, or what was looked at, or why it cannot be told
};

/// Of a lane (index into history.lanes()) at a row with a record.
std::vector<Finding> examine(const RunHistory& history, int lane, int row);
/// True unless something is broken.
bool healthy(const std::vector<Finding>& findings);

}  // namespace keyhole
