/// Evaluates a lane's formulas for its units: what a selection ranks and which tokens cannot leave. Tokens
/// are taken in text order, as on the host, so that both give the same bits. Host and device. Knows a lane's
/// device tables, no model. CPU twin: backend/common/choice.h.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/attention.h"
#include "engine/backend/cuda/kernels/lane.h"
#include "engine/policy/quantity_table.h"

#include <cstdint>

namespace keyhole::cuda {

/// Returns the score of a slot of a unit: pooled over all query heads that read it.
KH_FN float pooled_score(const HeadScores* scores, const std::int32_t* readers, int n_readers,
                         const RowRule& rule, int slot) {
    const bool is_max = rule.pool == static_cast<int>(Pool::max);
    float pooled = is_max ? -INFINITY : 0.0f;
    for (int r = 0; r < n_readers; ++r) {
        const float s = scores[readers[r]].score[rule.accumulator][slot];
        pooled = is_max ? (s > pooled ? s : pooled) : add(pooled, s);
    }
    if (rule.pool == static_cast<int>(Pool::mean) && n_readers > 1)
        pooled = pooled / static_cast<float>(n_readers);
    return pooled;
}

/// Adds what one query head gives a token to what the heads before it gave, as pool_more() and finish_pool()
/// of common/shared.h do.
KH_FN void pool_rank(const RowRule& rule, int reader, int n_readers, float own, float& pooled) {
    if (reader == 0)
        pooled = own;
    else if (rule.pool == static_cast<int>(Pool::max))
        pooled = pooled < own ? own : pooled;
    else
        pooled = add(pooled, own);
    if (reader + 1 == n_readers && n_readers > 1 && rule.pool == static_cast<int>(Pool::mean))
        pooled = pooled / static_cast<float>(n_readers);
}

/// Returns whether a unit's i-th token competes, but for what formulas protect.
template <class T>
KH_FN bool competes_at(const LaneView<T>& lane, const DeviceUnit& unit, int i) {
    const RowRule& rule = lane.rules[unit.variant];
    const DeviceHead<T>& head = lane.heads[unit.first_head];
    const int slot = lane.order[static_cast<std::int64_t>(unit.first_head) * lane.list_stride + i];
    return head.positions[slot] >= rule.sinks && i < head.count - rule.newest && head.pinned[slot] == 0;
}

/// Returns whether tokens of a unit that stores n must leave after the row. Of KV heads that share budgets
/// some of these may keep all.
template <class T>
KH_FN bool is_due(const LaneView<T>& lane, int unit_index) {
    if (lane.shares != nullptr) return lane.shares[unit_index].due != 0;
    const DeviceUnit& unit = lane.units[unit_index];
    const RowRule& rule = lane.rules[unit.variant];
    const int n = lane.heads[unit.first_head].count;
    return rule.evicts != 0 && unit.on_host == 0 && n > rule.stored && n >= rule.due_at;
}
/// Returns how many leave.
template <class T>
KH_FN int n_leaving(const LaneView<T>& lane, int unit_index) {
    if (!is_due(lane, unit_index)) return 0;
    if (lane.shares != nullptr) return lane.n_shared[unit_index];
    const DeviceUnit& unit = lane.units[unit_index];
    return lane.heads[unit.first_head].count - lane.rules[unit.variant].stored;
}

template <class T>
KH_FN bool names(const LaneView<T>& lane, Quantity q) {
    return (lane.choose != nullptr && lane.choose->names(q)) ||
           (lane.protect != nullptr && lane.protect->names(q));
}

/// As ranks_late() of policy/params.h.
template <class T>
KH_FN bool ranks_late(const LaneView<T>& lane) {
    return names(lane, Quantity::redundancy) || names(lane, Quantity::wvnorm) ||
           names(lane, Quantity::expected) || names(lane, Quantity::tri);
}

/// Returns whether a lane's formulas are evaluated for a unit after the row: where tokens leave, and for the
/// record as ranks_for_record() of common/choice.h says.
template <class T>
KH_FN bool evaluates(const LaneView<T>& lane, int unit_index) {
    if (unit_index >= lane.n_units || (lane.choose == nullptr && lane.protect == nullptr)) return false;
    const DeviceUnit& unit = lane.units[unit_index];
    const RowRule& rule = lane.rules[unit.variant];
    if (unit.on_host != 0) return false;
    return is_due(lane, unit_index) || (rule.needs_scores != 0 && !ranks_late(lane) &&
                                        (lane.n_kept_rows > 0 || !names(lane, Quantity::win)));
}

/// Sums of a channel, of every 32nd token each. The gap behind them keeps the writes of neighbouring channels
/// free of bank conflicts.
struct ChannelSums {
    static constexpr int kSums = 32;
    float of[kSums], gap;
};

/// Room for the mean direction of a KV head's keys, with its length behind it.
inline constexpr int kDirection = kMaxHeadDim + 1;

/// Returns the product of two stored keys, by the sums of dot_channels(). Eight channels lie together.
template <class T>
KH_FN float key_product(const DeviceHead<T>& head, int head_dim, int a, int b) {
    const T *of_a = head.keys + std::int64_t{8} * a, *of_b = head.keys + std::int64_t{8} * b;
    const std::int64_t next = std::int64_t{8} * head.capacity;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int c = 0;
    for (; c + 8 <= head_dim; c += 8, of_a += next, of_b += next)
        for (int j = 0; j < 8; ++j) sum[j] = add(sum[j], mul(widen(of_a[j]), widen(of_b[j])));
    for (int j = 0; c + j < head_dim; ++j) sum[j] = add(sum[j], mul(widen(of_a[j]), widen(of_b[j])));
    return sum_of_channels(sum);
}

/// Computes the lengths of the keys of every KV head that a formula with `keydiff` or `redundancy` is
/// evaluated for, and for `keydiff` their mean direction. Each channel has 32 sums, of every 32nd token each.
/// Grid: x = KV heads of a lane, y = lanes.
template <class T>
struct KeyDirections {
    static constexpr int kPhases = 4;
    static constexpr int kSums = ChannelSums::kSums;
    struct Shared {
        ChannelSums sums[kMaxHeadDim];
    };
    using Local = NoLocal;
    const LaneView<T>* lanes;
    float* lengths;     ///< [lanes, n_kv_heads, stride] of the keys, in text order
    float* directions;  ///< [lanes, n_kv_heads, kDirection]
    std::int32_t n_kv_heads, stride, head_dim, unused = 0;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& lane = lanes[block.y];
        const int g = block.x;
        const bool directs = names(lane, Quantity::keydiff);
        if (!directs && !names(lane, Quantity::redundancy)) return;
        if (!evaluates(lane, lane.unit_of_head[g]) || (p > 0 && !directs)) return;
        const DeviceHead<T>& head = lane.heads[g];
        const std::int64_t at = static_cast<std::int64_t>(block.y) * n_kv_heads + g;
        const std::int32_t* order = lane.order + static_cast<std::int64_t>(g) * lane.list_stride;
        float* length = lengths + at * stride;
        float* direction = directions + at * kDirection;
        if (p == 0) {
            for (int i = block.thread; i < head.count; i += block.n_threads)
                length[i] = key_length(head, head_dim, order[i]);
        } else if (p == 1) {
            for (int item = block.thread; item < kSums * head_dim; item += block.n_threads) {
                const int c = item % head_dim, j = item / head_dim;
                const std::int64_t channel = static_cast<std::int64_t>(c / 8) * head.capacity;
                float sum = 0;
                for (int i = j; i < head.count; i += kSums)
                    sum =
                        add(sum, unit_channel(widen(head.keys[(channel + order[i]) * 8 + c % 8]), length[i]));
                shared.sums[c].of[j] = sum;
            }
        } else if (p == 2) {
            for (int c = block.thread; c < head_dim; c += block.n_threads)
                direction[c] = sum_in_pairs(shared.sums[c].of) / static_cast<float>(head.count);
        } else if (block.thread == 0) {
            direction[head_dim] = length_of(head_dim, [&](int c) { return direction[c]; });
        }
    }
};

