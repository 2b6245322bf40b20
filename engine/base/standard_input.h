/// The name by which read_text_input() (mapped_file.h) reads standard input. Any thread; knows nothing.
#pragma once

#include <string_view>

namespace keyhole {

/// Standard input is read once, to its end, and kept: every later call returns the same text.
inline constexpr std::string_view kStandardInput = "-";

}  // namespace keyhole
