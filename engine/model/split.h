/// Normalising and pre-tokenizing: what happens to text before BPE sees it. Const after building; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// `normalizer` of tokenizer.json: null, NFC, Prepend, Replace (string) and Sequence of them; others are refused by name.
class Normalizer {
  public:
    Normalizer(const nlohmann::json& json, const std::string& file);
    std::string apply(std::string_view text) const;

  private:
    enum class Kind { nfc, prepend, replace };
    struct Rule {
        Kind kind;
        std::string from, to;
    };
    void add(const nlohmann::json& json, const std::string& file);
    std::vector<Rule> rules_;
};

/// `pre_tokenizer` of tokenizer.json: null, ByteLevel, Digits, Split and Sequence of them; others are refused by name.
class PreTokenizer {
  public:
    PreTokenizer(const nlohmann::json& json, const std::string& file);
    ~PreTokenizer();
    PreTokenizer(PreTokenizer&&) noexcept;
    PreTokenizer& operator=(PreTokenizer&&) noexcept;

    bool byte_level() const { return byte_level_; }
    /// Pieces that BPE never merges across, in order; together they are the text (bytes that are no UTF-8 included), a blank added in front
    /// where the rule says so.
    std::vector<std::string> split(std::string_view text) const;

  private:
    struct Rule;
    void add(const nlohmann::json& json, const std::string& file);
    std::vector<std::unique_ptr<Rule>> rules_;
    bool byte_level_ = false;
};

}  // namespace keyhole
