#include "engine/backend/common/choice.h"

#include "engine/backend/common/value_reach.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/allocation.h"
#include "engine/policy/lag.h"
#include "engine/policy/place_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

namespace keyhole {
namespace {

/// Returns the mean direction of all stored keys, [head_dim], and its length behind it. Each channel has 32
/// sums, of every 32nd token each.
std::vector<float> mean_direction(const ChoiceHead& head, std::span<const float> lengths, int head_dim) {
    constexpr std::size_t kSums = 32;
    const std::size_t d = to_index(head_dim), n = head.positions.size();
    std::vector<float> sums(kSums * d, 0), mean(d + 1);
    for (std::size_t i = 0; i < n; ++i) {
        float* sum = sums.data() + i % kSums * d;
        for (std::size_t c = 0; c < d; ++c)
            sum[c] = add(sum[c], unit_channel(head.keys[i * d + c], lengths[i]));
    }
    for (std::size_t c = 0; c < d; ++c) {
        float of_channel[kSums];
        for (std::size_t j = 0; j < kSums; ++j) of_channel[j] = sums[j * d + c];
        mean[c] = sum_in_pairs(of_channel) / static_cast<float>(n);
    }
    const auto channel = [&](int c) { return mean[to_index(c)]; };
    mean[d] = length_of(head_dim, channel);
    return mean;
}

/// Returns the share of each token in the likeness of all keys to it: R-KV, section 3. c is the cosine of two
/// different keys; in each row the youngest key with c > 0.5 counts 0; then means over rows, and softmax.
/// spares_first: a row without such a key counts 0 for the first token.
std::vector<float> redundancy_of(const ChoiceHead& head, std::span<const float> lengths, int head_dim,
                                 bool spares_first) {
    constexpr std::size_t kSums = 32;
    const std::size_t d = to_index(head_dim), n = head.positions.size();
    std::vector<float> sums(kSums * n, 0), row(n), out(n);
    for (std::size_t i = 0; i < n; ++i) {
        const float* own = head.keys.data() + i * d;
        std::size_t youngest = n;
        for (std::size_t j = 0; j < n; ++j) {
            const float* other = head.keys.data() + j * d;
            const float dot = dot_channels(
                head_dim, [&](int c) { return own[c]; }, [&](int c) { return other[c]; });
            row[j] = i == j ? 0.0f : cosine_of(dot, lengths[i], lengths[j]);
            if (row[j] > kSimilar) youngest = j;
        }
        if (youngest < n) row[youngest] = 0;
        if (youngest == n && spares_first) row[0] = 0;
        float* sum = sums.data() + i % kSums * n;
        for (std::size_t j = 0; j < n; ++j) sum[j] = add(sum[j], row[j]);
    }
    float most[kSums], total[kSums];
    std::fill(most, most + kSums, -std::numeric_limits<float>::infinity());
    for (std::size_t j = 0; j < n; ++j) {
        float of_token[kSums];
        for (std::size_t i = 0; i < kSums; ++i) of_token[i] = sums[i * n + j];
        out[j] = sum_in_pairs(of_token) / static_cast<float>(n);
        most[j % kSums] = formula_max(most[j % kSums], out[j]);
    }
    float largest = most[0];
    for (const float one : most) largest = formula_max(largest, one);
    std::fill(total, total + kSums, 0.0f);
    for (std::size_t j = 0; j < n; ++j)
        total[j % kSums] = add(total[j % kSums], formula_exp(add(out[j], -largest)));
    const float all = sum_in_pairs(total);
    for (float& x : out) x = formula_exp(add(x, -largest)) / all;
    return out;
}

/// Returns how large the error of a query head's output is if one token leaves: CAOTE, equation (5). a: the
/// scores divided by their sum, o: the sum of a v,
///     c = a / (1 - a) |v - o|
std::vector<float> output_errors(const ChoiceHead& head, std::span<const float> scores, int head_dim) {
    constexpr std::size_t kSums = 32;
    const std::size_t d = to_index(head_dim), n = head.positions.size();
    std::vector<float> share(n), sums(kSums * d, 0), output(d), out(n);
    float of_part[kSums] = {};
    for (std::size_t i = 0; i < n; ++i) of_part[i % kSums] = add(of_part[i % kSums], scores[i]);
    const float total = sum_in_pairs(of_part);
    for (std::size_t i = 0; i < n; ++i) {
        share[i] = scores[i] / total;
        float* sum = sums.data() + i % kSums * d;
        for (std::size_t c = 0; c < d; ++c) sum[c] = add(sum[c], mul(share[i], head.values[i * d + c]));
    }
    for (std::size_t c = 0; c < d; ++c) {
        for (std::size_t j = 0; j < kSums; ++j) of_part[j] = sums[j * d + c];
        output[c] = sum_in_pairs(of_part);
    }
    for (std::size_t i = 0; i < n; ++i) {
        const float away = length_of(
            head_dim, [&](int c) { return add(head.values[i * d + to_index(c)], -output[to_index(c)]); });
        out[i] = mul(share[i] / add(1.0f, -share[i]), away);
    }
    return out;
}

/// Returns these errors pooled over the query heads of a KV head.
std::vector<float> caote_of(const ChoiceHead& head, const ResolvedPolicy& policy, int head_dim) {
    std::vector<float> pooled(head.positions.size());
    const auto n = static_cast<std::int64_t>(pooled.size());
    int n_readers = 0;
    for (const std::vector<float>& scores : head.scores) {
        KH_ASSERT(scores.size() == pooled.size(), "{} scores for {} tokens", scores.size(), pooled.size());
        pool_more(policy.pool, n_readers++ == 0, output_errors(head, scores, head_dim).data(), n,
                  pooled.data());
    }
    finish_pool(policy.pool, n_readers, n, pooled.data());
    return pooled;
}

/// Adds the softmax, over the `lag` tokens from `first` on, of the deviation over channels of their rows,
/// each channel scaled by the range that it has in the `lag` tokens after them.
void add_standing_out(std::span<const float> rows, std::size_t first, std::size_t lag, std::size_t d,
                      std::vector<double>& sum) {
    std::vector<double> deviation(lag);
    std::vector<double> low(d, std::numeric_limits<double>::infinity()), high(d, -low.front());
    for (std::size_t i = first + lag; i < first + 2 * lag; ++i)
        for (std::size_t c = 0; c < d; ++c) {
            low[c] = std::min(low[c], double{rows[i * d + c]});
            high[c] = std::max(high[c], double{rows[i * d + c]});
        }
    for (std::size_t i = 0; i < lag; ++i)
        deviation[i] = scaled_deviation(
            static_cast<int>(d), [&](int c) { return rows[(first + i) * d + to_index(c)]; },
            [&](int c) { return low[to_index(c)]; }, [&](int c) { return high[to_index(c)]; });
    const LagTotal total = lag_total(static_cast<int>(lag), [&](int i) { return deviation[to_index(i)]; });
    for (std::size_t i = 0; i < lag; ++i) sum[i] += lag_share(deviation[i], total);
}

/// Returns the rank of each token in its partition, over the partition's size: LagKV. Partitions begin after
/// the first tokens that `sinks` protects; what no whole partition follows has rank 1. NaN ranks lowest.
std::vector<float> lag_of(const ChoiceHead& head, const ResolvedPolicy& policy, int head_dim) {
    const std::size_t n = head.positions.size(), lag = to_index(policy.window), d = to_index(head_dim);
    std::vector<float> out(n, 1);
    std::size_t first = 0;
    while (first < n && head.positions[first] < policy.sinks) ++first;
    for (; first + 2 * lag <= n; first += lag) {
        std::vector<double> value(lag, 0);
        add_standing_out(head.keys, first, lag, d, value);
        add_standing_out(head.values, first, lag, d, value);
        for (double& x : value)
            if (std::isnan(x)) x = -std::numeric_limits<double>::infinity();
        std::vector<std::size_t> order(lag);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return value[a] < value[b]; });
        for (std::size_t rank = 0; rank < lag; ++rank)
            out[first + order[rank]] = static_cast<float>(rank) / static_cast<float>(lag);
    }
    return out;
}

