/// The precompiled normaliser of SentencePiece: a table of texts and what each becomes, such as the forms of
/// NFKC. Const after building; any thread. Knows no JSON.
/// Sources: the layout of Darts' double arrays (Aoe 1989); normalizer.cc of sentencepiece and the crate
/// spm_precompiled of the tokenizers package for how a text is cut.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class Charsmap {
  public:
    /// How a text is cut into what is looked up.
    enum class Cut {
        longest,    ///< at each place the longest text of the table, as sentencepiece
        graphemes,  ///< a cluster of up to 5 bytes, else its characters, by the shortest text in front, as
                    ///< the tokenizers package
    };

    /// blob: the bytes of the array of units (4 bytes, little-endian), that array, and texts that end with
    /// NUL. Empty: changes nothing. Throws Error(bad_file) for sizes that do not fit.
    Charsmap(std::string_view blob, Cut cut);

    /// Bytes that are not UTF-8 stay.
    std::string apply(std::string_view text) const;

  private:
    struct Found {
        std::size_t length = 0;  ///< 0: nothing
        std::string_view to;
    };
    Found find(std::string_view text, bool longest) const;
    std::string by_longest(std::string_view text) const;
    std::string by_graphemes(std::string_view text) const;
    void append_cluster(std::string_view cluster, std::string& out) const;

    std::vector<std::uint32_t> units_;
    std::string texts_;
    Cut cut_ = Cut::longest;
};

}  // namespace keyhole