/// What the kernels of `redundancy` share: c_ij, the cosine of two different keys of a KV head, in text
/// order.
template <class T>
struct Likeness {
    static constexpr int kTokens = 8;  ///< of a block, each with 32 threads
    const LaneView<T>* lanes;
    const float* lengths;   ///< of KeyDirections
    std::int32_t* similar;  ///< [lanes, n_kv_heads, stride] the key that is left out, -1: none
    float* likeness;        ///< [lanes, n_kv_heads, stride] mean over the rows, then its share
    std::int32_t n_kv_heads, stride, head_dim, unused = 0;

    KH_FN std::int64_t at(const Block& block) const {
        return (static_cast<std::int64_t>(block.y) * n_kv_heads + block.x) * stride;
    }
    /// Returns the tokens of a KV head; 0 where nothing is to be computed.
    KH_FN int n_tokens(const Block& block) const {
        const LaneView<T>& lane = lanes[block.y];
        if (!names(lane, Quantity::redundancy) || !evaluates(lane, lane.unit_of_head[block.x])) return 0;
        return lane.heads[block.x].count;
    }
    /// Returns whether rows without a like key leave out the first token, as R-KV's code does.
    KH_FN bool spares_first(const Block& block) const {
        const LaneView<T>& lane = lanes[block.y];
        return lane.rules[lane.units[lane.unit_of_head[block.x]].variant].as_rkv_code != 0;
    }
    KH_FN float cosine(const Block& block, int i, int j) const {
        if (i == j) return 0;
        const LaneView<T>& lane = lanes[block.y];
        const std::int32_t* order = lane.order + static_cast<std::int64_t>(block.x) * lane.list_stride;
        const float* length = lengths + at(block);
        return cosine_of(key_product(lane.heads[block.x], head_dim, order[i], order[j]), length[i],
                         length[j]);
    }
};