/// Returns `expected` or `tri` of a KV head's tokens, pooled over its query heads. competes: of the unit's
/// tokens.
std::vector<float> from_queries(Quantity quantity, const ChoiceUnit& of, std::size_t index,
                                std::span<const std::uint8_t> competes) {
    const ChoiceHead& head = of.heads[index];
    const std::size_t n = head.positions.size();
    std::vector<float> pooled(n, NAN);
    std::size_t first = 0;
    for (std::size_t h = 0; h < index; ++h)
        first += of.layout.kv_head(of.unit.head(static_cast<int>(h))).readers.size();
    const auto& readers = of.layout.kv_head(of.unit.head(static_cast<int>(index))).readers;
    if (of.model == nullptr || of.queries.size() < first + readers.size()) return pooled;
    std::vector<std::uint8_t> own;  // by the tokens of this head
    for (std::size_t i = 0, column = 0; i < n; ++i, ++column) {
        while (of.positions[column] != head.positions[i]) ++column;
        own.push_back(competes[column]);
    }
    const ModelConfig& config = of.model->config();
    const bool is_tri = quantity == Quantity::tri;
    const std::vector<double> offsets = is_tri ? tri_offsets() : expected_offsets(of.policy.ahead);
    TurnedKeys keys;
    for (std::size_t r = 0; r < readers.size(); ++r) {
        const Rotary* rotary = rotary_of(config, readers[r].layer);
        if (r == 0 || rotary != keys.of.rotary)
            keys = turned_keys({head.positions, head.keys, of.head_dim, rotary}, of.row, offsets);
        const double scale = attention_rule(config, readers[r].layer, readers[r].head).scale;
        const QueryMoments& queries = of.queries[first + r];
        const std::vector<float> values = is_tri ? tri_scores(keys, queries, own)
                                                 : expected_attention(keys, queries, of.policy.sinks, scale);
        pool_more(of.policy.pool, r == 0, values.data(), static_cast<std::int64_t>(n), pooled.data());
    }
    finish_pool(of.policy.pool, static_cast<int>(readers.size()), static_cast<std::int64_t>(n),
                pooled.data());
    return pooled;
}

