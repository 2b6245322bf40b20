/// The list of an export's files, which its run.json holds: the next export into the folder replaces them.
/// Any thread; knows no run.
#pragma once

#include "engine/base/staged_folder.h"

#include <filesystem>
#include <string>
#include <vector>

namespace keyhole {

inline constexpr const char* kRunJsonName = "run.json";

/// Returns the files that the export before wrote into the folder, by names relative to it; none if there was
/// no export. Names that no export writes are left out. Throws Error(io) for a run.json that lists no files:
/// what belongs to it is not known.
std::vector<std::string> files_of_export(const std::filesystem::path& folder);

/// Moves the exports that stand in folders of their own below staged.path() into the folder, all or none, in
/// place of what the export before wrote there. A run.json lists them all. Throws Error(io).
void publish_exports(StagedFolder& staged, const std::string& program, const std::string& command);

/// Returns whether an export can have written a file of this name.
bool is_export_name(const std::string& name);

}  // namespace keyhole
