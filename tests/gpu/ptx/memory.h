/// Device memory: buffers with exact bounds, and for each unit who wrote it. Addresses are those of the host.
/// One thread.
///
/// Two accesses of one launch to the same unit, one of them a write, need an order: the same thread, a
/// barrier of the block between them, or, between blocks, a fence, an atomic operation on one counter in
/// both, and a fence. Reads are held against writes that ran before; a read that runs before its write is
/// found in another order (KEYHOLE_PTX_SEED). A write of the value that is there is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ptx {

struct Warp;
struct Op;

/// Who wrote a unit: launch, block, epoch and thread in 20, 22, 12 and 10 bits. 0: nobody.
using Stamp = std::uint64_t;
inline constexpr Stamp kByCopy = 1;  ///< a copy, or a product

/// n: a power of two. A division would take longer than all other rules of an access.
constexpr bool is_aligned(std::uint64_t at, std::uint64_t n) {
    return (at & (n - 1)) == 0;
}

class Buffer {
  public:
    std::uint64_t first = 0, n_bytes = 0;
    bool is_freed = false, is_pinned = false;

    std::byte* data() const { return reinterpret_cast<std::byte*>(first); }
    bool holds(std::uint64_t at, std::uint64_t n) const { return at >= first && at + n <= first + n_bytes; }

  private:
    friend class Memory;
    static constexpr int kChunkShift = 10;
    /// A chunk that copies wrote whole has no stamps of its own.
    struct Chunk {
        std::uint32_t launch = 0;  // the last one that wrote to it
        bool is_whole = false;
    };
    int shift = 2;  // of a unit's bytes
    std::vector<Stamp> stamps;
    std::vector<Chunk> chunks;
};

class Memory {
  public:
    explicit Memory(std::uint64_t capacity) : capacity_(capacity) {}
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    /// Returns null when there is no room.
    void* allocate(std::uint64_t n_bytes, bool is_pinned);
    /// Returns false where no such buffer is. Freed memory is kept for a while, to notice its use.
    bool release(void* data);
    std::uint64_t free_bytes() const { return capacity_ - used_; }
    std::uint64_t capacity() const { return capacity_; }

    /// Returns the buffer that starts at or before the address; null when there is none.
    Buffer* find(std::uint64_t at) const;
    /// Throws Fault where a copy or a product would leave its buffer, or a buffer is freed.
    Buffer& checked(const void* at, std::uint64_t n_bytes, const char* what) const;

    /// What copies and products write. `from`: null, or the buffer that it is copied from.
    void note_copy(Buffer& buffer, std::uint64_t at, std::uint64_t n_bytes);
    void note_copy(Buffer& buffer, std::uint64_t at, std::uint64_t n_bytes, Buffer& from,
                   std::uint64_t from_at);

    /// Holds a read of the lanes of a warp, n bytes each, against the rules.
    void read(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n) const;
    /// Does so with a write, and writes: lane i's bytes start at data + i * n.
    void write(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n,
               const std::byte* data);
    /// The same for atomic operations, which the caller does.
    void note_atomic(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n) const;

  private:
    Buffer& buffer_of(const Warp& warp, const Op& op, int lane, std::uint64_t at, std::uint64_t n,
                      const char* what) const;
    [[noreturn]] void refuse(const Warp& warp, const Op& op, int lane, std::uint64_t at, std::uint64_t n,
                             const char* what) const;
    static bool reads_copies(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n);
    static bool is_ready(const Buffer& buffer, std::uint64_t at, std::uint64_t n_bytes);
    static void refine(Buffer& buffer, int shift);
    static void own_stamps(Buffer& buffer, std::uint64_t chunk);

    std::map<std::uint64_t, std::unique_ptr<Buffer>> buffers_;
    std::vector<Buffer*> freed_;
    std::vector<std::unique_ptr<Buffer>> retired_;  // operations may still point to them
    std::uint64_t capacity_, used_ = 0, freed_bytes_ = 0;
};

}  // namespace ptx
