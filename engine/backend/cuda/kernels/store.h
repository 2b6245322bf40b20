/// Writes slots outside attention and eviction: the new token's slot, the move to a store of another size,
/// the tokens kept of a prompt. Host and device. Knows a lane's device tables, no model. CPU twin:
/// backend/cpu/cache.h.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/lane.h"

#include <cstdint>

namespace keyhole::cuda {

/// Copies a slot of a KV head over another, with the threads of a block. A launch may move several slots,
/// each from one that it does not write.
template <class T>
KH_FN void move_slot(const Block& block, const DeviceHead<T>& head, const HeadScores* scores,
                     const ReaderTable& table, int g, int packs, int from, int to) {
    const std::int64_t capacity = head.capacity;
    auto* keys = reinterpret_cast<Pack<T>*>(head.keys);
    auto* values = reinterpret_cast<Pack<T>*>(head.values);
    KH_DEVICE_ASSERT(to >= 0 && to < from && from < head.count);
    for (int c = block.thread; c < packs; c += block.n_threads) {
        keys[c * capacity + to] = keys[c * capacity + from];
        values[static_cast<std::int64_t>(to) * packs + c] =
            values[static_cast<std::int64_t>(from) * packs + c];
    }
    for (int r = table.offset[g] + block.thread; r < table.offset[g + 1]; r += block.n_threads) {
        const HeadScores& s = scores[table.readers[r]];
        for (int a = 0; a < kScores; ++a)
            if (s.score[a] != nullptr) s.score[a][to] = s.score[a][from];
        if (s.noise != nullptr) s.noise[to] = s.noise[from];
    }
    for (int r = table.offset[g]; r < table.offset[g + 1]; ++r) {
        const HeadScores& s = scores[table.readers[r]];
        for (int k = block.thread; k < s.window; k += block.n_threads)
            s.kept_row(k)[to] = s.kept_row(k)[from];
    }
    if (block.thread == 0) {
        head.positions[to] = head.positions[from];
        head.pinned[to] = head.pinned[from];
        if (head.reach != nullptr) head.reach[to] = head.reach[from];
    }
}

/// Moves slots that the host chose, in place: KV head g makes the moves offset[g] to offset[g + 1] - 1. The
/// caller sets the counts. Grid: x = KV heads of the model.
template <class T>
struct MoveSlots {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const DeviceHead<T>* heads;
    const HeadScores* scores;
    ReaderTable table;
    const std::int32_t* from;
    const std::int32_t* to;
    const std::int32_t* offset;  ///< [n_kv_heads + 1]
    std::int32_t head_dim, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        for (int m = offset[block.x]; m < offset[block.x + 1]; ++m)
            move_slot(block, heads[block.x], scores, table, block.x, head_dim / 8, from[m], to[m]);
    }
};

/// Gives the new token a slot in every KV head: counts it, clears its scores, draws its noise. Keys and
/// values follow layer by layer (AttendSplit). Needs room. Grid: x = KV heads of the model, y = lanes.
template <class T>
struct BeginRow {
    static constexpr int kPhases = 2;
    using Shared = NoShared;
    using Local = NoLocal;
    const LaneView<T>* lanes;
    ReaderTable table;
    std::int32_t n_heads, unused = 0;

    KH_FN void phase(int p, const Block& block, Shared&, Local&) const {
        const LaneView<T>& lane = lanes[block.y];
        DeviceHead<T>& head = lane.heads[block.x];
        if (p == 1) {
            if (block.thread == 0) ++head.count;
            return;
        }
        const std::int32_t slot = head.count;
        KH_DEVICE_ASSERT(slot >= 0 && slot < head.capacity);
        for (int r = table.offset[block.x] + block.thread; r < table.offset[block.x + 1];
             r += block.n_threads) {
            const std::int32_t reader = table.readers[r];
            const HeadScores& s = lane.scores[reader];
            for (int a = 0; a < kScores; ++a)
                if (s.score[a] != nullptr) s.score[a][slot] = 0;
            if (s.noise != nullptr)
                s.noise[slot] = noise_of(lane.rules[0], reader / n_heads, reader % n_heads, 0, lane.row);
        }
        if (block.thread == 0) {
            head.positions[slot] = lane.row;
            head.pinned[slot] = 0;
            if (head.reach != nullptr) head.reach[slot] = kReachDue;
        }
    }
};

