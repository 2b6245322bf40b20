#include "engine/run/answer.h"

#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

bool StoredSet::holds(int kv_head, int first, int last) const {
    if (first < 0 || last > row) return false;
    const auto begin = bits.begin() + std::ptrdiff_t{kv_head} * (row + 1);
    return std::all_of(begin + first, begin + last + 1, [](bool stored) { return stored; });
}

bool StoredSet::holds_all() const {
    return std::find(bits.begin(), bits.end(), false) == bits.end();
}

LaneAnswer answer_from(const Tokenizer& tokenizer, std::span<const int> tokens, const AnswerEnd& end) {
    return answer_from([&](std::span<const int> some) { return tokenizer.decode(some); }, tokens, end);
}

LaneAnswer answer_from(const std::function<std::string(std::span<const int>)>& decode,
                       std::span<const int> tokens, const AnswerEnd& end) {
    LaneAnswer answer;
    answer.text = decode(tokens);
    std::size_t cut = std::string::npos;
    for (const std::string& stop : end.stop) cut = std::min(cut, answer.text.find(stop));
    answer.complete = cut != std::string::npos;
    std::size_t n = tokens.size();
    if (answer.complete) {
        answer.text.resize(cut);
        // Tokens that hold nothing of the text before the stop do not belong to it.
        while (n > 0 && decode(tokens.first(n - 1)).size() >= cut) --n;
    }
    answer.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n));
    return answer;
}

bool answer_holds(const std::string& answer, const std::string& expected) {
    const auto is_word = [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
               (byte >= 'A' && byte <= 'Z') || byte == '_';
    };
    if (expected.empty()) return false;
    for (std::size_t at = answer.find(expected); at != std::string::npos;
         at = answer.find(expected, at + 1)) {
        const std::size_t end = at + expected.size();
        const bool begins = at == 0 || !is_word(answer[at - 1]) || !is_word(expected.front());
        const bool ends = end == answer.size() || !is_word(answer[end]) || !is_word(expected.back());
        if (begins && ends) return true;
    }
    return false;
}

}  // namespace keyhole
