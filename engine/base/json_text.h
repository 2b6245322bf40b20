/// Checks on untrusted JSON before it is parsed, and untrusted text made safe for messages. Any thread.
/// Knows no format.
#pragma once

#include <string>
#include <string_view>

namespace keyhole {

/// Returns whether lists and objects are nested at most 100 deep. The parser accepts more, but copying,
/// printing and reading the parsed value recurse once a level, so that a hostile file could overflow the
/// stack. The result means nothing for text that is not JSON.
bool is_shallow_json(std::string_view text);

/// Returns an upper bound of the number of values in the text. The memory for parsing is proportional to
/// it, and a few hundred bytes of a compressed file may hold a million values.
std::size_t most_json_values(std::string_view text);

/// Returns untrusted text that is safe to show in a terminal. A '?' replaces each control character (a
/// terminal might take it for a command), each byte that is not UTF-8, and each character that ends a line
/// or changes the direction of writing. keep_lines: line feeds and tabs stay, for text of several lines.
std::string printable_text(std::string_view text, bool keep_lines = false);

/// Returns printable_text() cut to one short line, for a message.
std::string shown_text(std::string_view text);

}  // namespace keyhole
