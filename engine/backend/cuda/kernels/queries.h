/// Ranks the tokens that a KV head stores by a calibration's statistics of queries: `expected` and `tri`. Two
/// launches each: QueryLogits, QueryRanks. In double, with the bits of the host. Host and device. Knows a
/// lane's device tables, no model. CPU twin: backend/common/query_statistics.h.
#pragma once

#include "engine/backend/cuda/kernels/choice.h"
#include "engine/backend/cuda/kernels/field.h"
#include "engine/policy/query_maths.h"

#include <cstdint>

namespace keyhole::cuda {

/// Returns whether a lane's formulas name the quantity, and are evaluated for a unit after the row.
template <class T>
KH_FN bool ranks_by_queries(const LaneView<T>& lane, std::int32_t quantity, int unit_index) {
    return lane.queries != nullptr && names(lane, static_cast<Quantity>(quantity)) &&
           evaluates(lane, unit_index);
}

/// Computes the logit (`expected`) or score (`tri`) of each token by each query head that reads it. A tile is
/// a query head; a token has kQueryParts threads. Grid: x = KV heads of a lane, y = lanes, z = groups of
/// kTokens.
template <class T>
struct QueryLogits {
    static constexpr int kBefore = 1, kRepeated = 2, kPhases = 3;
    static constexpr int kTokens = 8;
    struct Shared {
        double turned[kTokens][kMaxHeadDim];
        double lengths[kTokens][kMaxHeadDim / 2];  ///< of rotated pairs, for `tri`
        double parts[kTokens][kQueryParts + 1];    // no bank conflicts between tokens
    };
    using Local = NoLocal;
    const LaneView<T>* lanes;
    ReaderTable table;
    double* logits;  ///< [lanes, n_readers, stride] of query heads in the order of the table, in text order
    std::int32_t quantity, n_readers, stride, head_dim;

    KH_FN bool is_tri() const { return static_cast<Quantity>(quantity) == Quantity::tri; }
    KH_FN int n_tokens(const Block& block) const {
        const int left = lanes[block.y].heads[block.x].count - block.z * kTokens;
        return left < kTokens ? left : kTokens;
    }
    KH_FN int n_tiles(const Block& block) const {
        const LaneView<T>& lane = lanes[block.y];
        if (!ranks_by_queries(lane, quantity, lane.unit_of_head[block.x])) return 0;
        return n_tokens(block) > 0 ? table.offset[block.x + 1] - table.offset[block.x] : 0;
    }
    KH_FN void begin(const Block&, Shared&, Local&) const {}

    /// Phases: keys turned back. Of a query head: parts of sums; sums.
    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int n = n_tokens(block);
        if (p == 0) return turn_keys(block, n, shared);
        for (int item = block.thread; item < n * kQueryParts; item += block.n_threads) {
            const int token = item / kQueryParts, k = item % kQueryParts;
            if (p == 1) {
                shared.parts[token][k] = part_of(block, token, k, shared);
            } else if (k == 0) {
                const std::int64_t reader =
                    static_cast<std::int64_t>(block.y) * n_readers + table.offset[block.x] + block.tile;
                logits[reader * stride + block.z * kTokens + token] =
                    sum_of_parts([&](int part) { return shared.parts[token][part]; });
            }
        }
    }

    KH_FN void turn_keys(const Block& block, int n, Shared& shared) const {
        const LaneView<T>& lane = lanes[block.y];
        const LaneQueries& queries = *lane.queries;
        const HeadTokens<T> tokens(lane, block.x);
        const RotatedPairs& pairs = queries.pairs;
        for (int item = block.thread; item < n * head_dim; item += block.n_threads) {
            const int token = item / head_dim, c = item % head_dim;
            const auto key = [&](int channel) { return tokens.key(block.z * kTokens + token, channel); };
            shared.turned[token][c] =
                turned_back(pairs, is_tri() ? queries.turn_of_tri : queries.turn_of_expected, key, c);
            if (is_tri() && c < pairs.n) shared.lengths[token][c] = length_of_pair(pairs, key, c);
        }
    }

    KH_FN double part_of(const Block& block, int token, int k, const Shared& shared) const {
        const LaneQueries& queries = *lanes[block.y].queries;
        const std::int64_t head = table.readers[table.offset[block.x] + block.tile];
        const auto turned = [&](int e) { return shared.turned[token][e]; };
        const auto mean = [&](int e) { return static_cast<double>(queries.mean[head * head_dim + e]); };
        if (is_tri()) {
            const double* lacks = queries.lacks + head * queries.pairs.n;
            return tri_part(
                k, head_dim, queries.pairs.n, turned, mean, [&](int f) { return lacks[f]; },
                [&](int f) { return shared.lengths[token][f]; });
        }
        const float* covariance = queries.covariance + head * head_dim * head_dim;
        return expected_part(k, head_dim, queries.scales[head], turned, mean, [&](int e) {
            double sum = 0;
            for (int c = 0; c < head_dim; ++c)
                sum +=
                    turned(c) * static_cast<double>(covariance[static_cast<std::int64_t>(c) * head_dim + e]);
            return sum;
        });
    }
};

