#include "engine/model/chat_parts.h"

#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

std::vector<bool> template_tokens(const ChatParts& parts, std::span<const std::string> tokens) {
    std::vector<bool> in_template(tokens.size(), false);
    std::string text;
    std::vector<std::size_t> begin;  // of each token in the text
    for (const std::string& token : tokens) {
        begin.push_back(text.size());
        text += token;
    }
    const auto mark = [&](std::size_t from, std::size_t to) {
        auto i = to_index(std::upper_bound(begin.begin(), begin.end(), from) - begin.begin() - 1);
        for (; i < tokens.size() && begin[i] < to; ++i) in_template[i] = true;
    };
    const auto mark_all = [&](const std::string& part) {
        const bool is_blank =
            part.find_first_not_of(" \t\r\n") == std::string::npos;  // said texts have it too
        for (std::size_t at = 0; !is_blank && (at = text.find(part, at)) != std::string::npos;
             at += part.size())
            mark(at, at + part.size());
    };
    // The tokenizer may have put its own BOS before an opening without one.
    const std::size_t opening = parts.opening.empty() ? std::string::npos : text.find(parts.opening);
    if (opening != std::string::npos) mark(opening, opening + parts.opening.size());
    mark_all(parts.user_end);
    mark_all(parts.answer_end);
    mark_all(parts.end_token);
    return in_template;
}

}  // namespace keyhole
