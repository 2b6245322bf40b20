/// Draws a page of the manual as the source of a manual page for man(1).
/// Pure; any thread; knows neither files nor commands.
#pragma once

#include "app/manual/page.h"

#include <string>
#include <string_view>

namespace keyhole {

/// Returns the text with what roff takes for commands escaped.
std::string roff_escaped(std::string_view text);

/// Returns the blocks of a page in the macros of man(7), without its title. Tables and code keep their lines.
/// A link to a page reads keyhole-PAGE(7).
std::string roff_text(const ManualPage& page);

}  // namespace keyhole
