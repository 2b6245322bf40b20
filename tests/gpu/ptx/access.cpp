// Loads, stores, atomic operations, ldmatrix and printf.
#include "tests/gpu/ptx/counts.h"
#include "tests/gpu/ptx/options.h"
#include "tests/gpu/ptx/warp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

void addresses_of(const Warp& warp, const Op& op, u64 (&at)[kLanes]) {
    const auto offset = static_cast<u64>(op.offset);
    if (op.address_bytes == 0)
        std::fill(at, at + kLanes, offset);
    else if (op.address_bytes == 4)
        for (int i = 0; i < kLanes; ++i) at[i] = static_cast<u32>(warp.lanes<u32>(op.address)[i] + offset);
    else
        for (int i = 0; i < kLanes; ++i) at[i] = warp.lanes<u64>(op.address)[i] + offset;
}

// --- shared memory -----------------------------------------------------------------------------------------

/// Watches units of as few bytes as threads take.
void refine_cells(Block& block, u64 n) {
    const int shift = n == 1 ? 0 : n == 2 ? 1 : 2;
    if (shift >= block.cell_shift) return;
    std::vector<SharedCell> fine;
    for (const SharedCell& cell : block.cells)
        fine.insert(fine.end(), std::size_t{1} << (block.cell_shift - shift), cell);
    block.cells = std::move(fine);
    block.cell_shift = block.launch->kernel->cell_shift = shift;
}

/// Calls visit(cell, thread) for each unit that a lane takes.
template <class Visit>
void for_cells(const Warp& warp, const Op& op, const u64* at, u64 n, const char* what, Visit visit) {
    Block& block = *warp.block;
    refine_cells(block, n);
    for_lanes(warp.mask, [&](int lane) {
        if (at[lane] + n > block.shared.size() || at[lane] > block.shared.size())
            fault(warp, op, lane,
                  fmt::format("{} {} bytes at byte {} of {} bytes of shared memory", what, n, at[lane],
                              block.shared.size()));
        if (!is_aligned(at[lane], n))
            fault(warp, op, lane,
                  fmt::format("{} {} bytes at byte {} of shared memory, which is misaligned", what, n,
                              at[lane]));
        const u64 last = (at[lane] + n - 1) >> block.cell_shift;
        for (u64 i = at[lane] >> block.cell_shift; i <= last; ++i)
            visit(block.cells[i], lane, warp.first_thread + static_cast<u32>(lane));
    });
}

/// True for two threads that a barrier of their warp may have ordered.
bool may_be_ordered(const Warp& warp, u32 a, u32 b) {
    return a == b || (warp.block->launch->kernel->syncs_warps && a / kLanes == b / kLanes);
}

constexpr u32 kSeveral = 1u << 10;  // in SharedCell::reader: threads

void read_shared(const Warp& warp, const Op& op, const u64* at, u64 n) {
    const u32 epoch = warp.block->epoch + 1;
    for_cells(warp, op, at, n, "reads", [&](SharedCell& cell, int lane, u32 thread) {
        if (cell.writer == 0) fault(warp, op, lane, "reads shared memory that nobody wrote");
        const u32 writer = cell.writer & 0x3ffu;
        if (cell.writer >> 10 == epoch && !may_be_ordered(warp, writer, thread))
            fault(warp, op, lane, fmt::format("reads what thread {} wrote and no barrier follows", writer));
        if (cell.reader >> 11 != epoch)
            cell.reader = epoch << 11 | thread;
        else if (!may_be_ordered(warp, cell.reader & 0x3ffu, thread))
            cell.reader |= kSeveral;
    });
}

void write_shared(const Warp& warp, const Op& op, const u64* at, u64 n, const std::byte* data) {
    Block& block = *warp.block;
    const u32 epoch = block.epoch + 1;
    const auto is_same = [&](int lane) {
        return std::memcmp(block.shared.data() + at[lane], data + static_cast<u64>(lane) * n, n) == 0;
    };
    for_cells(warp, op, at, n, "writes", [&](SharedCell& cell, int lane, u32 thread) {
        const u32 writer = cell.writer & 0x3ffu, reader = cell.reader & 0x3ffu;
        if (cell.writer >> 10 == epoch && !may_be_ordered(warp, writer, thread) && !is_same(lane))
            fault(warp, op, lane, fmt::format("writes where thread {} wrote and no barrier follows", writer));
        if (cell.reader >> 11 == epoch && !is_same(lane) &&
            ((cell.reader & kSeveral) != 0 || !may_be_ordered(warp, reader, thread)))
            fault(warp, op, lane, fmt::format("writes where thread {} read and no barrier follows", reader));
        cell.writer = epoch << 10 | thread;
        // Written at once, for the lanes that follow.
        std::memcpy(block.shared.data() + at[lane], data + static_cast<u64>(lane) * n, n);
    });
}

