/// Which pages of the text a query head reads (Quest, section 3): bounds of the keys of each page, a bound of
/// the head's logits on each, the pages with the largest. Host and device. Knows a lane's device tables, no
/// model. CPU twin, with the same bits for the same query: backend/common/key_pages.h.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/attention.h"
#include "engine/backend/cuda/kernels/lane.h"

#include <cmath>
#include <cstdint>

namespace keyhole::cuda {

/// Computes the bounds of the pages from LanePages::stale_from on: without the row's own token, which has no
/// key yet. Grid: x = kBlocks, y = KV heads of the model, z = lanes.
template <class T>
struct SummarisePages {
    static constexpr int kPhases = 1;
    static constexpr int kBlocks = 64;
    using Shared = NoShared;
    using Local = NoLocal;
    const LaneView<T>* lanes;
    std::int32_t head_dim, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const LaneView<T>& view = lanes[block.z];
        const int g = block.y;
        if (!view.pages.reads_some(g)) return;
        const int length = view.pages.rules[g].length;
        for (int page = view.pages.stale_from / length + block.x; page <= view.row / length; page += kBlocks)
            summarise(block, view, g, page);
    }

    KH_FN void summarise(const Block& block, const LaneView<T>& view, int g, int page) const {
        const DeviceHead<T>& head = view.heads[g];
        const LanePages& pages = view.pages;
        const int length = pages.rules[g].length, n = head.count - 1;
        const int first = first_from(view, g, n, page * length),
                  last = first_from(view, g, n, (page + 1) * length);
        KH_DEVICE_ASSERT(page < pages.stride);
        for (int c = block.thread; c < head_dim; c += block.n_threads) {
            float least = 0, largest = 0;
            for (int i = first; i < last; ++i) {
                const float key = stored_key(head, slot_of(view, g, i), c);
                least = i == first || key < least ? key : least;
                largest = i == first || key > largest ? key : largest;
            }
            *pages.extreme(g, head_dim, c, 0, page) = least;
            *pages.extreme(g, head_dim, c, 1, page) = largest;
        }
        if (block.thread == 0)
            pages.n_tokens[static_cast<std::int64_t>(g) * pages.stride + page] = last - first;
    }

    KH_FN static int slot_of(const LaneView<T>& view, int g, int i) {
        return view.order != nullptr ? view.order[static_cast<std::int64_t>(g) * view.list_stride + i] : i;
    }
    /// Returns the first of a KV head's n tokens, in text order, from a position on.
    KH_FN static int first_from(const LaneView<T>& view, int g, int n, int position) {
        int low = 0, high = n;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (view.heads[g].positions[slot_of(view, g, middle)] < position)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
};

/// Computes what a query head's logits are at most on each page,
///     sum over channels of max(q min, q max),
/// -inf where that is NaN; NaN for a page without tokens. The page of the row's own token counts its key.
/// Runs before AttendSplit and finishes query and key as it does. One thread per page, blocks of kSplit.
/// Grid: x = splits of pages, y = query heads of the layer, z = lanes.
template <class T>
struct BoundPages {
    static constexpr int kPhases = 4;
    using Shared = typename AttendSplit<T>::Shared;
    using Local = NoLocal;
    AttendSplit<T> attend;
    float* bounds;  ///< [lanes, n_heads, stride]
    std::int32_t stride, unused = 0;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& view = attend.lanes[block.z];
        const int g = attend.kv_of_head[block.y], page = block.x * kSplit + block.thread;
        if (!view.pages.reads_some(g)) return;
        const int last = view.row / view.pages.rules[g].length;
        if (block.x * kSplit > last) return;
        if (p < 3) return attend.finish_heads(p, block, shared, attend.k != nullptr);
        if (page > last) return;
        bounds[(static_cast<std::int64_t>(block.z) * attend.n_heads + block.y) * stride + page] =
            bound_of(shared, view, g, page, page == last);
    }

    KH_FN float bound_of(const Shared& shared, const LaneView<T>& view, int g, int page, bool is_own) const {
        const DeviceHead<T>& head = view.heads[g];
        const LanePages& pages = view.pages;
        const bool is_empty = pages.n_tokens[static_cast<std::int64_t>(g) * pages.stride + page] == 0;
        if (is_empty && !is_own) return NAN;
        float sum = 0;
        for (int c = 0; c < attend.head_dim; ++c) {
            float least = *pages.extreme(g, attend.head_dim, c, 0, page),
                  largest = *pages.extreme(g, attend.head_dim, c, 1, page);
            if (is_own) {
                const float key =
                    attend.k != nullptr ? widen(shared.new_key[c]) : stored_key(head, head.count - 1, c);
                least = is_empty || key < least ? key : least;
                largest = is_empty || key > largest ? key : largest;
            }
            sum = add(sum, mul(shared.q[c], shared.q[c] >= 0 ? largest : least));
        }
        return sum == sum ? sum : -INFINITY;
    }
};

