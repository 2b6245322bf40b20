/// Byte-pair encoding: converts a piece of text to ids by merging the pair of lowest rank until no pair can
/// merge. Const after building; any thread. Knows nothing of JSON, pre-tokenizing or special tokens.
/// Source: Sennrich et al. 2016 (arXiv:1508.07909); gives the same ids as the Hugging Face tokenizers
/// package.
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
        bool ignore_merges = false;  ///< a piece that equals a token becomes that token without merging
        bool fuse_unk = false;       ///< neighbouring unknown characters become one unk
        int unk = kNone;             ///< kNone: unknown characters give no id
    };
    struct Merge {
        int left = 0, right = 0, merged = 0;  ///< ids
        /// The lowest rank merges first, among equal ones the leftmost pair; kNone: the place in the list
        int rank = kNone;
    };

    Bpe() = default;
    /// tokens: from text (raw bytes when byte_level) to id. merges: the last of repeated pairs counts.
    Bpe(Options options, std::unordered_map<std::string, int> tokens, const std::vector<Merge>& merges);

    /// Splits a piece where no merge can cross and appends the parts: encoding them one by one gives the
    /// ids of the whole piece. Short parts repeat, so that they need not be merged twice. Splits only where
    /// no merge joins a non-blank with a following SentencePiece blank.
    void cut(std::string_view piece, std::vector<std::string_view>& parts) const;
    /// Appends the ids of one piece.
    void encode(std::string_view piece, std::vector<int>& ids) const;

  private:
    struct Symbol;
    struct Pair {
        int rank = 0;
        int merged = 0;
    };
    /// Transparent, so that a string_view is looked up without a copy.
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
    std::array<int, 256> byte_tokens_{};  // id of each byte, or of its <0x..> token
    bool cuts_at_blanks_ = false;         // no merge joins a non-blank and a following U+2581
};

}  // namespace keyhole
