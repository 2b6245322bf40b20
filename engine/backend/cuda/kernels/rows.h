/// Packs a row's values as records hold them (RowBlock): in text order, attention in fp16. Host and device.
/// Knows a lane's device tables, no model. CPU twin: pack_row in backend/common/shared.cpp.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/attention.h"
#include "engine/backend/cuda/kernels/lane.h"

#include <cstdint>

namespace keyhole::cuda {

/// What is packed of one lane, and where.
struct PackedLane {
    const std::int32_t* offset;       ///< [n_kv_heads + 1] as in RowBlock
    const std::int64_t* head_offset;  ///< [n_layers * n_heads + 1]
    std::int32_t* order;              ///< [n_kv_heads, stride] slots in text order; null: they are in it
    Fp16* attention;                  ///< [head_offset.back()], or null
    float* first;                     ///< [n_layers * n_heads, kFirst] its first values, not narrowed
    float* scores;                    ///< [offset.back()], or null
};

KH_FN int count_bits(std::uint32_t word) {
#ifdef __CUDA_ARCH__
    return __popc(word);
#else
    return __builtin_popcount(word);
#endif
}

/// Lists the slots of a KV head by ascending position: a slot's place is the number of lower positions. Each
/// position has a byte of its own, so that no two threads write to one address. Grid: x = KV heads of a lane,
/// y = lanes, z = windows of kWindow positions.
struct OrderSlots {
    static constexpr int kPhases = 5;
    static constexpr int kWords = 8192;
    static constexpr int kWindow = 4 * kWords;  ///< positions of one block
    /// Where word w is: the words of neighbouring threads, 32 each, begin in neighbouring banks.
    KH_FN static int place_of(int w) { return w + w / 32; }
    struct Shared {
        /// Byte i of its words, lowest first: position i of the window is stored, 0 or 1.
        std::uint32_t stored[kWords + kWords / 32];
        std::int32_t below[kMaxThreads];   ///< slots before the window, by thread
        std::int32_t count[kMaxThreads];   ///< slots in the words of each thread
        std::int32_t before[kMaxThreads];  ///< slots before these words
    };
    using Local = NoLocal;
    const AnyLane* lanes;
    const PackedLane* packed;
    std::int32_t stride, unused = 0;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const PackedLane& to = packed[block.y];
        if (to.order == nullptr) return;
        const AnyHead& head = lanes[block.y].heads[block.x];
        const int t = block.thread, first = block.z * kWindow;
        const int of_thread = (kWords + block.n_threads - 1) / block.n_threads;
        const int begin = t * of_thread, end = begin + of_thread < kWords ? begin + of_thread : kWords;
        if (p == 0) {
            for (int w = begin; w < end; ++w) shared.stored[place_of(w)] = 0;
            int below = 0;
            for (int i = t; i < head.count; i += block.n_threads) below += head.positions[i] < first;
            shared.below[t] = below;
        } else if (p == 1) {
            for (int i = t; i < head.count; i += block.n_threads) {
                const int at = head.positions[i] - first;
                if (at >= 0 && at < kWindow)
                    reinterpret_cast<unsigned char*>(shared.stored + place_of(at / 4))[at % 4] = 1;
            }
        } else if (p == 2) {
            int count = 0;
            for (int w = begin; w < end; ++w) count += count_bits(shared.stored[place_of(w)]);
            shared.count[t] = count;
        } else if (p == 3) {
            int before = 0;
            for (int i = 0; i < block.n_threads; ++i) before += shared.below[i];
            for (int i = 0; i < t; ++i) before += shared.count[i];
            shared.before[t] = before;
        } else {
            std::int32_t* order = to.order + static_cast<std::int64_t>(block.x) * stride;
            for (int i = t; i < head.count; i += block.n_threads) {
                const int at = head.positions[i] - first;
                if (at < 0 || at >= kWindow) continue;
                const int owner = at / 4 / of_thread;
                int place = shared.before[owner];
                for (int w = owner * of_thread; w < at / 4; ++w)
                    place += count_bits(shared.stored[place_of(w)]);
                place += count_bits(shared.stored[place_of(at / 4)] & ((1u << (8 * (at % 4))) - 1));
                KH_DEVICE_ASSERT(place < head.count);
                order[place] = i;
            }
        }
    }
};

/// Writes attention of all query heads and pooled scores of all KV heads in text order. One thread per entry.
/// Grid: x = splits of kSplit entries, y = query heads of all layers, then KV heads, z = lanes.
struct PackRow {
    static constexpr int kPhases = 1;
    static constexpr int kFirst = 4;  ///< values per query head that are kept as floats too
    using Shared = NoShared;
    using Local = NoLocal;
    const AnyLane* lanes;
    const PackedLane* packed;
    const std::int32_t* kv_of_head;  ///< [n_heads]
    const float* attention;          ///< [lanes, n_heads, stride] by slot
    const float* pooled;             ///< [lanes, max_units, stride] by slot
    std::int32_t n_heads;            ///< of all layers
    std::int32_t max_units, stride, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const PackedLane& to = packed[block.z];
        const bool is_score = block.y >= n_heads;
        const int g = is_score ? block.y - n_heads : kv_of_head[block.y], i = block.x * kSplit + block.thread;
        const std::int64_t first = to.offset[g];
        const int n = static_cast<int>(to.offset[g + 1] - first);
        if (!is_score && to.attention != nullptr && i < kFirst && i >= n) to.first[block.y * kFirst + i] = 0;
        if (i >= n) return;
        const int slot = to.order != nullptr ? to.order[static_cast<std::int64_t>(g) * stride + i] : i;
        KH_DEVICE_ASSERT(slot >= 0 && slot < stride);
        if (is_score) {
            if (to.scores == nullptr) return;
            const std::int64_t unit = std::int64_t{block.z} * max_units + lanes[block.z].unit_of_head[g];
            to.scores[first + i] = pooled[unit * stride + slot];
        } else if (to.attention != nullptr) {
            const float p = attention[(std::int64_t{block.z} * n_heads + block.y) * stride + slot];
            narrow(p, to.attention[to.head_offset[block.y] + i]);
            if (i < kFirst) to.first[block.y * kFirst + i] = p;
        }
    }
};

}  // namespace keyhole::cuda
