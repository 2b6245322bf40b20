/// The only reader of numbers that people or other programs wrote: command line, lane specs, scripts,
/// tables. Any thread. Knows base only.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

template <class Number>
inline constexpr Number kLowest = std::numeric_limits<Number>::lowest();
template <class Number>
inline constexpr Number kHighest = std::numeric_limits<Number>::max();

/// Parses the whole text as a decimal number from low to high: no blanks, no '+', nothing after it. Returns
/// nullopt for anything else, nan and inf included. Number: int, std::int64_t, std::uint64_t, float,
/// double.
template <class Number>
std::optional<Number> number_from_text(std::string_view text, Number low = kLowest<Number>,
                                       Number high = kHighest<Number>);

/// Returns the message for a text that number_from_text() refuses: "'abc' is not a whole number from 0 to
/// 5", "'abc' is not a number of at least 0".
template <class Number>
std::string no_number(std::string_view text, Number low = kLowest<Number>, Number high = kHighest<Number>);

/// As number_from_text(), but throws Error(wrong_use): "<what>: " followed by no_number().
template <class Number>
Number read_number(std::string_view what, std::string_view text, Number low = kLowest<Number>,
                   Number high = kHighest<Number>);

}  // namespace keyhole
