/// Text for pages of HTML. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace keyhole {

/// Returns the text with its characters of markup as entities, for elements and for attributes in quotes.
std::string html_text(std::string_view text);

}  // namespace keyhole
