/// Registers `keyhole gui`, which opens the window.
/// Main thread; knows nothing of the window's contents.
#pragma once

#include <CLI/CLI.hpp>

namespace keyhole {

void add_gui_command(CLI::App& app);

}  // namespace keyhole
