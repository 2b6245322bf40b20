/// Compares an answer with reference texts: ROUGE, exact match and token F1. Pure functions, for any thread;
/// knows nothing of models or lanes.
///
/// ROUGE equals the Python package rouge-score 0.1.2 (F measure, best reference for each kind). Exact match
/// and F1 equal SQuAD's evaluate-v2.0.py: small letters, without ASCII punctuation and the articles a, an,
/// the.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Returns the words that ROUGE counts: runs of ASCII letters and digits, in small letters. stems: words of
/// more than three letters lose their endings (porter_stem).
std::vector<std::string> rouge_words(std::string_view text, bool stems);

/// Returns the F measure of the sequences of n words that two texts share, 0 to 1. Needs n > 0.
double rouge_n(std::span<const std::string> reference, std::span<const std::string> answer, int n);
/// Returns the F measure of the longest common subsequence. O(product of the lengths).
double rouge_l(std::span<const std::string> reference, std::span<const std::string> answer);

/// Returns the text as SQuAD compares it.
std::string normal_answer(std::string_view text);
/// Returns the F measure of the words that the normal forms of two texts share; two empty ones agree.
double token_f1(std::string_view reference, std::string_view answer);

struct TextScores {
    double rouge1 = 0, rouge2 = 0, rouge_l = 0;
    double exact = 0;  ///< 0 or 1
    double f1 = 0;
};
/// Returns the best of each over the references. Needs a reference.
TextScores score_text(std::string_view answer, std::span<const std::string> references, bool stems);

/// Returns the last number of a text, such as "-12.5": digits with one point between digits, without commas
/// between thousands ("1,234" is 1234). Empty if there is none.
std::string last_number(std::string_view text);
/// Returns whether the last number of an answer is equal to that of one of the references, by value.
bool ends_with_number(std::string_view answer, std::span<const std::string> references);

}  // namespace keyhole
