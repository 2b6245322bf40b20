/// Shares the budgets of a lane's KV heads after a row: how many tokens each loses, so that of all tokens
/// that may leave the best stay. Four launches: SortShares, CountBest, ShareBudgets, and CountBest again for
/// what a head cannot take. Host and device. Knows a lane's device tables, no model. CPU twin:
/// policy/allocation.h.
#pragma once

#include "engine/backend/cuda/kernels/choice.h"
#include "engine/policy/share_maths.h"

#include <cstdint>

namespace keyhole::cuda {

/// A token that may leave, as heads compare them.
struct ShareToken {
    float score, tie;       ///< no NaN
    std::int32_t position;  ///< -1: it cannot leave
    std::int32_t unused;
};

/// Returns whether a token of KV head g is better than another one, of h. No two are alike.
KH_FN bool is_better(const ShareToken& a, int g, const ShareToken& b, int h) {
    if (a.score != b.score) return a.score > b.score;
    if (a.tie != b.tie) return a.tie > b.tie;
    return a.position != b.position ? a.position > b.position : g > h;
}

/// Lists the tokens of each KV head that may leave, the best first. Grid: x = units, y = lanes.
template <class T>
struct SortShares {
    static constexpr int kPhases = 3;
    struct Shared {
        std::int32_t n_free[kMaxThreads];
    };
    using Local = NoLocal;
    const LaneView<T>* lanes;
    ReaderTable table;
    const float* pooled;          ///< of ChooseScores, as the next two; read where a lane has `choose`
    const float* ties;            ///< read where it has `unsmoothed`
    const std::uint8_t* guarded;  ///< read where it has `protect`
    ShareToken* found;            ///< [lanes, max_units, stride] in text order
    ShareToken* sorted;           ///< the same, without those that cannot leave
    std::int32_t* n_free;         ///< [lanes, max_units] how many may leave
    std::int32_t max_units, stride;

    KH_FN ShareToken token_at(const LaneView<T>& lane, std::int64_t unit_at, int u, int i) const {
        const DeviceUnit& unit = lane.units[u];
        const RowRule& rule = lane.rules[unit.variant];
        const DeviceHead<T>& head = lane.heads[unit.first_head];
        const int slot = lane.order[static_cast<std::int64_t>(unit.first_head) * lane.list_stride + i],
                  position = head.positions[slot];
        const std::int64_t at = unit_at * stride + slot;
        const bool stays = i >= head.count - rule.newest || position < rule.sinks || head.pinned[slot] != 0 ||
                           (lane.protect != nullptr && guarded[at] != 0);
        const float score =
            lane.choose != nullptr
                ? pooled[at]
                : pooled_score(lane.scores, table.readers + table.offset[unit.first_head],
                               table.offset[unit.last_head] - table.offset[unit.first_head], rule, slot);
        const float tie = lane.unsmoothed != nullptr ? ties[at] : 0.0f;
        return {lowest_if_nan(score), lowest_if_nan(tie), stays ? -1 : position, 0};
    }

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& lane = lanes[block.y];
        const int u = block.x;
        if (lane.shares == nullptr || u >= lane.n_units || lane.shares[u].due == 0) return;
        const std::int64_t unit_at = static_cast<std::int64_t>(block.y) * max_units + u;
        const int n = lane.heads[lane.units[u].first_head].count;
        ShareToken *text = found + unit_at * stride, *best = sorted + unit_at * stride;
        if (p == 0) {
            for (int i = block.thread; i < n; i += block.n_threads) text[i] = token_at(lane, unit_at, u, i);
        } else if (p == 1) {
            int n_own = 0;
            for (int i = block.thread; i < n; i += block.n_threads) {
                const ShareToken own = text[i];
                if (own.position < 0) continue;
                int rank = 0;
                for (int j = 0; j < n; ++j) rank += text[j].position >= 0 && is_better(text[j], u, own, u);
                best[rank] = own;
                ++n_own;
            }
            shared.n_free[block.thread] = n_own;
        } else if (block.thread == 0) {
            int sum = 0;
            for (int i = 0; i < block.n_threads; ++i) sum += shared.n_free[i];
            n_free[unit_at] = sum;
        }
    }
};

