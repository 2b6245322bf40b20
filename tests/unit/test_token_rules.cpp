// The rules that forbid next tokens, against a plain loop.
#include "engine/session/token_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace keyhole {
namespace {

TEST(TokenRules, EqualAPlainLoop) {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        constexpr int kVocab = 6;
        std::vector<int> text(random() % 12);
        for (int& token : text) token = static_cast<int>(random() % kVocab);
        const int n_prompt = static_cast<int>(text.size() / 2);
        Sampling rules;
        rules.repetition_penalty = random() % 2 == 0 ? 1 : 1.7;
        rules.no_repeat_ngram = static_cast<int>(random() % 4);
        rules.min_tokens = static_cast<int>(random() % 5);
        std::vector<float> score(kVocab), expected(kVocab);
        for (float& s : score) s = static_cast<float>(random() % 2000) / 500.0f - 2.0f;
        for (int token = 0; token < kVocab; ++token) {
            double s = static_cast<double>(score[static_cast<std::size_t>(token)]);
            bool is_forbidden = token == 3 && static_cast<int>(text.size()) - n_prompt < rules.min_tokens;
            std::vector<int> with = text;
            with.push_back(token);
            const int n = rules.no_repeat_ngram, end = static_cast<int>(with.size());
            for (int i = 0; n > 0 && i + n < end; ++i)
                is_forbidden |= std::equal(with.begin() + i, with.begin() + i + n, with.end() - n);
            for (const int seen : text)
                if (seen == token) {
                    s = s < 0 ? s * rules.repetition_penalty : s / rules.repetition_penalty;
                    break;
                }
            expected[static_cast<std::size_t>(token)] = is_forbidden ? -INFINITY : static_cast<float>(s);
        }
        apply_rules(rules, text, n_prompt, std::vector<int>{3}, score);
        for (std::size_t i = 0; i < score.size(); ++i) EXPECT_FLOAT_EQ(score[i], expected[i]) << round;
    }
}

TEST(TokenRules, AreOffByDefault) {
    EXPECT_FALSE(has_rules({}));
    EXPECT_FALSE(has_rules({.temperature = 1, .top_k = 5}));
    EXPECT_TRUE(has_rules({.repetition_penalty = 1.1}));
    EXPECT_TRUE(has_rules({.no_repeat_ngram = 2}));
    EXPECT_TRUE(has_rules({.min_tokens = 1}));
}

}  // namespace
}  // namespace keyhole
