/// The Porter stemmer as NLTK has it, which the package rouge-score uses. A pure function, for any thread;
/// knows nothing of the other folders.
///
/// M. F. Porter, "An algorithm for suffix stripping", Program 14 (1980), with the changes that NLTK calls
/// NLTK_EXTENSIONS: a few irregular words, `ies` and `ied` after one letter, y to i only after a consonant,
/// the rules bli, alli, fulli and logi of step 2, and a stem of two letters that may take an e.
#pragma once

#include <string>
#include <string_view>

namespace keyhole {

/// Returns the stem of a word of small ASCII letters and digits. O(length).
std::string porter_stem(std::string_view word);

}  // namespace keyhole
