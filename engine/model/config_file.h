/// Typed reading of a model's config.json, with errors that name file and key. While loading; one thread.
/// Keys are JSON pointers ("/hidden_size", "/rope_parameters/rope_theta"). A null counts as absent.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

class ConfigFile {
  public:
    /// Throws Error(bad_file) when missing or not a JSON object.
    explicit ConfigFile(const std::filesystem::path& path);
    ~ConfigFile();

    const std::filesystem::path& path() const { return path_; }
    const std::string& bytes() const { return bytes_; }  ///< of the whole file

    bool has(const std::string& key) const;
    /// A count from 1 to 2^24. Throws Error(bad_file) when absent or anything else.
    int count(const std::string& key) const;
    int count_or(const std::string& key, int fallback) const;
    /// A count that may be 0; the same errors as count.
    int count_or_zero(const std::string& key, int fallback) const;
    /// Positive and finite; the same errors as count.
    double positive_or(const std::string& key, double fallback) const;
    bool flag_or(const std::string& key, bool fallback) const;
    std::string text_or(const std::string& key, const std::string& fallback) const;
    /// Texts of a list; empty when absent.
    std::vector<std::string> texts(const std::string& key) const;
    /// Token ids: one integer or a list; empty when absent.
    std::vector<int> ids(const std::string& key) const;

  private:
    struct Json;
    [[noreturn]] void wrong(const std::string& key, const char* wanted) const;

    std::filesystem::path path_;
    std::string bytes_;
    std::unique_ptr<Json> json_;
};

}  // namespace keyhole
