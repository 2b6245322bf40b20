#include "engine/model/added_tokens.h"

#include "engine/model/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

namespace keyhole {
namespace {

/// Unicode's White_Space.
bool is_space(char32_t c) {
    if ((c >= 0x09 && c <= 0x0d) || c == 0x85) return true;
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

/// \w: letters, marks, decimal numbers, connectors.
bool is_word(char32_t c) {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_PC:
            return true;
        default:
            return false;
    }
}

/// The last character of a text; empty when it ends with none.
std::string_view last_character(std::string_view text) {
    for (std::size_t length = 1; length <= 4 && length <= text.size(); ++length) {
        const std::string_view end = text.substr(text.size() - length);
        if (utf8_length(end) == length) return end;
    }
    return {};
}

std::string_view first_character(std::string_view text) {
    return text.substr(0, utf8_length(text));
}

bool holds(bool (*test)(char32_t), std::string_view character) {
    return !character.empty() && test(utf8_decode(character));
}

std::size_t space_before(std::string_view text) {
    std::size_t n = 0;
    for (;;) {
        const std::string_view last = last_character(text.substr(0, text.size() - n));
        if (!holds(is_space, last)) return n;
        n += last.size();
    }
}

std::size_t space_after(std::string_view text) {
    std::size_t n = 0;
    for (;;) {
        const std::string_view first = first_character(text.substr(n));
        if (!holds(is_space, first)) return n;
        n += first.size();
    }
}

}  // namespace

void AddedTokenFinder::add(AddedToken token) {
    if (token.content.empty()) return;
    std::vector<std::size_t>& same_start = by_first_byte_[static_cast<unsigned char>(token.content[0])];
    same_start.push_back(tokens_.size());
    tokens_.push_back(std::move(token));
    std::stable_sort(same_start.begin(), same_start.end(), [&](std::size_t a, std::size_t b) {
        return tokens_[a].content.size() > tokens_[b].content.size();
    });
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
        if (token->single_word && (holds(is_word, last_character(text.substr(0, begin))) ||
                                   holds(is_word, first_character(text.substr(end))))) {
            continue;
        }
        if (token->lstrip) begin = std::max(taken, begin - space_before(text.substr(0, begin)));
        if (token->rstrip) end += space_after(text.substr(end));
        if (begin > taken) parts.push_back({-1, text.substr(taken, begin - taken)});
        parts.push_back({token->id, text.substr(begin, end - begin)});
        taken = end;
        i = end;
    }
    if (taken < text.size()) parts.push_back({-1, text.substr(taken)});
    return parts;
}

}  // namespace keyhole
