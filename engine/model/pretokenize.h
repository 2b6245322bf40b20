/// Splits text into pieces before BPE, as tokenizer.json's pre_tokenizer says: regular expressions, digits,
/// GPT-2's byte-level rule, Metaspace. Text is bytes: invalid UTF-8 matches nothing and becomes separate
/// pieces. Const after building; any thread. Knows regular expressions only.
#pragma once

#include "engine/model/regex.h"

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// The treatment of a match: see the tokenizers package, SplitDelimiterBehavior.
enum class SplitBehavior { removed, isolated, contiguous, merged_with_previous, merged_with_next };

/// A character of punctuation, as the tokenizers package has it: Unicode's, and the signs of ASCII.
inline constexpr const char* kPunctuation = R"([\p{P}\$\+<=>\^~\|`])";

/// The pieces that Metaspace prefixes with its sign, unless they begin with it.
enum class PrependScheme { always, first, never };

class PreTokenizer {
  public:
    void add_split(Regex pattern, SplitBehavior behavior, bool invert);
    /// individual: each digit (any number character) is a piece; otherwise each run of digits is.
    void add_digits(bool individual);
    /// Adds GPT-2's rule. add_prefix_space: every piece that reaches this step gets a leading blank.
    void add_byte_level(bool add_prefix_space, bool use_regex);

    /// Later steps see each byte as its character of GPT-2's alphabet; the pieces are bytes again.
    void add_byte_alphabet();

    /// Replaces blanks by `sign`; with `cut`, every sign begins a piece.
    void add_metaspace(std::string sign, PrependScheme prepend, bool cut);

    /// Appends the pieces. `arena` keeps those that are not part of `text`. is_begin: `text` begins the
    /// input.
    void split(std::string_view text, bool is_begin, std::deque<std::string>& arena,
               std::vector<std::string_view>& pieces) const;

  private:
    struct Step {
        bool add_prefix_space = false;
        std::string sign;  // Metaspace only
        PrependScheme prepend = PrependScheme::never;
        std::vector<Regex> pattern;  // one or none
        SplitBehavior behavior = SplitBehavior::isolated;
        bool invert = false;
        bool to_alphabet = false;
    };
    /// Returns the piece as the step's pattern sees it.
    static std::string_view rewritten(const Step& step, std::string_view piece, bool is_first,
                                      std::deque<std::string>& arena);

    std::vector<Step> steps_;
    bool in_alphabet_ = false;  // the last pieces are
};

}  // namespace keyhole
