/// What tokenizer.json's normalizer does to a text before it is cut. Const after building; any thread.
#pragma once

#include "engine/model/regex.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class Normalizer {
  public:
    enum class Form { nfc, nfd, nfkc, nfkd };

    void add_form(Form form);
    void add_prepend(std::string text);
    void add_replace(std::string from, std::string to);
    void add_replace(Regex from, std::string to);
    void add_strip(bool left, bool right);
    void add_lowercase();      ///< character by character, without looking at its neighbours
    void add_strip_accents();  ///< marks go; letters are not taken apart first

    bool empty() const { return steps_.empty(); }
    /// Bytes that are no UTF-8 stay as they are. Throws Error(unsupported) when the steps blow the text up beyond all
    /// measure.
    std::string apply(std::string_view text) const;

  private:
    enum class Kind { form, prepend, replace, replace_regex, strip, lowercase, strip_accents };
    struct Step {
        Kind kind;
        Form form = Form::nfc;
        std::string from = {}, to = {};
        bool left = false, right = false;
        std::vector<Regex> pattern = {};  // one or none
    };
    static std::string done(const Step& step, std::string text);
    std::vector<Step> steps_;
};

/// Longest text that steps of a tokenizer.json may make of one of n bytes: files that multiply are broken or hostile.
constexpr std::size_t most_grown(std::size_t n) {
    return 64 * n + (std::size_t{1} << 16);
}

/// Every `from` of `text` as `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace keyhole
