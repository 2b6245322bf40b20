/// Text of files that nobody vouches for: a look at JSON before it is parsed, and what of it stands in messages. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace keyhole {

/// Lists and objects lie at most 100 in one another. The parser takes more, but copying, printing and reading what it gives
/// call themselves once a level, which a hostile file could drive beyond the stack. Text that is no JSON may give either.
bool is_shallow_json(std::string_view text);

/// For a message: one short line without control characters.
std::string shown_text(std::string_view text);

}  // namespace keyhole