/// Finds, for each key, the one that is left out of its row: the youngest that is like it. A token has 32
/// threads, each for every 32nd other. Grid: x = KV heads of a lane, y = lanes, z = groups of tokens.
template <class T>
struct SimilarKeys {
    static constexpr int kPhases = 2;
    struct Shared {
        std::int32_t youngest[Likeness<T>::kTokens][32];
    };
    using Local = NoLocal;
    Likeness<T> of;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int n = of.n_tokens(block);
        for (int item = block.thread; item < Likeness<T>::kTokens * 32; item += block.n_threads) {
            const int token = item / 32, part = item % 32, i = block.z * Likeness<T>::kTokens + token;
            if (i >= n) continue;
            if (p == 0) {
                int j = n - 1 - part;
                while (j >= 0 && !(of.cosine(block, i, j) > kSimilar)) j -= 32;
                shared.youngest[token][part] = j < 0 ? -1 : j;
            } else if (part == 0) {
                int youngest = of.spares_first(block) ? 0 : -1;
                for (const std::int32_t j : shared.youngest[token]) youngest = j > youngest ? j : youngest;
                of.similar[of.at(block) + i] = youngest;
            }
        }
    }
};

/// Computes the mean likeness of all keys to each, without the youngest similar one of each row. A token has
/// 32 sums, of every 32nd row each. Grid: as SimilarKeys.
template <class T>
struct KeyLikeness {
    static constexpr int kPhases = 2;
    struct Shared {
        float sums[Likeness<T>::kTokens][32];
    };
    using Local = NoLocal;
    Likeness<T> of;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int n = of.n_tokens(block);
        for (int item = block.thread; item < Likeness<T>::kTokens * 32; item += block.n_threads) {
            const int token = item / 32, part = item % 32, j = block.z * Likeness<T>::kTokens + token;
            if (j >= n) continue;
            if (p == 0) {
                float sum = 0;
                for (int i = part; i < n; i += 32)
                    sum = add(sum, of.similar[of.at(block) + i] == j ? 0.0f : of.cosine(block, i, j));
                shared.sums[token][part] = sum;
            } else if (part == 0) {
                of.likeness[of.at(block) + j] = sum_in_pairs(shared.sums[token]) / static_cast<float>(n);
            }
        }
    }
};

