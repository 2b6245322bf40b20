/// Byte-pair encoding: from a piece of text to ids, by merging the pair of lowest rank until none is left.
/// Const after building;
/// any thread. Knows nothing of JSON, pieces or special tokens.
/// Source: Sennrich et al. 2016 (arXiv:1508.07909); ids as the Hugging Face tokenizers package gives them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace keyhole {

class Bpe {
  public:
    static constexpr int kNone = -1;

    struct Options {
        bool byte_level = false;     ///< symbols start as bytes; else as UTF-8 characters
        bool byte_fallback = false;  ///< an unknown character becomes its <0x..> tokens
        bool ignore_merges = false;  ///< a piece that is a token is that token
        bool fuse_unk = false;       ///< neighbouring unknown characters become one unk
        int unk = kNone;             ///< none: unknown characters give nothing
    };
    struct Merge {
        int left = 0, right = 0, merged = 0;  ///< ids
    };

    Bpe() = default;
    /// tokens: text of a piece (raw bytes when byte_level) to id. merges: by rank, best first; of a repeated
    /// pair the last counts.
    Bpe(Options options, std::unordered_map<std::string, int> tokens, const std::vector<Merge>& merges);

    /// Appends the parts of a piece between which no merge can reach: their ids are those that they have in the piece. Short
    /// parts repeat, and so need not be merged twice. SentencePiece's vocabularies have words that begin with its blank.
    void cut(std::string_view piece, std::vector<std::string_view>& parts) const;
    /// Appends the ids of one piece.
    void encode(std::string_view piece, std::vector<int>& ids) const;

  private:
    struct Symbol;
    struct Pair {
        int rank = 0;
        int merged = 0;
    };
    /// Transparent, so that a view is looked up without a copy.
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    };

    const Pair* pair_of(int left, int right) const;
    int token_of(std::string_view text) const;
    void split(std::string_view piece, std::vector<int>& symbols) const;
    void merge_short(std::vector<int>& symbols) const;
    void merge_long(std::vector<int>& symbols) const;

    Options options_;
    std::unordered_map<std::string, int, Hash, std::equal_to<>> tokens_;
    std::unordered_map<std::uint64_t, Pair> pairs_;
    std::array<int, 256> byte_tokens_{};  // of a byte, or of its <0x..>
    bool cuts_at_blanks_ = false;         // no merge joins anything and a U+2581 behind it but another one
};

}  // namespace keyhole
