/// The sources of pages in assets/page, which the build embeds. Any thread.
#pragma once

#include <string_view>

namespace keyhole {

/// Returns the text of a file: "page.css". Throws Error(unsupported) for a file that the build does not have.
std::string_view page_source(std::string_view name);

}  // namespace keyhole
