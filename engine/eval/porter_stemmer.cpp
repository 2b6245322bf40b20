#include "engine/eval/porter_stemmer.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

namespace keyhole {

namespace {

/// Returns for each letter whether it is a consonant. A y is one unless a consonant stands before it.
std::vector<char> consonants(std::string_view word) {
    std::vector<char> flags;
    for (const char c : word) {
        const bool is_vowel = std::string_view("aeiou").find(c) != std::string_view::npos;
        const bool after_consonant = !flags.empty() && flags.back() != 0;
        flags.push_back(!is_vowel && !(c == 'y' && after_consonant) ? 1 : 0);
    }
    return flags;
}

/// m of the paper: how many times a consonant follows a vowel.
int measure(std::string_view stem) {
    const std::vector<char> flags = consonants(stem);
    int m = 0;
    for (std::size_t i = 1; i < flags.size(); ++i) m += flags[i - 1] == 0 && flags[i] != 0 ? 1 : 0;
    return m;
}

/// *v* of the paper.
bool has_vowel(std::string_view stem) {
    const std::vector<char> flags = consonants(stem);
    return std::find(flags.begin(), flags.end(), 0) != flags.end();
}

/// *d of the paper.
bool ends_double(std::string_view word) {
    return word.size() >= 2 && word.back() == word[word.size() - 2] && consonants(word).back() != 0;
}

/// *o of the paper: consonant, vowel, consonant other than w, x, y; or a whole word of vowel and consonant.
bool ends_short(std::string_view word) {
    const std::vector<char> flags = consonants(word);
    const std::size_t n = word.size();
    if (n == 2) return flags[0] == 0 && flags[1] != 0;
    return n >= 3 && flags[n - 3] != 0 && flags[n - 2] == 0 && flags[n - 1] != 0 &&
           std::string_view("wxy").find(word.back()) == std::string_view::npos;
}

struct Rule {
    std::string_view suffix, other;
};

std::string_view without(std::string_view word, std::string_view suffix) {
    return word.substr(0, word.size() - suffix.size());
}

/// Replaces the first suffix that the word has, if what is before it passes; else the word stays.
template <class Passes>
std::string replaced(const std::string& word, std::span<const Rule> rules, Passes passes) {
    for (const Rule& rule : rules) {
        if (!word.ends_with(rule.suffix)) continue;
        const std::string_view stem = without(word, rule.suffix);
        return passes(stem, rule) ? std::string(stem).append(rule.other) : word;
    }
    return word;
}

std::string step_1a(const std::string& word) {
    if (word.ends_with("ies") && word.size() == 4) return word.substr(0, 3);
    constexpr std::array kRules = {Rule{"sses", "ss"}, Rule{"ies", "i"}, Rule{"ss", "ss"}, Rule{"s", ""}};
    return replaced(word, kRules, [](std::string_view, const Rule&) { return true; });
}

/// Mends what is left when `ed` or `ing` is gone.
std::string mended(std::string stem) {
    for (const std::string_view end : {"at", "bl", "iz"})
        if (stem.ends_with(end)) return stem + "e";
    if (ends_double(stem)) {
        if (std::string_view("lsz").find(stem.back()) == std::string_view::npos) stem.pop_back();
        return stem;
    }
    return measure(stem) == 1 && ends_short(stem) ? stem + "e" : stem;
}

std::string step_1b(const std::string& word) {
    if (word.ends_with("ied")) return word.substr(0, word.size() - (word.size() == 4 ? 1 : 2));
    if (word.ends_with("eed"))
        return measure(without(word, "eed")) > 0 ? word.substr(0, word.size() - 1) : word;
    for (const std::string_view suffix : {"ed", "ing"})
        if (word.ends_with(suffix) && has_vowel(without(word, suffix)))
            return mended(std::string(without(word, suffix)));
    return word;
}

std::string step_1c(std::string word) {
    if (word.size() > 2 && word.back() == 'y' && consonants(word)[word.size() - 2] != 0) word.back() = 'i';
    return word;
}

std::string step_2(std::string word) {
    constexpr std::array kRules = {
        Rule{"ational", "ate"}, Rule{"tional", "tion"}, Rule{"enci", "ence"},   Rule{"anci", "ance"},
        Rule{"izer", "ize"},    Rule{"bli", "ble"},     Rule{"alli", "al"},     Rule{"entli", "ent"},
        Rule{"eli", "e"},       Rule{"ousli", "ous"},   Rule{"ization", "ize"}, Rule{"ation", "ate"},
        Rule{"ator", "ate"},    Rule{"alism", "al"},    Rule{"iveness", "ive"}, Rule{"fulness", "ful"},
        Rule{"ousness", "ous"}, Rule{"aliti", "al"},    Rule{"iviti", "ive"},   Rule{"biliti", "ble"},
        Rule{"fulli", "ful"},   Rule{"logi", "log"}};
    // alli goes first, and what it leaves is looked at again: ationalli.
    while (word.ends_with("alli") && measure(without(word, "alli")) > 0) word.resize(word.size() - 2);
    return replaced(word, kRules, [](std::string_view stem, const Rule& rule) {
        if (rule.suffix == "logi") return measure(std::string(stem) + "l") > 0;  // the l counts with the stem
        return measure(stem) > 0;
    });
}

std::string step_3(const std::string& word) {
    constexpr std::array kRules = {Rule{"icate", "ic"}, Rule{"ative", ""},  Rule{"alize", "al"},
                                   Rule{"iciti", "ic"}, Rule{"ical", "ic"}, Rule{"ful", ""},
                                   Rule{"ness", ""}};
    return replaced(word, kRules, [](std::string_view stem, const Rule&) { return measure(stem) > 0; });
}

std::string step_4(const std::string& word) {
    constexpr std::array kRules = {Rule{"al", ""},    Rule{"ance", ""}, Rule{"ence", ""}, Rule{"er", ""},
                                   Rule{"ic", ""},    Rule{"able", ""}, Rule{"ible", ""}, Rule{"ant", ""},
                                   Rule{"ement", ""}, Rule{"ment", ""}, Rule{"ent", ""},  Rule{"ion", ""},
                                   Rule{"ou", ""},    Rule{"ism", ""},  Rule{"ate", ""},  Rule{"iti", ""},
                                   Rule{"ous", ""},   Rule{"ive", ""},  Rule{"ize", ""}};
    return replaced(word, kRules, [](std::string_view stem, const Rule& rule) {
        if (rule.suffix == "ion" && !stem.ends_with('s') && !stem.ends_with('t')) return false;
        return measure(stem) > 1;
    });
}

std::string step_5(std::string word) {
    if (word.ends_with('e')) {
        const std::string_view stem = without(word, "e");
        const int m = measure(stem);
        if (m > 1 || (m == 1 && !ends_short(stem))) word.pop_back();
    }
    if (word.ends_with("ll") && measure(without(word, "l")) > 1) word.pop_back();
    return word;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kIrregular = {{
    {"sky", "sky"},
    {"skies", "sky"},
    {"dying", "die"},
    {"lying", "lie"},
    {"tying", "tie"},
    {"news", "news"},
    {"innings", "inning"},
    {"inning", "inning"},
    {"outings", "outing"},
    {"outing", "outing"},
    {"cannings", "canning"},
    {"canning", "canning"},
    {"howe", "howe"},
    {"proceed", "proceed"},
    {"exceed", "exceed"},
    {"succeed", "succeed"},
}};

}  // namespace

std::string porter_stem(std::string_view word) {
    for (const auto& [form, stem] : kIrregular)
        if (word == form) return std::string(stem);
    if (word.size() <= 2) return std::string(word);
    return step_5(step_4(step_3(step_2(step_1c(step_1b(step_1a(std::string(word))))))));
}

}  // namespace keyhole