/// Returns a quantity of each token that a KV head stores.
std::vector<float> of_head(Quantity quantity, const ChoiceUnit& of, std::size_t index,
                           std::span<const std::uint8_t> competes) {
    if (quantity == Quantity::expected || quantity == Quantity::tri)
        return from_queries(quantity, of, index, competes);
    const ChoiceHead& head = of.heads[index];
    const std::size_t n = head.positions.size(), d = to_index(of.head_dim);
    std::vector<float> out(n);
    const auto lengths = [&](const std::vector<float>& rows, const std::vector<float>& kept) {
        if (!kept.empty()) {
            out = kept;
            return;
        }
        KH_ASSERT(rows.size() == n * d, "{} numbers for {} tokens", rows.size(), n);
        for (std::size_t i = 0; i < n; ++i)
            out[i] = length_of(of.head_dim, [&](int c) { return rows[i * d + to_index(c)]; });
    };
    if (quantity == Quantity::vnorm) {
        lengths(head.values, head.value_lengths);
    } else if (quantity == Quantity::future) {
        for (std::size_t i = 0; i < n && of.future != nullptr; ++i)
            out[i] = of.future->at(of.unit.head(static_cast<int>(index)), of.row, head.positions[i]);
    } else if (quantity == Quantity::repeat) {
        for (std::size_t i = 0; i < n && of.repeats != nullptr; ++i)
            out[i] = of.repeats->at(of.unit.head(static_cast<int>(index)), head.positions[i]);
    } else if (quantity == Quantity::wvnorm) {
        if (!head.value_reach.empty()) return head.value_reach;
        if (of.model == nullptr) return std::vector<float>(n, NAN);
        const KvHead& kv = of.layout.kv_head(of.unit.head(static_cast<int>(index)));
        reach_of_values(*of.model, kv, head.values.data(), out);
    } else if (quantity == Quantity::lag) {
        out = lag_of(head, of.policy, of.head_dim);
    } else if (quantity == Quantity::caote) {
        out = caote_of(head, of.policy, of.head_dim);
    } else {
        lengths(head.keys, head.key_lengths);
        if (quantity == Quantity::knorm) return out;
        if (quantity == Quantity::redundancy)
            return redundancy_of(head, out, of.head_dim, of.policy.ranks_as_rkv_code);
        const std::vector<float> mean = mean_direction(head, out, of.head_dim);
        for (std::size_t i = 0; i < n; ++i) {
            const float dot = dot_channels(
                of.head_dim, [&](int c) { return head.keys[i * d + to_index(c)]; },
                [&](int c) { return mean[to_index(c)]; });
            out[i] = cosine_of(dot, out[i], mean[d]);
        }
    }
    return out;
}

