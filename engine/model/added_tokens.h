/// Tokens that are found in the text before anything else, special ones among them. Const after building; any
/// thread.
/// Source: AddedVocabulary of the Hugging Face tokenizers package.
#pragma once

#include <array>
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

/// A cut of a text: an added token's id, or -1 and a stretch between them.
struct TextPart {
    int id = -1;
    std::string_view text;
};

class AddedTokenFinder {
  public:
    void add(AddedToken token);
    bool empty() const { return tokens_.empty(); }
    /// Leftmost first, of those the longest; together with the stretches between them the whole text, empty
    /// stretches left out.
    std::vector<TextPart> split(std::string_view text) const;

  private:
    /// Null when none starts here.
    const AddedToken* at(std::string_view text) const;

    std::vector<AddedToken> tokens_;
    std::array<std::vector<std::size_t>, 256> by_first_byte_;  // indices, longest first
};

}  // namespace keyhole
