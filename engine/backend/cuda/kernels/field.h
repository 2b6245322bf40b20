/// Computes what some policies of the field rank by, of the tokens that a KV head stores: the errors of
/// CAOTE, the reach of CriticalKV, the ranks of LagKV and what R-KV's code sees. Tokens are taken in text
/// order, as on the host, so that both give the same bits. Host and device. CPU twin:
/// backend/common/choice.cpp.
#pragma once

#include "engine/backend/cuda/kernels/choice.h"
#include "engine/backend/cuda/kernels/stored.h"
#include "engine/policy/query_maths.h"

#include <cstdint>

namespace keyhole::cuda {

/// Where the stored tokens of a KV head are, in text order.
template <class T>
struct HeadTokens {
    const LaneView<T>& lane;
    const DeviceHead<T>& head;
    const std::int32_t* order;

    KH_FN HeadTokens(const LaneView<T>& of, int g)
        : lane(of), head(of.heads[g]), order(of.order + static_cast<std::int64_t>(g) * of.list_stride) {}
    KH_FN float key(int i, int c) const {
        return widen(head.keys[(static_cast<std::int64_t>(c / 8) * head.capacity + order[i]) * 8 + c % 8]);
    }
    KH_FN float value(int i, int c, int head_dim) const {
        return widen(head.values[static_cast<std::int64_t>(order[i]) * head_dim + c]);
    }
};

/// Computes `win` as R-KV's released code has it: win_of_logits() of common/choice.h. A tile is a kept row.
/// Grid: x = KV heads of a lane, y = lanes.
struct WinOfLogits {
    static constexpr int kRepeated = 3, kPhases = 4;
    struct Shared {
        double most[kQueryParts], total[kQueryParts];
    };
    using Local = NoLocal;
    const AnyLane* lanes;
    ReaderTable table;
    double* largest;  ///< [lanes, n_kv_heads, stride] in text order; contents undefined, as the next
    double* sums;
    float* win;  ///< the same
    std::int32_t n_kv_heads, stride;

    KH_FN static const RowRule& rule_of(const AnyLane& lane, int g) {
        return lane.rules[lane.units[lane.unit_of_head[g]].variant];
    }
    KH_FN int n_tiles(const Block& block) const {
        const AnyLane& lane = lanes[block.y];
        if (!names(lane, Quantity::win) || !evaluates(lane, lane.unit_of_head[block.x])) return 0;
        return rule_of(lane, block.x).as_rkv_code != 0 ? lane.n_kept_rows : 0;
    }
    KH_FN void begin(const Block&, Shared&, Local&) const {}

    /// Phases: what the row before adds to the sums, and the largest logits of this one; parts of the largest
    /// of all; parts of the sum of weights; after all rows, means.
    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const AnyLane& lane = lanes[block.y];
        const int g = block.x, n = lane.heads[g].count, newest = rule_of(lane, g).newest,
                  n_before = n > newest ? n - newest : 0;
        const std::int64_t at = (static_cast<std::int64_t>(block.y) * n_kv_heads + g) * stride;
        const auto logit = [&](int i) { return largest[at + i]; };
        const auto all = [](int) { return true; };
        if (p == 1) {
            for (int k = block.thread; k < kQueryParts; k += block.n_threads)
                shared.most[k] = largest_part(k, n_before, logit, all);
            return;
        }
        const double most =
            p == 0 && block.tile == 0 ? 0.0 : largest_of_parts([&](int k) { return shared.most[k]; });
        const bool sees = most != -INFINITY;
        const auto weight = [&](int i) { return sees ? exp_of_negative(logit(i) - most) : 0.0; };
        if (p == 2) {
            for (int k = block.thread; k < kQueryParts; k += block.n_threads)
                shared.total[k] = sum_part(k, n_before, weight, all);
            return;
        }
        if (block.tile > 0) {
            const double total = sum_of_parts([&](int k) { return shared.total[k]; });
            for (int i = block.thread; i < n_before; i += block.n_threads) {
                const double before = block.tile == 1 ? 0.0 : sums[at + i];
                sums[at + i] = sees ? before + weight(i) / total : before;
            }
        }
        if (p == 0) return find_largest(block, n_before, at);
        for (int i = block.thread; i < n; i += block.n_threads)
            win[at + i] = i < n_before ? static_cast<float>(sums[at + i] / lane.n_kept_rows) : 0.0f;
    }