/// Draws the noise of stored tokens again. Grid: x = KV heads of the model, y = chunks of slots.
template <class T>
struct DrawNoise {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const DeviceHead<T>* heads;
    const HeadScores* scores;
    const RowRule* rule;
    ReaderTable table;
    std::int32_t n_heads, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const DeviceHead<T>& head = heads[block.x];
        const int slot = block.y * block.n_threads + block.thread;
        if (slot >= head.count) return;
        for (int r = table.offset[block.x]; r < table.offset[block.x + 1]; ++r) {
            const std::int32_t reader = table.readers[r];
            if (scores[reader].noise != nullptr)
                scores[reader].noise[slot] =
                    noise_of(*rule, reader / n_heads, reader % n_heads, 0, head.positions[slot]);
        }
    }
};

/// The rows of attention that a store keeps of a token: up to the last of its fair span. Without fair spans
/// there is one span.
struct KeptSpans {
    static constexpr int kMost = 8;
    std::int32_t begin[kMost];  ///< first position; behind the spans the largest number
    std::int32_t last[kMost];   ///< last row so far; -1: none
    std::int32_t at[kMost];     ///< its place in KeepPrompt::win_rows

    KH_FN int of(std::int32_t position) const {
        int span = 0;
        while (span + 1 < kMost && begin[span + 1] <= position) ++span;
        return span;
    }
};

/// Copies slots of one store to another: new slot i of KV head g is old slot kept[offset[g] + i]. A newly
/// started accumulator copies `relative[a]`. The caller sets the counts. Grid: x = KV heads of the model,
/// y = chunks of kSlots.
template <class T>
struct CopySlots {
    static constexpr int kPhases = 1;
    static constexpr int kSlots = 32;
    using Shared = NoShared;
    using Local = NoLocal;
    const DeviceHead<T>* from;
    const DeviceHead<T>* to;
    const HeadScores* from_scores;
    const HeadScores* to_scores;
    const std::int32_t* kept;
    const std::int32_t* offset;  ///< [n_kv_heads + 1]
    ReaderTable table;
    std::int32_t relative[kScores];
    std::int32_t head_dim;
    std::int32_t unused = 0;
    KeptSpans spans;  ///< for stores that keep unlike numbers of rows

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const DeviceHead<T>& source = from[block.x];
        const DeviceHead<T>& target = to[block.x];
        const int n = offset[block.x + 1] - offset[block.x], first = block.y * kSlots;
        const int last = n < first + kSlots ? n : first + kSlots;
        const int packs = head_dim / 8;
        for (int i = first * packs + block.thread; i < last * packs; i += block.n_threads) {
            const std::int64_t slot = i / packs, c = i % packs, old = kept[offset[block.x] + slot];
            KH_DEVICE_ASSERT(slot < target.capacity && old >= 0 && old < source.capacity);
            reinterpret_cast<Pack<T>*>(target.keys)[c * target.capacity + slot] =
                reinterpret_cast<const Pack<T>*>(source.keys)[c * source.capacity + old];
            reinterpret_cast<Pack<T>*>(target.values)[slot * packs + c] =
                reinterpret_cast<const Pack<T>*>(source.values)[old * packs + c];
        }
        for (int slot = first + block.thread; slot < last; slot += block.n_threads) {
            const std::int32_t old = kept[offset[block.x] + slot];
            target.positions[slot] = source.positions[old];
            target.pinned[slot] = source.pinned[old];
            if (target.reach != nullptr)
                target.reach[slot] = source.reach != nullptr ? source.reach[old] : kReachDue;
            for (int r = table.offset[block.x]; r < table.offset[block.x + 1]; ++r) {
                const HeadScores& a = from_scores[table.readers[r]];
                const HeadScores& b = to_scores[table.readers[r]];
                for (int s = 0; s < kScores; ++s)
                    if (b.score[s] != nullptr) b.score[s][slot] = a.score[relative[s]][old];
                if (a.noise != nullptr && b.noise != nullptr) b.noise[slot] = a.noise[old];
                const int n_rows = a.window < b.window ? a.window : b.window;
                const int last_row = spans.last[spans.of(source.positions[old])];
                for (int k = 0; k < n_rows; ++k) {
                    const int row = a.window == b.window ? k : last_row - k;
                    if (row >= 0) b.kept_row(row)[slot] = a.kept_row(row)[old];
                }
            }
        }
    }
};

