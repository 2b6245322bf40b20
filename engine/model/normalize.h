/// The normalizer of a tokenizer.json: changes a text before it is split. Const after building; any thread.
/// Knows regular expressions and UTF-8 only.
#pragma once

#include "engine/model/charsmap.h"
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
    void add_lowercase();  ///< each character alone, without its context
    void add_charsmap(Charsmap map);
    /// SentencePiece's: removes blanks at both ends and all but one of neighbouring ones.
    void add_single_blanks();
    /// SentencePiece's `nmt` rules: removes control characters, and puts blanks in place of lines' ends,
    /// tabs and characters without width.
    void add_nmt();
    void add_strip_accents();  ///< removes marks; does not decompose letters first

    bool empty() const { return steps_.empty(); }
    /// Applies all steps. Bytes that are not UTF-8 stay. Throws Error(unsupported) when the text grows
    /// beyond most_grown().
    std::string apply(std::string_view text) const;

  private:
    enum class Kind {
        form,
        prepend,
        replace,
        replace_regex,
        strip,
        lowercase,
        strip_accents,
        charsmap,
        single_blanks,
        nmt
    };
    struct Step {
        Kind kind;
        Form form = Form::nfc;
        std::string from = {}, to = {};
        bool left = false, right = false;
        std::vector<Regex> pattern = {};  // one or none
        std::vector<Charsmap> map = {};   // one or none
    };
    static std::string done(const Step& step, std::string text);
    std::vector<Step> steps_;
};

/// Returns the longest text that the steps of a tokenizer.json may make of n bytes: files that exceed it
/// are broken or hostile.
constexpr std::size_t most_grown(std::size_t n) {
    return 64 * n + (std::size_t{1} << 16);
}

/// Returns `text` with every `from` replaced by `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace keyhole