/// Returns a quantity of the unit's tokens, pooled over the KV heads that store them.
std::vector<float> pooled_quantity(Quantity quantity, const ChoiceUnit& of,
                                   std::span<const std::uint8_t> competes) {
    const Pool pool = of.policy.scope == Scope::column ? Pool::mean : of.policy.pool;
    std::vector<float> out(of.positions.size(), 0);
    std::vector<int> count(of.positions.size(), 0);
    for (std::size_t h = 0; h < of.heads.size(); ++h) {
        const std::vector<float> own = of_head(quantity, of, h, competes);
        std::size_t column = 0;
        for (std::size_t i = 0; i < own.size(); ++i, ++column) {
            while (of.positions[column] != of.heads[h].positions[i]) ++column;
            float& value = out[column];
            if (count[column]++ == 0)
                value = own[i];
            else
                value = pool == Pool::max ? formula_max(value, own[i]) : add(value, own[i]);
        }
    }
    if (pool == Pool::mean)
        for (std::size_t i = 0; i < out.size(); ++i)
            if (count[i] > 1) out[i] /= static_cast<float>(count[i]);
    return out;
}

/// What a formula sees of a unit: a list of each quantity that one of the policy's formulas names.
class HostEnv {
  public:
    HostEnv(const ChoiceUnit& unit, std::span<const float> pooled, std::span<const std::uint8_t> competes)
        : of_(unit), facts_(facts_of(unit)) {
        for (const QuantityRow& row : kQuantityTable) {
            if (row.known_by == KnownBy::row || !of_.policy.names(row.quantity)) continue;
            std::vector<float>& list = lists_[to_index(static_cast<int>(row.quantity))];
            if (row.known_by == KnownBy::place)
                list = from_place(row.quantity);
            else if (row.known_by == KnownBy::head)
                list = pooled_quantity(row.quantity, of_, competes);
            else
                list = of_unit(row.quantity, pooled);
        }
    }
    int budget() const { return of_.policy.budget; }
    float quantity(Quantity q, int i) const { return lists_[to_index(static_cast<int>(q))][to_index(i)]; }

  private:
    const ChoiceUnit& of_;
    PlaceFacts facts_;
    std::array<std::vector<float>, kQuantities> lists_;

