#include "engine/export/staged_folder.h"

#include "engine/base/error.h"

#include <system_error>
#include <vector>

namespace keyhole {

namespace fs = std::filesystem;

StagedFolder::StagedFolder(fs::path folder) : folder_(std::move(folder)), part_(folder_ / "export.part") {
    std::error_code error;
    made_ = !fs::exists(folder_, error);
    fs::create_directories(folder_, error);
    if (error || !fs::is_directory(folder_))
        fail(ErrorCode::io, "cannot create the folder {}: {}; choose another with --out", folder_.string(),
             error ? error.message() : "a file is in the way");
    lock_ = PathLock::try_take(folder_);
    if (!lock_)
        fail(ErrorCode::io,
             "cannot export to {}: another Keyhole is writing an export there; wait for it or choose another "
             "folder with --out",
             folder_.string());
    fs::remove_all(part_, error);
    if (error || !fs::create_directory(part_, error) || error)
        fail(ErrorCode::io, "cannot create {}: {}; check that the folder is writable", part_.string(),
             error ? error.message() : "something is in the way");
}

StagedFolder::~StagedFolder() {
    std::error_code ignored;
    fs::remove_all(part_, ignored);
    if (made_) fs::remove(folder_, ignored);  // if nothing was put into it
}

void StagedFolder::move_in(const fs::path& from, const fs::path& to) const {
    std::error_code error;
    fs::rename(from, to, error);
    if (error)
        fail(ErrorCode::io, "cannot write {}: {}; move what is in the way to another folder", to.string(),
             error.message());
}

void StagedFolder::publish(const fs::path& last) {
    const fs::path old = part_ / "replaced", fresh = part_ / last;
    std::error_code error;
    std::vector<fs::path> files, folders;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(part_)) {
        const fs::path name = entry.path().lexically_relative(part_);
        const bool is_folder = entry.is_directory(), there = fs::exists(folder_ / name, error);
        // Check this before anything changes.
        if (there && fs::is_directory(folder_ / name, error) != is_folder)
            fail(ErrorCode::io, "cannot write {}: {} is in the way; move it to another folder",
                 (folder_ / name).string(), is_folder ? "a file" : "a folder");
        if (entry.path() != fresh) (is_folder ? folders : files).push_back(name);
    }
    if (fs::exists(folder_ / last, error)) move_in(folder_ / last, old);
    for (const fs::path& name : folders) {
        fs::create_directories(folder_ / name, error);
        if (error)
            fail(ErrorCode::io, "cannot create the folder {}: {}; choose another with --out",
                 (folder_ / name).string(), error.message());
    }
    for (const fs::path& name : files) move_in(part_ / name, folder_ / name);
    if (fs::exists(fresh, error))
        move_in(fresh, folder_ / last);
    else if (fs::exists(old, error))
        move_in(old, folder_ / last);
    made_ = false;
}

}  // namespace keyhole