    /// Finds the largest logit of the query heads on each token that the tile's row sees.
    KH_FN void find_largest(const Block& block, int n_before, std::int64_t at) const {
        const AnyLane& lane = lanes[block.y];
        const int g = block.x, row = lane.row - lane.n_kept_rows + 1 + block.tile;
        const std::int32_t* order = lane.order + static_cast<std::int64_t>(g) * lane.list_stride;
        for (int i = block.thread; i < n_before; i += block.n_threads) {
            double most = -INFINITY;
            const int slot = order[i], n_readers = lane.heads[g].positions[slot] <= row
                                                       ? table.offset[g + 1] - table.offset[g]
                                                       : 0;
            for (int r = 0; r < n_readers; ++r) {
                const auto own =
                    static_cast<double>(lane.scores[table.readers[table.offset[g] + r]].kept_row(row)[slot]);
                most = most < own ? own : most;
            }
            largest[at + i] = most;
        }
    }
};

/// Computes how large the error of the output is if one token leaves (`caote`), pooled over the query heads
/// of each KV head. A tile is a query head. Grid: x = KV heads of a lane, y = lanes.
template <class T>
struct OutputErrors {
    static constexpr int kPhases = 4;
    static constexpr int kRepeated = 4;
    static constexpr int kSums = ChannelSums::kSums;
    struct Shared {
        ChannelSums sums[kMaxHeadDim];
        float of_part[kSums], output[kMaxHeadDim];
    };
    using Local = NoLocal;
    const LaneView<T>* lanes;
    ReaderTable table;
    float* errors;  ///< [lanes, n_kv_heads, stride] in text order
    std::int32_t n_kv_heads, stride, head_dim, unused = 0;

    KH_FN int n_tiles(const Block& block) const {
        const LaneView<T>& lane = lanes[block.y];
        const int g = block.x;
        if (!names(lane, Quantity::caote) || !evaluates(lane, lane.unit_of_head[g])) return 0;
        return table.offset[g + 1] - table.offset[g];
    }
    KH_FN void begin(const Block&, Shared&, Local&) const {}

    /// Phases: sums of scores; sums of the output; the output; each token's error.
    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& lane = lanes[block.y];
        const int g = block.x, n_readers = block.n_tiles;
        const HeadTokens<T> tokens(lane, g);
        const int n = tokens.head.count;
        const RowRule& rule = lane.rules[lane.units[lane.unit_of_head[g]].variant];
        const float* scores =
            lane.scores[table.readers[table.offset[g] + block.tile]].score[rule.accumulator];
        const auto score = [&](int i) { return scores[tokens.order[i]]; };
        if (p == 0) {
            for (int k = block.thread; k < kSums; k += block.n_threads) {
                float sum = 0;
                for (int i = k; i < n; i += kSums) sum = add(sum, score(i));
                shared.of_part[k] = sum;
            }
            return;
        }
        const float total = sum_in_pairs(shared.of_part);
        if (p == 1) {
            for (int item = block.thread; item < kSums * head_dim; item += block.n_threads) {
                const int c = item % head_dim, k = item / head_dim;
                float sum = 0;
                for (int i = k; i < n; i += kSums)
                    sum = add(sum, mul(score(i) / total, tokens.value(i, c, head_dim)));
                shared.sums[c].of[k] = sum;
            }
        } else if (p == 2) {
            for (int c = block.thread; c < head_dim; c += block.n_threads)
                shared.output[c] = sum_in_pairs(shared.sums[c].of);
        } else {
            float* error = errors + (static_cast<std::int64_t>(block.y) * n_kv_heads + g) * stride;
            for (int i = block.thread; i < n; i += block.n_threads) {
                const float share = score(i) / total;
                const float away = length_of(
                    head_dim, [&](int c) { return add(tokens.value(i, c, head_dim), -shared.output[c]); });
                const float own = mul(share / add(1.0f, -share), away);
                pool_rank(rule, block.tile, n_readers, own, error[i]);
            }
        }
    }
};