/// Makes ranks of the logits and pools them over the query heads of each KV head: softmax over the tokens
/// from `sinks` on, or deviations from the mean of those that compete. A tile is a query head. Grid: x = KV
/// heads of a lane, y = lanes.
struct QueryRanks {
    static constexpr int kRepeated = 3, kPhases = 3;
    struct Shared {
        double first[kQueryParts], second[kQueryParts];
        std::int32_t n_counted[kQueryParts];
    };
    using Local = NoLocal;
    const AnyLane* lanes;
    ReaderTable table;
    const double* logits;  ///< of QueryLogits
    float* ranks;          ///< [lanes, n_kv_heads, stride] in text order
    std::int32_t quantity, n_readers, n_kv_heads, stride;

    KH_FN bool is_tri() const { return static_cast<Quantity>(quantity) == Quantity::tri; }
    KH_FN int n_tiles(const Block& block) const {
        const AnyLane& lane = lanes[block.y];
        if (!ranks_by_queries(lane, quantity, lane.unit_of_head[block.x])) return 0;
        return table.offset[block.x + 1] - table.offset[block.x];
    }
    KH_FN void begin(const Block&, Shared&, Local&) const {}

    KH_FN bool counts(const AnyLane& lane, int g, int i) const {
        const DeviceUnit& unit = lane.units[lane.unit_of_head[g]];
        if (is_tri()) return competes_at(lane, unit, i);
        const int slot = lane.order[static_cast<std::int64_t>(g) * lane.list_stride + i];
        return lane.heads[g].positions[slot] >= lane.rules[unit.variant].sinks;
    }

    /// Phases: parts of the largest logit, or of the sum of scores; parts of the sum of weights, or of
    /// squares; ranks.
    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const AnyLane& lane = lanes[block.y];
        const int g = block.x, n = lane.heads[g].count;
        const double* own =
            logits + (static_cast<std::int64_t>(block.y) * n_readers + table.offset[g] + block.tile) * stride;
        const auto logit = [&](int i) { return own[i]; };
        const auto is_counted = [&](int i) { return counts(lane, g, i); };
        if (p == 0) {
            for (int k = block.thread; k < kQueryParts; k += block.n_threads) {
                shared.first[k] =
                    is_tri() ? sum_part(k, n, logit, is_counted) : largest_part(k, n, logit, is_counted);
                std::int32_t n_counted = 0;
                for (int i = k; i < n; i += kQueryParts) n_counted += is_counted(i) ? 1 : 0;
                shared.n_counted[k] = n_counted;
            }
            return;
        }
        std::int32_t n_counted = 0;
        for (const std::int32_t of_part : shared.n_counted) n_counted += of_part;
        const auto first = [&](int k) { return shared.first[k]; };
        RankedAgainst against;
        against.centre =
            is_tri() ? centre_of_scores(sum_of_parts(first), n_counted) : largest_of_parts(first);
        const auto term = [&](int i) {
            return is_tri() ? squared_deviation(own[i], against.centre)
                            : expected_weight(own[i], against.centre);
        };
        if (p == 1) {
            for (int k = block.thread; k < kQueryParts; k += block.n_threads)
                shared.second[k] = sum_part(k, n, term, is_counted);
            return;
        }
        const double sum = sum_of_parts([&](int k) { return shared.second[k]; });
        against.spread = is_tri() ? spread_of_scores(sum, n_counted) : sum;
        for (int i = block.thread; i < n; i += block.n_threads)
            pool(block, i,
                 is_tri()        ? tri_deviation(own[i], against)
                 : is_counted(i) ? expected_share(own[i], against)
                                 : 0.0f);
    }

    /// Adds a query head's rank of a token to what the heads before it gave.
    KH_FN void pool(const Block& block, int i, float own) const {
        const AnyLane& lane = lanes[block.y];
        const RowRule& rule = lane.rules[lane.units[lane.unit_of_head[block.x]].variant];
        pool_rank(rule, block.tile, block.n_tiles, own,
                  ranks[(static_cast<std::int64_t>(block.y) * n_kv_heads + block.x) * stride + i]);
    }
};

}  // namespace keyhole::cuda
