#include "app/models/find_model.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/model/folder_files.h"
#include "engine/policy/spec_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

/// Returns an environment variable; empty if it is not set.
std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

/// Returns the path with a "~/" at its beginning replaced, as the Hugging Face client does.
fs::path expanded(std::string_view path) {
    const std::string home = variable("HOME");
    if (home.empty() || !(path == "~" || path.starts_with("~/"))) return path;
    return fs::path(home) / path.substr(std::min<std::size_t>(2, path.size()));
}

/// Returns true for one part of a hub name, as the hub allows it.
bool is_hub_word(std::string_view text) {
    return !text.empty() && text.size() <= 96 && text.front() != '-' && text.front() != '.' &&
           text.find("..") == std::string_view::npos && text.find("--") == std::string_view::npos &&
           text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") ==
               std::string_view::npos;
}

struct HubName {
    std::string repository;  ///< ORG/NAME
    std::string file;        ///< of the repository; empty: the whole
};

std::optional<HubName> hub_name(std::string_view text) {
    const std::size_t first = text.find('/');
    if (first == std::string_view::npos) return std::nullopt;
    const std::size_t second = std::min(text.find('/', first + 1), text.size());
    if (!is_hub_word(text.substr(0, first)) || !is_hub_word(text.substr(first + 1, second - first - 1)))
        return std::nullopt;
    HubName name{std::string(text.substr(0, second)),
                 std::string(text.substr(std::min(second + 1, text.size())))};
    if (second < text.size() && (!name.file.ends_with(".gguf") || name.file.find("..") != std::string::npos))
        return std::nullopt;
    return name;
}

/// Returns the names of the GGUF files that lie in a folder, sorted.
std::vector<std::string> gguf_files(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error))
        if (entry->path().extension() == ".gguf") names.push_back(entry->path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

/// Returns a folder's model. Its files are checked when it is loaded.
fs::path model_in(const fs::path& folder) {
    std::error_code error;
    if (fs::exists(folder / "config.json", error)) return folder;
    const std::vector<std::string> files = gguf_files(folder);
    if (files.size() > 1) {
        constexpr std::size_t kMost = 12;
        fail(ErrorCode::bad_file, "the folder {} holds {} GGUF files; name one of them: {}{}",
             folder.string(), files.size(),
             fmt::join(files.begin(), files.begin() + std::min(files.size(), kMost), ", "),
             files.size() > kMost ? ", …" : "");
    }
    return files.empty() ? folder : folder / files.front();
}

/// Returns the snapshot folder of a repository in the cache: that of the branch main, else the only one.
/// nullopt: there is none.
std::optional<fs::path> snapshot_of(const fs::path& repository) {
    std::error_code error;
    const fs::path main = repository / "refs" / "main", snapshots = repository / "snapshots";
    if (fs::is_regular_file(main, error)) {
        constexpr std::size_t kLongestCommit = 256;
        std::string commit = read_text_file(main, kLongestCommit);
        while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
        if (is_hub_word(commit) && fs::is_directory(snapshots / commit, error)) return snapshots / commit;
    }
    std::vector<fs::path> found;
    for (auto entry = fs::directory_iterator(snapshots, error); !error && entry != fs::directory_iterator();
         entry.increment(error))
        if (entry->is_directory(error)) found.push_back(entry->path());
    if (found.size() != 1) return std::nullopt;
    return found.front();
}

/// Returns a repository's model in the Hugging Face cache. Throws Error(wrong_use) with the command that
/// gets it.
fs::path model_of_hub(const HubName& name) {
    const fs::path cache = hub_cache_folder();
    const std::size_t slash = name.repository.find('/');
    const fs::path repository =
        cache / ("models--" + name.repository.substr(0, slash) + "--" + name.repository.substr(slash + 1));
    const std::string get = fmt::format("hf download {0}{1} (older clients: huggingface-cli download {0}{1})",
                                        name.repository, name.file.empty() ? "" : " " + name.file);
    std::error_code error;
    if (cache.empty() || !fs::exists(repository, error))
        fail(
            ErrorCode::wrong_use,
            "cannot find the model {0}: there is no such folder or file, and the Hugging Face cache {1} does "
            "not hold it; get it with: {2}",
            name.repository, cache.empty() ? "(no HOME)" : cache.string(), get);
    const std::optional<fs::path> snapshot = snapshot_of(repository);
    if (!snapshot)
        fail(ErrorCode::wrong_use, "cannot use {}: its download is not complete; get it with: {}",
             repository.string(), get);
    if (name.file.empty()) return model_in(*snapshot);
    if (!fs::exists(*snapshot / name.file, error))
        fail(ErrorCode::wrong_use, "cannot find the model {}: {} does not hold the file; get it with: {}",
             name.repository + "/" + name.file, snapshot->string(), get);
    return *snapshot / name.file;
}

FoundModel found_in_catalog(const CatalogModel& model) {
    if (const auto path = path_if_here(model)) return {*path};
    if (model.package) return {{}, &model};
    fail(ErrorCode::bad_file,
         "the model {} comes with Keyhole, but {} is missing or has another size; get Keyhole again",
         model.name, model.file.string());
}

/// Returns why the catalogue does not help; empty for a text that only can be a path.
std::string fault_of_name(std::string_view name, std::span<const CatalogModel> catalog) {
    if (name.find('/') != std::string_view::npos || name.ends_with(".gguf")) return {};
    std::vector<std::string_view> names;
    for (const CatalogModel& model : catalog) names.push_back(model.name);
    const auto near = spec_text::near_word(name, names);
    return fmt::format(", and the catalogue has no such name{}",
                       near ? fmt::format(" (did you mean {}?)", *near) : "");
}

}  // namespace

fs::path hub_cache_folder() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
        if (const std::string folder = variable(name); !folder.empty()) return expanded(folder);
    if (const std::string folder = variable("HF_HOME"); !folder.empty()) return expanded(folder) / "hub";
    if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
        return expanded(cache) / "huggingface" / "hub";
    const std::string home = variable("HOME");
    return home.empty() ? fs::path() : fs::path(home) / ".cache" / "huggingface" / "hub";
}

bool looks_like_model(const fs::path& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) return path.extension() == ".gguf";
    return fs::exists(path / "config.json", error) || !gguf_files(path).empty();
}

FoundModel find_model(std::string_view name, std::span<const CatalogModel> catalog) {
    if (name.empty())
        fail(ErrorCode::wrong_use, "the model's name is empty; name a folder, a GGUF file or a model");
    for (const fs::path& path : {fs::path(name), expanded(name)})
        if (is_there(path)) return {is_folder(path) ? model_in(path) : path};
    if (const CatalogModel* model = find_in_catalog(catalog, name)) return found_in_catalog(*model);
    if (const std::optional<HubName> hub = hub_name(name)) return {model_of_hub(*hub)};
    fail(ErrorCode::wrong_use,
         "cannot find the model {}: there is no such folder or file{}; name a Hugging Face folder, a GGUF "
         "file, ORG/NAME of the hub, or one that keyhole get --list prints",
         shown_text(name), fault_of_name(name, catalog));
}

bool is_catalog_name(std::string_view text) {
    return !text.empty() && text.front() != '.' && text.front() != '-' &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.") == std::string_view::npos;
}

FoundModel find_catalog_model(std::string_view name, std::span<const CatalogModel> catalog) {
    if (const CatalogModel* model = find_in_catalog(catalog, name)) return found_in_catalog(*model);
    fail(ErrorCode::bad_file,
         "the catalogue has no model '{}' (keyhole get --list prints its names); another model: --model",
         shown_text(name));
}

}  // namespace keyhole
