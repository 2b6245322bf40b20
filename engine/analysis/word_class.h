/// Classes of words, for tables like TOVA's table 2, which groups the lifetimes of tokens by the tags that a
/// tagger gives (Penn Treebank). These classes are Keyhole's own. They look at the word alone: punctuation,
/// numbers, and lists of the English words that have one part of speech for the most part (determiners,
/// prepositions, conjunctions, pronouns, auxiliaries). Nouns, verbs, adjectives and adverbs, which need a
/// tagger, are one class. Pure functions, for any thread; knows RunInfo.
#pragma once

#include "engine/trace/record.h"

#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

enum class WordClass {
    special,       ///< begin and end of text, tokens without text
    space,         ///< white space alone, line ends
    sentence_end,  ///< . ! ?
    comma,
    pause,    ///< : ; dashes and dots
    quote,    ///< quotation marks
    bracket,  ///< ( ) [ ] { }
    symbol,   ///< any other sign
    number,
    possessive,  ///< 's and ' after a word
    determiner,
    preposition,
    conjunction,
    pronoun,
    auxiliary,  ///< be, have, do, modal verbs
    name,       ///< another word with a capital that does not begin a sentence
    content     ///< all other words
};
inline constexpr int kWordClasses = 17;

/// Returns the name in run.json, such as "sentence_end".
std::string_view word_class_name(WordClass word_class);
/// Returns the Penn Treebank tags that the class stands for, such as "DT PDT WDT"; empty: none.
std::string_view penn_tags(WordClass word_class);

/// Returns the class of every token of a text. All tokens of a word have the word's class. A token with signs
/// and letters belongs to its letters, as " \"down".
std::vector<WordClass> word_classes(const RunInfo& run, std::span<const int> tokens);

}  // namespace keyhole
