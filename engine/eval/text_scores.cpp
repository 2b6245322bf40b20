#include "engine/eval/text_scores.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/number.h"
#include "engine/base/utf8.h"
#include "engine/eval/porter_stemmer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>

namespace keyhole {

namespace {

bool begins_with_letter(std::string_view text) {
    const std::string_view one = first_character(text);
    return !one.empty() && is_word(utf8_decode(one));
}

bool ends_in_letter(std::string_view text) {
    const std::string_view one = last_character(text);
    return !one.empty() && is_word(utf8_decode(one));
}

/// Returns the text in small letters, as str.lower() of Python. Bytes that are not UTF-8 stay.
std::string lowered(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::size_t n = std::max<std::size_t>(utf8_length(text), 1);
        const std::string_view one = text.substr(0, n);
        text.remove_prefix(n);
        const auto byte = static_cast<unsigned char>(one.front());
        if (n == 1) {
            out += byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + 32) : one.front();
            continue;
        }
        constexpr char32_t kCapitalIWithDot = 0x130;  // the only character that becomes two
        constexpr char32_t kCapitalSigma = 0x3a3;     // at the end of a word it becomes another letter
        const char32_t c = utf8_decode(one);
        if (c == kCapitalSigma && ends_in_letter(out) && !begins_with_letter(text)) {
            out += "\u03c2";
            continue;
        }
        if (c == kCapitalIWithDot) {
            out += "i\u0307";
            continue;
        }
        std::array<utf8proc_uint8_t, 4> bytes{};
        const auto n_bytes =
            utf8proc_encode_char(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)), bytes.data());
        out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n_bytes));
    }
    return out;
}

double f_measure(double n_same, double n_reference, double n_answer) {
    if (n_same <= 0) return 0;
    const double precision = n_same / n_answer, recall = n_same / n_reference;
    return 2 * precision * recall / (precision + recall);
}

/// Returns how many of the items two lists share, each as often as the list with fewer of it has it.
template <class Item>
double n_shared(const std::vector<Item>& a, const std::vector<Item>& b) {
    std::map<Item, int> counts;
    for (const Item& item : a) ++counts[item];
    double n = 0;
    for (const Item& item : b)
        if (const auto found = counts.find(item); found != counts.end() && found->second-- > 0) ++n;
    return n;
}

std::vector<std::vector<std::string>> n_grams(std::span<const std::string> words, int n) {
    std::vector<std::vector<std::string>> grams;
    for (std::size_t i = 0; i + to_index(n) <= words.size(); ++i) {
        const auto gram = words.subspan(i, to_index(n));
        grams.emplace_back(gram.begin(), gram.end());
    }
    return grams;
}

std::vector<std::string> blank_separated(std::string_view text) {
    std::vector<std::string> words(1);
    while (!text.empty()) {
        const std::size_t n = std::max<std::size_t>(utf8_length(text), 1);
        if (utf8_length(text) > 0 && is_space(utf8_decode(text.substr(0, n)))) {
            if (!words.back().empty()) words.emplace_back();
        } else {
            words.back() += text.substr(0, n);
        }
        text.remove_prefix(n);
    }
    if (words.back().empty()) words.pop_back();
    return words;
}

/// Replaces the words a, an and the by blanks. A word is a run of letters, digits and underscores.
std::string without_articles(std::string_view text) {
    std::string out, word;
    const auto end_word = [&] {
        out += word == "a" || word == "an" || word == "the" ? " " : word;
        word.clear();
    };
    while (!text.empty()) {
        const std::size_t n = std::max<std::size_t>(utf8_length(text), 1);
        const std::string_view one = text.substr(0, n);
        const bool in_word = utf8_length(text) > 0 && is_word(utf8_decode(one)) && !is_mark(utf8_decode(one));
        if (!in_word) end_word();
        (in_word ? word : out) += one;
        text.remove_prefix(n);
    }
    end_word();
    return out;
}

}  // namespace

std::vector<std::string> rouge_words(std::string_view text, bool stems) {
    std::vector<std::string> words(1);
    for (const char c : lowered(text)) {
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
            words.back() += c;
        else if (!words.back().empty())
            words.emplace_back();
    }
    if (words.back().empty()) words.pop_back();
    if (stems)
        for (std::string& word : words)
            if (word.size() > 3) word = porter_stem(word);
    return words;
}

