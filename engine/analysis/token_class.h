/// Classes of tokens by their text, in place of the parts of speech in TOVA's table 2. Pure functions, for
/// any thread; knows RunInfo.
#pragma once

#include "engine/trace/record.h"

#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

/// special: begin and end of text, tokens without text. space: only white space and newlines. number: digits,
/// no letter. word_start and word_piece: tokens with letters (and anything around them), the first part of a
/// word and the others. punctuation: the rest.
enum class TokenClass { special, space, punctuation, number, word_start, word_piece };
inline constexpr int kTokenClasses = 6;

/// Returns the name in run.json, such as "word_start".
std::string_view token_class_name(TokenClass token_class);

/// Returns the class of a token that is not special. in_word: whether the text before it ends within a word;
/// updated for this token. Apostrophes and hyphens do not change it. Bytes that are not a whole character
/// count as letters, since they are parts of one.
TokenClass token_class(std::string_view bytes, bool& in_word);

/// Returns the class of every token of a text.
std::vector<TokenClass> token_classes(const RunInfo& run, std::span<const int> tokens);

}  // namespace keyhole
