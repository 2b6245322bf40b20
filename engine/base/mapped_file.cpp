#include "engine/base/mapped_file.h"

#include "engine/base/error.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace keyhole {

MappedFile::MappedFile(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(ErrorCode::bad_file, "cannot open {}: {}", path.string(), std::strerror(errno));
    struct stat info {};
    if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
        ::close(file);
        fail(ErrorCode::bad_file, "cannot read {}: it is not a regular file", path.string());
    }
    size_ = static_cast<std::size_t>(info.st_size);
    void* mapped = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
    const int reason = errno;
    ::close(file);
    if (mapped == MAP_FAILED)
        fail(ErrorCode::bad_file, "cannot map {} ({} bytes): {}", path.string(), size_,
             std::strerror(reason));
    data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
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
             "no memory for {} MiB; take a smaller budget, fewer lanes or a shorter prompt", n_bytes >> 20);
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
        ::munmap(data_, size_);  // at once: evicted entries give their memory back when they go
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

std::string read_text_file(const std::filesystem::path& path) {
    const MappedFile file(path);
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    std::filesystem::path part = path;
    part += ".part";
    std::FILE* file = std::fopen(part.c_str(), "wb");
    bool good = file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    if (file != nullptr) good = (std::fclose(file) == 0) && good;
    good = good && std::rename(part.c_str(), path.c_str()) == 0;
    if (good) return;
    const int reason = errno;
    std::remove(part.c_str());
    fail(ErrorCode::io, "cannot write {}: {}; check that the folder exists, is writable and not full",
         path.string(), std::strerror(reason));
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
    write_file(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace keyhole
