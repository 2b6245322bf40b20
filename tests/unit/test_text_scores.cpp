// ROUGE, exact match and token F1 against rouge-score, NLTK's stemmer and SQuAD's definition
// (tests/fixtures/make_data.py).
#include "engine/eval/porter_stemmer.h"
#include "engine/eval/text_scores.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace keyhole {
namespace {

nlohmann::json fixture(const std::string& name) {
    std::ifstream file(reference::source_folder() / "tests/fixtures/data" / name);
    return nlohmann::json::parse(file);
}

TEST(PorterStemmer, EqualsNltk) {
    const nlohmann::json stems = fixture("stems.json");
    EXPECT_GT(stems.size(), 2000u);
    for (const auto& [word, stem] : stems.items())
        EXPECT_EQ(porter_stem(word), stem.get<std::string>()) << word;
    EXPECT_EQ(porter_stem(""), "");
    EXPECT_EQ(porter_stem(std::string(100'000, 'y')).size(), 100'000u);  // linear, no recursion
}

TEST(TextScores, EqualRougeScoreAndSquad) {
    const nlohmann::json cases = fixture("texts.json");
    EXPECT_GT(cases.size(), 60u);
    for (const nlohmann::json& row : cases) {
        const std::string answer = row.at("answer");
        const std::vector<std::string> references = row.at("references");
        for (const bool stems : {false, true}) {
            const TextScores found = score_text(answer, references, stems);
            const nlohmann::json& rouge = row.at(stems ? "stems" : "plain");
            EXPECT_NEAR(found.rouge1, rouge.at(0).get<double>(), 1e-12) << row;
            EXPECT_NEAR(found.rouge2, rouge.at(1).get<double>(), 1e-12) << row;
            EXPECT_NEAR(found.rouge_l, rouge.at(2).get<double>(), 1e-12) << row;
            EXPECT_EQ(found.exact, row.at("exact").get<double>()) << row;
            EXPECT_NEAR(found.f1, row.at("f1").get<double>(), 1e-12) << row;
        }
    }
}

TEST(TextScores, BytesThatAreNoTextDoNotCount) {
    EXPECT_EQ(rouge_words("a\xff"
                          "b \xc3",
                          false),
              (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(normal_answer("The \xff, x"), "\xff x");
    EXPECT_TRUE(rouge_words("", true).empty());
    const std::vector<std::string> none;
    EXPECT_EQ(rouge_l(none, none), 0);
    EXPECT_EQ(rouge_n(none, none, 2), 0);
}

TEST(TextScores, TheLastNumberEndsAChainOfReasoning) {
    for (const auto& [text, number] :
         std::vector<std::pair<std::string, std::string>>{{"3 + 4 = 7. 7 + 5 = 12.", "12"},
                                                          {"The answer is 1,234,567.", "1234567"},
                                                          {"12.50 and more", "12.50"},
                                                          {"v1.2.3", "3"},
                                                          {"it is -4", "-4"},
                                                          {"10-2", "2"},
                                                          {"10 - 2 = 8", "8"},
                                                          {"(-3)", "-3"},
                                                          {"-7", "-7"},
                                                          {"7,", "7"},
                                                          {"none", ""},
                                                          {"", ""}})
        EXPECT_EQ(last_number(text), number) << text;
    EXPECT_TRUE(ends_with_number("so 12.50", std::vector<std::string>{"9", "It is 12.5."}));
    EXPECT_FALSE(ends_with_number("12 and then 13", std::vector<std::string>{"12"}));
    EXPECT_FALSE(ends_with_number("none", std::vector<std::string>{"none"}));
}

}  // namespace
}  // namespace keyhole