// --- loads and stores --------------------------------------------------------------------------------------

Space space_at(u64 address) {
    const u64 tag = address >> 56;
    return tag == kSharedBase >> 56 ? Space::shared : tag == kLocalBase >> 56 ? Space::local : Space::global;
}

/// Calls visit(space, at) for the lanes of each space that generic addresses are in.
template <class Visit>
void by_space(Warp& warp, const Op& op, u64 (&at)[kLanes], Visit visit) {
    if (op.space != Space::generic) return visit(op.space, at);
    const u32 all = warp.mask;
    for (const Space space : {Space::global, Space::shared, Space::local}) {
        u32 mask = 0;
        for_lanes(all, [&](int lane) { mask |= static_cast<u32>(space_at(at[lane]) == space) << lane; });
        if (mask == 0) continue;
        u64 inside[kLanes];
        for (int i = 0; i < kLanes; ++i)
            inside[i] = space == Space::global ? at[i] : at[i] & ((u64{1} << 56) - 1);
        warp.mask = mask;
        visit(space, inside);
    }
    warp.mask = all;
}

/// Returns a lane's memory of a space that needs no rules but its bounds.
std::byte* plain_memory(Warp& warp, const Op& op, Space space, int lane, u64 at, u64 n) {
    const bool is_local = space == Space::local;
    Launch& launch = *warp.block->launch;
    const u64 size = is_local ? launch.kernel->local_bytes : launch.params.size();
    if (at > size || at + n > size || !is_aligned(at, std::min<u64>(n, 16)))
        fault(warp, op, lane,
              fmt::format("takes {} bytes at byte {} of {} bytes of {}", n, at, size,
                          is_local ? "its own memory" : "parameters"));
    return (is_local ? warp.local.data() + static_cast<u64>(lane) * size : launch.params.data()) + at;
}

template <class M, class R>
void load(Warp& warp, const Op& op) {
    u64 all[kLanes];
    addresses_of(warp, op, all);
    const u64 n = sizeof(M) * op.n_elements;
    by_space(warp, op, all, [&](Space space, const u64* at) {
        const std::byte* from[kLanes] = {};
        if (space == Space::global) {
            warp.block->launch->memory->read(warp, op, at, n);
            for_lanes(warp.mask, [&](int i) { from[i] = reinterpret_cast<const std::byte*>(at[i]); });
        } else if (space == Space::shared) {
            read_shared(warp, op, at, n);
            for_lanes(warp.mask, [&](int i) { from[i] = warp.block->shared.data() + at[i]; });
        } else {
            for_lanes(warp.mask, [&](int i) { from[i] = plain_memory(warp, op, space, i, at[i], n); });
        }
        if (options().counts && (space == Space::global || space == Space::shared))
            count_access(warp, op, at, n, space == Space::shared);
        for (u32 v = 0; v < op.n_elements; ++v) {
            R* to = warp.lanes<R>(op.at[v]);
            for_lanes(warp.mask, [&](int i) {
                M value;
                std::memcpy(&value, from[i] + v * sizeof(M), sizeof(M));
                to[i] = static_cast<R>(value);
            });
        }
    });
}

template <class M, class R>
void store(Warp& warp, const Op& op) {
    u64 all[kLanes];
    addresses_of(warp, op, all);
    const u64 n = sizeof(M) * op.n_elements;
    std::byte data[kLanes * 32];
    for (u32 v = 0; v < op.n_elements; ++v)
        for_lanes(warp.mask, [&](int i) {
            const auto value = static_cast<M>(warp.lanes<R>(op.at[v])[i]);
            std::memcpy(data + static_cast<u64>(i) * n + v * sizeof(M), &value, sizeof(M));
        });
    by_space(warp, op, all, [&](Space space, const u64* at) {
        if (options().counts && (space == Space::global || space == Space::shared))
            count_access(warp, op, at, n, space == Space::shared);
        if (space == Space::global) return warp.block->launch->memory->write(warp, op, at, n, data);
        if (space == Space::shared) return write_shared(warp, op, at, n, data);
        if (space == Space::param) fault(warp, op, std::countr_zero(warp.mask), "writes to a parameter");
        for_lanes(warp.mask, [&](int i) {
            std::memcpy(plain_memory(warp, op, space, i, at[i], n), data + static_cast<u64>(i) * n, n);
        });
    });
}

