/// What to tell the user about the bytes of a text that a model reads. Any thread; knows base only.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace keyhole {

/// Returns that a text of a file is not UTF-8, and what becomes of it; empty: it is.
std::string notice_of_bytes(std::string_view text, const std::filesystem::path& file);

}  // namespace keyhole
