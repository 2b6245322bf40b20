#include "engine/eval/answer_place.h"

#include <algorithm>
#include <string>
#include <vector>

namespace keyhole {

AnswerPlace find_answer(const Tokenizer& tokenizer, std::span<const int> prompt, std::string_view stated,
                        std::string_view answer) {
    std::string text;
    std::vector<std::size_t> begins;
    for (const int token : prompt) {
        begins.push_back(text.size());
        text += tokenizer.token_bytes(token);
    }
    std::size_t at = text.find(stated);
    if (stated.empty() || at == std::string::npos) return {};
    std::size_t size = stated.size();
    if (const std::size_t within = stated.find(answer); !answer.empty() && within != std::string_view::npos) {
        at += within;
        size = answer.size();
    }
    const auto token_at = [&](std::size_t byte) {
        return static_cast<int>(std::upper_bound(begins.begin(), begins.end(), byte) - begins.begin()) - 1;
    };
    return {token_at(at), token_at(at + size - 1)};
}

double held_share(const AnswerPlace& place, std::span<const Eviction> evictions, int n_kv_heads) {
    const auto n_gone = std::count_if(evictions.begin(), evictions.end(), [&](const Eviction& gone) {
        return gone.position >= place.first && gone.position <= place.last;
    });
    const double n_all = static_cast<double>(n_kv_heads) * (place.last - place.first + 1);
    return 1 - static_cast<double>(n_gone) / n_all;
}

}  // namespace keyhole
