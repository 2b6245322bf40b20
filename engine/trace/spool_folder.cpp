#include "engine/trace/spool_folder.h"

#include "engine/base/error.h"
#include "engine/trace/spool.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_io(const fs::path& path, const char* what, const char* why = std::strerror(errno)) {
    fail(ErrorCode::io, "cannot {} {}: {}; check that the folder is writable and not full", what,
         path.string(), why);
}

/// Returns whether a file belongs to a spool. libzip writes trace.part.XXXXXX before it renames it to
/// trace.part.
bool is_own(const fs::directory_entry& entry) {
    std::error_code error;
    const std::string name = entry.path().filename().string();
    return fs::is_regular_file(entry.symlink_status(error)) &&
           (name == "frames.bin" || name == "frames.new" || name.starts_with("trace.part"));
}

}  // namespace

SpoolFolder::SpoolFolder(fs::path path) : path_(std::move(path)) {
    std::error_code error;
    const fs::file_status there = fs::symlink_status(path_, error);
    if (fs::exists(there) && !fs::is_directory(there))
        fail_io(path_, "create the spool", "something of that name is in the way");
    if (!fs::exists(there) && !fs::create_directory(path_, error) && error)
        fail_io(path_, "create the spool", error.message().c_str());
    lock_ = PathLock::try_take(path_);
    if (!lock_)
        fail(ErrorCode::io, "cannot use {}: another Keyhole is writing it; wait for it or take another name",
             path_.string());
    for (const fs::directory_entry& entry : fs::directory_iterator(path_, error))
        if (!is_own(entry))
            fail(
                ErrorCode::io,
                "cannot use {} for the records of the run: it holds {}, which Keyhole did not write; move it "
                "away or take another name",
                path_.string(), entry.path().filename().string());
    if (error) fail_io(path_, "read", error.message().c_str());
}

SpoolFolder::~SpoolFolder() {
    if (file_) std::fclose(file_);
    if (lock_ && !has_frames()) remove();
}

bool SpoolFolder::has_frames() const {
    std::error_code error;
    const auto size = fs::file_size(frames(), error);
    return !error && size > 0;
}

void SpoolFolder::begin() {
    if (file_) std::fclose(file_);
    begun_ = false;
    file_ = std::fopen(frames().c_str(), "wbe");
    if (!file_) fail_io(path_, "create the spool");
}

std::size_t SpoolFolder::append(const StepTrace& step) {
    KH_ASSERT(!begun_ || step.run->id == run_id_, "records of two runs in one trace");
    run_id_ = step.run->id;
    return append_to(frames(), step);
}

std::size_t SpoolFolder::append_to(const fs::path& file, const StepTrace& step) {
    KH_ASSERT(file_);
    const std::string frame = make_frame(step, !begun_);
    if (std::fwrite(frame.data(), 1, frame.size(), file_) != frame.size() || std::fflush(file_) != 0)
        fail_io(file, "write");
    begun_ = true;
    return frame.size();
}

std::size_t SpoolFolder::thin(std::size_t most_bytes) {
    end();
    const fs::path fresh = path_ / "frames.new";
    std::size_t n_bytes = 0;
    {
        const Frames old(frames());
        std::size_t n_whole = 0, whole_bytes = 0;
        while (n_whole < old.light().size() &&
               whole_bytes + old.n_bytes(old.light().size() - 1 - n_whole) <= most_bytes)
            whole_bytes += old.n_bytes(old.light().size() - 1 - n_whole++);
        file_ = std::fopen(fresh.c_str(), "wbe");
        if (!file_) fail_io(fresh, "write");
        begun_ = false;
        for (std::size_t i = 0; i < old.light().size(); ++i) {
            StepTrace step = *old.whole(i);
            step.run = old.light().front()->run;
            if (i + n_whole < old.light().size())
                for (LaneRecord& lane : step.lanes) {
                    lane.rows.reset();
                    lane.shadow.reset();
                }
            n_bytes += append_to(fresh, step);
        }
        end();
    }
    std::error_code error;
    fs::rename(fresh, frames(), error);
    file_ = error ? nullptr : std::fopen(frames().c_str(), "abe");
    if (!file_) fail_io(frames(), "write");
    return n_bytes;
}

void SpoolFolder::end() {
    KH_ASSERT(file_);
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail_io(frames(), "write");
}

void SpoolFolder::remove() noexcept {
    std::error_code ignored;
    std::vector<fs::path> own;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_, ignored))
        if (is_own(entry)) own.push_back(entry.path());
    for (const fs::path& file : own) fs::remove(file, ignored);
    fs::remove(path_, ignored);
    lock_.reset();
}

void SpoolFolder::put_aside(const fs::path& to) {
    std::error_code error;
    fs::rename(path_, to, error);
    if (error) fail_io(path_, "put aside", error.message().c_str());
    lock_.reset();
}

}  // namespace keyhole
