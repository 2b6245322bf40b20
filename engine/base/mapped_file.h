/// A file mapped read-only into memory, and anonymous pages that go back to the system when freed. Any
/// thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace keyhole {

/// Throws Error(bad_file) naming the path where it is no ordinary file or a link to one: a pipe waits for a
/// writer, a device may never end, a folder holds no bytes. For readers that open the file themselves; those
/// below check it anyway.
void check_ordinary_file(const std::filesystem::path& path);

/// Throws Error(bad_file) with the reason when the file cannot be opened or mapped, or is no ordinary file. An
/// empty file maps to an empty span.
class MappedFile {
  public:
    explicit MappedFile(const std::filesystem::path& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;

    std::span<const std::byte> bytes() const { return {data_, size_}; }

  private:
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

/// Zeroed memory straight from the system (mmap), returned to it on destruction: malloc may keep what is
/// freed, and Keyhole promises that evicted entries give their memory back. Throws Error(no_memory) with the
/// size asked for.
class Pages {
  public:
    Pages() = default;
    explicit Pages(std::size_t n_bytes);
    ~Pages();
    Pages(Pages&& other) noexcept;
    Pages& operator=(Pages&& other) noexcept;

    /// The memory without its owner; give_back() ends it.
    void* release();
    static void give_back(void* data, std::size_t n_bytes) noexcept;

    void* data() const { return data_; }
    std::size_t size_bytes() const { return size_; }
    template <class T>
    std::span<T> as() const {
        return {static_cast<T*>(data_), size_ / sizeof(T)};
    }

  private:
    void* data_ = nullptr;
    std::size_t size_ = 0;
};

/// For vectors that are large and short-lived: each has its own pages, so that freeing them gives them back.
template <class T>
struct PageAllocator {
    using value_type = T;
    PageAllocator() = default;
    template <class U>
    PageAllocator(const PageAllocator<U>&) {}  // NOLINT: implicit, as allocators are
    T* allocate(std::size_t n) { return static_cast<T*>(Pages(n * sizeof(T)).release()); }
    void deallocate(T* data, std::size_t n) { Pages::give_back(data, n * sizeof(T)); }
    bool operator==(const PageAllocator&) const { return true; }
};

/// Larger texts are refused before they are read, where the reader names no other bound.
inline constexpr std::size_t kMostTextBytes = std::size_t{1} << 30;

/// A whole ordinary file as a string. Throws Error(bad_file): no ordinary file, or more than most_bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes = kMostTextBytes);
/// The same, and pipes: for texts that a user may have another program write, such as a prompt.
std::string read_text_input(const std::filesystem::path& path, std::size_t most_bytes = kMostTextBytes);

enum class Durability {
    rename,  ///< a reader, and a crash of the program, find the old file or the new one, whole
    sync,    ///< a crash of the machine too; a few milliseconds. For what a person made: settings, notes
};
/// Writes beside the target and renames. Keeps the permissions of a file that is there, and a link to it. Throws
/// Error(io).
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes,
                Durability durability = Durability::rename);
void write_text_file(const std::filesystem::path& path, std::string_view text,
                     Durability durability = Durability::rename);

}  // namespace keyhole
