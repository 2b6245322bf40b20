#include "tests/gpu/ptx/memory.h"

#include "tests/gpu/ptx/warp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace ptx {
namespace {

constexpr std::uint64_t kKeptBytes = 64 << 20;  // of freed memory

Stamp stamp_of(const Block& block, std::uint32_t thread) {
    return block.launch->id << 44 | std::uint64_t{block.id & 0x3fffffu} << 22 |
           std::uint64_t{block.epoch & 0xfffu} << 10 | thread;
}
std::uint64_t launch_of(Stamp stamp) {
    return stamp >> 44;
}

/// True when what was written in this launch is ordered before an access of the thread.
bool is_ordered(const Block& block, std::uint32_t thread, Stamp stamp) {
    const auto writer = static_cast<std::uint32_t>(stamp & 0x3ffu),
               epoch = static_cast<std::uint32_t>(stamp >> 10 & 0xfffu),
               id = static_cast<std::uint32_t>(stamp >> 22 & 0x3fffffu);
    if (id == (block.id & 0x3fffffu)) {
        if (writer == thread || epoch != (block.epoch & 0xfffu)) return true;
        return block.launch->kernel->syncs_warps && writer / kLanes == thread / kLanes;
    }
    if (block.acquired.empty() || (thread != block.acquirer && block.epoch == block.acquired_at))
        return false;
    const auto seen = block.acquired.find(id);
    return seen != block.acquired.end() &&
           (epoch < seen->second.epoch || (epoch == seen->second.epoch && writer == seen->second.thread));
}

std::string writer_text(const Warp& warp, Stamp stamp) {
    const auto id = static_cast<std::uint32_t>(stamp >> 22 & 0x3fffffu);
    return id == (warp.block->id & 0x3fffffu)
               ? fmt::format("thread {} wrote and no barrier follows", stamp & 0x3ffu)
               : fmt::format("thread {} of block {} wrote, without an order between the blocks",
                             stamp & 0x3ffu, id);
}

}  // namespace

Memory::~Memory() {
    for (auto& [first, buffer] : buffers_) std::free(buffer->data());
}

void* Memory::allocate(std::uint64_t n_bytes, bool is_pinned) {
    if (!is_pinned && n_bytes > free_bytes()) return nullptr;
    void* data = std::aligned_alloc(256, (n_bytes + 255) / 256 * 256);
    if (data == nullptr) return nullptr;
    std::memset(data, 0xff, n_bytes);
    auto buffer = std::make_unique<Buffer>();
    buffer->first = reinterpret_cast<std::uint64_t>(data);
    buffer->n_bytes = n_bytes;
    buffer->is_pinned = is_pinned;
    buffer->chunks.resize((n_bytes >> Buffer::kChunkShift) + 1);
    if (!is_pinned) used_ += n_bytes;
    buffers_[buffer->first] = std::move(buffer);
    return data;
}

bool Memory::release(void* data) {
    const auto found = buffers_.find(reinterpret_cast<std::uint64_t>(data));
    if (found == buffers_.end() || found->second->is_freed) return false;
    Buffer& buffer = *found->second;
    buffer.is_freed = true;
    buffer.stamps = {};
    if (!buffer.is_pinned) used_ -= buffer.n_bytes;
    freed_.push_back(&buffer);
    freed_bytes_ += buffer.n_bytes;
    while (freed_bytes_ > kKeptBytes && !freed_.empty()) {
        Buffer& oldest = *freed_.front();
        freed_.erase(freed_.begin());
        freed_bytes_ -= oldest.n_bytes;
        std::free(oldest.data());
        oldest.chunks = {};
        const auto place = buffers_.find(oldest.first);
        oldest.n_bytes = 0;
        retired_.push_back(std::move(place->second));
        buffers_.erase(place);
    }
    return true;
}

Buffer* Memory::find(std::uint64_t at) const {
    const auto after = buffers_.upper_bound(at);
    return after == buffers_.begin() ? nullptr : std::prev(after)->second.get();
}

Buffer& Memory::checked(const void* at, std::uint64_t n_bytes, const char* what) const {
    const auto first = reinterpret_cast<std::uint64_t>(at);
    Buffer* buffer = find(first);
    if (buffer == nullptr || !buffer->holds(first, n_bytes))
        throw Fault(fmt::format("{}: {} bytes are not inside one buffer of the device", what, n_bytes));
    if (buffer->is_freed)
        throw Fault(fmt::format("{}: the buffer of {} bytes is freed", what, buffer->n_bytes));
    return *buffer;
}

