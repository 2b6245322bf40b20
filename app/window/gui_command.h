/// Registers `keyhole gui`, which opens the window.
/// Main thread; knows nothing of the window's contents.
#pragma once

#include "app/cli/command.h"

namespace keyhole {

void add_gui_command(const CliCommand& program);

}  // namespace keyhole