    static PlaceFacts facts_of(const ChoiceUnit& unit) {
        const KvHead& first = unit.layout.kv_head(unit.unit.first);
        return place_facts(unit.policy, unit.row, static_cast<int>(unit.positions.size()), first.owner_layer,
                           0, first.index);
    }
    std::vector<float> from_place(Quantity q) const {
        std::vector<float> list(of_.positions.size());
        fill_from_place(q, facts_, of_.positions.data(), 0, static_cast<int>(list.size()), list.data());
        return list;
    }
    std::vector<float> of_unit(Quantity q, std::span<const float> pooled) const {
        const std::span<const float> known = q == Quantity::s ? pooled : of_.win;
        if (q != Quantity::u && !known.empty()) return {known.begin(), known.end()};
        std::vector<float> list(of_.positions.size(), NAN);
        if (q != Quantity::u) return list;
        for (std::size_t i = 0; i < list.size(); ++i)
            list[i] = uniform_at(of_.policy.seed, facts_.layer, facts_.kv_head, of_.row, of_.positions[i]);
        return list;
    }
};

}  // namespace

ResolvedPolicy with_formulas(ResolvedPolicy policy, const RankFormulas& by) {
    const auto set = [&](ResolvedPolicy& one) {
        one.choose = by.choose;
        one.protect = by.protect;
    };
    set(policy);
    for (ResolvedPolicy& variant : policy.variants) set(variant);
    return policy;
}

std::vector<float> given_win(const ResolvedPolicy& of_lane, const RankFormulas& by,
                             std::span<const std::int32_t> positions) {
    std::vector<float> win;
    for (const std::int32_t p : positions) {
        if (by.win.empty() || of_lane.kept_rows() > 0) break;
        win.push_back(to_index(p) < by.win.size() ? by.win[to_index(p)] : NAN);
    }
    return win;
}

std::vector<float> win_of_logits(std::span<const std::int32_t> positions, int newest, int row, int n_rows,
                                 int n_readers,
                                 const std::function<float(int reader, int r, std::size_t i)>& logit_of) {
    constexpr double kUnseen = -std::numeric_limits<double>::infinity();
    const std::size_t n = positions.size(), n_before = n - std::min(n, to_index(newest));
    std::vector<double> largest(n_before), sum(n_before, 0);
    std::array<double, kQueryParts> parts;
    const auto part = [&](int k) { return parts[to_index(k)]; };
    const auto logit = [&](int i) { return largest[to_index(i)]; };
    const auto all = [](int) { return true; };
    for (int r = 0; r < n_rows; ++r) {
        for (std::size_t i = 0; i < n_before; ++i) {
            largest[i] = kUnseen;
            if (positions[i] > row - n_rows + 1 + r) continue;
            for (int reader = 0; reader < n_readers; ++reader)
                largest[i] = std::max(largest[i], double{logit_of(reader, r, i)});
        }
        for (int k = 0; k < kQueryParts; ++k)
            parts[to_index(k)] = largest_part(k, static_cast<int>(n_before), logit, all);
        const double most = largest_of_parts(part);
        if (most == kUnseen) continue;
        const auto weight = [&](int i) { return exp_of_negative(logit(i) - most); };
        for (int k = 0; k < kQueryParts; ++k)
            parts[to_index(k)] = sum_part(k, static_cast<int>(n_before), weight, all);
        const double total = sum_of_parts(part);
        for (std::size_t i = 0; i < n_before; ++i) sum[i] += weight(static_cast<int>(i)) / total;
    }
    std::vector<float> means(n, 0);
    for (std::size_t i = 0; i < n_before; ++i) means[i] = static_cast<float>(sum[i] / n_rows);
    return means;
}

std::vector<QueryMoments> calibrated_queries(const KvLayout& layout, const Unit& unit,
                                             const ResolvedPolicy& policy) {
    std::vector<QueryMoments> queries;
    const Calibration* known = policy.calibration.read.get();
    if (!policy.names_queries() || known == nullptr) return queries;
    for (int g = unit.first; g < unit.last; g += unit.step)
        for (const HeadRef& reader : layout.kv_head(g).readers)
            queries.push_back(known->heads[to_index(reader.layer * layout.n_heads() + reader.head)]);
    return queries;
}

