/// Registers `keyhole gui`, which opens the window. Main thread.
#pragma once

#include <CLI/CLI.hpp>

namespace keyhole {

void add_gui_command(CLI::App& app);

}  // namespace keyhole
