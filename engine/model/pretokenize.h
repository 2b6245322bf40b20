/// Cutting text into pieces before BPE, as tokenizer.json's pre_tokenizer says: regular expressions, digits,
/// GPT-2's byte-level
/// rule. Text is bytes: what is no UTF-8 matches nothing and becomes pieces of its own. Const after building;
/// any thread.
#pragma once

#include "engine/model/regex.h"

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// What becomes of a match: see the tokenizers package, SplitDelimiterBehavior.
enum class SplitBehavior { removed, isolated, contiguous, merged_with_previous, merged_with_next };

/// Which pieces Metaspace puts its sign before, where it is not there yet.
enum class PrependScheme { always, first, never };

class PreTokenizer {
  public:
    void add_split(Regex pattern, SplitBehavior behavior, bool invert);
    /// Every digit (any number character) alone, or runs of them.
    void add_digits(bool individual);
    /// GPT-2's rule. add_prefix_space: every piece that reaches it starts with a blank.
    void add_byte_level(bool add_prefix_space, bool use_regex);

    /// Blanks become `sign`; with `cut`, every sign begins a piece.
    void add_metaspace(std::string sign, PrependScheme prepend, bool cut);

    /// Appends the pieces; those that are not part of `text` are kept in `arena`. is_begin: nothing stands before `text`.
    void split(std::string_view text, bool is_begin, std::deque<std::string>& arena,
               std::vector<std::string_view>& pieces) const;

  private:
    struct Step {
        bool add_prefix_space = false;
        std::string sign;  // of Metaspace
        PrependScheme prepend = PrependScheme::never;
        std::vector<Regex> pattern;  // one or none
        SplitBehavior behavior = SplitBehavior::isolated;
        bool invert = false;
    };
    /// What the step sees in place of the piece.
    static std::string_view rewritten(const Step& step, std::string_view piece, bool is_first,
                                      std::deque<std::string>& arena);

    std::vector<Step> steps_;
};

}  // namespace keyhole
