/// JSON of files that nobody vouches for, read within bounds. Any thread. Knows no format.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace keyhole {

/// The most that files of a format may hold; real ones hold far less. The values that are read take up to 150
/// bytes each, so that the bounds limit memory.
struct JsonBounds {
    std::size_t bytes = 0;
    std::size_t values = 0;  ///< members, elements and single values
};

/// The object of a text. Throws Error(bad_file) naming the path and what is wrong: no JSON (with line and
/// column), no object, more than most_values values, values that are nested too deep. `subject` names the
/// text in messages: "it", "its header".
nlohmann::json json_object_of(std::string_view text, const std::filesystem::path& path,
                              std::size_t most_values, std::string_view subject = "it");

/// The object of a whole file. The same errors, and those of read_text_file().
nlohmann::json read_json_object(const std::filesystem::path& path, const JsonBounds& bounds);

}  // namespace keyhole
