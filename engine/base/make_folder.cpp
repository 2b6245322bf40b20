#include "engine/base/make_folder.h"

#include "engine/base/error.h"

#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

/// Returns what stands where a folder is wanted, with its remedy; empty: nothing does.
std::string obstacle(const fs::path& folder) {
    std::error_code ignored;
    fs::path way;
    for (const fs::path& part : folder) {
        way /= part;
        if (fs::is_directory(way, ignored)) continue;
        if (fs::is_symlink(fs::symlink_status(way, ignored)) && !fs::exists(way, ignored))
            return fmt::format(
                "{} is a link to {}, which is not there; remove the link or name another folder",
                way.string(), fs::read_symlink(way, ignored).string());
        if (fs::exists(way, ignored))
            return fmt::format("{} is no folder; move it away or name another folder", way.string());
        break;
    }
    return {};
}

}  // namespace

void make_folder(const fs::path& folder, std::string_view purpose) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (!error && fs::is_directory(folder)) return;
    const std::string in_the_way = obstacle(folder);
    fail(ErrorCode::io, "cannot make the folder {}{}{}: {}", folder.string(), purpose.empty() ? "" : " for ",
         purpose,
         !in_the_way.empty()
             ? in_the_way
             : fmt::format("{}; name another folder, or check that you may write there", error.message()));
}

fs::path behind_links(const fs::path& path) {
    constexpr int kMost = 40;  // as the system
    fs::path target = path;
    std::error_code error;
    for (int n = 0; fs::is_symlink(fs::symlink_status(target, error)); ++n) {
        const fs::path next = fs::read_symlink(target, error);
        if (error || n == kMost)
            fail(ErrorCode::io, "cannot write {}: {}; remove the link or take another name", path.string(),
                 error ? error.message() : "its links lead in a circle");
        target = next.is_absolute() ? next : target.parent_path() / next;
    }
    return target;
}

}  // namespace keyhole
