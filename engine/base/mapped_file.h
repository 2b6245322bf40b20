/// Files mapped read-only into memory, anonymous pages that go back to the system when freed, and reading
/// and writing of whole files. Any thread. Knows no format.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace keyhole {

/// Throws Error(bad_file) with the path unless it names an ordinary file or a link to one: a pipe waits for
/// a writer, a device may never end, a folder holds no bytes. Call it before you open a file yourself; the
/// readers below already check.
void check_ordinary_file(const std::filesystem::path& path);

/// A whole file in memory. Throws Error(bad_file) with the reason when the file cannot be opened or mapped,
/// or is no ordinary file. An empty file maps to an empty span.
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

/// Zeroed memory taken from the system (mmap) and returned to it on destruction. malloc may keep freed
/// memory, and Keyhole promises that evicted entries give their memory back. Throws Error(no_memory) with
/// the requested size.
class Pages {
  public:
    Pages() = default;
    explicit Pages(std::size_t n_bytes);
    ~Pages();
    Pages(Pages&& other) noexcept;
    Pages& operator=(Pages&& other) noexcept;

    /// Returns the memory and gives up ownership; give_back() frees it.
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

/// For large, short-lived vectors: each has its own pages, so that freeing it returns them to the system.
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

/// The largest text that is read when the reader gives no other bound.
inline constexpr std::size_t kMostTextBytes = std::size_t{1} << 30;

/// Throws Error(bad_file) if the bytes are a Git LFS pointer, which stands where a file of a repository was
/// not fetched, and names the command that fetches it.
void refuse_lfs_pointer(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// Returns the content of an ordinary file. Throws Error(bad_file) for anything else, for a Git LFS pointer,
/// and for more than most_bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes = kMostTextBytes);
/// As read_text_file(), but also reads pipes: for a text that a person or a program writes, such as a
/// prompt. Refuses UTF-16 and UTF-32 by name; other bytes that are not UTF-8 stay.
std::string read_text_input(const std::filesystem::path& path, std::size_t most_bytes = kMostTextBytes);

enum class Durability {
    rename,  ///< after a crash of the program a reader finds the old file or the new one, whole
    sync,    ///< also after a crash of the machine; costs a few milliseconds. For settings and notes
};
/// Throws Error(io) as write_file() would, and leaves what is there as it was. For files that are written
/// after long work.
void check_can_write(const std::filesystem::path& path);
/// Writes a file beside the target and renames it. Keeps the permissions of an existing file, and a link
/// stays a link. Throws Error(io).
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes,
                Durability durability = Durability::rename);
void write_text_file(const std::filesystem::path& path, std::string_view text,
                     Durability durability = Durability::rename);

}  // namespace keyhole