// --- atomic operations -------------------------------------------------------------------------------------

/// What the thread's block has fenced becomes part of the counter; the thread finds what others put there.
void publish_at_counter(Warp& warp, const Op& op, int lane, u64 at) {
    Block& block = *warp.block;
    const u32 thread = warp.first_thread + static_cast<u32>(lane);
    if ((op.mode & 2) != 0) fence_of_thread(block, thread);
    PublishedBlocks& counter = block.launch->counters[at];
    PublishedBlocks& found = block.found[thread];
    for (const auto& [id, published] : counter)
        if (id != block.id) found[id] = published;
    if (block.fenced[thread] != 0) {
        counter[block.id] = {block.fenced[thread] - 1, thread};
        for (const auto& [id, published] : block.acquired) counter.try_emplace(id, published);
    }
    if ((op.mode & 1) != 0) fence_of_thread(block, thread);
}

template <class T, class F>
void atomic(Warp& warp, const Op& op) {
    u64 all[kLanes];
    addresses_of(warp, op, all);
    by_space(warp, op, all, [&](Space space, const u64* at) {
        if (space == Space::global)
            warp.block->launch->memory->note_atomic(warp, op, at, sizeof(T));
        else if (space != Space::shared)
            fault(warp, op, std::countr_zero(warp.mask), "an atomic operation in its own memory");
        for_lanes(warp.mask, [&](int lane) {
            if (space == Space::shared &&
                (at[lane] % sizeof(T) != 0 || at[lane] + sizeof(T) > warp.block->shared.size()))
                fault(warp, op, lane, fmt::format("counts at byte {} of shared memory", at[lane]));
            std::byte* place = space == Space::shared ? warp.block->shared.data() + at[lane]
                                                      : reinterpret_cast<std::byte*>(at[lane]);
            T old;
            std::memcpy(&old, place, sizeof(T));
            const T value =
                F{}(old, warp.lanes<T>(op.at[1])[lane], op.at[2] != 0 ? warp.lanes<T>(op.at[2])[lane] : T{});
            std::memcpy(place, &value, sizeof(T));
            warp.lanes<T>(op.at[0])[lane] = old;
            if (space == Space::global) publish_at_counter(warp, op, lane, at[lane]);
        });
    });
}

template <class T>
Run atomic_of_type(std::string_view operation) {
    const auto run = []<class F>(F) -> Run { return &atomic<T, F>; };
    if (operation == "add") return run([](T a, T b, T) { return static_cast<T>(a + b); });
    if (operation == "exch") return run([](T, T b, T) { return b; });
    if (operation == "min") return run([](T a, T b, T) { return std::min(a, b); });
    if (operation == "max") return run([](T a, T b, T) { return std::max(a, b); });
    if constexpr (std::is_unsigned_v<T>) {
        if (operation == "inc") return run([](T a, T b, T) { return a >= b ? T{0} : static_cast<T>(a + 1); });
        if (operation == "dec")
            return run([](T a, T b, T) { return a == 0 || a > b ? b : static_cast<T>(a - 1); });
        if (operation == "cas") return run([](T a, T b, T c) { return a == b ? c : a; });
        if (operation == "and") return run([](T a, T b, T) { return static_cast<T>(a & b); });
        if (operation == "or") return run([](T a, T b, T) { return static_cast<T>(a | b); });
        if (operation == "xor") return run([](T a, T b, T) { return static_cast<T>(a ^ b); });
    }
    return nullptr;
}

template <class M, class R>
Run load_if() {
    if constexpr (sizeof(M) <= sizeof(R))
        return &load<M, R>;
    else
        return nullptr;
}
template <class M>
Run load_to(int register_bytes) {
    return register_bytes == 2   ? load_if<M, std::uint16_t>()
           : register_bytes == 4 ? load_if<M, u32>()
           : register_bytes == 8 ? load_if<M, u64>()
                                 : nullptr;
}
template <class M>
Run store_from(int register_bytes) {
    return register_bytes == 2   ? &store<M, std::uint16_t>
           : register_bytes == 4 ? &store<M, u32>
           : register_bytes == 8 ? &store<M, u64>
                                 : nullptr;
}

}  // namespace