/// Turns the mean likeness of a KV head's tokens into shares: softmax. Grid: x = KV heads of a lane,
/// y = lanes.
template <class T>
struct ShareLikeness {
    static constexpr int kPhases = 3;
    static constexpr int kSums = 32;
    struct Shared {
        float most[kSums], total[kSums];
    };
    using Local = NoLocal;
    Likeness<T> of;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int n = of.n_tokens(block);
        if (n == 0) return;
        float* x = of.likeness + of.at(block);
        if (p == 0) {
            for (int k = block.thread; k < kSums; k += block.n_threads) {
                float most = -INFINITY;
                for (int i = k; i < n; i += kSums) most = formula_max(most, x[i]);
                shared.most[k] = most;
            }
            return;
        }
        float most = shared.most[0];
        for (const float one : shared.most) most = formula_max(most, one);
        if (p == 1) {
            for (int k = block.thread; k < kSums; k += block.n_threads) {
                float total = 0;
                for (int i = k; i < n; i += kSums) total = add(total, formula_exp(add(x[i], -most)));
                shared.total[k] = total;
            }
            return;
        }
        const float all = sum_in_pairs(shared.total);
        for (int i = block.thread; i < n; i += block.n_threads) x[i] = formula_exp(add(x[i], -most)) / all;
    }
};

/// Evaluates the formulas of every unit that selects or whose scores are wanted. Writes what is ranked where
/// SelectVictims reads pooled scores, and which tokens are protected. A step of a formula is a tile. Grid:
/// x = units, y = lanes.
template <class T>
struct ChooseScores {
    static constexpr int kPhases = 1;
    static constexpr int kRepeated = 1;

    struct Env {
        const ChooseScores& of;
        const LaneView<T>& lane;
        const DeviceUnit& unit;
        const RowRule& rule;
        int lane_index, n;
        PlaceFacts facts;

        KH_FN Env(const ChooseScores& choose, const LaneView<T>& of_lane, const DeviceUnit& of_unit,
                  int index)
            : of(choose),
              lane(of_lane),
              unit(of_unit),
              rule(of_lane.rules[of_unit.variant]),
              lane_index(index),
              n(of_lane.heads[of_unit.first_head].count) {
            const int reader = of.table.readers[of.table.offset[unit.first_head]];
            facts = {lane.row,
                     rule.n_prompt,
                     n,
                     rule.span,
                     reader / of.n_heads,
                     0,
                     reader % of.n_heads / of.group,
                     rule.window,
                     rule.alpha,
                     rule.tau,
                     rule.gain,
                     rule.mix};
        }
        KH_FN int budget() const { return rule.span; }
        KH_FN int slot_of(int g, int i) const {
            return lane.order[static_cast<std::int64_t>(g) * lane.list_stride + i];
        }

        KH_FN float quantity(Quantity q, int i) const {
            const int slot = slot_of(unit.first_head, i),
                      position = lane.heads[unit.first_head].positions[slot];
            float value = 0;
            if (find_quantity(q, facts.at(position, i), nullptr, value)) return value;
            switch (q) {
                case Quantity::win:
                    return rule.as_rkv_code != 0 ? win_of_code(i) : win(slot);
                case Quantity::s:
                    return pooled_score(lane.scores, of.table.readers + of.table.offset[unit.first_head],
                                        of.table.offset[unit.last_head] - of.table.offset[unit.first_head],
                                        rule, slot);
                case Quantity::u:
                    return uniform_at(rule.seed, facts.layer, facts.kv_head, lane.row, position);
                default:
                    return pooled_over_heads(q, i);
            }
        }

