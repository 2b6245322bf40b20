#include "app/study/listed_files.h"

#include "app/base/command_text.h"
#include "app/base/version.h"
#include "engine/base/error.h"
#include "engine/base/json_file.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <set>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostListBytes = 4 << 20, kMostResultBytes = 1 << 30;

[[noreturn]] void refuse(const fs::path& folder, const char* name, const char* command) {
    fail(ErrorCode::io,
         "cannot write to {}: its {} is not of `keyhole {}`; move it away or choose another folder with "
         "--out",
         folder.string(), name, command);
}

/// Returns a JSON file that has a field; null if there is no file.
nlohmann::json json_with(const fs::path& folder, const char* name, const char* command, const char* field,
                         std::size_t most_bytes) {
    const fs::path file = folder / name;
    std::error_code error;
    if (fs::symlink_status(file, error).type() == fs::file_type::not_found) return nullptr;
    nlohmann::json json;
    try {
        json = json_of_text(read_text_file(file, most_bytes));
    } catch (const Error&) {
        json = nlohmann::json();
    }
    if (!json.is_object() || !json.contains(field)) refuse(folder, name, command);
    return json;
}

/// Returns what a list holds; an empty object if there is none.
nlohmann::json groups_in(const fs::path& folder, const FileList& list) {
    const nlohmann::json json = json_with(folder, list.name, list.command, list.field, kMostListBytes);
    if (json.is_null()) return nlohmann::json::object();
    if (!json[list.field].is_object()) refuse(folder, list.name, list.command);
    return json[list.field];
}

void add_names(const nlohmann::json& list, std::set<std::string>& names) {
    for (const nlohmann::json& name : list)
        if (name.is_string() && is_name_below(name.get_ref<const std::string&>()))
            names.insert(name.get<std::string>());
}

}  // namespace

std::vector<std::string> listed_files(const fs::path& folder, const FileList& list,
                                      const FileGroups& groups) {
    std::error_code error;
    std::set<std::string> names;
    const nlohmann::json known = groups_in(folder, list);  // items() refers to it
    if (fs::symlink_status(folder / list.name, error).type() != fs::file_type::not_found)
        names.insert(list.name);
    for (const auto& [group, entry] : known.items())
        if (groups.contains(group) && entry.is_object() && entry.contains("files"))
            add_names(entry["files"], names);
    return {names.begin(), names.end()};
}

void publish_listed(StagedFolder& staged, const FileList& list, const FileGroups& groups,
                    const std::vector<std::string>& old, const std::string& made_by) {
    nlohmann::json known = groups_in(staged.folder(), list);
    for (const auto& [group, files] : groups)
        known[group] = {
            {"files", files}, {"program", program_name()}, {"command", command_text()}, {"made_by", made_by}};
    write_text_file(staged.path() / list.name, nlohmann::json{{list.field, known}}.dump(
                                                   2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                                   "\n");
    staged.publish(old, list.name);
}

std::vector<std::string> files_of_result(
    const fs::path& folder, const ListingResult& result,
    const std::function<std::vector<std::string>(const nlohmann::json&)>& unlisted) {
    const nlohmann::json json =
        json_with(folder, result.name, result.command, result.field, kMostResultBytes);
    if (json.is_null()) return {};
    std::set<std::string> names = {result.name};
    if (json.contains("files"))
        add_names(json["files"], names);
    else
        for (const std::string& name : unlisted(json)) names.insert(name);
    return {names.begin(), names.end()};
}

void check_way_into(const fs::path& folder, const std::string& what, const std::vector<std::string>& fresh,
                    const std::vector<std::string>& old) {
    const StagedFolder staged(folder, what);
    staged.check_way(fresh, old);
}

}  // namespace keyhole
