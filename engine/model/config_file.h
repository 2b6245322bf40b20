/// Typed reading of a model's config.json, with errors that name file and key. Used by one thread while
/// loading. Knows no model family. Keys are JSON pointers ("/hidden_size", "/rope_parameters/rope_theta");
/// null counts as absent.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

/// Upper bounds of what a config.json may ask for. Published models stay below a tenth of most of them.
/// They keep small what is built from a config before its weights are checked, and products of two of them.
inline constexpr int kMostLayers = 1024, kMostHeads = 1024, kMostHeadDim = 1 << 14, kMostWidth = 1 << 18,
                     kMostNeurons = 1 << 22, kMostVocabulary = 1 << 22, kMostPositions = 1 << 24;

class ConfigFile {
  public:
    /// Throws Error(bad_file) when the file is missing, is no JSON object, or has more than 4 MiB or
    /// 250,000 values.
    explicit ConfigFile(const std::filesystem::path& path);
    /// Reads a config.json from its text; path: the file that it stands for, in messages.
    ConfigFile(const std::filesystem::path& path, std::string text);
    ~ConfigFile();

    const std::filesystem::path& path() const { return path_; }
    const std::string& bytes() const { return bytes_; }  ///< bytes of the whole file

    /// Adds a line about what the file contradicts itself in, or what does not count; a line once.
    void warn(std::string line) const;
    const std::vector<std::string>& warnings() const { return warnings_; }

    /// All readers throw Error(bad_file) when a parent in the key's path is no object: a text "linear"
    /// under "rope_scaling" is refused, not ignored.
    bool has(const std::string& key) const;
    /// Returns whether the key is there with the value null, which is no absence for a family's default.
    bool is_null(const std::string& key) const;
    /// Returns whether the key has an object with members.
    bool has_members(const std::string& key) const;
    /// Returns whether two keys are there with different values; false if either is absent.
    bool differ(const std::string& one, const std::string& other) const;
    /// Returns a value in a short form, for a message; "absent".
    std::string shown(const std::string& key) const;
    /// Returns a count from 1 to `most`. Throws Error(bad_file) when it is absent or anything else.
    int count(const std::string& key, int most) const;
    int count_or(const std::string& key, int fallback, int most) const;
    /// Returns a count that may be 0. Throws as count().
    int count_or_zero(const std::string& key, int fallback, int most) const;
    /// Returns a positive, finite number. Throws as count().
    double positive_or(const std::string& key, double fallback) const;
    /// The same; 0 counts as absent.
    double positive_or_unset(const std::string& key, double fallback) const;
    bool flag_or(const std::string& key, bool fallback) const;
    std::string text_or(const std::string& key, const std::string& fallback) const;
    /// Returns the texts of a list; empty when absent.
    std::vector<std::string> texts(const std::string& key) const;
    /// Returns the positive, finite numbers of a list; empty when absent.
    std::vector<double> positives(const std::string& key) const;
    /// Returns the whole numbers of a list; empty when absent.
    std::vector<int> integers(const std::string& key) const;
    /// Returns the language model's part of a configuration of several models: the members of text_config
    /// before those at the top. Null where there is no text_config.
    std::unique_ptr<ConfigFile> text_part() const;
    /// Returns token ids from one integer or a list; empty when absent.
    std::vector<int> ids(const std::string& key) const;

  private:
    struct Json;
    [[noreturn]] void wrong(const std::string& key, const std::string& wanted) const;
    [[noreturn]] void no_count(const std::string& key, int least, int most) const;

    std::filesystem::path path_;
    std::string bytes_;
    std::unique_ptr<Json> json_;
    mutable std::vector<std::string> warnings_;  // families read a const file
};

}  // namespace keyhole
