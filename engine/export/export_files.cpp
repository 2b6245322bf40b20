#include "engine/export/export_files.h"

#include "engine/base/error.h"
#include "engine/base/json_file.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

bool is_export_name(const std::string& name) {
    constexpr std::array<std::string_view, 12> kEndings = {
        ".json", ".npy",  ".png",  ".svg", ".pdf",         ".csv",
        ".gif",  ".html", ".webm", ".mp4", ".caption.txt", "/queries.safetensors"};
    return is_name_below(name) && std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) {
               return name.size() > ending.size() && name.ends_with(ending);
           });
}

std::vector<std::string> files_of_export(const fs::path& folder) {
    const fs::path file = folder / kRunJsonName;
    std::error_code error;
    if (fs::symlink_status(file, error).type() == fs::file_type::not_found) return {};
    nlohmann::json json;
    try {
        json = json_of_text(read_text_file(file));
    } catch (const Error&) {
        json = nlohmann::json(nlohmann::json::value_t::discarded);
    }
    if (!json.is_object() || !json.contains("files") || !json["files"].is_array())
        fail(ErrorCode::io,
             "cannot export to {}: its {} does not list the files of an export, so an older Keyhole or "
             "another program wrote it; move the folder away or choose another with --out",
             folder.string(), kRunJsonName);
    std::vector<std::string> names;
    for (const nlohmann::json& name : json["files"])
        if (name.is_string() && is_export_name(name.get_ref<const std::string&>())) names.push_back(name);
    return names;
}

void publish_exports(StagedFolder& staged, const std::string& program, const std::string& command) {
    std::vector<std::string> files = staged.files();
    files.emplace_back(kRunJsonName);
    std::sort(files.begin(), files.end());
    const nlohmann::ordered_json json = {
        {"version", 1}, {"program", program}, {"command", command}, {"files", files}};
    write_text_file(staged.path() / kRunJsonName,
                    json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    staged.publish(files_of_export(staged.folder()), kRunJsonName);
}

}  // namespace keyhole