        /// The mean over the newest rows, pooled as scores are.
        KH_FN float win(int slot) const {
            const int n_rows = lane.n_kept_rows, position = lane.heads[unit.first_head].positions[slot];
            if (n_rows == 0) return NAN;
            const bool is_max = rule.pool == static_cast<int>(Pool::max);
            const int first = of.table.offset[unit.first_head], last = of.table.offset[unit.last_head];
            float pooled = 0;
            for (int r = first; r < last; ++r) {
                const HeadScores& scores = lane.scores[of.table.readers[r]];
                float sum = 0;
                for (int row = lane.row - n_rows + 1; row <= lane.row; ++row)
                    if (position <= row) sum = add(sum, scores.kept_row(row)[slot]);
                const float mean = sum / static_cast<float>(n_rows);
                pooled = r == first ? mean : is_max ? (mean > pooled ? mean : pooled) : add(pooled, mean);
            }
            return rule.pool == static_cast<int>(Pool::mean) && last - first > 1
                       ? pooled / static_cast<float>(last - first)
                       : pooled;
        }

        KH_FN float win_of_code(int i) const {
            if (lane.n_kept_rows == 0) return NAN;
            return of.code_win[(static_cast<std::int64_t>(lane_index) * of.n_kv_heads + unit.first_head) *
                                   of.stride +
                               i];
        }

        KH_FN float of_head(Quantity q, int g, int i) const {
            const DeviceHead<T>& head = lane.heads[g];
            const int slot = slot_of(g, i);
            if (q == Quantity::vnorm) return value_length(head, of.head_dim, slot);
            if (q == Quantity::knorm) return key_length(head, of.head_dim, slot);
            if (q == Quantity::future) return from_table(lane.future, g, i);
            if (q == Quantity::repeat) return from_table(lane.repeat, g, i);
            const std::int64_t at = static_cast<std::int64_t>(lane_index) * of.n_kv_heads + g;
            if (q == Quantity::redundancy) return of.likeness[at * of.stride + i];
            if (q == Quantity::caote) return of.errors[at * of.stride + i];
            if (q == Quantity::lag) return of.lags[at * of.stride + i];
            if (q == Quantity::wvnorm) return of.reach != nullptr ? of.reach[at * of.stride + i] : NAN;
            if (q == Quantity::expected || q == Quantity::tri) {
                const float* ranks = q == Quantity::tri ? of.tri : of.expected;
                return lane.queries != nullptr && ranks != nullptr ? ranks[at * of.stride + i] : NAN;
            }
            const float* direction = of.directions + at * kDirection;
            const float dot = dot_channels(
                of.head_dim,
                [&](int c) {
                    return widen(
                        head.keys[(static_cast<std::int64_t>(c / 8) * head.capacity + slot) * 8 + c % 8]);
                },
                [&](int c) { return direction[c]; });
            return cosine_of(dot, of.lengths[at * of.stride + i], direction[of.head_dim]);
        }

        /// Returns a token's number in a table of the host; 0: there is no table.
        KH_FN float from_table(const float* table, int g, int i) const {
            return table == nullptr ? 0.0f : table[static_cast<std::int64_t>(g) * lane.list_stride + i];
        }

        KH_FN float pooled_over_heads(Quantity q, int i) const {
            const bool is_max = rule.pool == static_cast<int>(Pool::max);
            float value = of_head(q, unit.first_head, i);
            for (int g = unit.first_head + 1; g < unit.last_head; ++g) {
                const float own = of_head(q, g, i);
                value = is_max ? formula_max(value, own) : add(value, own);
            }
            const int n_heads = unit.last_head - unit.first_head;
            return rule.pool == static_cast<int>(Pool::mean) && n_heads > 1
                       ? value / static_cast<float>(n_heads)
                       : value;
        }
    };
    using Run = FormulaRun<Env>;
    struct Shared {
        typename Run::Sums sums;
    };
    using Local = NoLocal;

