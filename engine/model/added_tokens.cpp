#include "engine/model/added_tokens.h"

#include "engine/base/utf8.h"

#include <algorithm>
#include <utility>

namespace keyhole {
namespace {

bool is_word_character(std::string_view character) {
    return !character.empty() && is_word(utf8_decode(character));
}

}  // namespace

void AddedTokenFinder::add(AddedToken token) {
    if (token.content.empty()) return;
    std::vector<std::size_t>& same_start = by_first_byte_[static_cast<unsigned char>(token.content[0])];
    const auto place = std::upper_bound(
        same_start.begin(), same_start.end(), token.content.size(),
        [&](std::size_t length, std::size_t other) { return length > tokens_[other].content.size(); });
    same_start.insert(place, tokens_.size());
    tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokenFinder::at(std::string_view text) const {
    for (const std::size_t i : by_first_byte_[static_cast<unsigned char>(text.front())]) {
        if (text.starts_with(tokens_[i].content)) return &tokens_[i];
    }
    return nullptr;
}

std::vector<TextPart> AddedTokenFinder::split(std::string_view text) const {
    std::vector<TextPart> parts;
    std::size_t taken = 0;  // all before it is in parts
    for (std::size_t i = 0; !tokens_.empty() && i < text.size();) {
        const AddedToken* token = at(text.substr(i));
        if (token == nullptr) {
            ++i;
            continue;
        }
        std::size_t begin = i, end = i + token->content.size();
        i = end;
        if (token->single_word && (is_word_character(last_character(text.substr(0, begin))) ||
                                   is_word_character(first_character(text.substr(end))))) {
            continue;
        }
        if (token->lstrip) begin = std::max(taken, begin - space_at_back(text.substr(0, begin)));
        if (token->rstrip) end += space_at_front(text.substr(end));
        if (begin > taken) parts.push_back({-1, text.substr(taken, begin - taken)});
        parts.push_back({token->id, text.substr(begin, end - begin)});
        taken = end;
        i = end;
    }
    if (taken < text.size()) parts.push_back({-1, text.substr(taken)});
    return parts;
}

}  // namespace keyhole
