/// Breaks text into lines at blanks. Pure; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Returns the lines of a text, each as long as fits(line) allows; a word that is longer has a line of its
/// own. A line feed ends a line. Blanks at the start of a line, and the one where it breaks, are left out.
std::vector<std::string> wrapped_lines(std::string_view text,
                                       const std::function<bool(std::string_view)>& fits);

}  // namespace keyhole
