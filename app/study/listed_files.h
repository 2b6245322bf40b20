/// The files that a command wrote into its folder, by what they show, in a list beside them: the next command
/// replaces what shows the same. Main thread.
#pragma once

#include "engine/base/staged_folder.h"

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace keyhole {

/// A list of files. Its JSON holds an object, `field`, with an entry for each thing that files show.
struct FileList {
    const char* name;     ///< "sweep.json"
    const char* command;  ///< "sweep"
    const char* field;    ///< "plots"
};
inline constexpr FileList kSweepFiles{"sweep.json", "sweep", "plots"};  ///< by questions
inline constexpr FileList kEvalFiles{"eval.json", "eval", "results"};   ///< by_head, by_span, suite

/// Files by what they show.
using FileGroups = std::map<std::string, std::vector<std::string>>;

/// Returns the files of these groups that an earlier command listed, and the list if there is one. Throws
/// Error(io) for a list that is none of ours.
std::vector<std::string> listed_files(const std::filesystem::path& folder, const FileList& list,
                                      const FileGroups& groups);

/// Moves staged files into their folder in place of the old ones, all or none, and lists them. Throws
/// Error(io).
void publish_listed(StagedFolder& staged, const FileList& list, const FileGroups& groups,
                    const std::vector<std::string>& old, const std::string& made_by);

/// A command whose result, a JSON file, lists the files beside it as `files`.
struct ListingResult {
    const char* name;     ///< "search.json"
    const char* command;  ///< "search"
    const char* field;    ///< which its JSON has, and that of another program has not
};
/// Returns the files of an earlier result, itself among them; none is there: nothing. unlisted: those of a
/// result from before it listed any. Throws Error(io) for a file of that name that is none of ours.
std::vector<std::string> files_of_result(
    const std::filesystem::path& folder, const ListingResult& result,
    const std::function<std::vector<std::string>(const nlohmann::json&)>& unlisted);

/// Before a command works: throws Error(io), as StagedFolder::publish() would later, if something that is not
/// old is where one of these new files goes. The folder must be there.
void check_way_into(const std::filesystem::path& folder, const std::string& what,
                    const std::vector<std::string>& fresh, const std::vector<std::string>& old);

}  // namespace keyhole
