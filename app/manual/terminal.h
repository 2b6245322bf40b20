/// Draws a page of the manual as text of fixed width, for a terminal or a pipe. Pure; any thread.
#pragma once

#include "app/manual/page.h"

#include <string>

namespace keyhole {

struct TerminalStyle {
    int width = 80;        ///< columns; code blocks keep their lines, however long they are
    bool escapes = false;  ///< bold and underlined by ANSI escapes; else `code` and "emphasis" have marks
};

/// Headings start in the first column, text two columns to the right of it, code six. Tables are aligned, and
/// their cells wrapped. A link to a page reads "keyhole help PAGE".
std::string terminal_text(const ManualPage& page, const TerminalStyle& style);

}  // namespace keyhole