/// Computes how far each value reaches into the output (`wvnorm`): the sum over the output's channels of
/// |W_o v|, with the part of W_o that a query head has, and of these the mean over the query heads. For the
/// formula that folds rows, of the tokens alone for which it is due: it is kept with them. A tile is kRows
/// channels of a query head's part. Grid: x = KV heads from first_head on, y = lanes, z = groups of kTokens.
template <class T>
struct OutputReach {
    static constexpr int kPhases = 3;
    static constexpr int kRepeated = 2;
    static constexpr int kTokens = 32, kRows = 8;
    struct Shared {
        float values[kTokens][kMaxHeadDim + 1];  // no bank conflicts between tokens
        float rows[kRows][kMaxHeadDim];
        float reach[kRows][kTokens];
    };
    struct Local {
        float sum;           ///< of the token with the thread's number
        std::uint32_t mask;  ///< tokens of the group that are computed, a bit each
        KH_FN bool has(int token) const { return (mask >> token & 1) != 0; }
    };
    const LaneView<T>* lanes;
    ReaderTable table;
    const Elements<Stored>* outputs;  ///< [layers] W_o, [d_model, n_heads * head_dim]
    float* reach;                     ///< [lanes, n_kv_heads, stride] in text order; null with of_rows
    std::int32_t n_kv_heads, stride, head_dim, n_heads, d_model;
    std::int32_t first_head = 0;  ///< KV head of block x = 0
    std::int32_t of_rows = 0;     ///< 1: for the formula that folds a row, by slot, into DeviceHead::reach
    std::int32_t unused = 0;

    KH_FN bool is_wanted(const LaneView<T>& lane, int g) const {
        if (of_rows != 0) return lane.heads[g].reach != nullptr;
        return names(lane, Quantity::wvnorm) && evaluates(lane, lane.unit_of_head[g]);
    }

    KH_FN int head_of(const Block& block) const { return first_head + block.x; }
    KH_FN int tiles_of_reader() const { return (d_model + kRows - 1) / kRows; }
    /// Returns how many channels a tile has.
    KH_FN int n_rows(int tile) const {
        const int left = d_model - tile % tiles_of_reader() * kRows;
        return left < kRows ? left : kRows;
    }
    /// Returns Local::mask of the block's tokens.
    KH_FN std::uint32_t mask_of(const Block& block) const {
        const DeviceHead<T>& head = lanes[block.y].heads[head_of(block)];
        const int first = block.z * kTokens, left = head.count - first;
        std::uint32_t mask = 0;
        for (int i = 0; i < kTokens && i < left; ++i)
            if (of_rows == 0 || head.reach[first + i] == kReachDue) mask |= 1u << i;
        return mask;
    }
    KH_FN int n_tiles(const Block& block) const {
        const int g = head_of(block);
        if (!is_wanted(lanes[block.y], g) || mask_of(block) == 0) return 0;
        return (table.offset[g + 1] - table.offset[g]) * tiles_of_reader();
    }
    KH_FN float value(const Block& block, int token, int c) const {
        const LaneView<T>& lane = lanes[block.y];
        const int i = block.z * kTokens + token, g = head_of(block);
        if (of_rows == 0) return HeadTokens<T>(lane, g).value(i, c, head_dim);
        return widen(lane.heads[g].values[static_cast<std::int64_t>(i) * head_dim + c]);
    }
    KH_FN void begin(const Block& block, Shared& shared, Local& local) const {
        KH_DEVICE_ASSERT(block.n_threads >= kTokens);
        local.sum = 0;
        local.mask = mask_of(block);
        for (int item = block.thread; item < kTokens * head_dim; item += block.n_threads) {
            const int token = item / head_dim, c = item % head_dim;
            if (local.has(token)) shared.values[token][c] = value(block, token, c);
        }
    }