double rouge_n(std::span<const std::string> reference, std::span<const std::string> answer, int n) {
    KH_ASSERT(n > 0, "n={}", n);
    const auto of_reference = n_grams(reference, n), of_answer = n_grams(answer, n);
    return f_measure(n_shared(of_reference, of_answer), static_cast<double>(of_reference.size()),
                     static_cast<double>(of_answer.size()));
}

double rouge_l(std::span<const std::string> reference, std::span<const std::string> answer) {
    std::vector<int> above(answer.size() + 1, 0), row(answer.size() + 1, 0);
    for (const std::string& word : reference) {
        for (std::size_t j = 0; j < answer.size(); ++j)
            row[j + 1] = word == answer[j] ? above[j] + 1 : std::max(above[j + 1], row[j]);
        std::swap(above, row);
    }
    return f_measure(above.back(), static_cast<double>(reference.size()), static_cast<double>(answer.size()));
}

std::string normal_answer(std::string_view text) {
    std::string bare = lowered(text);
    std::erase_if(bare, [](char c) {
        return std::string_view("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~").find(c) != std::string_view::npos;
    });
    std::string joined;
    for (const std::string& word : blank_separated(without_articles(bare)))
        joined += (joined.empty() ? "" : " ") + word;
    return joined;
}

double token_f1(std::string_view reference, std::string_view answer) {
    const auto of_reference = blank_separated(normal_answer(reference)),
               of_answer = blank_separated(normal_answer(answer));
    if (of_reference.empty() || of_answer.empty()) return of_reference.empty() && of_answer.empty() ? 1 : 0;
    return f_measure(n_shared(of_reference, of_answer), static_cast<double>(of_reference.size()),
                     static_cast<double>(of_answer.size()));
}

TextScores score_text(std::string_view answer, std::span<const std::string> references, bool stems) {
    KH_ASSERT(!references.empty());
    const std::vector<std::string> words = rouge_words(answer, stems);
    TextScores best;
    for (const std::string& reference : references) {
        const std::vector<std::string> of_reference = rouge_words(reference, stems);
        best.rouge1 = std::max(best.rouge1, rouge_n(of_reference, words, 1));
        best.rouge2 = std::max(best.rouge2, rouge_n(of_reference, words, 2));
        best.rouge_l = std::max(best.rouge_l, rouge_l(of_reference, words));
        if (normal_answer(reference) == normal_answer(answer)) best.exact = 1;
        best.f1 = std::max(best.f1, token_f1(reference, answer));
    }
    return best;
}

namespace {

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/// Returns the end of the number that begins at a digit: digits, commas and one point, each between digits.
std::size_t end_of_number(std::string_view text, std::size_t at) {
    bool has_point = false;
    while (at < text.size()) {
        const bool goes_on = at + 1 < text.size() && is_digit(text[at + 1]);
        const bool is_point = text[at] == '.' && !has_point, is_comma = text[at] == ',' && !has_point;
        if (!is_digit(text[at]) && !((is_point || is_comma) && goes_on)) break;
        has_point = has_point || is_point;
        ++at;
    }
    return at;
}

}  // namespace

std::string last_number(std::string_view text) {
    std::string found;
    for (std::size_t at = 0; at < text.size();) {
        if (!is_digit(text[at])) {
            ++at;
            continue;
        }
        const std::size_t end = end_of_number(text, at);
        // A minus is a sign where no number or word stands before it: "10-2" has none.
        const bool is_negative =
            at > 0 && text[at - 1] == '-' &&
            (at == 1 || std::string_view(" \t\n=(:$").find(text[at - 2]) != std::string_view::npos);
        found = is_negative ? "-" : "";
        for (const char c : text.substr(at, end - at))
            if (c != ',') found += c;
        at = end;
    }
    return found;
}

bool ends_with_number(std::string_view answer, std::span<const std::string> references) {
    const auto number = number_from_text<double>(last_number(answer), -1e300);
    return number && std::ranges::any_of(references, [&](const std::string& reference) {
               return number_from_text<double>(last_number(reference), -1e300) == number;
           });
}

}  // namespace keyhole
