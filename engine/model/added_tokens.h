/// Tokens that are found in the text before anything else, special ones among them. Const after building; any
/// thread.
/// Source: AddedVocabulary of the Hugging Face tokenizers package.
#pragma once

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
    bool single_word = false;  ///< only between what are no word characters
    bool lstrip = false;       ///< takes white space before it along
    bool rstrip = false;       ///< and behind it
};

/// Longer ones are refused, which bounds the work at each byte of a text.
inline constexpr std::size_t kLongestAddedToken = 1024;

/// A cut of a text: an added token's id, or -1 and a stretch between them.
struct TextPart {
    int id = -1;
    std::string_view text;
};

/// n tokens are sorted once, in n log n comparisons; at each byte of a text log n comparisons find the token.
class AddedTokenFinder {
  public:
    AddedTokenFinder() = default;
    /// Of tokens of the same content the first counts; empty ones are left out. Throws Error(unsupported) for
    /// one of more than kLongestAddedToken bytes.
    explicit AddedTokenFinder(std::vector<AddedToken> tokens);

    bool empty() const { return tokens_.empty(); }
    /// Leftmost first, of those the longest; together with the stretches between them the whole text, empty
    /// stretches left out. n_compared grows by the tokens that were compared with the text.
    std::vector<TextPart> split(std::string_view text, std::size_t* n_compared = nullptr) const;
    /// Tokens that were compared with each other while building.
    std::size_t n_compared() const { return n_compared_; }

  private:
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

    /// Null when none starts here.
    const AddedToken* at(std::string_view text, std::size_t& n_compared) const;

    std::vector<AddedToken> tokens_;  // by content, ascending
    std::vector<std::size_t>
        prefix_;  // [n_tokens] the longest other token that the token begins with, or kNone
    std::array<std::size_t, 257> first_{};  // tokens [first_[b], first_[b + 1]) begin with byte b
    std::size_t n_compared_ = 0;
};

}  // namespace keyhole
