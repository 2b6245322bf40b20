/// Kinds of tokens by their text, where TOVA's table 2 has parts of speech. Pure; any thread; knows RunInfo.
#pragma once

#include "engine/trace/record.h"

#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

/// special: begin and end of text, tokens without text. space: white space and newlines only. number: digits, no letter.
/// word_start and word_piece: letters (whatever stands around them), the first part of a word and the others. punctuation: the rest.
enum class TokenClass { special, space, punctuation, number, word_start, word_piece };
inline constexpr int kTokenClasses = 6;

/// As in run.json: "word_start".
std::string_view token_class_name(TokenClass token_class);

/// The class of a token that is not special. in_word: the text before ends within a word; afterwards the same for this token.
/// Apostrophes and hyphens leave it as it is. Bytes that are no character count as letters: they are parts of one.
TokenClass token_class(std::string_view bytes, bool& in_word);

/// The class of every token of a text.
std::vector<TokenClass> token_classes(const RunInfo& run, std::span<const int> tokens);

}  // namespace keyhole