void fence_of_thread(Block& block, u32 thread) {
    block.fenced[thread] = block.epoch + 1;
    const auto found = block.found.find(thread);
    if (found == block.found.end()) return;
    for (const auto& [id, published] : found->second) {
        const auto [seen, is_new] = block.acquired.try_emplace(id, published);
        if (!is_new && published.epoch >= seen->second.epoch) seen->second = published;
    }
    block.found.erase(found);
    block.acquirer = thread;
    block.acquired_at = block.epoch;
}

Run load_of(int memory_bytes, bool is_signed, int register_bytes) {
    switch (memory_bytes) {
        case 1:
            return is_signed ? load_to<std::int8_t>(register_bytes) : load_to<std::uint8_t>(register_bytes);
        case 2:
            return is_signed ? load_to<std::int16_t>(register_bytes) : load_to<std::uint16_t>(register_bytes);
        case 4:
            return is_signed ? load_to<std::int32_t>(register_bytes) : load_to<u32>(register_bytes);
        default:
            return load_to<u64>(register_bytes);
    }
}

Run store_of(int memory_bytes, int register_bytes) {
    if (memory_bytes > register_bytes) return nullptr;
    return memory_bytes == 1   ? store_from<std::uint8_t>(register_bytes)
           : memory_bytes == 2 ? store_from<std::uint16_t>(register_bytes)
           : memory_bytes == 4 ? store_from<u32>(register_bytes)
                               : store_from<u64>(register_bytes);
}

Run atomic_of(std::string_view operation, std::string_view type) {
    if (type == "u32" || type == "b32") return atomic_of_type<u32>(operation);
    if (type == "u64" || type == "b64") return atomic_of_type<u64>(operation);
    if (type == "s32") return atomic_of_type<std::int32_t>(operation);
    if (type == "f32") return operation == "add" ? atomic_of_type<float>(operation) : nullptr;
    return nullptr;
}

/// Matrices of 8 x 8 halves: lane 8 j + i has the address of row i of matrix j. Lane 4 g + t gets two
/// neighbours of row g, from column 2 t on; transposed, two neighbours of column g, from row 2 t on.
void load_matrices(Warp& warp, const Op& op) {
    u64 at[kLanes];
    addresses_of(warp, op, at);
    const u32 all = warp.mask;
    if (op.n_elements < 4) warp.mask = (1u << 8 * op.n_elements) - 1;
    read_shared(warp, op, at, 16);
    if (options().counts) count_access(warp, op, at, 16, true);
    warp.mask = all;
    for (u32 j = 0; j < op.n_elements; ++j) {
        u32 out[kLanes];
        for (u32 lane = 0; lane < kLanes; ++lane) {
            const u32 g = lane / 4, t = lane % 4;
            std::uint16_t pair[2];
            for (u32 h = 0; h < 2; ++h) {
                const u32 row = op.mode != 0 ? 2 * t + h : g, column = op.mode != 0 ? g : 2 * t + h;
                std::memcpy(&pair[h], warp.block->shared.data() + at[8 * j + row] + 2 * column, 2);
            }
            std::memcpy(&out[lane], pair, 4);
        }
        std::memcpy(warp.lanes<u32>(op.at[j]), out, sizeof(out));
    }
}

/// vprintf with %s and %d. The arguments lie in the thread's memory.
void print(Warp& warp, const Op& op) {
    const int lane = std::countr_zero(warp.mask);
    const u64 arguments = warp.lanes<u64>(op.at[1])[lane] & ((u64{1} << 56) - 1);
    std::string text;
    u64 at = 0;
    const auto argument = [&](auto& value) {
        at = (at + sizeof(value) - 1) / sizeof(value) * sizeof(value);
        std::memcpy(&value, plain_memory(warp, op, Space::local, lane, arguments + at, sizeof(value)),
                    sizeof(value));
        at += sizeof(value);
    };
    for (const char* c = reinterpret_cast<const char*>(warp.lanes<u64>(op.at[0])[lane]); *c != 0; ++c) {
        if (*c == '%' && c[1] == 's') {
            const char* word = nullptr;
            argument(word), text += word, ++c;
        } else if (*c == '%' && c[1] == 'd') {
            int number = 0;
            argument(number), text += std::to_string(number), ++c;
        } else if (*c != '\n') {
            text += *c;
        }
    }
    warp.block->launch->printed = text;
}

}  // namespace ptx
