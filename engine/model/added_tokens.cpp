#include "engine/model/added_tokens.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/utf8.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace keyhole {
namespace {

bool is_word_character(std::string_view character) {
    return !character.empty() && is_word(utf8_decode(character));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
    for (const AddedToken& token : tokens_) {
        if (token.content.size() > kLongestAddedToken)
            fail(ErrorCode::unsupported, "its added token {} has {} bytes, at most {} are supported",
                 shown_text(token.content), token.content.size(), kLongestAddedToken);
    }
    std::stable_sort(tokens_.begin(), tokens_.end(), [this](const AddedToken& a, const AddedToken& b) {
        ++n_compared_;
        return a.content < b.content;
    });
    const auto repeated =
        std::unique(tokens_.begin(), tokens_.end(),
                    [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; });
    tokens_.erase(repeated, tokens_.end());
    prefix_.reserve(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
        // The prefixes of token i are among the previous token and that token's own prefixes.
        std::size_t prefix = i == 0 ? kNone : i - 1;
        while (prefix != kNone && !tokens_[i].content.starts_with(tokens_[prefix].content)) {
            ++n_compared_;
            prefix = prefix_[prefix];
        }
        prefix_.push_back(prefix);
        ++first_[static_cast<unsigned char>(tokens_[i].content[0]) + 1];
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
}

const AddedToken* AddedTokenFinder::at(std::string_view text, std::size_t& n_compared) const {
    const auto byte = static_cast<unsigned char>(text.front());
    if (first_[byte] == first_[byte + 1]) return nullptr;
    // In sorted order, the longest token that begins `text` and all tokens between it and `text` share that
    // beginning.
    const auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(first_[byte]);
    const auto above =
        std::upper_bound(begin, tokens_.begin() + static_cast<std::ptrdiff_t>(first_[byte + 1]), text,
                         [&](std::string_view one, const AddedToken& token) {
                             ++n_compared;
                             return one < token.content;
                         });
    if (above == begin) return nullptr;
    auto i = to_index(above - tokens_.begin()) - 1;
    const std::string& last = tokens_[i].content;
    const auto differ = std::mismatch(last.begin(), last.end(), text.begin(), text.end()).first;
    const auto n_same = to_index(differ - last.begin());
    while (i != kNone && tokens_[i].content.size() > n_same) {
        ++n_compared;
        i = prefix_[i];
    }
    return i == kNone ? nullptr : &tokens_[i];
}

std::vector<TextPart> AddedTokenFinder::split(std::string_view text, std::size_t* n_compared) const {
    std::size_t ignored = 0;
    std::size_t& n = n_compared == nullptr ? ignored : *n_compared;
    std::vector<TextPart> parts;
    std::size_t taken = 0;  // everything before it is in `parts`
    for (std::size_t i = 0; !tokens_.empty() && i < text.size();) {
        const AddedToken* token = at(text.substr(i), n);
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
        if (token->lstrip) begin -= space_at_back(text.substr(taken, begin - taken));
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
