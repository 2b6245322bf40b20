/// BPE as `tokenizer.json` describes it, of bytes (GPT-2's kind) or of characters (SentencePiece's). Const after loading; any
/// thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class Tokenizer {
  public:
    /// Throws Error(bad_file) or Error(unsupported) naming the file and the part that is not understood.
    static Tokenizer from_file(const std::filesystem::path& tokenizer_json);
    /// Of a model's folder: see read_tokenizer_folder.
    static Tokenizer from_folder(const std::filesystem::path& folder);
    /// Ids 0 to 255 are the bytes, of the others up to n_vocab none stands for a text: for models without a file.
    static Tokenizer of_bytes(int n_vocab);
    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;

    int n_vocab() const;  ///< highest id + 1, added tokens included

    /// add_special: what the post-processor adds (BOS). Any bytes are taken; added tokens in the text are
    /// recognised.
    std::vector<int> encode(std::string_view text, bool add_special = true) const;

    /// The exact bytes; special tokens give nothing unless asked for. What the encoder put in front of a text (LLaMA's blank)
    /// is taken away again, as the file's decoder says.
    std::string decode(std::span<const int> ids, bool with_special = false) const;

    /// The bytes of one token, possibly a part of a character.
    std::string token_bytes(int id) const;
    /// Token text to look at: valid UTF-8, line ends as visible signs, single bytes of a broken character as
    /// `<0xE4>`.
    std::string display(int id) const;
    bool is_special(int id) const;

  private:
    struct Impl;
    explicit Tokenizer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
