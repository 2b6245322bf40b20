/// Regular expressions in the dialect of the tokenizers package (Oniguruma), matched by PCRE2. Text is
/// bytes: invalid UTF-8 matches nothing. Const after building; any thread. Knows base only.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class Regex {
  public:
    /// Throws Error(unsupported) with PCRE2's reason and its place.
    explicit Regex(const std::string& pattern);
    /// Returns a regex that matches the text itself.
    static Regex literal(std::string_view text);
    ~Regex();
    Regex(Regex&&) noexcept;
    Regex& operator=(Regex&&) noexcept;

    struct Match {
        std::size_t begin = 0, end = 0;
    };
    /// Returns all non-empty matches from left to right. Throws Error(unsupported) with the pattern when it
    /// takes far more steps than patterns for words do: the limit is a few hundred at each place, plus 64 a
    /// byte and 4 million in total.
    std::vector<Match> find_all(std::string_view text) const;

  private:
    struct Code;
    std::unique_ptr<Code> code_;
};

}  // namespace keyhole
