/// Chooses and removes victims on the device, by the CPU's rule (backend/cpu/select.h). Pinned tokens, and
/// those that a formula protects, are never evicted. The first `sinks` positions and the `newest` tokens are
/// protected. Of the rest the best stay; among equal scores the lower tie is evicted, where a formula gives
/// one, then the older; NaN ranks lowest. Where pins leave too few competing tokens, the newest are evicted,
/// the oldest of them first, then the sinks, the newest first. Where blocks of the text leave whole, their
/// means rank in the tokens' place. Host and device.
#pragma once

#include "engine/backend/cuda/kernels/choice.h"
#include "engine/backend/cuda/kernels/store.h"

#include <cmath>
#include <cstdint>

namespace keyhole::cuda {

/// A slot's rank for eviction. tier: 0 must leave (dropped_position), 1 competes, 2 is among the newest,
/// 3 is a sink, 4 is pinned.
struct LeaveOrder {
    std::int32_t tier = 4;
    float score = 0;
    std::int32_t position = 0;
    std::int32_t slot = -1;
    float tie = 0;
};

/// What ranks in a token's place where blocks of the text leave whole: the means over those tokens of its
/// block that compete, and the position of the first.
struct BlockRank {
    float score, tie;
    std::int32_t position, unused;
};

/// True when a is evicted before b. Positions differ, so the order is total; but the tokens of a block, which
/// have one rank, are in none.
KH_FN bool leaves_before(const LeaveOrder& a, const LeaveOrder& b) {
    if (a.tier != b.tier) return a.tier < b.tier;
    if (a.tier == 1) {
        const float x = lowest_if_nan(a.score), y = lowest_if_nan(b.score);
        if (x != y) return x < y;
        const float own = lowest_if_nan(a.tie), other = lowest_if_nan(b.tie);
        if (own != other) return own < other;
    }
    return a.tier == 3 ? a.position > b.position : a.position < b.position;
}

/// The slots of a unit that are evicted.
struct Leaving {
    std::int32_t count;  ///< 0 or 1; -1: the marked slots
    std::int32_t slot;   ///< when count is 1
};

/// Pools the scores of one unit and marks its victims. The KV heads of a unit hold the same positions in the
/// same slots, so the first head stands for all; where that is not so, the cache selects on the host. One
/// victim, the usual case, is a minimum. For several, and for blocks, each slot counts how many are evicted
/// before it, which needs no sort and does not depend on the order of threads. Of a block all leave where
/// fewer than must are in the blocks before it. Grid: x = units, y = lanes.
template <class T>
struct SelectVictims {
    static constexpr int kPhases = 7;
    static constexpr int kGroups = 32;  ///< threads that reduce a first share
    struct Shared {
        std::int32_t n_recent[kMaxThreads];
        LeaveOrder first[kMaxThreads], second[kMaxThreads];
        std::int32_t newest_from;  ///< position of the oldest of the `newest` tokens
    };
    using Local = NoLocal;
    const LaneView<T>* lanes;
    ReaderTable table;
    float* pooled;         ///< [lanes, max_units, stride]
    std::uint8_t* leaves;  ///< [lanes, max_units, stride] 1: a victim; set where several leave
    Leaving* leaving;      ///< [lanes, max_units]
    float* threshold;  ///< [lanes, max_units] lowest competing score that stays, NaN where nothing competed
    std::int32_t max_units, stride;
    const std::uint8_t* guarded = nullptr;  ///< of ChooseScores; null: no lane protects tokens by a formula
    const float* ties = nullptr;            ///< of ChooseScores; read where a lane has `unsmoothed`
    BlockRank* blocks = nullptr;            ///< [lanes, max_units, stride]; null: in no lane do blocks leave

    /// A unit's slots. guard, tie, block: null where there are none.
    struct Slots {
        const RowRule& rule;
        const DeviceHead<T>& head;
        const float* score;
        const std::uint8_t* guard;
        const float* tie;
        BlockRank* block;
        const std::int32_t* order;  ///< read where blocks leave

        KH_FN int tier_of(int newest_from, int slot) const {
            const int position = head.positions[slot];
            if (head.pinned[slot] != 0 || (guard != nullptr && guard[slot] != 0)) return 4;
            return position == rule.dropped_position ? 0
                   : position < rule.sinks           ? 3
                   : position >= newest_from         ? 2
                                                     : 1;
        }
        KH_FN LeaveOrder order_of(int newest_from, int slot) const {
            const int tier = tier_of(newest_from, slot);
            if (block != nullptr && tier == 1)
                return {tier, block[slot].score, block[slot].position, slot, block[slot].tie};
            return {tier, score[slot], head.positions[slot], slot, tie != nullptr ? tie[slot] : 0.0f};
        }
        KH_FN int block_of(int i) const { return head.positions[order[i]] / rule.unit; }

