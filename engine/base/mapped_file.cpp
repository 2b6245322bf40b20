#include "engine/base/mapped_file.h"
#include "engine/base/standard_input.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapping_guard.h"
#include "engine/base/memory_words.h"
#include "engine/base/unfinished_file.h"
#include "engine/base/utf8.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() { close(); }
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&&) = delete;

    int get() const { return fd_; }
    /// Returns false after a late write error (full disk, network file system); errno has the reason.
    bool close() {
        const int fd = std::exchange(fd_, -1);
        return fd < 0 || ::close(fd) == 0;
    }

  private:
    int fd_;
};

[[noreturn]] void read_failed(const fs::path& path, int error) {
    fail(ErrorCode::bad_file, "cannot read {}: {}; check the path and its permissions", path.string(),
         std::strerror(error));
}

/// Returns why a file of this kind is not read, or nothing for an ordinary file.
std::string_view fault_of_kind(mode_t mode) {
    if (S_ISREG(mode)) return {};
    if (S_ISDIR(mode)) return "it is a folder";
    if (S_ISFIFO(mode)) return "it is a pipe";
    if (S_ISCHR(mode) || S_ISBLK(mode)) return "it is a device";
    return "it is no ordinary file";
}

void check_kind(const fs::path& path, mode_t mode) {
    const std::string_view fault = fault_of_kind(mode);
    if (!fault.empty())
        fail(ErrorCode::bad_file, "cannot read {}: {}; name an ordinary file", path.string(), fault);
}

/// takes_pipes: accepts a pipe and waits for its writer. Otherwise never waits.
Descriptor open_to_read(const fs::path& path, struct stat& status, bool takes_pipes = false) {
    // Check first: opening a device can already have an effect.
    if (::stat(path.c_str(), &status) != 0) read_failed(path, errno);
    if (!(takes_pipes && S_ISFIFO(status.st_mode))) check_kind(path, status.st_mode);
    Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (takes_pipes ? 0 : O_NONBLOCK)));
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0) read_failed(path, errno);
    // Check again: the name may belong to another file by now.
    if (!(takes_pipes && S_ISFIFO(status.st_mode))) check_kind(path, status.st_mode);
    return file;
}

[[noreturn]] void refuse_size(const fs::path& path, std::size_t most_bytes) {
    fail(
        ErrorCode::bad_file, "cannot read {}: it has more than the {} that are read of such a file",
        path.string(),
        most_bytes >> 20 > 0 ? fmt::format("{} MiB", most_bytes >> 20) : fmt::format("{} bytes", most_bytes));
}

/// Reads an open file to its end.
std::string read_all(int file, const fs::path& path, const struct stat& status, std::size_t most_bytes) {
    const auto check_size = [&](std::size_t size) {
        if (size > most_bytes) refuse_size(path, most_bytes);
    };
    const auto size = to_index(status.st_size);
    check_size(size);
    std::string text;
    // The size is only a hint: pipes and files in /proc report 0.
    std::size_t chunk = std::max<std::size_t>(size + 1, 4096);
    for (;;) {
        const std::size_t have = text.size();
        text.resize(have + chunk);
        const ssize_t n = ::read(file, text.data() + have, chunk);
        const int error = errno;
        text.resize(have + to_index(n > 0 ? n : 0));
        check_size(text.size());
        if (n == 0) return text;
        if (n < 0 && error != EINTR) read_failed(path, error);
        if (text.size() >= size) chunk = 65536;
    }
}

std::string read_standard_input() {
    struct stat status {};
    const fs::path name = "standard input";
    if (::fstat(STDIN_FILENO, &status) != 0) read_failed(name, errno);
    if (S_ISDIR(status.st_mode)) fail(ErrorCode::bad_file, "cannot read standard input: it is a folder");
    return read_all(STDIN_FILENO, name, status, kMostTextBytes);
}

/// target: the file behind the links that `path` may be.
[[noreturn]] void write_failed(const fs::path& path, const fs::path& target, int error) {
    fail(ErrorCode::io, "cannot write {}{}: {}; check that its folder exists, is writable and has room",
         path.string(), target == path ? "" : fmt::format(", a link to {}", target.string()),
         std::strerror(error));
}

/// Returns 0 or an errno.
int write_all(const Descriptor& file, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(file.get(), bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        bytes = bytes.subspan(to_index(n));
    }
    return 0;
}

/// Returns the text, or throws where it is UTF-16 or UTF-32.
std::string without_wide_encoding(std::string text, const fs::path& path) {
    if (const std::string fault = wide_encoding_fault(text); !fault.empty())
        fail(ErrorCode::bad_file, "cannot read {}: {}", path.string(), fault);
    return text;
}

}  // namespace

void check_ordinary_file(const fs::path& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) read_failed(path, errno);
    check_kind(path, status.st_mode);
}

