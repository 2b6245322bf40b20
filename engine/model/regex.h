/// Regular expressions as the tokenizers package takes them (Oniguruma's dialect), matched by PCRE2. Text is
/// bytes: what is no UTF-8 matches nothing. Const after building; any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class Regex {
  public:
    /// Throws Error(unsupported) with PCRE2's reason and the place.
    explicit Regex(const std::string& pattern);
    /// Matches the text itself.
    static Regex literal(std::string_view text);
    ~Regex();
    Regex(Regex&&) noexcept;
    Regex& operator=(Regex&&) noexcept;

    struct Match {
        std::size_t begin = 0, end = 0;
    };
    /// All non-empty matches, left to right. Throws Error(unsupported), naming the pattern, when it takes far
    /// more steps than patterns of words do: a few hundred at each place, and in all 64 a byte and 4 million
    /// more.
    std::vector<Match> find_all(std::string_view text) const;

  private:
    struct Code;
    std::unique_ptr<Code> code_;
};

}  // namespace keyhole
