#include "engine/session/token_rules.h"

#include "engine/base/index.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace keyhole {

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void penalise(std::span<const int> text, double penalty, std::span<float> score) {
    std::vector<int> once(text.begin(), text.end());
    std::sort(once.begin(), once.end());
    once.erase(std::unique(once.begin(), once.end()), once.end());
    const auto factor = static_cast<float>(penalty);
    for (const int token : once) {
        float& s = score[to_index(token)];
        s = s < 0 ? s * factor : s / factor;
    }
}

void forbid_repeats(std::span<const int> text, int n, std::span<float> score) {
    const std::size_t n_before = to_index(n - 1);
    if (text.size() < n_before) return;
    const auto end = text.last(n_before);
    for (std::size_t i = 0; i + n_before < text.size(); ++i)
        if (std::equal(end.begin(), end.end(), text.begin() + static_cast<std::ptrdiff_t>(i)))
            score[to_index(text[i + n_before])] = kForbidden;
}

}  // namespace

bool has_rules(const Sampling& sampling) {
    return sampling.repetition_penalty != 1 || sampling.no_repeat_ngram > 0 || sampling.min_tokens > 0;
}

void apply_rules(const Sampling& sampling, std::span<const int> text, int n_prompt, std::span<const int> eos,
                 std::span<float> score) {
    if (sampling.repetition_penalty != 1) penalise(text, sampling.repetition_penalty, score);
    if (sampling.no_repeat_ngram > 0) forbid_repeats(text, sampling.no_repeat_ngram, score);
    if (std::ssize(text) - n_prompt < sampling.min_tokens)
        for (const int token : eos)
            if (token >= 0 && to_index(token) < score.size()) score[to_index(token)] = kForbidden;
}

}  // namespace keyhole
