/// A tokenizer as `tokenizer.json` or a GGUF file describes it: BPE of bytes (GPT-2's kind) or of characters
/// (SentencePiece's), or Unigram (SentencePiece's other kind). Const after loading; any thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

class GgufFile;

class Tokenizer {
  public:
    /// Throws Error(bad_file) or Error(unsupported) with the file and the part that is wrong or not
    /// supported.
    static Tokenizer from_file(const std::filesystem::path& tokenizer_json);
    /// Reads the tokenizer of a model's folder: see read_tokenizer_folder().
    static Tokenizer from_folder(const std::filesystem::path& folder);
    /// Reads the tokenizer in a GGUF file's metadata: see read_gguf_tokenizer().
    static Tokenizer from_gguf(const GgufFile& file);
    /// Returns a tokenizer whose ids 0 to 255 are the bytes and whose other ids below n_vocab have no text:
    /// for models without a file.
    static Tokenizer of_bytes(int n_vocab);
    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;

    int n_vocab() const;  ///< highest id + 1, added tokens included; at most the limit
    /// Sets the number of ids that the model has embeddings for.
    void limit_to(int n_vocab);

    /// Returns the ids of a text, which may be any bytes. Recognises added tokens in it. add_special: adds
    /// what the post-processor adds (BOS). Throws Error(wrong_use) for a text that needs an id beyond the
    /// limit.
    std::vector<int> encode(std::string_view text, bool add_special = true) const;

    /// Returns the exact bytes of some ids, without special tokens unless with_special. Removes what the
    /// encoder put before the text (LLaMA's blank), as the file's decoder says.
    std::string decode(std::span<const int> ids, bool with_special = false) const;

    /// Returns the bytes of one token, which may be a part of a character.
    std::string token_bytes(int id) const;
    /// Returns a token's text for display: valid UTF-8, line ends as visible signs, single bytes of a
    /// broken character as `<0xE4>`.
    std::string display(int id) const;
    bool is_special(int id) const;
    /// Returns the Jinja template of a conversation; empty when the model comes without one.
    const std::string& chat_template() const;
    /// Returns the tokens that the files name, for the template: "bos_token" and its content.
    const std::vector<std::pair<std::string, std::string>>& named_tokens() const;
    /// Returns the contents of all added tokens, special ones among them.
    std::vector<std::string> added_texts() const;
    /// Returns the ids that encode() puts before a text with add_special.
    const std::vector<int>& ids_before() const;
    /// Returns what the files contradict each other in, one line each.
    const std::vector<std::string>& warnings() const;

  private:
    struct Impl;
    explicit Tokenizer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
