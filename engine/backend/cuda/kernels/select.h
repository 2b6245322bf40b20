/// Choosing and removing victims on the device, by the CPU's rule (backend/cpu/select.h): the pinned never leave; the first `sinks`
/// positions and the `newest` tokens are protected; of the rest the best stay, among equal scores the older leaves, NaN ranks lowest. Where
/// pins leave too few that compete, the newest yield, the oldest of them first, then the sinks, the newest first.
#pragma once

#include "engine/backend/cuda/kernels/attention.h"

#include <cmath>
#include <cstdint>

namespace keyhole::cuda {

/// What the selection needs to know of one unit of one lane at one row: ResolvedPolicy in numbers.
struct UnitRule {
    std::int32_t stored = 0;  ///< kept after the eviction
    std::int32_t newest = 0, sinks = 0;
    std::int32_t dying_position = -1;  ///< leaves in any case (released Keyformer), -1: none
    std::int32_t evicts = 0;           ///< this row evicts when too many are stored
    std::int32_t accumulator = 0;
    std::int32_t pool = 0;
    std::int32_t first_head = 0, last_head = 0;    ///< KV heads of the unit, in the lane's list
    std::int32_t first_reader = 0, n_readers = 0;  ///< its query heads, in `readers`
};

/// A slot in the order in which slots leave: class 0 dies, 1 competes, 2 is among the newest, 3 a sink, 4 pinned.
struct LeaveOrder {
    std::int32_t standing = 4;
    float score = 0;
    std::int32_t position = 0;
    std::int32_t slot = -1;
};

/// a leaves before b. Positions differ, so the order is total.
KH_FN bool leaves_before(const LeaveOrder& a, const LeaveOrder& b) {
    if (a.standing != b.standing) return a.standing < b.standing;
    if (a.standing == 1) {
        const float x = a.score == a.score ? a.score : -INFINITY,
                    y = b.score == b.score ? b.score : -INFINITY;
        if (x != y) return x < y;
    }
    return a.standing == 3 ? a.position > b.position : a.position < b.position;
}

/// The score that a slot of the unit is judged by: pooled over all query heads that read it.
KH_FN float pooled_score(const HeadScoring* scoring, const std::int32_t* readers, const UnitRule& unit,
                         int slot) {
    const bool is_max = unit.pool == static_cast<int>(Pool::max);
    float pooled = is_max ? -INFINITY : 0.0f;
    for (int r = 0; r < unit.n_readers; ++r) {
        const float s = scoring[readers[unit.first_reader + r]].score[unit.accumulator][slot];
        pooled = is_max ? (s > pooled ? s : pooled) : add(pooled, s);
    }
    if (unit.pool == static_cast<int>(Pool::mean) && unit.n_readers > 1)
        pooled = pooled / static_cast<float>(unit.n_readers);
    return pooled;
}

/// Pools the scores of one unit and marks its victims. The KV heads of a unit hold the same positions in the same slots (the cache sees to
/// it), so the first speaks for all. One victim, the usual case, is a minimum; several are found by counting who leaves earlier, which
/// needs no sort and does not depend on the order of threads. Grid: x = units, y = lanes.
template <class T>
struct SelectVictims {
    static constexpr int kPhases = 4;
    static constexpr int kGroups = 32;
    struct Shared {
        std::int32_t n_recent[kMaxThreads];
        LeaveOrder first[kMaxThreads], second[kMaxThreads];
        std::int32_t newest_from;  ///< position of the oldest of the newest
    };
    using Local = NoLocal;
    const UnitRule* rules;  ///< [lanes, n_units]
    int n_units;
    const HeadScoring* scoring;  ///< [lanes, scoring_stride]
    int scoring_stride;
    const std::int32_t* readers;  ///< query heads of the units
    const DeviceHead<T>* heads;   ///< [lanes, heads_stride]
    int heads_stride;
    const std::int32_t* rows;  ///< [lanes]
    int stride;                ///< slots
    float* pooled;             ///< [lanes, n_units, stride]
    std::uint8_t* leaves;      ///< [lanes, n_units, stride] 1: a victim
    float* threshold;  ///< [lanes, n_units] lowest competing score that stays, NaN where nothing competed

