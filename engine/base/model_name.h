/// The name of a model in titles, pictures and messages. Any thread; reads no file.
#pragma once

#include <filesystem>
#include <string>

namespace keyhole {

/// Returns the last part of a model's path, also where the path ends in a slash: "keyhole-base". Empty for an
/// empty path.
std::string model_name(const std::filesystem::path& path);

}  // namespace keyhole