MappedFile::MappedFile(const fs::path& path) {
    struct stat status {};
    const Descriptor file = open_to_read(path, status);
    const auto size = to_index(status.st_size);
    if (size == 0) return;
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data == MAP_FAILED && errno == ENOMEM)
        fail(ErrorCode::no_memory, "no memory to map the {} MiB of {}: no addresses are left (ulimit -v); {}",
             mebibytes(size), path.string(), kMoreRoom);
    if (data == MAP_FAILED) read_failed(path, errno);
    data_ = static_cast<const std::byte*>(data);
    size_ = size;
    try {
        guard_mapping(path, file.get(), data_, size_);
    } catch (...) {
        ::munmap(data, size);
        throw;
    }
}

MappedFile::~MappedFile() {
    if (data_ == nullptr) return;
    release_mapping(data_);
    ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

Pages::Pages(std::size_t n_bytes) : size_(n_bytes) {
    if (n_bytes == 0) return;
    data_ = ::mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
        data_ = nullptr;
        fail(ErrorCode::no_memory,
             "no memory for {} MiB; take a smaller budget, fewer lanes or a shorter prompt",
             mebibytes(n_bytes));
    }
}

Pages::~Pages() {
    if (data_ != nullptr) ::munmap(data_, size_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
    if (this == &other) return *this;
    if (data_ != nullptr)
        ::munmap(data_, size_);  // at once, so that evicted entries give their memory back when they go
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
}

void* Pages::release() {
    size_ = 0;
    return std::exchange(data_, nullptr);
}

void Pages::give_back(void* data, std::size_t n_bytes) noexcept {
    if (data != nullptr) ::munmap(data, n_bytes);
}

void refuse_lfs_pointer(const fs::path& path, std::span<const std::byte> bytes) {
    constexpr std::size_t kLongest = 1024;  // by the specification of Git LFS
    constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/", kId = "\noid sha256:";
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.size() > kLongest || !text.starts_with(kBegin) || text.find(kId) == std::string_view::npos)
        return;
    const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
    fail(ErrorCode::bad_file,
         "cannot read {}: it is a Git LFS pointer, the file itself was not fetched; run git lfs pull in {}",
         path.string(), folder);
}

std::string read_text_file(const fs::path& path, std::size_t most_bytes) {
    struct stat status {};
    const Descriptor file = open_to_read(path, status);
    std::string text = read_all(file.get(), path, status, most_bytes);
    refuse_lfs_pointer(path, std::as_bytes(std::span<const char>(text)));
    return text;
}

std::string read_text_input(const fs::path& path, std::size_t most_bytes) {
    if (path == kStandardInput) {
        static const std::string text = read_standard_input();
        if (text.size() > most_bytes) refuse_size("standard input", most_bytes);
        return without_wide_encoding(text, "standard input");
    }
    struct stat status {};
    const Descriptor file = open_to_read(path, status, true);
    return without_wide_encoding(read_all(file.get(), path, status, most_bytes), path);
}

static bool is_file(const fs::path& path, const struct stat& status) {
    struct stat named {};
    return ::stat(path.c_str(), &named) == 0 && named.st_dev == status.st_dev &&
           named.st_ino == status.st_ino;
}

void write_file(const fs::path& path, std::span<const std::byte> bytes, Durability durability) {
    struct stat status {};
    const bool exists = ::stat(path.c_str(), &status) == 0;
    if (exists && !S_ISREG(status.st_mode)) {
        // A rename would replace a device such as /dev/null. For a folder, open() reports the error.
        Descriptor device(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
        int error = device.get() < 0 ? errno : write_all(device, bytes);
        if (error == 0 && !device.close()) error = errno;
        if (error != 0) write_failed(path, path, error);
        return;
    }
    // A link stays a link: its target is replaced, or made. Links below /proc name files that are deleted.
    fs::path target = behind_links(path);
    if (exists && !is_file(target, status)) target = path;
    const UnfinishedFile part(target);
    Descriptor file(::open(part.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0) write_failed(path, target, errno);
    if (exists) (void)::fchmod(file.get(), status.st_mode & 07777);
    int error = write_all(file, bytes);
    if (error == 0 && durability == Durability::sync && ::fsync(file.get()) != 0) error = errno;
    if (!file.close() && error == 0) error = errno;
    if (error == 0 && ::rename(part.path().c_str(), target.c_str()) != 0) error = errno;
    if (error != 0) write_failed(path, target, error);
}

void check_can_write(const fs::path& path) {
    struct stat status {};
    const bool exists = ::stat(path.c_str(), &status) == 0;
    if (exists && S_ISDIR(status.st_mode)) write_failed(path, path, EISDIR);
    if (exists && !S_ISREG(status.st_mode)) return;  // opening a pipe waits for its reader
    const fs::path target = behind_links(path);
    const UnfinishedFile part(target);  // goes again
    const Descriptor file(::open(part.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0) write_failed(path, target, errno);
}

void write_text_file(const fs::path& path, std::string_view text, Durability durability) {
    write_file(path, std::as_bytes(std::span<const char>(text.data(), text.size())), durability);
}

}  // namespace keyhole
