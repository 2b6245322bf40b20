#include "engine/base/staged_folder.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"

#include <algorithm>
#include <set>
#include <system_error>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

/// A line for each file and, with a slash, each folder that a replacement adds. It is there while files are
/// being moved.
constexpr const char* kListName = "new-files";
constexpr const char* kOldName = "old";

std::vector<std::string> files_below(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (fs::symlink_status(it->path()).type() != fs::file_type::directory)
            names.push_back(it->path().lexically_relative(folder).generic_string());
    std::sort(names.begin(), names.end());
    return names;
}

/// Returns the folders above a relative name, the outermost first.
std::vector<fs::path> folders_of(const fs::path& name) {
    std::vector<fs::path> folders;
    for (fs::path at = name.parent_path(); !at.empty(); at = at.parent_path()) folders.push_back(at);
    std::reverse(folders.begin(), folders.end());
    return folders;
}

/// Does not follow a link.
fs::file_type type_of(const fs::path& path) {
    std::error_code error;
    return fs::symlink_status(path, error).type();
}

}  // namespace

/// The renames of one replacement. Each can be undone until settle().
struct StagedFolder::Moves {
    const StagedFolder& of;
    fs::path old = of.aside_ / kOldName;

    [[noreturn]] void fail_at(const fs::path& name, const std::string& why) const {
        fail(ErrorCode::io, "cannot write {}: {}; move it to another folder, or choose another with --out",
             (of.folder_ / name).string(), why);
    }
    void move(const fs::path& from, const fs::path& to, const fs::path& name) const {
        std::error_code error;
        fs::create_directories(to.parent_path(), error);
        if (!error) fs::rename(from, to, error);
        if (error) fail_at(name, error.message());
    }
    /// Returns those of the old files that can be taken away: below folders that are no links.
    std::vector<std::string> there(const std::vector<std::string>& names) const {
        std::vector<std::string> found;
        for (const std::string& name : names) {
            const std::vector<fs::path> above = folders_of(name);
            const bool reaches = std::all_of(above.begin(), above.end(), [&](const fs::path& folder) {
                return type_of(of.folder_ / folder) == fs::file_type::directory;
            });
            const fs::file_type type = type_of(of.folder_ / name);
            if (reaches && type != fs::file_type::not_found && type != fs::file_type::directory)
                found.push_back(name);
        }
        return found;
    }
    /// Throws if something that is not old is where a new file goes.
    void check_way(const std::vector<std::string>& fresh, const std::set<std::string>& goes) const {
        for (const std::string& name : fresh) {
            for (const fs::path& folder : folders_of(name)) {
                const fs::file_type type = type_of(of.folder_ / folder);
                if (type == fs::file_type::symlink) fail_at(folder, "a link is in the way");
                if (type != fs::file_type::not_found && type != fs::file_type::directory)
                    fail_at(folder, "a file is in the way");
            }
            const fs::file_type type = type_of(of.folder_ / name);
            if (type == fs::file_type::directory) fail_at(name, "a folder is in the way");
            if (type != fs::file_type::not_found && !goes.contains(name))
                fail_at(name, "a file is in the way that " + of.what_ + " did not write there before");
        }
    }
    void begin(const std::vector<std::string>& fresh) const {
        std::string list;
        std::set<fs::path> folders;
        for (const std::string& name : fresh) {
            for (const fs::path& folder : folders_of(name))
                if (type_of(of.folder_ / folder) == fs::file_type::not_found) folders.insert(folder);
            list += name + "\n";
        }
        for (const fs::path& folder : folders) list += folder.generic_string() + "/\n";
        std::error_code error;
        fs::remove_all(of.aside_, error);
        if (error || !fs::create_directory(of.aside_, error) || error)
            fail(ErrorCode::io, "cannot create {}: {}; check that the folder is writable", of.aside_.string(),
                 error ? error.message() : "something is in the way");
        write_text_file(of.aside_ / kListName, list);
    }
    /// From here on nothing can be undone.
    void settle() const {
        std::error_code error;
        fs::remove(of.aside_ / kListName, error);
        if (error)
            fail(ErrorCode::io, "cannot remove {}: {}", (of.aside_ / kListName).string(), error.message());
    }
    void clean_up() const {
        std::error_code ignored;
        std::set<fs::path> emptied;
        for (const std::string& name : files_below(old))
            for (const fs::path& folder : folders_of(name)) emptied.insert(folder);
        for (auto it = emptied.rbegin(); it != emptied.rend(); ++it) fs::remove(of.folder_ / *it, ignored);
        fs::remove_all(of.aside_, ignored);  // last: it knows which folders became empty
    }
    /// Takes new files out again and puts the old ones back. Returns false if one could not be moved.
    bool undo() const {
        std::error_code error;
        if (!fs::exists(of.aside_ / kListName, error)) {  // nothing was moved, or all was
            clean_up();
            return true;
        }
        std::vector<fs::path> made;
        const std::string list = read_text_file(of.aside_ / kListName);
        for (std::size_t at = 0, end = 0; (end = list.find('\n', at)) != std::string::npos; at = end + 1) {
            const std::string name = list.substr(at, end - at);
            if (name.ends_with('/'))
                made.emplace_back(name.substr(0, name.size() - 1));
            else if (is_name_below(name) && type_of(of.part_ / name) == fs::file_type::not_found &&
                     type_of(old / name) == fs::file_type::not_found)
                fs::remove(of.folder_ / name, error);  // was moved in; an old one of this name is put over it
        }
        bool whole = true;
        for (const std::string& name : files_below(old)) {
            fs::create_directories((of.folder_ / name).parent_path(), error);
            fs::rename(old / name, of.folder_ / name, error);
            whole = whole && !error;
        }
        for (auto it = made.rbegin(); it != made.rend(); ++it) fs::remove(of.folder_ / *it, error);
        if (whole) fs::remove_all(of.aside_, error);
        return whole;
    }
};