std::vector<float> choose_on_host(const ChoiceUnit& of, std::span<float> pooled,
                                  std::vector<std::int32_t>& pinned) {
    const int n = static_cast<int>(of.positions.size());
    if (n == 0) return {};
    const ResolvedPolicy& policy = of.policy;
    std::vector<std::uint8_t> competes = competing_tokens(of.positions, pinned, policy, of.row);
    std::optional<HostEnv> env(std::in_place, of, pooled, competes);
    std::vector<float> lists;
    FormulaRun<HostEnv>::Sums sums;
    const auto run = [&](const FormulaTable& table) {
        lists.resize(to_index(table.n_lists) * to_index(n));
        const FormulaRun<HostEnv> formula{*env, table, lists.data(), n, competes.data(), n, 0, 1, sums};
        for (int step = 0; step < table.n_steps; ++step) formula.step(step);
    };
    if (policy.protect) {
        run(*policy.protect);
        const std::size_t n_pinned = pinned.size();
        for (int i = 0; i < n; ++i)
            if (lists[to_index(i)] != 0) pinned.push_back(of.positions[to_index(i)]);
        std::inplace_merge(pinned.begin(), pinned.begin() + static_cast<std::ptrdiff_t>(n_pinned),
                           pinned.end());
        competes = competing_tokens(of.positions, pinned, policy, of.row);  // shares of spans follow pins
        if (policy.names(Quantity::tri)) env.emplace(of, pooled, competes);
    }
    if (!policy.choose) return {};
    std::vector<float> ties;
    if (const FormulaTable* unsmoothed = policy.choose.unsmoothed()) {
        run(*unsmoothed);
        ties.assign(lists.begin(), lists.begin() + n);
    }
    run(*policy.choose);
    std::copy_n(lists.begin(), n, pooled.begin());
    return ties;
}

namespace {

/// Returns the tokens of a unit that may leave. Its budget is what its policy leaves them.
HeadShare share_of(const ResolvedPolicy& policy, const SharedChoice& choice) {
    HeadShare share;
    const auto n = static_cast<std::ptrdiff_t>(choice.positions.size());
    for (std::ptrdiff_t i = 0; i < n - policy.newest; ++i) {
        const std::int32_t p = choice.positions[to_index(i)];
        if (p < policy.sinks || std::binary_search(choice.guarded.begin(), choice.guarded.end(), p)) continue;
        share.positions.push_back(p);
        share.score.push_back(choice.score[to_index(i)]);
        if (!choice.ties.empty()) share.tie.push_back(choice.ties[to_index(i)]);
    }
    const int n_free = static_cast<int>(share.positions.size());
    share.budget = std::max(policy.stored - (static_cast<int>(n) - n_free), 0);
    return share;
}

int layer_of(const KvLayout& layout, int kv_head) {
    return layout.kv_head(kv_head).owner_layer;
}

/// Shares the budgets of units, and sets how many tokens each keeps.
void share_between(std::span<HeadShare> shares, std::span<const SharedChoice* const> units,
                   const ResolvedPolicy& policy) {
    const std::vector<int> kept = share_budget(shares, policy.floor, policy.rounds_shares);
    for (std::size_t i = 0; i < units.size(); ++i)
        *units[i]->stored = static_cast<int>(units[i]->positions.size()) -
                            static_cast<int>(shares[i].positions.size()) + kept[i];
}

}  // namespace

