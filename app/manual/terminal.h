/// Draws a page of the manual as text of fixed width, for a terminal or a pipe.
/// Pure; any thread; knows neither files nor the terminal's size.
#pragma once

#include "app/manual/page.h"

#include <string>

namespace keyhole {

struct TerminalStyle {
    int width = 80;        ///< columns; lines of code blocks are never wrapped
    bool escapes = false;  ///< bold and underlined by ANSI escapes; if false, `code` and "emphasis" get marks
};

/// Headings start in column 0, text in column 2, code in column 6. Tables are aligned and their cells
/// wrapped. A link to a page reads "keyhole help PAGE".
std::string terminal_text(const ManualPage& page, const TerminalStyle& style);

}  // namespace keyhole