    /// Phases: what the tile before has found, and the weights of this one; how far each token reaches; after
    /// all tiles, means.
    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        const int g = head_of(block);
        const bool has_own = block.thread < kTokens && local.has(block.thread);
        if (p != 1 && block.tile > 0 && has_own)
            for (int r = 0; r < n_rows(block.tile - 1); ++r)
                local.sum = add(local.sum, shared.reach[r][block.thread]);
        if (p == 0) {
            put_weights(block, shared);
        } else if (p == 1) {
            for (int item = block.thread; item < n_rows(block.tile) * kTokens; item += block.n_threads) {
                const int r = item / kTokens, token = item % kTokens;
                if (!local.has(token)) continue;
                shared.reach[r][token] = fabsf(dot_channels(
                    head_dim, [&](int c) { return shared.rows[r][c]; },
                    [&](int c) { return shared.values[token][c]; }));
            }
        } else if (has_own) {
            const std::int64_t of_head = (static_cast<std::int64_t>(block.y) * n_kv_heads + g) * stride;
            float* out = of_rows != 0 ? lanes[block.y].heads[g].reach : reach + of_head;
            out[block.z * kTokens + block.thread] =
                local.sum / static_cast<float>(table.offset[g + 1] - table.offset[g]);
        }
    }

    KH_FN void put_weights(const Block& block, Shared& shared) const {
        const int reader = table.readers[table.offset[head_of(block)] + block.tile / tiles_of_reader()],
                  packs_of_head = head_dim / 8;
        const std::int64_t first = block.tile % tiles_of_reader() * kRows;
        Elements<Stored> output = outputs[reader / n_heads];
#ifdef __CUDA_ARCH__
        // Hides where the pointer was read from: where nvcc 13.0 sees that, and with_any_packs() then assumes
        // device memory, it ends with "broken function".
        asm("" : "+l"(output.data));
#endif
        with_any_packs(output, [&](const auto& packs) {
            for (int item = block.thread; item < n_rows(block.tile) * packs_of_head;
                 item += block.n_threads) {
                const int r = item / packs_of_head, i = item % packs_of_head;
                float wide[8];
                packs.widen_pack(packs.load(((first + r) * n_heads + reader % n_heads) * packs_of_head + i),
                                 wide);
                for (int j = 0; j < 8; ++j) shared.rows[r][i * 8 + j] = wide[j];
            }
        });
    }
};

/// Ranks the tokens of each partition of a KV head by how they stand out against the next one (`lag`). A tile
/// is a partition; block z has every kBlocks-th. Grid: x = KV heads of a lane, y = lanes, z = kBlocks.
template <class T>
struct LagRanks {
    static constexpr int kPhases = 8;
    static constexpr int kRepeated = 7;
    static constexpr int kBlocks = 8;
    struct Shared {
        float low[kMaxHeadDim], high[kMaxHeadDim];
        LagTotal total;
    };
    using Local = NoLocal;
    const LaneView<T>* lanes;
    float* ranks;        ///< [lanes, n_kv_heads, stride] in text order
    double* deviations;  ///< the same, as the next; contents undefined
    double* values;
    std::int32_t n_kv_heads, stride, head_dim, unused = 0;

