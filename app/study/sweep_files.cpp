#include "app/study/sweep_files.h"

#include "app/base/command_text.h"
#include "app/base/version.h"
#include "engine/base/error.h"
#include "engine/base/json_file.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr const char* kName = "sweep.json";
constexpr std::size_t kMostSweepBytes = 4 << 20;

/// Returns the list of a folder; empty if there is none.
nlohmann::json plots_in(const fs::path& folder) {
    const fs::path file = folder / kName;
    std::error_code error;
    if (fs::symlink_status(file, error).type() == fs::file_type::not_found) return nlohmann::json::object();
    nlohmann::json json;
    try {
        json = json_of_text(read_text_file(file, kMostSweepBytes));
    } catch (const Error&) {
        json = nlohmann::json();
    }
    if (!json.is_object() || !json.contains("plots") || !json["plots"].is_object())
        fail(ErrorCode::io,
             "cannot write plots to {}: its {} is not of `keyhole sweep`; move it away or choose another "
             "folder with --out",
             folder.string(), kName);
    return json["plots"];
}

}  // namespace

std::vector<std::string> files_of_sweep(const fs::path& folder,
                                        const std::map<std::string, std::vector<std::string>>& plots) {
    std::error_code error;
    std::vector<std::string> names;
    if (fs::symlink_status(folder / kName, error).type() != fs::file_type::not_found)
        names.emplace_back(kName);
    const nlohmann::json known = plots_in(folder);  // items() refers to it
    for (const auto& [questions, entry] : known.items()) {
        if (!plots.contains(questions) || !entry.is_object() || !entry.contains("files")) continue;
        for (const nlohmann::json& name : entry["files"])
            if (name.is_string() && is_name_below(name.get_ref<const std::string&>())) names.push_back(name);
    }
    return names;
}

void publish_sweep(StagedFolder& staged, const std::map<std::string, std::vector<std::string>>& plots,
                   bool goes_on, const std::string& made_by) {
    std::vector<std::string> old = files_of_sweep(staged.folder(), plots);
    if (old.empty() && goes_on) old = staged.files();
    nlohmann::json known = plots_in(staged.folder());
    for (const auto& [questions, files] : plots)
        known[questions] = {
            {"files", files}, {"program", program_name()}, {"command", command_text()}, {"made_by", made_by}};
    write_text_file(staged.path() / kName, nlohmann::json{{"plots", known}}.dump(
                                               2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                               "\n");
    staged.publish(old, kName);
}

}  // namespace keyhole
