/// Finds the model that a person names: a folder, a file, a hub name, or a name of the catalogue. Any thread;
/// reads folders, and never the network.
#pragma once

#include "app/models/catalog.h"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct FoundModel {
    std::filesystem::path path;            ///< for load_model(): a folder or a file; empty if `to_get` is set
    const CatalogModel* to_get = nullptr;  ///< a model of the catalogue that is not here yet
};

/// Takes, in this order: a folder or file that exists ("~/" is the home folder); a name of the catalogue; a
/// hub name ORG/NAME, or ORG/NAME/FILE.gguf, that lies in the Hugging Face cache. A folder that holds one
/// GGUF file and no config.json stands for the file. Throws Error(bad_file) that says what was tried and the
/// command that gets the model, and Error(wrong_use) for an empty name.
FoundModel find_model(std::string_view name, std::span<const CatalogModel> catalog);

/// Returns whether a text can be a name of the catalogue: no path is one.
bool is_catalog_name(std::string_view text);
/// Takes what a file that was sent, such as a lesson, may name: a name of the catalogue. Looks at no path, so
/// the file's author does not choose what is opened here. Throws Error(bad_file), without the paths of this
/// machine.
FoundModel find_catalog_model(std::string_view name, std::span<const CatalogModel> catalog);

/// Returns the folders where the Hugging Face client keeps models, by its own variables: $HF_HUB_CACHE,
/// $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. The first
/// that is set; empty: none.
std::filesystem::path hub_cache_folder();

/// Returns true for what find_model() takes as a model when it is dropped on the window: a folder with
/// config.json or a GGUF file, or a GGUF file.
bool looks_like_model(const std::filesystem::path& path);

}  // namespace keyhole