StagedFolder::StagedFolder(fs::path folder, std::string what, std::optional<PathLock> lock)
    : folder_(std::move(folder)),
      part_(folder_ / "export.part"),
      aside_(folder_ / "export.part.old"),
      what_(std::move(what)),
      lock_(std::move(lock)) {
    std::error_code error;
    if (type_of(folder_) == fs::file_type::symlink && !fs::exists(folder_, error))
        fail(ErrorCode::io,
             "cannot create the folder {}: it is a link to {}, which does not exist; remove the link or "
             "choose another with --out",
             folder_.string(), fs::read_symlink(folder_, error).string());
    made_ = !fs::exists(folder_, error);
    fs::create_directories(folder_, error);
    if (error || !fs::is_directory(folder_))
        fail(ErrorCode::io, "cannot create the folder {}: {}; choose another with --out", folder_.string(),
             error ? error.message() : "a file is in the way");
    if (!lock_) lock_ = PathLock::try_take(folder_);
    if (!lock_)
        fail(ErrorCode::io,
             "cannot write {} to {}: another Keyhole is writing there; wait for it or choose another folder "
             "with --out",
             what_, folder_.string());
    if (!Moves{*this}.undo())
        fail(ErrorCode::io,
             "cannot write {} to {}: {} holds files that an export took away before it was ended, and they "
             "cannot be moved back; check the permissions of the folder",
             what_, folder_.string(), (aside_ / kOldName).string());
    fs::remove_all(part_, error);
    if (error || !fs::create_directory(part_, error) || error)
        fail(ErrorCode::io, "cannot create {}: {}; check that the folder is writable", part_.string(),
             error ? error.message() : "something is in the way");
}

StagedFolder::~StagedFolder() {
    std::error_code ignored;
    if (fs::exists(aside_ / kListName, ignored)) return;  // could not be undone: the next one tries again
    fs::remove_all(part_, ignored);
    if (made_) fs::remove(folder_, ignored);  // if nothing was put into it
}

std::vector<std::string> StagedFolder::files() const {
    return files_below(part_);
}

void StagedFolder::check_room(std::int64_t n_bytes) const {
    std::error_code error;
    const fs::space_info space = fs::space(folder_, error);
    if (!error && static_cast<std::uintmax_t>(n_bytes) > space.available)
        fail(ErrorCode::io, "cannot write {} to {}: it takes {} MB, and the disk has {} MB free", what_,
             folder_.string(), n_bytes / 1'000'000 + 1, space.available / 1'000'000);
}

void StagedFolder::check_way(const std::vector<std::string>& fresh,
                             const std::vector<std::string>& old) const {
    const Moves moves{*this};
    const std::vector<std::string> goes = moves.there(old);
    moves.check_way(fresh, {goes.begin(), goes.end()});
}

void StagedFolder::publish(const std::vector<std::string>& old, const std::string& last) {
    const Moves moves{*this};
    std::vector<std::string> fresh = files(), goes = moves.there(old);
    moves.check_way(fresh, {goes.begin(), goes.end()});
    moves.begin(fresh);
    try {
        // The description is not there while the files that it describes are not whole.
        std::stable_partition(goes.begin(), goes.end(),
                              [&](const std::string& name) { return name == last; });
        std::stable_partition(fresh.begin(), fresh.end(),
                              [&](const std::string& name) { return name != last; });
        for (const std::string& name : goes) moves.move(folder_ / name, moves.old / name, name);
        for (const std::string& name : fresh) moves.move(part_ / name, folder_ / name, name);
        moves.settle();
    } catch (const Error& error) {
        if (!moves.undo())
            fail(ErrorCode::io, "{}. Files that were there before are in {}: move them back", error.what(),
                 moves.old.string());
        throw;
    }
    moves.clean_up();
    made_ = false;
}

bool is_name_below(const std::string& name) {
    const fs::path path(name);
    if (name.empty() || path.is_absolute() || name.back() == '/') return false;
    return std::all_of(path.begin(), path.end(),
                       [](const fs::path& part) { return !part.empty() && part.native().front() != '.'; });
}

}  // namespace keyhole
