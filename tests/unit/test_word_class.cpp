// Keyhole's own classes of words, beside the parts of speech of TOVA's table 2.
#include "engine/analysis/word_class.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace keyhole {
namespace {

using enum WordClass;

std::vector<WordClass> classes_of(const std::vector<std::string>& pieces) {
    RunInfo run;
    run.config.bos = 0;
    run.config.eos = {0};
    run.token_bytes = {"<s>"};
    std::vector<int> tokens;
    for (const std::string& piece : pieces) {
        tokens.push_back(piece == "<s>" ? 0 : static_cast<int>(run.token_bytes.size()));
        run.token_bytes.push_back(piece);
    }
    return word_classes(run, tokens);
}

using Classes = std::vector<WordClass>;

TEST(WordClass, LooksAtTheWordAlone) {
    EXPECT_EQ(classes_of({"<s>", "The", " cat", " of", " An", "na", "'s", " aunt", " and", " she", " can",
                          " run", "."}),
              Classes({special, determiner, content, preposition, name, name, possessive, content,
                       conjunction, pronoun, auxiliary, content, sentence_end}));
}

TEST(WordClass, AllTokensOfAWordHaveItsClass) {
    EXPECT_EQ(classes_of({" thr", "ough", "out", " beau", "tiful", " 48", "21", " w", "ould", "n", "'t"}),
              Classes({preposition, preposition, preposition, content, content, number, number, content,
                       content, content, content}));
}

TEST(WordClass, SignsAreThoseOfTheTreebank) {
    EXPECT_EQ(classes_of({" dogs", "'", " bones", ",", " \"", "No", "!", "\"", " (", "x", ")", ":", " -",
                          "\n", " $", "5"}),
              Classes({content, possessive, content, comma, quote, determiner, sentence_end, quote, bracket,
                       content, bracket, pause, pause, space, symbol, number}));
    EXPECT_EQ(classes_of({"a", "\u2014", "\u201c", "b", ".\"", " '", "c"}),
              Classes({determiner, pause, quote, content, sentence_end, quote, content}));
}

TEST(WordClass, ACapitalIsANameUnlessASentenceBegins) {
    EXPECT_EQ(classes_of({"Paul", " saw", " Mary", ".", " Mary", " ran", "?\"", " Yes"}),
              Classes({content, content, name, sentence_end, content, content, sentence_end, content}));
}

TEST(WordClass, EveryClassHasItsOwnName) {
    std::set<std::string_view> names;
    for (int c = 0; c < kWordClasses; ++c) names.insert(word_class_name(static_cast<WordClass>(c)));
    EXPECT_EQ(names.size(), static_cast<std::size_t>(kWordClasses));
    EXPECT_EQ(penn_tags(possessive), "POS");
}

}  // namespace
}  // namespace keyhole
