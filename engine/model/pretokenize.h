/// Cutting text into pieces before BPE, as tokenizer.json's pre_tokenizer says: regular expressions, digits,
/// GPT-2's byte-level
/// rule. Text is bytes: what is no UTF-8 matches nothing and becomes pieces of its own. Const after building;
/// any thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// A compiled PCRE2 pattern that takes \s as Unicode white space, like the regular expressions tokenizers are
/// written for.
class Regex {
  public:
    /// Throws Error(unsupported) with PCRE2's reason and the place.
    explicit Regex(const std::string& pattern);
    ~Regex();
    Regex(Regex&&) noexcept;
    Regex& operator=(Regex&&) noexcept;

    struct Match {
        std::size_t begin = 0, end = 0;
    };
    /// All non-empty matches, left to right. Throws Error(unsupported) when the pattern runs beyond PCRE2's
    /// limits.
    std::vector<Match> find_all(std::string_view text) const;

  private:
    struct Code;
    std::unique_ptr<Code> code_;
};

/// What becomes of a match: see the tokenizers package, SplitDelimiterBehavior.
enum class SplitBehavior { removed, isolated, contiguous, merged_with_previous, merged_with_next };

class PreTokenizer {
  public:
    void add_split(Regex pattern, SplitBehavior behavior, bool invert);
    /// Every digit (any number character) alone, or runs of them.
    void add_digits(bool individual);
    /// GPT-2's rule. add_prefix_space: every piece that reaches it starts with a blank.
    void add_byte_level(bool add_prefix_space, bool use_regex);

    /// Appends the pieces; those that are not part of `text` are kept in `arena`.
    void split(std::string_view text, std::deque<std::string>& arena,
               std::vector<std::string_view>& pieces) const;

  private:
    struct Step {
        bool add_prefix_space = false;
        std::vector<Regex> pattern;  // one or none
        SplitBehavior behavior = SplitBehavior::isolated;
        bool invert = false;
    };
    std::vector<Step> steps_;
};

}  // namespace keyhole