// --- who wrote a unit --------------------------------------------------------------------------------------

void Memory::refine(Buffer& buffer, int shift) {
    if (shift >= buffer.shift) return;
    std::vector<Stamp> fine;
    const std::size_t parts = std::size_t{1} << (buffer.shift - shift);
    fine.reserve(buffer.stamps.size() * parts);
    for (const Stamp stamp : buffer.stamps) fine.insert(fine.end(), parts, stamp);
    buffer.stamps = std::move(fine);
    buffer.shift = shift;
}

void Memory::own_stamps(Buffer& buffer, std::uint64_t chunk) {
    if (buffer.stamps.empty())
        buffer.stamps.resize(buffer.chunks.size() << (Buffer::kChunkShift - buffer.shift));
    if (!buffer.chunks[chunk].is_whole) return;
    const std::uint64_t n = std::uint64_t{1} << (Buffer::kChunkShift - buffer.shift);
    std::fill_n(buffer.stamps.begin() + static_cast<std::ptrdiff_t>(chunk * n), n, kByCopy);
    buffer.chunks[chunk].is_whole = false;
}

void Memory::note_copy(Buffer& buffer, std::uint64_t at, std::uint64_t n_bytes) {
    constexpr std::uint64_t kChunk = std::uint64_t{1} << Buffer::kChunkShift;
    const std::uint64_t first = at - buffer.first, end = first + n_bytes;
    if (buffer.is_pinned || n_bytes == 0) return;
    while (((first | end) & ((std::uint64_t{1} << buffer.shift) - 1)) != 0 && end != buffer.n_bytes)
        refine(buffer, buffer.shift - 1);
    for (std::uint64_t from = first; from < end;) {
        const std::uint64_t chunk = from / kChunk, to = std::min(end, (chunk + 1) * kChunk);
        Buffer::Chunk& c = buffer.chunks[chunk];
        if (from == chunk * kChunk && (to == from + kChunk || to == buffer.n_bytes)) {
            c = {0, true};
        } else if (!c.is_whole) {
            own_stamps(buffer, chunk);
            for (std::uint64_t i = from >> buffer.shift; i << buffer.shift < to; ++i)
                buffer.stamps[i] = kByCopy;
        }
        from = to;
    }
}

bool Memory::is_ready(const Buffer& buffer, std::uint64_t at, std::uint64_t n_bytes) {
    for (std::uint64_t from = at - buffer.first, end = from + n_bytes; from < end;
         from += std::uint64_t{1} << buffer.shift)
        if (!buffer.chunks[from >> Buffer::kChunkShift].is_whole &&
            (buffer.stamps.empty() || buffer.stamps[from >> buffer.shift] == 0))
            return false;
    return true;
}

void Memory::note_copy(Buffer& buffer, std::uint64_t at, std::uint64_t n_bytes, Buffer& from,
                       std::uint64_t from_at) {
    if (is_ready(from, from_at, n_bytes)) return note_copy(buffer, at, n_bytes);
    const std::uint64_t unit = std::uint64_t{1} << std::min(from.shift, 2);
    for (std::uint64_t i = 0; i < n_bytes; i += unit)
        if (is_ready(from, from_at + i, 1)) note_copy(buffer, at + i, std::min(unit, n_bytes - i));
}

// --- the lanes of a warp -----------------------------------------------------------------------------------

void Memory::refuse(const Warp& warp, const Op& op, int lane, std::uint64_t at, std::uint64_t n,
                    const char* what) const {
    const Buffer* buffer = find(at);
    if (!is_aligned(at, n))
        fault(warp, op, lane, fmt::format("{} {} bytes at {:#x}, which is misaligned", what, n, at));
    if (buffer == nullptr)
        fault(warp, op, lane, fmt::format("{} {} bytes at {:#x}, where no buffer is", what, n, at));
    if (buffer->is_pinned && buffer->holds(at, n))
        fault(warp, op, lane, fmt::format("{} {} bytes of the host's memory", what, n));
    if (buffer->holds(at, n))
        fault(warp, op, lane,
              fmt::format("{} {} bytes of a freed buffer of {} bytes", what, n, buffer->n_bytes));
    fault(warp, op, lane,
          fmt::format("{} {} bytes at byte {} of a buffer of {} bytes", what, n, at - buffer->first,
                      buffer->n_bytes));
}

