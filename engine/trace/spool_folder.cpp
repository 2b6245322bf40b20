#include "engine/trace/spool_folder.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/trace/spool.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_io(const fs::path& path, const char* what, const char* why = std::strerror(errno)) {
    fail(ErrorCode::io, "cannot {} {}: {}; check that the folder is writable and not full", what,
         path.string(), why);
}

/// Returns whether this is a name of trace.part.XXXXXX, which libzip makes by mkstemp and renames to
/// trace.part.
bool is_name_of_libzip(std::string_view name) {
    constexpr std::string_view kBegin = "trace.part.";
    return name.size() == kBegin.size() + 6 && name.starts_with(kBegin) &&
           std::all_of(name.begin() + kBegin.size(), name.end(),
                       [](unsigned char c) { return std::isalnum(c) != 0; });
}

/// Returns whether a file belongs to a spool.
bool is_own(const fs::directory_entry& entry) {
    std::error_code error;
    const std::string name = entry.path().filename().string();
    return fs::is_regular_file(entry.symlink_status(error)) &&
           (name == "frames.bin" || name == "frames.new" || name == "trace.part" || is_name_of_libzip(name));
}

void remove_own_files(const fs::path& folder) noexcept {
    std::error_code ignored;
    std::vector<fs::path> own;
    for (auto entry = fs::directory_iterator(folder, ignored); !ignored && entry != fs::directory_iterator();
         entry.increment(ignored))
        if (is_own(*entry)) own.push_back(entry->path());
    for (const fs::path& file : own) fs::remove(file, ignored);
}

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using OpenFile = std::unique_ptr<std::FILE, CloseFile>;

void write_to(std::FILE* to, const fs::path& path, std::string_view bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), to) != bytes.size() || std::fflush(to) != 0)
        fail_io(path, "write");
}

bool holds_records(const fs::path& frames) {
    std::error_code error;
    const auto size = fs::file_size(frames, error);
    return !error && size > 0;
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
    // A run makes frames.bin at once, so a folder without any file is no spool that a run left.
    was_empty_ = fs::exists(there) && fs::is_empty(path_, error);
}

SpoolFolder::~SpoolFolder() {
    if (file_) std::fclose(file_);
    if (lock_ && !has_frames()) remove();
}

bool SpoolFolder::has_frames() const {
    return holds_records(frames());
}

void SpoolFolder::begin() {
    if (file_) std::fclose(file_);
    begun_ = false;
    places_.clear();
    n_bytes_ = 0;
    file_ = std::fopen(frames().c_str(), "wbe");
    if (!file_) fail_io(path_, "create the spool");
}

std::size_t SpoolFolder::append(const StepTrace& step) {
    constexpr std::size_t kWorthKeeping = std::size_t{16} << 20;
    KH_ASSERT(!begun_ || step.run->id == run_id_, "records of two runs in one trace");
    run_id_ = step.run->id;
    run_ = step.run;
    buffer_.clear();
    append_frame(step, !begun_, buffer_);
    KH_ASSERT(file_);
    write_to(file_, frames(), buffer_);
    const std::size_t n = buffer_.size();
    while (!places_.empty() && places_.back().row >= step.row) places_.pop_back();  // these were rewound
    places_.push_back({n_bytes_, n, step.row, false});
    begun_ = true;
    n_bytes_ += n;
    if (buffer_.capacity() > kWorthKeeping) buffer_ = std::string();
    return n;
}

/// Until it has succeeded, the file stays as it was, and append() may follow.
std::size_t SpoolFolder::thin(std::size_t most_bytes) {
    const fs::path fresh = path_ / "frames.new";
    try {
        return thin_into(fresh, most_bytes);
    } catch (...) {
        std::error_code ignored;
        fs::remove(fresh, ignored);  // the disk may be full
        throw;
    }
}