    KH_FN LeaveOrder order_of(const UnitRule& unit, const DeviceHead<T>& head, const float* score,
                              int newest_from, int slot) const {
        const int position = head.positions[slot];
        const int standing = head.pinned[slot] != 0            ? 4
                             : position == unit.dying_position ? 0
                             : position < unit.sinks           ? 3
                             : position >= newest_from         ? 2
                                                               : 1;
        return {standing, score[slot], position, slot};
    }

    KH_FN static void take(LeaveOrder& first, LeaveOrder& second, const LeaveOrder& candidate) {
        if (leaves_before(candidate, first)) {
            second = first;
            first = candidate;
        } else if (leaves_before(candidate, second)) {
            second = candidate;
        }
    }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int lane = block.y, t = block.thread;
        const std::int64_t unit_at = static_cast<std::int64_t>(lane) * n_units + block.x;
        const UnitRule& unit = rules[unit_at];
        const DeviceHead<T>& head = heads[static_cast<std::int64_t>(lane) * heads_stride + unit.first_head];
        float* score = pooled + unit_at * stride;
        std::uint8_t* leave = leaves + unit_at * stride;
        const int row = rows[lane], n = head.count;
        const int n_victims = unit.evicts != 0 && n > unit.stored ? n - unit.stored : 0;
        const bool selects = n_victims > 0 || (unit.evicts != 0 && unit.dying_position >= 0);
        if (p == 0) {
            const HeadScoring* of_lane = scoring + static_cast<std::int64_t>(lane) * scoring_stride;
            int recent = 0;
            for (int i = t; i < n; i += block.n_threads) {
                score[i] = pooled_score(of_lane, readers, unit, i);
                leave[i] = 0;
                recent += head.positions[i] > row - unit.newest;
            }
            shared.n_recent[t] = recent;
        } else if (p == 1) {
            if (t == 0 && selects) shared.newest_from = find_newest(block, shared, unit, head, row);
        } else if (p == 2) {
            LeaveOrder first, second;
            if (selects)
                for (int i = t; i < n; i += block.n_threads) {
                    const LeaveOrder mine = order_of(unit, head, score, shared.newest_from, i);
                    if (mine.standing == 4) continue;
                    if (n_victims <= 1) {
                        take(first, second, mine);
                        continue;
                    }
                    int earlier = 0;
                    for (int j = 0; j < n; ++j)
                        earlier += leaves_before(order_of(unit, head, score, shared.newest_from, j), mine);
                    if (earlier < n_victims || mine.standing == 0)
                        leave[i] = 1;
                    else if (mine.standing == 1)
                        take(first, second, mine);
                }
            shared.first[t] = first;
            shared.second[t] = second;
        } else if (t == 0) {
            LeaveOrder first, second;
            for (int i = 0; i < block.n_threads; ++i) {
                take(first, second, shared.first[i]);
                if (shared.second[i].standing < 4) take(first, second, shared.second[i]);
            }
            // A dying column leaves even where the cache is not full.
            const bool goes =
                selects && n_victims <= 1 && (n_victims == 1 || first.standing == 0) && first.standing < 4;
            if (goes) leave[first.slot] = 1;
            const LeaveOrder& stays = goes ? second : first;
            threshold[unit_at] = selects && stays.standing == 1 && n_victims + (first.standing == 0) > 0
                                     ? stays.score
                                     : nanf("");
        }
    }

    /// Usually row - newest + 1; lower where tokens among the newest were evicted by hand.
    KH_FN int find_newest(const Block& block, const Shared& shared, const UnitRule& unit,
                          const DeviceHead<T>& head, int row) const {
        int have = 0, from = row - unit.newest + 1;
        for (int i = 0; i < block.n_threads; ++i) have += shared.n_recent[i];
        while (have < unit.newest) {
            int next = -1;
            for (int i = 0; i < head.count; ++i)
                if (head.positions[i] < from && head.positions[i] > next) next = head.positions[i];
            if (next < 0) break;
            from = next;
            ++have;
        }
        return from;
    }
};

