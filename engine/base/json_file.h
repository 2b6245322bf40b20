/// Reading of untrusted JSON files within bounds. Any thread. Knows no format.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace keyhole {

/// The largest file of a format that is read; real files are far smaller. A parsed value takes up to 150
/// bytes, so these bounds also limit memory.
struct JsonBounds {
    std::size_t bytes = 0;
    std::size_t values = 0;  ///< members, elements and single values
};

/// Returns what a text of our own says; a discarded value if it is not JSON. Texts of others:
/// json_object_of(). The parser is compiled in one source alone.
nlohmann::json json_of_text(std::string_view text);
/// The same, with members in the order of the text.
nlohmann::ordered_json ordered_json_of_text(std::string_view text);

/// Parses a text that must be one JSON object. Throws Error(bad_file) with the path and the fault: not JSON
/// (with line and column), no object, more than most_values values, or values nested too deeply. `subject`
/// names the text in messages: "it", "its header".
nlohmann::json json_object_of(std::string_view text, const std::filesystem::path& path,
                              std::size_t most_values, std::string_view subject = "it");

/// Reads a file that must be one JSON object. Throws the same errors, and those of read_text_file().
nlohmann::json read_json_object(const std::filesystem::path& path, const JsonBounds& bounds);

}  // namespace keyhole
