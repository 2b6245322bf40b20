/// Hints for models in formats that Keyhole cannot load, and for what is no model. Any thread. Knows file
/// names and an adapter's configuration.
#pragma once

#include <filesystem>
#include <string>

namespace keyhole {

/// Returns what the file or folder holds and how to convert it, for the end of a message; empty when the
/// format is unknown.
std::string conversion_hint(const std::filesystem::path& path);

/// Throws Error(unsupported) for a folder of PEFT, which holds an adapter and no weights of a model; the
/// message names its base model.
void refuse_adapter(const std::filesystem::path& folder);

}  // namespace keyhole