/// What the two kernels after SortShares know of a lane's KV heads.
struct SharedHeads {
    const AnyLane* lanes;
    const ShareToken* sorted;  ///< of SortShares, as the next
    const std::int32_t* n_free;
    std::int32_t max_units, stride;

    KH_FN std::int64_t at(const Block& block, int u) const {
        return static_cast<std::int64_t>(block.y) * max_units + u;
    }
    KH_FN bool is_due(const AnyLane& lane, int u) const {
        return lane.shares != nullptr && u < lane.n_units && lane.shares[u].due != 0;
    }
    /// Returns how many of the tokens that may leave a KV head would keep alone.
    KH_FN int budget_of(const Block& block, int u) const {
        const AnyLane& lane = lanes[block.y];
        const DeviceUnit& unit = lane.units[u];
        const int stay = lane.heads[unit.first_head].count - n_free[at(block, u)],
                  budget = lane.rules[unit.variant].stored - stay;
        return budget > 0 ? budget : 0;
    }
};

/// Counts the tokens of each KV head among the best of all that share. A tile halves where its last one may
/// be. Grid: x = units, y = lanes.
struct CountBest {
    static constexpr int kBefore = 2, kRepeated = 2, kPhases = 5;
    struct Shared {
        std::int32_t part[kMaxThreads];
        std::int32_t low, high, wanted;  ///< between low and high of the head's tokens are among the best
    };
    using Local = NoLocal;
    SharedHeads of;
    const std::int32_t* from;    ///< [lanes, max_units] tokens before this one do not count; null: 0
    const std::int32_t* wanted;  ///< the same: how many are the best; null: as the budgets together
    std::int32_t* best;          ///< the same: how many of this head
    std::int32_t* leave;         ///< the same, or null: what is left of it

    KH_FN int first(const Block& block, int u) const { return from != nullptr ? from[of.at(block, u)] : 0; }
    KH_FN int count(const Block& block, int u) const { return of.n_free[of.at(block, u)] - first(block, u); }
    KH_FN const ShareToken* tokens(const Block& block, int u) const {
        return of.sorted + of.at(block, u) * of.stride + first(block, u);
    }
    KH_FN int n_tiles(const Block& block) const {
        if (!of.is_due(of.lanes[block.y], block.x)) return 0;
        int steps = 1;
        while (of.stride >> steps != 0) ++steps;
        return steps;
    }
    KH_FN void begin(const Block&, Shared&, Local&) const {}

    /// Returns how many tokens of another KV head are better.
    KH_FN int n_better(const Block& block, int other, const ShareToken& token) const {
        const ShareToken* those = tokens(block, other);
        int low = 0, high = count(block, other);
        while (low < high) {
            const int middle = (low + high) / 2;
            if (is_better(those[middle], other, token, block.x))
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    /// Phases: budgets; their sum. Of a tile: better tokens of each other head; where the last one may be.
    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const AnyLane& lane = of.lanes[block.y];
        const int u = block.x, begins = lane.shares[u].first, ends = lane.shares[u].last;
        if (p != 0 && p != 2 && block.thread != 0) return;  // thread 0 writes what others read in phase 2
        const int middle = p > 1 ? (shared.low + shared.high + 1) / 2 : 0;
        if (p == 0 || (p == 2 && shared.low < shared.high)) {
            int sum = 0;
            for (int other = begins + block.thread; other < ends; other += block.n_threads) {
                if (!of.is_due(lane, other)) continue;
                if (p == 0)
                    sum += of.budget_of(block, other);
                else if (other != u)
                    sum += n_better(block, other, tokens(block, u)[middle - 1]);
            }
            shared.part[block.thread] = sum;
        }
        if (p == 0 || p == 2) return;
        int sum = 0;
        for (int i = 0; p < 4 && i < block.n_threads && i < ends - begins; ++i) sum += shared.part[i];
        if (p == 1) {
            shared.wanted = wanted != nullptr ? wanted[of.at(block, u)] : sum;
            shared.low = 0;
            shared.high = count(block, u);
        } else if (p == 3 && shared.low < shared.high) {
            if (middle - 1 + sum < shared.wanted)
                shared.low = middle;
            else
                shared.high = middle - 1;
        } else if (p == 4) {
            best[of.at(block, u)] = shared.low;
            if (leave != nullptr) leave[of.at(block, u)] = count(block, u) - shared.low;
        }
    }
};

/// Gives each KV head its part of what all keep together, and finds how many tokens heads that have not as
/// many leave to the others. The block of the first of those that share works. Grid: x = units, y = lanes.
struct ShareBudgets {
    static constexpr int kPhases = 5;
    struct Shared {
        std::int32_t missing;  ///< tokens that whole parts do not give out; then, that heads cannot take
    };
    using Local = NoLocal;
    SharedHeads of;
    const std::int32_t* best;  ///< of CountBest
    double* part;              ///< [lanes, max_units] contents undefined, as the next
    double* rest;
    std::int32_t* kept;     ///< [lanes, max_units] how many of its tokens a head keeps
    std::int32_t* missing;  ///< the same: how many more all keep together

