/// Reads the values of a tokenizer.json, with messages that name the file. Used by one thread while loading.
/// Knows no tokenizer.
#pragma once

#include "engine/model/regex.h"
#include "engine/model/tokenizer_file.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace keyhole {

class TokenizerJson {
  public:
    using Json = nlohmann::json;
    static constexpr int kMostIds = 1 << 22;

    explicit TokenizerJson(const TokenizerPlaces& places) : places_(places), path_(&places_.vocabulary) {}
    TokenizerJson(const TokenizerJson&) = delete;
    TokenizerJson& operator=(const TokenizerJson&) = delete;

    [[noreturn]] void broken(const std::string& what) const;
    [[noreturn]] void unsupported(const std::string& what) const;

    /// Returns a null value when absent.
    static const Json& member(const Json& object, const char* key);
    std::string text(const Json& object, const char* key) const;
    bool flag(const Json& object, const char* key, bool fallback) const;
    /// of: the token, for the message.
    int id(const Json& value, const std::string& of) const;
    /// Returns the members of a Sequence, or the object itself; nothing for null. The pointers point into
    /// `object`.
    std::vector<const Json*> steps(const Json& object, const char* list) const;
    /// Reads a literal pattern; refuses regular expressions.
    std::string literal(const Json& step, const std::string& of) const;
    /// Reads a pattern, a regular expression or a literal.
    Regex regex(const Json& step) const;
    std::string one_character(const Json& step, const char* key) const;

    const TokenizerPlaces& places() const { return places_; }
    /// Sets the file of the part that is being read: a member of places().
    void set_file(const std::filesystem::path& path) { path_ = &path; }
    void limit_ids(std::uint64_t limit) { id_limit_ = limit; }

  private:
    TokenizerPlaces places_;
    const std::filesystem::path* path_;
    std::uint64_t id_limit_ = 0;
};

}  // namespace keyhole