        /// Writes the rank of the i-th token in text order, where it competes.
        KH_FN void rank_block(int newest_from, int i) const {
            if (tier_of(newest_from, order[i]) != 1) return;
            const int own = block_of(i);
            int from = i, n = 0;
            while (from > 0 && block_of(from - 1) == own) --from;
            BlockRank rank{0, 0, 0, 0};
            for (int j = from; j < head.count && block_of(j) == own; ++j) {
                const int slot = order[j];
                if (tier_of(newest_from, slot) != 1) continue;
                if (n++ == 0) rank.position = head.positions[slot];
                rank.score = add(rank.score, score[slot]);
                if (tie != nullptr) rank.tie = add(rank.tie, tie[slot]);
            }
            rank.score = lowest_if_nan(rank.score / static_cast<float>(n));
            rank.tie = lowest_if_nan(rank.tie / static_cast<float>(n));
            block[order[i]] = rank;
        }
    };

    KH_FN static void take(LeaveOrder& first, LeaveOrder& second, const LeaveOrder& candidate) {
        if (leaves_before(candidate, first)) {
            second = first;
            first = candidate;
        } else if (leaves_before(candidate, second)) {
            second = candidate;
        }
    }

    KH_FN static void merge(const Shared& shared, int i, LeaveOrder& first, LeaveOrder& second) {
        take(first, second, shared.first[i]);
        if (shared.second[i].tier < 4) take(first, second, shared.second[i]);
    }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& lane = lanes[block.y];
        if (block.x >= lane.n_units) return;
        const int t = block.thread;
        const std::int64_t unit_at = static_cast<std::int64_t>(block.y) * max_units + block.x;
        const DeviceUnit& unit = lane.units[block.x];
        const RowRule& rule = lane.rules[unit.variant];
        const DeviceHead<T>& head = lane.heads[unit.first_head];
        float* score = pooled + unit_at * stride;
        std::uint8_t* leave = leaves + unit_at * stride;
        const int n = head.count;
        const bool may_evict = rule.evicts != 0 && unit.on_host == 0;
        const int n_victims = n_leaving(lane, block.x);
        const std::uint8_t* guard = lane.protect != nullptr ? guarded + unit_at * stride : nullptr;
        const float* tie = lane.unsmoothed != nullptr ? ties + unit_at * stride : nullptr;
        const bool by_block = blocks != nullptr && rule.unit > 1;
        const Slots slots{rule,
                          head,
                          score,
                          guard,
                          tie,
                          by_block ? blocks + unit_at * stride : nullptr,
                          lane.order + static_cast<std::int64_t>(unit.first_head) * lane.list_stride};
        const bool marks = n_victims > 1 || (by_block && n_victims > 0);  // not one victim alone
        const bool selects = n_victims > 0 || (may_evict && rule.dropped_position >= 0);
        if (p == 0) {
            int recent = 0;
            if (selects || (rule.needs_scores != 0 && unit.on_host == 0)) {
                const std::int32_t* readers = table.readers + table.offset[unit.first_head];
                const int n_readers = table.offset[unit.last_head] - table.offset[unit.first_head];
                const bool is_ranked = evaluates(lane, block.x);  // ChooseScores has written it
                for (int i = t; i < n; i += block.n_threads) {
                    if (lane.choose == nullptr)
                        score[i] = pooled_score(lane.scores, readers, n_readers, rule, i);
                    else if (!is_ranked)
                        score[i] = NAN;
                    leave[i] = 0;
                    recent += head.positions[i] > lane.row - rule.newest;
                }
            }
            shared.n_recent[t] = recent;
        } else if (p == 1) {
            if (selects && t < kGroups)
                for (int i = t + kGroups; i < block.n_threads; i += kGroups)
                    shared.n_recent[t] += shared.n_recent[i];
        } else if (p == 2) {
            if (t == 0 && selects) shared.newest_from = find_newest(block, shared, rule, head, lane.row);
        } else if (p == 3) {
            for (int i = t; selects && by_block && i < n; i += block.n_threads)
                slots.rank_block(shared.newest_from, i);
        } else if (p == 4) {
            LeaveOrder first, second;
            if (selects)
                for (int i = t; i < n; i += block.n_threads) {
                    const LeaveOrder mine = slots.order_of(shared.newest_from, i);
                    if (mine.tier == 4) continue;
                    if (!marks) {
                        take(first, second, mine);
                        continue;
                    }
                    int earlier = 0;
                    for (int j = 0; j < n; ++j)
                        earlier += leaves_before(slots.order_of(shared.newest_from, j), mine);
                    if (earlier < n_victims || mine.tier == 0)
                        leave[i] = 1;
                    else if (mine.tier == 1)
                        take(first, second, mine);
                }
            shared.first[t] = first;
            shared.second[t] = second;
        } else if (p == 5) {
            // Groups of any kind give the same two, or others of their blocks.
            if (!selects || t >= kGroups) return;
            LeaveOrder first = shared.first[t], second = shared.second[t];
            for (int i = t + kGroups; i < block.n_threads; i += kGroups) merge(shared, i, first, second);
            shared.first[t] = first;
            shared.second[t] = second;
        } else if (t == 0) {
            LeaveOrder first, second;
            for (int i = 0; selects && i < kGroups && i < block.n_threads; ++i)
                merge(shared, i, first, second);
            // The released Keyformer evicts dropped_position even where the cache is not full.
            const bool goes = selects && !marks && (n_victims == 1 || first.tier == 0) && first.tier < 4;
            leaving[unit_at] = {marks ? -1 : goes ? 1 : 0, goes ? first.slot : -1};
            const LeaveOrder& stays = goes ? second : first;
            threshold[unit_at] = selects && stays.tier == 1 ? stays.score : nanf("");
        }
    }

