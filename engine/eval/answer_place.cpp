#include "engine/eval/answer_place.h"

#include <algorithm>
#include <string>
#include <vector>

namespace keyhole {

namespace {

/// The bytes of tokens, and where each begins.
struct TokenText {
    TokenText(const Tokenizer& tokenizer, std::span<const int> tokens) {
        for (const int token : tokens) {
            begins.push_back(text.size());
            text += tokenizer.token_bytes(token);
        }
    }
    int token_at(std::size_t byte) const {
        return static_cast<int>(std::upper_bound(begins.begin(), begins.end(), byte) - begins.begin()) - 1;
    }
    std::string text;
    std::vector<std::size_t> begins;
};

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\r\n";
    const std::size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

}  // namespace

AnswerPlace find_answer(const Tokenizer& tokenizer, std::span<const int> prompt, std::string_view stated,
                        std::string_view answer) {
    const TokenText whole(tokenizer, prompt);
    std::size_t at = whole.text.find(stated);
    if (stated.empty() || at == std::string::npos) return {};
    std::size_t size = stated.size();
    if (const std::size_t within = stated.find(answer); !answer.empty() && within != std::string_view::npos) {
        at += within;
        size = answer.size();
    }
    return {whole.token_at(at), whole.token_at(at + size - 1)};
}

std::vector<TextSpan> find_spans(const Tokenizer& tokenizer, std::span<const int> prompt,
                                 std::span<const TextPiece> pieces) {
    const TokenText whole(tokenizer, prompt);
    std::vector<TextSpan> spans;
    std::size_t from = 0;
    for (const TextPiece& piece : pieces) {
        const std::string_view text = trimmed(piece.text);
        const std::size_t at = whole.text.find(text, piece.stands_alone ? 0 : from);
        if (text.empty() || at == std::string::npos) continue;
        spans.push_back({piece.name, {whole.token_at(at), whole.token_at(at + text.size() - 1)}});
        if (!piece.stands_alone) from = at + text.size();
    }
    return spans;
}

double held_share(const AnswerPlace& place, std::span<const Eviction> evictions, int n_kv_heads) {
    const auto n_gone = std::count_if(evictions.begin(), evictions.end(), [&](const Eviction& gone) {
        return gone.position >= place.first && gone.position <= place.last;
    });
    const double n_all = static_cast<double>(n_kv_heads) * (place.last - place.first + 1);
    return 1 - static_cast<double>(n_gone) / n_all;
}

}  // namespace keyhole