void share_prompt_budgets(const KvLayout& layout, int n,
                          const std::function<const ResolvedPolicy&(std::size_t lane)>& policy_of,
                          std::span<const SharedChoice> choices) {
    for (std::size_t first = 0, last = 0; first < choices.size(); first = last) {
        const std::size_t lane = choices[first].lane;
        const ResolvedPolicy& policy = policy_of(lane);
        const auto together = [&](const SharedChoice& c) {
            return c.lane == lane &&
                   (policy.alloc == Alloc::global ||
                    layer_of(layout, c.unit.first) == layer_of(layout, choices[first].unit.first));
        };
        for (last = first; last < choices.size() && together(choices[last]);) ++last;
        if (policy.alloc == Alloc::uniform) continue;
        std::vector<HeadShare> shares;
        std::vector<const SharedChoice*> sharing;
        bool leave = false;
        for (std::size_t i = first; i < last; ++i) {
            const ResolvedPolicy& own = unit_policy(layout, policy, choices[i].unit.first);
            if (!own.evicts()) continue;  // it keeps all tokens, whatever the others do
            leave = leave || own.exceeded(n, n - 1);
            HeadShare& share = shares.emplace_back(share_of(own, choices[i]));
            share.budget = std::min(share.budget, static_cast<int>(share.positions.size()));
            sharing.push_back(&choices[i]);
        }
        if (leave) share_between(shares, sharing, policy);
        for (const SharedChoice* choice : sharing)
            if (!leave) *choice->stored = n;
    }
}

std::vector<bool> heads_due(const KvLayout& layout, const ResolvedPolicy& policy, std::span<const int> counts,
                            int row) {
    std::vector<bool> due(counts.size(), false);
    std::map<int, std::int64_t> room;  // of the heads that share, below the tokens at which one must leave
    const auto group_of = [&](int g) { return policy.alloc == Alloc::global ? 0 : layer_of(layout, g); };
    for (int g = 0; g < static_cast<int>(counts.size()); ++g) {
        const ResolvedPolicy& own = unit_policy(layout, policy, g);
        if (own.evicts()) room[group_of(g)] += own.due_at() - counts[to_index(g)];
    }
    for (int g = 0; g < static_cast<int>(counts.size()); ++g) {
        const ResolvedPolicy& own = unit_policy(layout, policy, g);
        due[to_index(g)] = own.evicts() && own.evicts_in_phase(row) && room[group_of(g)] <= 0;
    }
    return due;
}

void share_row_budgets(const KvLayout& layout, const ResolvedPolicy& policy,
                       std::span<const SharedChoice> choices) {
    std::map<int, std::vector<const SharedChoice*>> groups;
    for (const SharedChoice& choice : choices)
        groups[policy.alloc == Alloc::global ? 0 : layer_of(layout, choice.unit.first)].push_back(&choice);
    for (const auto& [layer, units] : groups) {
        std::vector<HeadShare> shares;
        for (const SharedChoice* unit : units)
            shares.push_back(share_of(unit_policy(layout, policy, unit->unit.first), *unit));
        share_between(shares, units, policy);
    }
}

ResolvedPolicy with_stored(const ResolvedPolicy& policy, int stored) {
    ResolvedPolicy own = policy;
    own.stored = stored;
    own.buffer = 0;
    return own;
}

float prompt_victims(const ResolvedPolicy& policy, int n, int stored, std::span<const float> score,
                     std::span<const float> ties, std::span<const std::int32_t> guarded,
                     std::vector<int>& victims) {
    const std::vector<std::int32_t> positions = prompt_positions(n);
    const float threshold =
        policy.alloc == Alloc::uniform
            ? select_victims(positions, score, guarded, policy, n - 1, victims, ties)
            : select_victims(positions, score, guarded, with_stored(policy, stored), n - 1, victims, ties);
    // There is no room for more, and protected tokens are not cut silently.
    const int n_kept = n - static_cast<int>(victims.size());
    if (policy.protect && !policy.grows() && policy.exceeded(n, n - 1) && n_kept > policy.most_stored())
        fail(ErrorCode::wrong_use,
             "`protect` holds for {} of the prompt's {} tokens, {} more than the budget; raise the budget or "
             "protect fewer",
             n_kept, n, n_kept - stored);
    return threshold;
}

void sort_by_kv_head(std::vector<Eviction>& evictions) {
    std::stable_sort(evictions.begin(), evictions.end(),
                     [](const Eviction& a, const Eviction& b) { return a.kv_head < b.kv_head; });
}

}  // namespace keyhole
