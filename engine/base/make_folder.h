/// Makes folders, and says what is in the way. Any thread; knows base only.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace keyhole {

/// Makes a folder and those that it lies in. Throws Error(io): "cannot make the folder X for the sweep:", the
/// reason, and what to do. purpose: "the sweep"; empty: none is named.
void make_folder(const std::filesystem::path& folder, std::string_view purpose = {});

/// Returns the path behind links, whether there is something or not: what is written there is found under
/// the link. Throws Error(io) for a circle of links.
std::filesystem::path behind_links(const std::filesystem::path& path);

}  // namespace keyhole
