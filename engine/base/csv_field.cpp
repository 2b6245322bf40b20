#include "engine/base/csv_field.h"

#include <algorithm>

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

std::vector<std::string> split_csv(std::string_view line) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
            fields.back() += c;
            ++i;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (c == ',' && !quoted) {
            fields.emplace_back();
        } else {
            fields.back() += c;
        }
    }
    return fields;
}

std::vector<std::vector<std::string>> csv_lines(std::string_view text) {
    std::vector<std::vector<std::string>> lines;
    while (!text.empty()) {
        bool is_quoted = false;
        std::size_t end = 0;
        for (; end < text.size() && (is_quoted || text[end] != '\n'); ++end) is_quoted ^= text[end] == '"';
        lines.push_back(split_csv(text.substr(0, end)));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
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