    /// Returns the first token that `sinks` leaves to partitions.
    KH_FN int first_token(const HeadTokens<T>& tokens, int sinks) const {
        int low = 0, high = tokens.head.count;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (tokens.head.positions[tokens.order[middle]] < sinks)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
    KH_FN int n_partitions(const HeadTokens<T>& tokens, const RowRule& rule) const {
        const int whole = (tokens.head.count - first_token(tokens, rule.sinks)) / rule.window;
        return whole > 0 ? whole - 1 : 0;  // another one follows each
    }
    KH_FN const RowRule& rule_of(const LaneView<T>& lane, int g) const {
        return lane.rules[lane.units[lane.unit_of_head[g]].variant];
    }
    KH_FN int n_tiles(const Block& block) const {
        const LaneView<T>& lane = lanes[block.y];
        const int g = block.x;
        if (!names(lane, Quantity::lag) || !evaluates(lane, lane.unit_of_head[g])) return 0;
        const int n = n_partitions(HeadTokens<T>(lane, g), rule_of(lane, g));
        const int own = n > block.z ? (n - block.z + kBlocks - 1) / kBlocks : 0;
        return block.z == 0 && own == 0 ? 1 : own;  // the first block ranks what is in no partition
    }
    KH_FN void begin(const Block&, Shared&, Local&) const {}

    /// Finds the range that each channel has in the partition behind `first`.
    template <class Channel>
    KH_FN void find_ranges(const Block& block, Shared& shared, int first, int lag, Channel channel) const {
        for (int c = block.thread; c < head_dim; c += block.n_threads) {
            float low = INFINITY, high = -INFINITY;
            for (int i = first + lag; i < first + 2 * lag; ++i) {
                const float x = channel(i, c);
                low = x < low ? x : low;
                high = high < x ? x : high;
            }
            shared.low[c] = low;
            shared.high[c] = high;
        }
    }

    /// Phases: ranges of keys; deviations; their total; shares, and ranges of values; deviations; their
    /// total; both shares together; and after all tiles, ranks.
    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const LaneView<T>& lane = lanes[block.y];
        const int g = block.x;
        const HeadTokens<T> tokens(lane, g);
        const RowRule& rule = rule_of(lane, g);
        const int n = tokens.head.count, lag = rule.window, n_parts = n_partitions(tokens, rule),
                  part = block.z + block.tile * kBlocks, from = first_token(tokens, rule.sinks);
        const std::int64_t at = (static_cast<std::int64_t>(block.y) * n_kv_heads + g) * stride;
        float* rank = ranks + at;
        if (p == 0 && part == 0) {
            for (int i = block.thread; i < n; i += block.n_threads)
                if (i < from || i >= from + n_parts * lag) rank[i] = 1;
        }
        if (p == 7) {
            for (int own = block.z; own < n_parts; own += kBlocks)
                rank_partition(block, values + at + from + own * lag, lag, rank + from + own * lag);
            return;
        }
        if (part >= n_parts) return;
        const int first = from + part * lag;
        double *deviation = deviations + at + first, *value = values + at + first;
        const auto key = [&](int i, int c) { return tokens.key(i, c); };
        const auto stored = [&](int i, int c) { return tokens.value(i, c, head_dim); };
        const auto low = [&](int c) { return static_cast<double>(shared.low[c]); };
        const auto high = [&](int c) { return static_cast<double>(shared.high[c]); };
        if (p == 0) return find_ranges(block, shared, first, lag, key);
        if (p == 2 || p == 5) {
            if (block.thread == 0) shared.total = lag_total(lag, [&](int i) { return deviation[i]; });
            return;
        }
        for (int i = block.thread; i < lag; i += block.n_threads) {
            if (p == 1)
                deviation[i] = scaled_deviation(
                    head_dim, [&](int c) { return key(first + i, c); }, low, high);
            else if (p == 3)
                value[i] = lag_share(deviation[i], shared.total);
            else if (p == 4)
                deviation[i] = scaled_deviation(
                    head_dim, [&](int c) { return stored(first + i, c); }, low, high);
            else
                value[i] = both_shares(value[i], lag_share(deviation[i], shared.total));
        }
        if (p == 3) find_ranges(block, shared, first, lag, stored);
    }

  private:
    /// NaN ranks lowest.
    KH_FN static double both_shares(double a, double b) {
        const double sum = a + b;
        return sum == sum ? sum : -INFINITY;
    }
    KH_FN static void rank_partition(const Block& block, const double* value, int lag, float* rank) {
        for (int i = block.thread; i < lag; i += block.n_threads)
            rank[i] = static_cast<float>(rank_in(value, lag, i)) / static_cast<float>(lag);
    }
    /// Returns how many tokens rank below one; of equal ones the earlier.
    KH_FN static int rank_in(const double* value, int n, int i) {
        int below = 0;
        for (int j = 0; j < n; ++j) below += value[j] < value[i] || (value[j] == value[i] && j < i) ? 1 : 0;
        return below;
    }
};

}  // namespace keyhole::cuda
