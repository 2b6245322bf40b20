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

std::string with_made_by(const std::string& csv, const std::string& made_by) {
    if (made_by.empty()) return csv;
    std::string out;
    bool is_quoted = false;
    int line = 0;
    for (const char c : csv) {
        if (c == '"') is_quoted = !is_quoted;
        if (c == '\n' && !is_quoted) {
            out += line == 0 ? ",made_by" : ",";
            if (line == 1) out += csv_field(made_by);
            ++line;
        }
        out += c;
    }
    return out;
}

}  // namespace keyhole
