/// Text of files that nobody vouches for: a look at JSON before it is parsed, and what of it stands in
/// messages. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace keyhole {

/// Lists and objects lie at most 100 in one another. The parser takes more, but copying, printing and reading
/// what it gives call themselves once a level, which a hostile file could drive beyond the stack. Text that
/// is no JSON may give either.
bool is_shallow_json(std::string_view text);

/// No more values than this are in the text: what reading it takes in memory goes by them, and a few hundred
/// bytes of a compressed file may hold a million.
std::size_t most_json_values(std::string_view text);

/// Text that nobody vouches for as a terminal may show it: '?' for each control character, so that no
/// terminal takes a part of it for a command, for each byte that is not UTF-8, and for characters that end
/// lines or turn the direction of writing. keep_lines: line feeds and tabs stay, for text of several lines.
std::string printable_text(std::string_view text, bool keep_lines = false);

/// For a message: one short line of printable_text.
std::string shown_text(std::string_view text);

}  // namespace keyhole
