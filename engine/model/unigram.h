/// Unigram model of SentencePiece: converts a text to the tokens whose scores add up to the most (Viterbi).
/// Const after building; any thread. Knows nothing of JSON, normalising or special tokens.
/// Source: Kudo 2018 (arXiv:1804.10959), section 3.2; gives the same ids as the Hugging Face tokenizers
/// package, or as sentencepiece with sums_in_float.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class Unigram {
  public:
    static constexpr int kNone = -1;

    struct Token {
        std::string text;
        int id = 0;
        double score = 0;  ///< logarithm of its probability
    };
    struct Options {
        int unk = kNone;             ///< must be a token: what stands for an unknown character
        bool byte_fallback = false;  ///< an unknown text becomes its <0x..> tokens
        bool sums_in_float = false;  ///< as sentencepiece, which differs where two ways are equally good
        double unk_score = 0;        ///< of an unknown character
    };
    /// The score of an unknown character is this below the smallest score of the tokens.
    static constexpr double kUnkPenalty = 10.0;

    /// tokens: the last of several with one text counts. byte_tokens: the ids of the bytes, kNone: there is
    /// none.
    Unigram(Options options, std::vector<Token> tokens, const std::array<int, 256>& byte_tokens);

    /// Appends the ids of a text. Of equally good ways the one counts whose last token is the longest, and so
    /// on to the front. Neighbouring unknown characters become one unk. Takes time in proportion to the text
    /// times the longest token.
    void encode(std::string_view text, std::vector<int>& ids) const;

  private:
    /// A node of the tree of all beginnings of tokens; its children lie one after the other, by byte.
    struct Node {
        int first_child = 0;
        int n_children = 0;
        int token = kNone;  // place in tokens_
        unsigned char byte = 0;
    };
    struct Step;

    void build();
    const Node* child_of(const Node& node, unsigned char byte) const;
    int id_of(std::string_view text) const;
    void append(std::string_view text, bool is_known, int token, std::vector<int>& ids) const;

    Options options_;
    std::vector<Token> tokens_;  // by text, ascending
    std::vector<Node> nodes_;    // the first is the root
    std::array<int, 256> byte_tokens_{};
};

}  // namespace keyhole
