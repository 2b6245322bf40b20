#include "engine/base/json_text.h"

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

std::string shown_text(std::string_view text) {
    constexpr std::size_t kLongest = 120;
    std::string shown(text.substr(0, kLongest));
    for (char& c : shown) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return text.size() > kLongest ? shown + "..." : shown;
}

}  // namespace keyhole
