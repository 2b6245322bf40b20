/// The plots that sweeps wrote into a folder, by the questions that they show, in sweep.json: the next sweep
/// on the same questions replaces them. Main thread.
#pragma once

#include "engine/base/staged_folder.h"

#include <map>
#include <string>
#include <vector>

namespace keyhole {

/// Returns the files of these questions that an earlier sweep wrote, and sweep.json if there is one. Throws
/// Error(io) for a sweep.json that is none of ours.
std::vector<std::string> files_of_sweep(const std::filesystem::path& folder,
                                        const std::map<std::string, std::vector<std::string>>& plots);

/// Moves plots into their folder in place of earlier ones of the same questions, all or none. plots: the
/// staged files by questions. goes_on: the folder holds an earlier sweep; if that kept no list, plots of the
/// same names are its own. Throws Error(io).
void publish_sweep(StagedFolder& staged, const std::map<std::string, std::vector<std::string>>& plots,
                   bool goes_on, const std::string& made_by);

}  // namespace keyhole
