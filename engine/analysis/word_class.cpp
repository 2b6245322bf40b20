#include "engine/analysis/word_class.h"

#include "engine/analysis/token_class.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>
#include <string>

namespace keyhole {

namespace {

struct ClassText {
    std::string_view name, penn;
};

constexpr std::array<ClassText, kWordClasses> kTexts = {{{"special", ""},
                                                         {"space", ""},
                                                         {"sentence_end", "."},
                                                         {"comma", ","},
                                                         {"pause", ":"},
                                                         {"quote", "`` ''"},
                                                         {"bracket", "( )"},
                                                         {"symbol", "$ # SYM"},
                                                         {"number", "CD"},
                                                         {"possessive", "POS"},
                                                         {"determiner", "DT PDT WDT"},
                                                         {"preposition", "IN TO"},
                                                         {"conjunction", "CC"},
                                                         {"pronoun", "PRP PRP$ WP WP$ EX"},
                                                         {"auxiliary", "MD"},
                                                         {"name", "NNP NNPS"},
                                                         {"content", "NN NNS VB JJ RB and others"}}};

/// Words with blanks around each, so that a look-up finds whole words.
struct ClosedClass {
    WordClass word_class;
    std::string_view words;
};

constexpr std::array kClosed = {
    ClosedClass{WordClass::determiner,
                " a an the this that these those each every either neither some any no all both half such "
                "which what another "},
    ClosedClass{WordClass::preposition,
                " of in to for with on at by from up about into over after beneath under above across "
                "against along among around before behind below beside between beyond down during except "
                "inside near off onto out outside past since through throughout till toward towards until "
                "upon via within without as if because although though while whereas unless whether than "},
    ClosedClass{WordClass::conjunction, " and or but nor yet so "},
    ClosedClass{WordClass::pronoun,
                " i me my mine myself you your yours yourself he him his himself she her hers herself it its "
                "itself we us our ours ourselves they them their theirs themselves who whom whose there one "
                "anyone everyone someone nobody nothing something anything everything "},
    ClosedClass{WordClass::auxiliary,
                " am is are was were be been being have has had having do does did can could may might must "
                "shall should will would ought "}};

bool is_listed(std::string_view words, const std::string& word) {
    return words.find(' ' + word + ' ') != std::string_view::npos;
}

bool has(std::string_view set, char c) {
    return set.find(c) != std::string_view::npos;
}

/// Returns the class of a piece of signs without letters and digits.
WordClass class_of_signs(std::string_view text, bool after_word) {
    std::string bare(text);
    std::erase_if(bare, [](char c) { return has(" \t\r\n", c); });
    for (const std::string_view curly : {"\u201c", "\u201d", "\u2018"})
        if (bare.find(curly) != std::string::npos) return WordClass::quote;
    for (const std::string_view dash : {"\u2014", "\u2013", "\u2026", "--", "...", ":", ";"})
        if (bare.find(dash) != std::string::npos) return WordClass::pause;
    if (bare == "'" || bare == "\u2019") {
        const bool is_apart = text.front() == ' ';
        return after_word && !is_apart ? WordClass::possessive : WordClass::quote;
    }
    for (const char c : bare) {  // the first sign says what it is: `."` ends a sentence
        if (has(".!?", c)) return WordClass::sentence_end;
        if (c == ',') return WordClass::comma;
        if (has("\"`'", c)) return WordClass::quote;
        if (has("()[]{}", c)) return WordClass::bracket;
        if (c == '-') return WordClass::pause;
    }
    return WordClass::symbol;
}

/// Returns the letters of a word, without signs and blanks around them.
std::string letters_of(std::string_view text) {
    const auto is_letter = [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    };
    const auto first = std::find_if(text.begin(), text.end(), is_letter);
    const auto last = std::find_if(text.rbegin(), text.rend(), is_letter).base();
    return first < last ? std::string(first, last) : std::string();
}

WordClass class_of_word(const std::string& text, bool begins_sentence) {
    const std::string word = letters_of(text);
    std::string small = word;
    for (char& c : small)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    for (const ClosedClass& closed : kClosed)
        if (is_listed(closed.words, small)) return closed.word_class;
    const bool has_capital = !word.empty() && word.front() >= 'A' && word.front() <= 'Z';
    return has_capital && !begins_sentence ? WordClass::name : WordClass::content;
}

bool is_possessive(std::string_view bytes) {
    return bytes == "'s" || bytes == "\u2019s";
}

}  // namespace

std::string_view word_class_name(WordClass word_class) {
    return kTexts[to_index(word_class)].name;
}

std::string_view penn_tags(WordClass word_class) {
    return kTexts[to_index(word_class)].penn;
}

std::vector<WordClass> word_classes(const RunInfo& run, std::span<const int> tokens) {
    const std::vector<TokenClass> kinds = token_classes(run, tokens);
    const auto bytes_of = [&](std::size_t i) -> const std::string& {
        return run.token_bytes[to_index(tokens[i])];
    };
    std::vector<WordClass> classes;
    bool begins_sentence = true, after_word = false;
    for (std::size_t i = 0; i < tokens.size();) {
        std::size_t end = i + 1;
        WordClass found = WordClass::special;
        switch (kinds[i]) {
            case TokenClass::special:
                begins_sentence = true;
                break;
            case TokenClass::space:
                found = WordClass::space;
                break;
            case TokenClass::number:
                found = WordClass::number;
                break;
            case TokenClass::punctuation:
                found = class_of_signs(bytes_of(i), after_word);
                break;
            case TokenClass::word_start:
            case TokenClass::word_piece: {
                if (is_possessive(bytes_of(i))) {
                    found = WordClass::possessive;
                    break;
                }
                std::string word = bytes_of(i);
                while (end < tokens.size() && kinds[end] == TokenClass::word_piece &&
                       !is_possessive(bytes_of(end)))
                    word += bytes_of(end++);
                found = class_of_word(word, begins_sentence);
                break;
            }
        }
        const bool is_word = found >= WordClass::number;
        if (found == WordClass::sentence_end) begins_sentence = true;
        if (is_word) begins_sentence = false;
        after_word = is_word;
        classes.insert(classes.end(), end - i, found);
        i = end;
    }
    return classes;
}

}  // namespace keyhole
