/// Names that fit the word at a place of a formula, for completion. Pure; any thread; knows no widget.
#pragma once

#include "engine/policy/formula.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct FormulaWord {
    std::string text;         ///< to insert; of a function with its parenthesis
    std::string_view form{};  ///< how it is written, such as max(a, b); empty: as the text
    std::string_view help{};
    bool operator==(const FormulaWord&) const = default;
};

/// What may stand in place of the characters [begin, end) of a formula: the word around the cursor.
struct FormulaWords {
    std::size_t begin = 0, end = 0;
    std::vector<FormulaWord> words{};
};

/// Returns the names that begin as the word does before the cursor, without case: the word itself first, then
/// in the order of the table. None where no word is begun. cursor: in bytes; a larger one is the end. spans:
/// as spans_of() reads them; their names fit behind `in(`.
FormulaWords words_at(std::string_view text, std::size_t cursor, FormulaUse use, std::string_view spans);

/// Returns the characters [at, end) that a fault at a place marks: the word there, or one character.
std::size_t end_of_fault(std::string_view text, std::size_t at);

}  // namespace keyhole