    /// Returns the position of the oldest of the `newest` tokens: usually row - newest + 1, lower where some
    /// of them were evicted on request.
    KH_FN int find_newest(const Block& block, const Shared& shared, const RowRule& rule,
                          const DeviceHead<T>& head, int row) const {
        int have = 0, from = row - rule.newest + 1;
        for (int i = 0; i < kGroups && i < block.n_threads; ++i) have += shared.n_recent[i];
        while (have < rule.newest) {
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

/// Removes the marked slots of one KV head: slots beyond the new end move into the holes below it. Writes the
/// victims' slots for the host, which applies the same moves to its list of positions
/// (CudaKvCache::note_removed). Grid: x = KV heads of a lane, y = lanes.
template <class T>
struct CompactHead {
    static constexpr int kPhases = 3;
    static constexpr int kMost = 1024;  ///< the most victims that one launch removes
    struct Shared {
        std::int32_t hole[kMost], mover[kMost];
        std::int32_t n_moves, n_victims;
    };
    using Local = NoLocal;
    const LaneView<T>* lanes;
    ReaderTable table;
    const std::uint8_t* leaves;  ///< [lanes, max_units, stride]
    const Leaving* leaving;      ///< [lanes, max_units]
    std::int32_t* victims;       ///< [lanes, n_kv_heads, most] slots, ascending
    std::int32_t* n_victims;     ///< [lanes, n_kv_heads]
    std::int32_t max_units, stride, n_kv_heads;
    std::int32_t most;  ///< <= kMost; no head loses more
    std::int32_t head_dim, unused = 0;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& lane = lanes[block.y];
        const int g = block.x;
        DeviceHead<T>& head = lane.heads[g];
        if (p == 0) {
            if (block.thread == 0) list_moves(shared, head, block.y, lane.unit_of_head[g], g);
        } else if (p == 1) {
            for (int m = 0; m < shared.n_moves; ++m)
                move_slot(block, head, lane.scores, table, g, head_dim / 8, shared.mover[m], shared.hole[m]);
        } else if (block.thread == 0) {
            head.count -= shared.n_victims;
        }
    }

    KH_FN void list_moves(Shared& shared, const DeviceHead<T>& head, int lane, int unit, int g) const {
        const std::int64_t unit_at = static_cast<std::int64_t>(lane) * max_units + unit,
                           at = static_cast<std::int64_t>(lane) * n_kv_heads + g;
        const Leaving goes = leaving[unit_at];
        const std::uint8_t* leave = leaves + unit_at * stride;
        int n = 0;
        if (goes.count == 1) {
            shared.hole[n++] = goes.slot;
        } else if (goes.count < 0) {
            for (int i = 0; i < head.count && n < most; ++i)
                if (leave[i] != 0) shared.hole[n++] = i;
        }
        for (int v = 0; v < n; ++v) victims[at * most + v] = shared.hole[v];
        n_victims[at] = shared.n_victims = n;
        const int end = head.count - n;
        KH_DEVICE_ASSERT(end >= 0 && n <= most);
        int moves = 0, victim = n;
        while (victim > 0 && shared.hole[victim - 1] >= end) --victim;
        for (int i = end; i < head.count; ++i) {  // the holes below the end come first in the list
            if (victim < n && shared.hole[victim] == i)
                ++victim;
            else
                shared.mover[moves++] = i;
        }
        shared.n_moves = moves;
    }
};

}  // namespace keyhole::cuda