    const LaneView<T>* lanes;
    ReaderTable table;
    float* pooled;            ///< [lanes, max_units, stride] by slot
    float* lists;             ///< [lanes, max_units, n_lists, stride] in text order
    std::uint8_t* competes;   ///< [lanes, max_units, stride] in text order
    std::uint8_t* guarded;    ///< [lanes, max_units, stride] by slot, 1: protected
    const float* lengths;     ///< of KeyDirections
    const float* directions;  ///< the same
    const float* likeness;    ///< of ShareLikeness
    const float* errors;      ///< of OutputErrors
    const float* reach;       ///< of OutputReach; null: no model is known
    const float* lags;        ///< of LagRanks
    const float* expected;    ///< of QueryRanks, as the next; null: no lane has a calibration
    const float* tri;
    const float* code_win;  ///< of WinOfLogits
    float* ties;            ///< [lanes, max_units, stride] by slot, what orders tokens of equal rank
    std::int32_t max_units, stride, n_lists, n_heads, group, head_dim, n_kv_heads, unused = 0;

    KH_FN int n_tiles(const Block& block) const {
        const LaneView<T>& lane = lanes[block.y];
        if (!evaluates(lane, block.x)) return 0;
        return 2 + (lane.protect != nullptr ? lane.protect->n_steps : 0) +
               (lane.choose != nullptr ? lane.choose->n_steps + 1 : 0) +
               (lane.unsmoothed != nullptr ? lane.unsmoothed->n_steps + 1 : 0);
    }
    KH_FN void begin(const Block&, Shared&, Local&) const {}

    /// Tiles: who competes; the steps of protect; who is protected; the steps of choose; what is ranked; the
    /// same two without smoothing.
    KH_FN void phase(int, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& lane = lanes[block.y];
        const DeviceUnit& unit = lane.units[block.x];
        const std::int64_t unit_at = static_cast<std::int64_t>(block.y) * max_units + block.x;
        const int n = lane.heads[unit.first_head].count;
        const Env env(*this, lane, unit, block.y);
        std::uint8_t* competing = competes + unit_at * stride;
        float* values = lists + unit_at * n_lists * stride;
        const auto run = [&](const FormulaTable& formula, int step) {
            Run{env, formula, values, stride, competing, n, block.thread, block.n_threads, shared.sums}.step(
                step);
        };
        int at = block.tile - 1;
        const int n_protect = lane.protect != nullptr ? lane.protect->n_steps : 0;
        if (at < 0) {
            for (int i = block.thread; i < n; i += block.n_threads)
                competing[i] = competes_at(lane, unit, i) ? 1 : 0;
            return;
        }
        if (at < n_protect) return run(*lane.protect, at);
        at -= n_protect;
        if (at == 0) {
            for (int i = block.thread; i < n; i += block.n_threads) {
                const bool stays = n_protect > 0 && values[i] != 0;
                guarded[unit_at * stride + env.slot_of(unit.first_head, i)] = stays ? 1 : 0;
                if (stays) competing[i] = 0;
            }
            return;
        }
        const auto write = [&](float* to) {
            for (int i = block.thread; i < n; i += block.n_threads)
                to[unit_at * stride + env.slot_of(unit.first_head, i)] = values[i];
        };
        if (at <= lane.choose->n_steps) return run(*lane.choose, at - 1);
        at -= lane.choose->n_steps + 1;
        if (at == 0) return write(pooled);
        if (at <= lane.unsmoothed->n_steps) return run(*lane.unsmoothed, at - 1);
        write(ties);
    }
};

}  // namespace keyhole::cuda