std::size_t SpoolFolder::thin_into(const fs::path& fresh, std::size_t most_bytes) {
    std::vector<Place> places;
    std::size_t first_whole = places_.size(), whole_bytes = 0, n_bytes = 0;
    while (first_whole > 0 && whole_bytes + places_[first_whole - 1].n_bytes <= most_bytes)
        whole_bytes += places_[--first_whole].n_bytes;
    {
        const MappedFile mapped(frames());
        const std::string_view all(reinterpret_cast<const char*>(mapped.bytes().data()),
                                   mapped.bytes().size());
        const OpenFile to(std::fopen(fresh.c_str(), "wbe"));
        if (to == nullptr) fail_io(fresh, "write");
        for (std::size_t i = 0; i < places_.size(); ++i) {
            Place place = places_[i];
            if (place.offset + place.n_bytes > all.size())
                fail(ErrorCode::bad_file, "{} is damaged: a record is cut off", frames().string());
            std::string_view frame = all.substr(place.offset, place.n_bytes);
            const bool gets_light = i < first_whole && !place.is_light;
            // The first frame tells of the run; another one becomes the first where a rewind took that.
            if (gets_light || (i == 0 && place.offset > 0)) {
                buffer_.clear();
                append_frame(read_record(frame, frames().string(), run_, gets_light), i == 0, buffer_);
                frame = buffer_;
                place.is_light = place.is_light || gets_light;
            }
            place.offset = n_bytes;
            place.n_bytes = frame.size();
            write_to(to.get(), fresh, frame);
            n_bytes += place.n_bytes;
            places.push_back(place);
        }
    }
    OpenFile opened(std::fopen(fresh.c_str(), "abe"));
    std::error_code error;
    if (opened != nullptr) fs::rename(fresh, frames(), error);
    if (opened == nullptr) fail_io(frames(), "write");
    if (error) fail_io(frames(), "write", error.message().c_str());
    std::fclose(std::exchange(file_, opened.release()));
    places_ = std::move(places);
    n_bytes_ = n_bytes;
    buffer_ = std::string();
    return n_bytes;
}

void SpoolFolder::end() {
    KH_ASSERT(file_);
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail_io(frames(), "write");
}

void SpoolFolder::remove() noexcept {
    std::error_code ignored;
    remove_own_files(path_);
    if (!was_empty_) fs::remove(path_, ignored);
    lock_.reset();
}

void SpoolFolder::put_aside(const fs::path& to) {
    std::error_code error;
    fs::rename(path_, to, error);
    if (error) fail_io(path_, "put aside", error.message().c_str());
    lock_.reset();
}

FoundSpool::FoundSpool(fs::path path) : path_(std::move(path)) {
    std::error_code error;
    if (!fs::is_directory(path_, error))
        fail(ErrorCode::bad_file, "{} is no spool: a folder with frames.bin is needed", path_.string());
    lock_ = PathLock::try_take(path_);
    if (!lock_)
        fail(ErrorCode::io, "cannot read {}: another Keyhole is writing it; wait for it to end",
             path_.string());
    if (!holds_records(frames()))
        fail(ErrorCode::bad_file,
             "{} holds no records of a run (its frames.bin is missing or empty); nothing can be recovered, "
             "and nothing was changed",
             path_.string());
}

void FoundSpool::remove() noexcept {
    std::error_code ignored;
    remove_own_files(path_);
    fs::remove(path_, ignored);  // fails if a foreign file is in it
    lock_.reset();
}

void remove_spool_without_records(const fs::path& path) noexcept {
    try {
        const std::optional<PathLock> lock = PathLock::try_take(path);
        if (!lock || holds_records(path / "frames.bin")) return;
        for (const fs::directory_entry& entry : fs::directory_iterator(path))
            if (!is_own(entry)) return;
        std::error_code ignored;
        remove_own_files(path);
        fs::remove(path, ignored);
    } catch (const std::exception&) {
        // It is no folder, or may not be read.
    }
}

}  // namespace keyhole