    /// Phases: parts; what they leave; whole tokens; what heads cannot take; what they keep.
    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const AnyLane& lane = of.lanes[block.y];
        const int u = block.x;
        if (lane.shares == nullptr || u >= lane.n_units || lane.shares[u].first != u) return;
        const int ends = lane.shares[u].last;
        if (p == 1 || p == 3) {
            if (block.thread == 0) shared.missing = p == 1 ? n_left(block, u, ends) : n_short(block, u, ends);
            return;
        }
        for (int g = u + block.thread; g < ends; g += block.n_threads) {
            if (!of.is_due(lane, g)) continue;
            const std::int64_t at = of.at(block, g);
            if (p == 0) {
                divide(lane.shares[g], of.budget_of(block, g), at);
            } else if (p == 2) {
                int before = 0;
                for (int h = u; h < ends; ++h)
                    before += h != g && of.is_due(lane, h) &&
                              rounds_up_before(rest[of.at(block, h)], h, rest[at], g);
                if (before < shared.missing) ++kept[at];
            } else {
                if (kept[at] > of.n_free[at]) kept[at] = of.n_free[at];
                missing[at] = shared.missing;
            }
        }
    }

    KH_FN void divide(const ShareRule& rule, int budget, std::int64_t at) const {
        part[at] = part_of_budget(rule.floor, rule.rounds != 0 ? 0 : budget, best[at]);
        const WholePart whole = whole_part(part[at]);
        rest[at] = whole.rest;
        kept[at] = whole.whole;
        if (rule.rounds == 0) return;
        const int rounded = nearest_even(part[at]) + static_cast<std::int32_t>(rule.floor * budget);
        kept[at] = rounded < of.n_free[at] ? rounded : of.n_free[at];
    }
    /// Returns how many tokens whole parts leave of their sum; 0 where each part was rounded by itself.
    KH_FN int n_left(const Block& block, int first, int ends) const {
        double sum = 0;
        int n_whole = 0;
        for (int g = first; g < ends; ++g) {
            if (!of.is_due(of.lanes[block.y], g)) continue;
            sum += part[of.at(block, g)];
            n_whole += kept[of.at(block, g)];
        }
        return of.lanes[block.y].shares[first].rounds != 0 ? 0
                                                           : static_cast<std::int32_t>(sum + 0.5) - n_whole;
    }
    /// Returns how many tokens heads get that have not as many.
    KH_FN int n_short(const Block& block, int first, int ends) const {
        int sum = 0;
        for (int g = first; g < ends; ++g) {
            const std::int64_t at = of.at(block, g);
            if (of.is_due(of.lanes[block.y], g) && kept[at] > of.n_free[at]) sum += kept[at] - of.n_free[at];
        }
        return sum;
    }
};

}  // namespace keyhole::cuda