/// Chooses the pages with the largest bounds, of equal ones the younger: finds the bits of the least bound
/// that is read, four at a time from the highest on. Grid: x = 1, y = query heads of the layer, z = lanes.
template <class T>
struct ChoosePages {
    static constexpr int kBits = 4, kDigits = 1 << kBits;
    static constexpr int kRepeated = 4, kPhases = 5;
    static constexpr int kThreads = kSplit, kParts = kThreads / kDigits;
    struct Shared {
        // Rows have room between them, so that phase 1 meets no bank conflicts.
        std::int32_t count[kDigits][kThreads + kParts];  ///< pages of a thread with that digit
        std::int32_t part[kDigits][kParts + 1];
        std::int32_t sum[kDigits];
        std::uint32_t found;    ///< the bits found so far
        std::int32_t n_wanted;  ///< pages to be read of those that have these bits
    };
    using Local = NoLocal;
    const LaneView<T>* lanes;
    const std::int32_t* kv_of_head;  ///< [n_heads] of the layer
    const float* bounds;             ///< of BoundPages
    HeadBuffer<std::uint8_t> read;   ///< 1: the head reads the page
    std::int32_t n_heads, stride;

    KH_FN int n_tiles(const Block& block) const {
        return lanes[block.z].pages.reads_some(kv_of_head[block.y]) ? 32 / kBits : 0;
    }
    KH_FN void begin(const Block& block, Shared& shared, Local&) const {
        const PageRule& rule = lanes[block.z].pages.rules[kv_of_head[block.y]];
        if (block.thread != 0) return;
        shared.found = 0;
        shared.n_wanted = rule.n_read - (rule.reads_own != 0 ? 1 : 0);
    }

    /// Returns a number that orders bounds; 0 for a page without tokens, which is never read.
    KH_FN static std::uint32_t rank_of(float bound) {
        if (bound != bound) return 0;
        const std::uint32_t bits = bits_of(bound == 0 ? 0.0f : bound);  // -0 equals 0
        return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& view = lanes[block.z];
        const PageRule& rule = view.pages.rules[kv_of_head[block.y]];
        const int t = block.thread, own = view.row / rule.length;
        const float* bound = bounds + (static_cast<std::int64_t>(block.z) * n_heads + block.y) * stride;
        const int n_free = rule.reads_own != 0 ? own : own + 1;
        const int shift = 32 - kBits * (block.tile + 1);
        if (p == 0) {
            for (int d = 0; d < kDigits; ++d) shared.count[d][t] = 0;
            for (int page = t; page < n_free; page += kThreads) {
                const std::uint32_t rank = rank_of(bound[page]);
                if (rank != 0 && (block.tile == 0 || rank >> (shift + kBits) == shared.found))
                    ++shared.count[rank >> shift & (kDigits - 1)][t];
            }
        } else if (p == 1) {
            int sum = 0;
            for (int i = 0; i < kDigits; ++i) sum += shared.count[t / kParts][i * kParts + t % kParts];
            shared.part[t / kParts][t % kParts] = sum;
        } else if (p == 2) {
            if (t >= kDigits) return;
            int sum = 0;
            for (int i = 0; i < kParts; ++i) sum += shared.part[t][i];
            shared.sum[t] = sum;
        } else if (p == 3) {
            if (t != 0) return;
            int digit = kDigits - 1;
            for (; digit > 0 && shared.sum[digit] < shared.n_wanted; --digit)
                shared.n_wanted -= shared.sum[digit];
            shared.found = shared.found << kBits | static_cast<std::uint32_t>(digit);
        } else {
            std::uint8_t* out = read.of(block.z, block.y, stride);
            for (int page = t; page <= own; page += kThreads)
                out[page] = page >= n_free || is_read(bound, page, n_free, shared) ? 1 : 0;
        }
    }

    KH_FN static bool is_read(const float* bound, int page, int n_free, const Shared& shared) {
        const std::uint32_t rank = rank_of(bound[page]);
        if (rank == 0 || rank != shared.found) return rank > shared.found;
        int younger = 0;
        for (int other = page + 1; other < n_free && younger < shared.n_wanted; ++other)
            younger += rank_of(bound[other]) == rank;
        return younger < shared.n_wanted;
    }
};

}  // namespace keyhole::cuda