/// Copies the kept tokens of a prompt: new slot i of KV head g, which the layer reads, is token
/// kept[offset[g] + i]. A layer that borrows writes only its scores. Noise is drawn afterwards. Grid: x = KV
/// heads that the layer reads, y = chunks of kSlots.
template <class T>
struct KeepPrompt {
    static constexpr int kPhases = 1;
    static constexpr int kSlots = 32;
    using Shared = NoShared;
    using Local = NoLocal;
    const float* keys;    ///< [n_kv, n, head_dim] rotated; null where the layer borrows
    const float* values;  ///< same
    const float* score;   ///< [n_streams, n_heads, n]
    const std::int32_t*
        streams;  ///< [n_heads, kScores] the stream of an accumulator, -1 where it does not run
    const DeviceHead<T>* heads;  ///< the first KV head that the layer reads
    const HeadScores* scores;    ///< the layer's first query head
    const std::int32_t* kept;
    const std::int32_t* offset;  ///< [n_kv + 1]
    std::int32_t n, head_dim, n_heads, group;
    std::uint8_t* faults = nullptr;   ///< [n_kv] set to 1 where a number is not finite as stored; or null
    const float* win_rows = nullptr;  ///< [n_heads, n_win_rows, n] attention of the rows that are kept
    std::int32_t n_win_rows = 0, unused = 0;
    KeptSpans spans;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const DeviceHead<T>& head = heads[block.x];
        const int n_kept = offset[block.x + 1] - offset[block.x], first = block.y * kSlots;
        const int last = n_kept < first + kSlots ? n_kept : first + kSlots;
        const std::int32_t* tokens = kept + offset[block.x];
        const int end = keys != nullptr ? last * head_dim : 0;
        for (int i = first * head_dim + block.thread; i < end; i += block.n_threads) {
            const std::int64_t slot = i / head_dim, d = i % head_dim;
            KH_DEVICE_ASSERT(slot < head.capacity && tokens[slot] >= 0 && tokens[slot] < n);
            const std::int64_t at = (static_cast<std::int64_t>(block.x) * n + tokens[slot]) * head_dim + d;
            T &key = head.keys[(d / 8 * head.capacity + slot) * 8 + d % 8],
              &value = head.values[slot * head_dim + d];
            narrow(keys[at], key);
            narrow(values[at], value);
            if (faults != nullptr && !(is_finite(widen(key)) && is_finite(widen(value)))) faults[block.x] = 1;
        }
        for (int slot = first + block.thread; slot < last; slot += block.n_threads) {
            const std::int32_t token = tokens[slot];
            head.positions[slot] = token;
            head.pinned[slot] = 0;
            if (head.reach != nullptr) head.reach[slot] = kReachDue;
            for (int h = block.x * group; h < (block.x + 1) * group; ++h)
                for (int a = 0; a < kScores; ++a)
                    if (scores[h].score[a] != nullptr)
                        scores[h].score[a][slot] =
                            score[(static_cast<std::int64_t>(streams[h * kScores + a]) * n_heads + h) * n +
                                  token];
            const int span = spans.of(token);
            for (int h = block.x * group; h < (block.x + 1) * group; ++h)
                for (int k = 0; k < scores[h].window && k <= spans.last[span] && k <= spans.at[span]; ++k)
                    scores[h].kept_row(spans.last[span] - k)[slot] =
                        win_rows[(static_cast<std::int64_t>(h) * n_win_rows + spans.at[span] - k) * n +
                                 token];
        }
    }
};

}  // namespace keyhole::cuda
