#include "engine/base/wrapped_lines.h"

#include <algorithm>

namespace keyhole {

std::vector<std::string> wrapped_lines(std::string_view text,
                                       const std::function<bool(std::string_view)>& fits) {
    std::vector<std::string> lines;
    std::string line;
    std::size_t i = 0;
    while (i <= text.size()) {
        const std::size_t end = std::min(text.find_first_of(" \n", i), text.size());
        const std::string word(text.substr(i, end - i));
        const std::string longer = line.empty() ? word : line + " " + word;
        if (!line.empty() && !fits(longer)) {
            lines.push_back(line);
            line = word;
        } else {
            line = longer;
        }
        if (end < text.size() && text[end] == '\n') {
            lines.push_back(line);
            line.clear();
        }
        i = end + 1;
    }
    if (!line.empty()) lines.push_back(line);
    return lines;
}

}  // namespace keyhole
