#include "engine/base/csv_field.h"

namespace keyhole {

std::string csv_field(const std::string& text) {
    if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
    std::string out = "\"";
    for (char c : text) {
        out += c;
        if (c == '"') out += c;
    }
    return out + '"';
}

}  // namespace keyhole
