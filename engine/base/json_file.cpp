#include "engine/base/json_file.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/utf8.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace keyhole {
namespace {

using Json = nlohmann::json;

[[noreturn]] void broken(const std::filesystem::path& path, const std::string& what) {
    fail(ErrorCode::bad_file, "cannot read {}: {}; copy or download the file again", path.string(), what);
}

/// Returns at least the number of values that the parser makes of a valid text: one more than its commas
/// and opening brackets.
std::size_t count_values(std::string_view text) {
    std::size_t n = 1;
    bool in_text = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '\\') {
            ++i;
        } else if (c == '"') {
            in_text = !in_text;
        } else if (!in_text && (c == ',' || c == '[' || c == '{')) {
            ++n;
        }
    }
    return n;
}

/// Returns the place of a byte (counted from 1) as "line 3, column 17".
std::string place_of(std::string_view text, std::size_t byte) {
    const std::string_view before = text.substr(0, byte > 0 ? byte - 1 : 0);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
    return fmt::format("line {}, column {}", line, before.size() - line_begin + 1);
}

}  // namespace

Json json_of_text(std::string_view text) {
    return Json::parse(text, nullptr, false);
}

nlohmann::ordered_json ordered_json_of_text(std::string_view text) {
    return nlohmann::ordered_json::parse(text, nullptr, false);
}

Json json_object_of(std::string_view text, const std::filesystem::path& path, std::size_t most_values,
                    std::string_view subject) {
    if (const std::size_t n = count_values(text); n > most_values)
        broken(path, fmt::format("{} holds {} values, at most {} are read", subject, n, most_values));
    if (!is_shallow_json(text)) broken(path, fmt::format("{} nests its values too deep", subject));
    Json json;
    try {
        json = Json::parse(text);
    } catch (const Json::parse_error& error) {
        if (const std::string fault = wide_encoding_fault(text); !fault.empty())
            fail(ErrorCode::bad_file, "cannot read {}: {}", path.string(), fault);
        broken(path, fmt::format("{} is not JSON at {}", subject, place_of(text, error.byte)));
    } catch (const Json::exception&) {  // a number beyond what a double holds
        broken(path, fmt::format("{} holds a number that is too large", subject));
    }
    if (!json.is_object()) broken(path, fmt::format("{} is not a JSON object", subject));
    return json;
}

Json read_json_object(const std::filesystem::path& path, const JsonBounds& bounds) {
    return json_object_of(read_text_file(path, bounds.bytes), path, bounds.values);
}

}  // namespace keyhole