/// Returns the buffer that holds the bytes; throws Fault where there is none.
Buffer& Memory::buffer_of(const Warp& warp, const Op& op, int lane, std::uint64_t at, std::uint64_t n,
                          const char* what) const {
    auto* buffer = static_cast<Buffer*>(const_cast<void*>(op.hint));
    if (buffer == nullptr || !buffer->holds(at, n)) {
        buffer = find(at);
        op.hint = buffer;
    }
    if (buffer == nullptr || buffer->is_freed || buffer->is_pinned || !buffer->holds(at, n) ||
        !is_aligned(at, n))
        refuse(warp, op, lane, at, n, what);
    return *buffer;
}

/// True when all lanes read what copies wrote, in the buffer that the operation had last. Most reads do.
bool Memory::reads_copies(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n) {
    const auto* buffer = static_cast<const Buffer*>(op.hint);
    if (warp.mask != ~0u || buffer == nullptr || buffer->is_freed || buffer->is_pinned) return false;
    std::uint64_t low = at[0], high = at[0], bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        low = std::min(low, at[lane]);
        high = std::max(high, at[lane]);
        bits |= at[lane];
    }
    if (!buffer->holds(low, n) || !buffer->holds(high, n) || !is_aligned(bits, n)) return false;
    return std::all_of(at, at + kLanes, [&](std::uint64_t a) {
        return buffer->chunks[(a - buffer->first) >> Buffer::kChunkShift].is_whole;
    });
}

void Memory::read(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n) const {
    if (reads_copies(warp, op, at, n)) return;
    const Block& block = *warp.block;
    for_lanes(warp.mask, [&](int lane) {
        const auto* data = reinterpret_cast<const std::byte*>(at[lane]);
        const auto* hint = static_cast<const Buffer*>(op.hint);
        if ((hint == nullptr || !hint->holds(at[lane], n)) && block.launch->program->is_global(data, n))
            return;
        const Buffer& buffer = buffer_of(warp, op, lane, at[lane], n, "reads");
        const std::uint64_t from = at[lane] - buffer.first;
        if (buffer.chunks[from >> Buffer::kChunkShift].is_whole) return;
        if (buffer.stamps.empty()) fault(warp, op, lane, "reads memory that nobody wrote");
        for (std::uint64_t i = from >> buffer.shift, last = (from + n - 1) >> buffer.shift; i <= last; ++i) {
            const Stamp stamp = buffer.stamps[i];
            if (stamp == 0) fault(warp, op, lane, "reads memory that nobody wrote");
            if (launch_of(stamp) != block.launch->id) continue;
            if (op.read_only) fault(warp, op, lane, "reads by the read-only path what this launch wrote");
            if (!is_ordered(block, warp.first_thread + static_cast<unsigned>(lane), stamp))
                fault(warp, op, lane, "reads what " + writer_text(warp, stamp));
        }
    });
}

void Memory::write(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n,
                   const std::byte* data) {
    const Block& block = *warp.block;
    for_lanes(warp.mask, [&](int lane) {
        const std::uint64_t a = at[lane];
        Buffer& buffer = buffer_of(warp, op, lane, a, n, "writes");
        if (n < 4) refine(buffer, n == 1 ? 0 : 1);
        const std::uint64_t chunk = (a - buffer.first) >> Buffer::kChunkShift;
        if (buffer.chunks[chunk].is_whole || buffer.stamps.empty()) own_stamps(buffer, chunk);
        const std::uint32_t thread = warp.first_thread + static_cast<unsigned>(lane);
        const Stamp mine = stamp_of(block, thread);
        const std::byte* from = data + static_cast<std::uint64_t>(lane) * n;
        auto* to = reinterpret_cast<std::byte*>(a);
        const bool is_same = std::memcmp(to, from, n) == 0;
        for (std::uint64_t i = (a - buffer.first) >> buffer.shift,
                           end = (a - buffer.first + n - 1) >> buffer.shift;
             i <= end; ++i) {
            Stamp& stamp = buffer.stamps[i];
            if (launch_of(stamp) == block.launch->id && !is_same && !is_ordered(block, thread, stamp))
                fault(warp, op, lane, "writes where " + writer_text(warp, stamp));
            stamp = mine;
        }
        std::memcpy(to, from, n);
    });
}

void Memory::note_atomic(const Warp& warp, const Op& op, const std::uint64_t* at, std::uint64_t n) const {
    for_lanes(warp.mask, [&](int lane) {
        const Buffer& buffer = buffer_of(warp, op, lane, at[lane], n, "counts in");
        if (!is_ready(buffer, at[lane], n)) fault(warp, op, lane, "counts in memory that nobody wrote");
    });
}

}  // namespace ptx
