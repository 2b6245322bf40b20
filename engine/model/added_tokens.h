/// Added tokens: tokens that are found in the text before anything else, special tokens among them. Const
/// after building; any thread. Knows nothing of JSON or BPE. Source: AddedVocabulary of the Hugging Face
/// tokenizers package.
#pragma once

#include "engine/base/index.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct AddedToken {
    int id = 0;
    std::string content;
    bool special = false;
    bool normalized = false;   ///< found in the normalised text, not in the raw one
    bool single_word = false;  ///< only where no word character is next to it
    bool lstrip = false;       ///< also takes the white space before it
    bool rstrip = false;       ///< also takes the white space after it
};

/// The longest added token that is accepted; it bounds the work at each byte of a text.
inline constexpr std::size_t kLongestAddedToken = 1024;

/// A part of a text: the id of an added token, or -1 for a stretch between added tokens.
struct TextPart {
    int id = -1;
    std::string_view text;
};

/// Sorts n tokens once with n log n comparisons; finds the token at each byte of a text with log n
/// comparisons.
class AddedTokenFinder {
  public:
    AddedTokenFinder() = default;
    /// Keeps the first of several tokens with the same content and ignores empty ones. Throws
    /// Error(unsupported) for a token of more than kLongestAddedToken bytes.
    explicit AddedTokenFinder(std::vector<AddedToken> tokens);

    bool empty() const { return tokens_.empty(); }
    /// Returns the added tokens (leftmost first, at each place the longest) and the stretches between them:
    /// together the whole text, without empty stretches. Adds the number of tokens that were compared with
    /// the text to n_compared.
    std::vector<TextPart> split(std::string_view text, std::size_t* n_compared = nullptr) const;
    /// Returns the number of comparisons of tokens with each other while building.
    std::size_t n_compared() const { return n_compared_; }

  private:
    static constexpr std::size_t kNone = to_index(-1);

    /// Returns the longest token that begins `text`, or null.
    const AddedToken* at(std::string_view text, std::size_t& n_compared) const;

    std::vector<AddedToken> tokens_;  // by content, ascending
    // [n_tokens] the longest other token that the token begins with, or kNone
    std::vector<std::size_t> prefix_;
    std::array<std::size_t, 257> first_{};  // tokens [first_[b], first_[b + 1]) begin with byte b
    std::size_t n_compared_ = 0;
};

}  // namespace keyhole
