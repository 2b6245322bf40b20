#include "engine/base/json_text.h"

#include "engine/base/utf8.h"

#include <algorithm>

namespace keyhole {

bool is_shallow_json(std::string_view text) {
    constexpr int kDeepest = 100;
    int depth = 0;
    bool in_text = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        switch (text[i]) {
            case '"':
                in_text = !in_text;
                break;
            case '\\':
                ++i;
                break;
            case '[':
            case '{':
                if (!in_text && ++depth > kDeepest) return false;
                break;
            case ']':
            case '}':
                if (!in_text) --depth;
                break;
            default:
                break;
        }
    }
    return true;
}

std::size_t most_json_values(std::string_view text) {
    std::size_t n = 1;
    bool in_text = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '"') in_text = !in_text;
        if (c == '\\') ++i;
        n += !in_text && (c == ',' || c == '[' || c == '{') ? 1 : 0;
    }
    return n;
}

std::string printable_text(std::string_view text, bool keep_lines) {
    const auto is_shown = [&](char32_t c) {
        if (keep_lines && (c == '\n' || c == '\t')) return true;
        if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return false;
        if (c == 0x2028 || c == 0x2029) return false;                            // separators of lines
        return !((c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069));  // direction of writing
    };
    std::string shown;
    shown.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
        if (length > 0 && is_shown(utf8_decode(character)))
            shown += character;
        else
            shown += '?';
        text.remove_prefix(character.size());
    }
    return shown;
}

std::string shown_text(std::string_view text) {
    constexpr std::size_t kLongest = 120;
    if (text.size() <= kLongest) return printable_text(text);
    std::size_t end = kLongest;  // not within a character
    while (end > kLongest - 4 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    return printable_text(text.substr(0, end)) + "...";
}

}  // namespace keyhole