/// Removes the marked slots of one KV head: what is stored beyond the new end moves into the holes below it. Grid: x = KV heads of a
/// lane, y = lanes. Writes the victims' positions for the host.
template <class T>
struct CompactHead {
    static constexpr int kPhases = 3;
    static constexpr int kMost = 2048;  ///< victims that one launch removes; more take more launches
    struct Shared {
        std::int32_t hole[kMost], mover[kMost];
        std::int32_t n_moves, n_victims;
    };
    using Local = NoLocal;
    DeviceHead<T>* heads;  ///< [lanes, heads_stride]
    int heads_stride;
    const std::int32_t* unit_of_head;  ///< [heads_stride]
    int n_units;
    const UnitRule* rules;
    HeadScoring* scoring;
    int scoring_stride;
    const std::int32_t* readers_of_head;  ///< [heads_stride + 1] offsets into `readers`
    const std::int32_t* readers;
    const std::uint8_t* leaves;  ///< [lanes, n_units, stride]
    int stride, head_dim;
    std::int32_t* victims;    ///< [lanes, heads_stride, kMost] positions, ascending by slot
    std::int32_t* n_victims;  ///< [lanes, heads_stride]

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int g = block.x, lane = block.y;
        DeviceHead<T>& head = heads[static_cast<std::int64_t>(lane) * heads_stride + g];
        const std::uint8_t* leave =
            leaves + (static_cast<std::int64_t>(lane) * n_units + unit_of_head[g]) * stride;
        if (p == 0) {
            if (block.thread == 0) list_moves(shared, head, leave, lane, g);
        } else if (p == 1) {
            for (int m = 0; m < shared.n_moves; ++m)
                move(block, head, lane, g, shared.mover[m], shared.hole[m]);
        } else if (block.thread == 0) {
            head.count -= shared.n_victims;
        }
    }

    KH_FN void list_moves(Shared& shared, const DeviceHead<T>& head, const std::uint8_t* leave, int lane,
                          int g) const {
        const std::int64_t at = static_cast<std::int64_t>(lane) * heads_stride + g;
        int n = 0;
        for (int i = 0; i < head.count && n < kMost; ++i)
            if (leave[i] != 0) {
                victims[at * kMost + n] = head.positions[i];
                shared.hole[n++] = i;
            }
        n_victims[at] = shared.n_victims = n;
        const int end = head.count - n;
        int moves = 0;
        for (int i = end; i < head.count; ++i) {
            bool is_victim = false;
            for (int v = n - 1; v >= 0 && shared.hole[v] >= end; --v)
                is_victim = is_victim || shared.hole[v] == i;
            if (!is_victim) shared.mover[moves++] = i;  // the holes below the end are the first ones listed
        }
        shared.n_moves = moves;
    }

    KH_FN void move(const Block& block, DeviceHead<T>& head, int lane, int g, int from, int to) const {
        const std::int64_t capacity = head.capacity;
        auto* keys = reinterpret_cast<Pack<T>*>(head.keys);
        auto* values = reinterpret_cast<Pack<T>*>(head.values);
        const int packs = head_dim / 8;
        for (int c = block.thread; c < packs; c += block.n_threads) {
            keys[c * capacity + to] = keys[c * capacity + from];
            values[static_cast<std::int64_t>(to) * packs + c] =
                values[static_cast<std::int64_t>(from) * packs + c];
        }
        for (int r = readers_of_head[g] + block.thread; r < readers_of_head[g + 1]; r += block.n_threads) {
            HeadScoring& s = scoring[static_cast<std::int64_t>(lane) * scoring_stride + readers[r]];
            for (int a = 0; a < kScores; ++a)
                if (s.score[a] != nullptr) s.score[a][to] = s.score[a][from];
            if (s.noise != nullptr) s.noise[to] = s.noise[from];
        }
        if (block.thread == 0) {
            head.positions[to] = head.positions[from];
            head.pinned[to] = head.pinned[from];
        }
    }
};

}  // namespace keyhole::cuda
