#include "engine/backend/cpu/select.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/common/kernels.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cpu/slot_choice.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace keyhole::cpu {

namespace {

void unite_positions(const CpuKvCache& cache, const Unit& unit, UnitScores& out) {
    auto fill = [&](int g, std::vector<std::int32_t>& to) {
        to.resize(to_index(cache.count(g)));
        cache.copy_in_order(g, cache.positions(g), to.data());
    };
    fill(unit.first, out.positions);
    for (int g = unit.first + unit.step; g < unit.last; g += unit.step) {
        fill(g, out.scratch);
        if (out.scratch == out.positions) continue;
        std::vector<std::int32_t> both;
        std::set_union(out.positions.begin(), out.positions.end(), out.scratch.begin(), out.scratch.end(),
                       std::back_inserter(both));
        out.positions = std::move(both);
    }
}

/// Folds a query head's score of a token into the pooled one.
float pool_one(Pool pool, float pooled, float score) {
    return pool == Pool::max ? std::max(pooled, score) : pooled + score;
}

/// Calls visit(values by slot) for every query head that reads KV head g. values_of: of a reader.
template <class Values, class Visit>
void for_readers(const CpuKvCache& cache, int g, Values values_of, Visit visit) {
    for (const HeadRef& reader : cache.layout().kv_head(g).readers) visit(values_of(reader));
}

/// Returns what for_readers() takes: the scores by which a query head selects.
auto scores_in(const CpuKvCache& cache) {
    return [&cache](const HeadRef& reader) {
        return static_cast<const float*>(
            cache.score(accumulator_of(cache.policy().at(reader.layer, reader.head)),
                        reader.layer * cache.layout().n_heads() + reader.head));
    };
}

/// Pools the values of one KV head's readers, in text order. pooled [cache.count(g)]
template <class Values>
void pool_head(const CpuKvCache& cache, int g, Values values_of, float* pooled) {
    const Pool pool = cache.policy().pool;
    const int n = cache.count(g);
    const std::int32_t* order = cache.order(g);
    int n_readers = 0;
    for_readers(cache, g, values_of, [&](const float* score) {
        if (n_readers++ == 0) return cache.copy_in_order(g, score, pooled);
        for (int i = 0; i < n; ++i) pooled[i] = pool_one(pool, pooled[i], score[order[i]]);
    });
    finish_pool(pool, n_readers, n, pooled);
}

/// Pools the values of a unit's readers under scope column: those of each KV head, then the mean of the KV
/// heads that store the token.
template <class Values>
void pool_column(const CpuKvCache& cache, const Unit& unit, std::span<const std::int32_t> positions,
                 Values values_of, std::vector<float>& pooled) {
    std::vector<float> of_head;
    std::vector<int> n_heads(positions.size(), 0);
    pooled.assign(positions.size(), 0);
    for (int g = unit.first; g < unit.last; g += unit.step) {
        of_head.resize(to_index(cache.count(g)));
        pool_head(cache, g, values_of, of_head.data());
        std::size_t at = 0;
        for (int i = 0; i < cache.count(g); ++i, ++at) {
            while (positions[at] != cache.positions(g)[cache.order(g)[i]]) ++at;
            pooled[at] += of_head[to_index(i)];
            ++n_heads[at];
        }
    }
    for (std::size_t i = 0; i < pooled.size(); ++i) pooled[i] /= static_cast<float>(std::max(n_heads[i], 1));
}

/// Pools the values of a unit's readers. positions: the union of what its KV heads store.
template <class Values>
void pool_values(const CpuKvCache& cache, const Unit& unit, std::span<const std::int32_t> positions,
                 Values values_of, std::vector<float>& pooled) {
    const Pool pool = cache.policy().pool;
    if (cache.policy().scope == Scope::column) return pool_column(cache, unit, positions, values_of, pooled);
    pooled.resize(positions.size());
    if (unit.n_heads() == 1) return pool_head(cache, unit.first, values_of, pooled.data());
    std::fill(pooled.begin(), pooled.end(),
              pool == Pool::max ? -std::numeric_limits<float>::infinity() : 0.0f);
    int n_readers = 0;
    for (int g = unit.first; g < unit.last; g += unit.step)
        for_readers(cache, g, values_of, [&](const float* score) {
            ++n_readers;
            std::size_t at = 0;
            for (int i = 0; i < cache.count(g); ++i, ++at) {
                const std::int32_t slot = cache.order(g)[i];
                while (positions[at] != cache.positions(g)[slot]) ++at;
                pooled[at] = pool_one(pool, pooled[at], score[slot]);
            }
        });
    finish_pool(pool, n_readers, static_cast<std::int64_t>(pooled.size()), pooled.data());
}

/// Pools the means over the newest rows. Empty where the cache keeps no rows, or has none yet.
std::vector<float> pool_kept_rows(const CpuKvCache& cache, const Unit& unit, int row,
                                  std::span<const std::int32_t> positions) {
    std::vector<float> pooled, means;
    if (!cache.knows_rows(row)) return pooled;
    const std::vector<WinRows> rows = cache.kept_rows(row);
    if (cache.policy().ranks_as_rkv_code) {  // one KV head
        const auto& readers = cache.layout().kv_head(unit.first).readers;
        return win_of_logits(positions, cache.policy().newest, row, rows.front().n(),
                             static_cast<int>(readers.size()), [&](int reader, int r, std::size_t i) {
                                 const HeadRef& of = readers[to_index(reader)];
                                 return cache.kept_row(rows.front().first + r,
                                                       of.layer * cache.layout().n_heads() +
                                                           of.head)[cache.order(unit.first)[i]];
                             });
    }
    pool_values(
        cache, unit, positions,
        [&](const HeadRef& reader) {
            const KvLayout& layout = cache.layout();
            const int g = layout.kv_head_from_head(reader.layer, reader.head),
                      head = reader.layer * layout.n_heads() + reader.head;
            means = means_of_rows(rows, cache.positions(g), cache.count(g),
                                  [&](int r) { return cache.kept_row(r, head); });
            return static_cast<const float*>(means.data());
        },
        pooled);
    return pooled;
}

}  // namespace

void pool_unit(const CpuKvCache& cache, const Unit& unit, UnitScores& out) {
    unite_positions(cache, unit, out);
    pool_values(cache, unit, out.positions, scores_in(cache), out.pooled);
}

namespace {

/// True when all KV heads of the unit hold the same tokens in the same slots, which holds unless tokens were
/// evicted on request.
bool slots_agree(const CpuKvCache& cache, const Unit& unit) {
    const int n = cache.count(unit.first);
    for (int g = unit.first + 1; g < unit.last; ++g)
        if (cache.count(g) != n ||
            !std::equal(cache.positions(g), cache.positions(g) + n, cache.positions(unit.first)))
            return false;
    return true;
}

/// Returns the pooled scores by slot of a unit whose slots agree: those of its only reader, or sums in
/// out.pooled.
const float* pool_slots(const CpuKvCache& cache, const Unit& unit, UnitScores& out) {
    const KvLayout& layout = cache.layout();
    const ResolvedPolicy& policy = cache.policy();
    const int n = cache.count(unit.first);
    int n_readers = 0;
    const float* only = nullptr;
    for (int g = unit.first; g < unit.last; g += unit.step)
        for (const HeadRef& reader : layout.kv_head(g).readers) {
            const Accumulator own = accumulator_of(policy.at(reader.layer, reader.head));
            const float* score = cache.score(own, reader.layer * layout.n_heads() + reader.head);
            switch (n_readers++) {
                case 0:
                    only = score;
                    break;
                case 1:
                    out.pooled.assign(only, only + n);
                    only = nullptr;
                    [[fallthrough]];
                default:
                    if (policy.pool == Pool::max)
                        for (std::size_t i = 0; i < out.pooled.size(); ++i)
                            out.pooled[i] = std::max(out.pooled[i], score[i]);
                    else
                        add_to(out.pooled.data(), score, n);
            }
        }
    if (only != nullptr) return only;
    if (policy.pool == Pool::mean)
        for (float& pooled : out.pooled) pooled /= static_cast<float>(n_readers);
    return out.pooled.data();
}

/// Returns what is ranked of a unit whose slots agree, by slot.
const float* ranked_slots(const CpuKvCache& cache, const Unit& unit, const ResolvedPolicy& policy, int row,
                          UnitScores& scores) {
    const bool reads_scores = !policy.choose || policy.choose->names(Quantity::s);
    const float* pooled = reads_scores ? pool_slots(cache, unit, scores) : nullptr;
    if (!policy.choose) return pooled;
    rank_slots(cache, unit, policy, row, pooled, scores.ranked);
    return scores.ranked.data();
}

/// Selects in the usual case: one token must leave, nothing is pinned, and all heads hold the same slots.
/// Chooses as select_victims() does, but by slot instead of in text order. Returns the victim's index into
/// the order; -1 in any other case.
int single_victim(const CpuKvCache& cache, const Unit& unit, const ResolvedPolicy& policy, int row,
                  UnitScores& scores) {
    const int g = unit.first, n = cache.count(g);
    if (n - policy.stored != 1 || policy.unit > 1 || policy.has_threshold() || !policy.fair.empty() ||
        policy.scope == Scope::column || policy.gap == ResolvedPolicy::Gap::dropped)
        return -1;
    for (int other = unit.first; other < unit.last; ++other)
        if (!cache.pinned(other).empty()) return -1;
    const std::int32_t* positions = cache.positions(g);
    const std::int32_t* order = cache.order(g);
    int first = 0;
    while (first < n && positions[order[first]] < policy.sinks) ++first;
    const int last = std::max(first, n - policy.newest);
    if (first == last || !slots_agree(cache, unit)) return -1;
    if (last - first == 1) return first;
    const std::int32_t from = first == 0 ? 0 : positions[order[first]];
    const std::int32_t to = last == n ? std::numeric_limits<std::int32_t>::max() : positions[order[last - 1]];
    return index_of(order, n,
                    lowest_slot(ranked_slots(cache, unit, policy, row, scores), positions, n, from, to));
}

}  // namespace

namespace {

/// Returns what a KV head stores as the formulas of its unit's policy see it.
ChoiceHead choice_head(const CpuKvCache& cache, int g, const ResolvedPolicy& policy) {
    const int n = cache.count(g), d = cache.keys(g).head_dim;
    ChoiceHead head;
    head.positions = cache.stored_positions(g);
    const auto widened = [&](const KvRows& rows, std::vector<float>& out) {
        out.resize(to_index(n) * to_index(d));
        if (cache.is_in_order(g)) return widen_kv(rows, n, out.data());
        for (int i = 0; i < n; ++i)
            widen_kv(rows.from_row(cache.order(g)[i]), 1, out.data() + std::int64_t{i} * d);
    };
    const auto reads = [&](bool QuantityRow::*rows) {
        return names_any(policy, [&](const QuantityRow& row) {
            return row.*rows && cache.lengths(row.quantity, g) == nullptr;
        });
    };
    if (reads(&QuantityRow::reads_keys)) widened(cache.keys(g), head.keys);
    if (reads(&QuantityRow::reads_values)) widened(cache.values(g), head.values);
    const auto in_order = [&](Quantity q, std::vector<float>& out) {
        if (const float* lengths = cache.lengths(q, g)) {
            out.resize(to_index(n));
            cache.copy_in_order(g, lengths, out.data());
        }
    };
    in_order(Quantity::knorm, head.key_lengths);
    in_order(Quantity::vnorm, head.value_lengths);
    in_order(Quantity::wvnorm, head.value_reach);
    if (reads_head_scores(policy))
        for_readers(cache, g, scores_in(cache), [&](const float* score) {
            cache.copy_in_order(g, score, head.scores.emplace_back(to_index(n)).data());
        });
    return head;
}

/// Evaluates the policy's formulas: scores.pooled becomes what is ranked, scores.pinned grows. win: in place
/// of what kept rows give.
void choose_unit(const CpuKvCache& cache, const Unit& unit, const ResolvedPolicy& policy, int row,
                 UnitScores& scores, std::vector<float> win = {}) {
    std::vector<ChoiceHead> heads;
    for (int g = unit.first; g < unit.last; g += unit.step) heads.push_back(choice_head(cache, g, policy));
    if (policy.names(Quantity::win) && win.empty()) win = pool_kept_rows(cache, unit, row, scores.positions);
    std::vector<QueryMoments> queries;
    if (cache.model() != nullptr)
        queries = queries_after_row(cache.layout(), cache.model()->config(), unit, policy,
                                    cache.kept_queries(), row);
    scores.ties = choose_on_host(
        {cache.layout(), unit, policy, row, cache.keys(unit.first).head_dim, cache.future().get(), heads,
         scores.positions, win, cache.repeats().get(), cache.model().get(), queries},
        scores.pooled, scores.pinned);
}

}  // namespace

namespace {

/// Pools a unit's scores and, where tokens leave or the ranks are wanted, makes what is ranked of them.
void rank_unit(const CpuKvCache& cache, const Unit& unit, const ResolvedPolicy& policy, int row, bool leave,
               bool needs_scores, UnitScores& scores) {
    scores.ties.clear();
    if (policy.has_formula() && (leave || (needs_scores && ranks_for_record(policy, cache.knows_rows(row)))))
        choose_unit(cache, unit, policy, row, scores);
    else if (policy.choose)
        std::fill(scores.pooled.begin(), scores.pooled.end(), std::numeric_limits<float>::quiet_NaN());
}

void pool_with_pins(const CpuKvCache& cache, const Unit& unit, UnitScores& scores) {
    pool_unit(cache, unit, scores);
    scores.pinned.clear();
    for (int g = unit.first; g < unit.last; g += unit.step)
        scores.pinned.insert(scores.pinned.end(), cache.pinned(g).begin(), cache.pinned(g).end());
    std::sort(scores.pinned.begin(), scores.pinned.end());
}

}  // namespace

RankedUnit rank_by(const CpuKvCache& cache, int kv_head, const RankFormulas& by, int row) {
    const ResolvedPolicy policy = with_formulas(cache.policy(), by);
    const Unit unit = unit_of(cache.layout(), policy.scope, kv_head);
    UnitScores scores;
    pool_with_pins(cache, unit, scores);
    choose_unit(cache, unit, unit_policy(cache.layout(), policy, unit.first), row, scores,
                given_win(cache.policy(), by, scores.positions));
    return {std::move(scores.positions), std::move(scores.pooled), std::move(scores.ties),
            std::move(scores.pinned)};
}

namespace {

/// Removes the victims of a unit from its KV heads and hands out scores and threshold where they are wanted.
void remove_victims(CpuKvCache& cache, const Unit& unit, int row, const UnitScores& scores,
                    const std::vector<int>& victims, float threshold, RowValues* values,
                    std::vector<Eviction>& evictions) {
    const bool needs_scores = values != nullptr && !values->scores.empty();
    std::vector<int> of_head;
    for (int g = unit.first; g < unit.last; g += unit.step) {
        of_head.clear();
        std::size_t column = 0, victim = 0;
        for (int i = 0; i < cache.count(g); ++i, ++column) {
            const std::int32_t position = cache.positions(g)[cache.order(g)[i]];
            while (scores.positions[column] != position) ++column;
            if (needs_scores)
                values->scores[to_index(values->offset[to_index(g)] + i)] = scores.pooled[column];
            while (victim < victims.size() && to_index(victims[victim]) < column) ++victim;
            if (victim < victims.size() && to_index(victims[victim]) == column) {
                of_head.push_back(i);
                evictions.push_back({g, position, row});
            }
        }
        if (needs_scores) values->threshold[to_index(g)] = threshold;
        cache.evict(g, of_head);
    }
}

}  // namespace

void evict_sharing(CpuKvCache& cache, int row, Due due, RowValues* values, std::vector<Eviction>& evictions) {
    const KvLayout& layout = cache.layout();
    const bool needs_scores = values != nullptr && !values->scores.empty();
    std::vector<int> counts;
    for (int g = 0; g < layout.n_kv_heads(); ++g) counts.push_back(cache.count(g));
    std::vector<bool> leaves(counts.size(), false);
    if (due == Due::now || cache.policy().evicts_after(row))
        leaves = heads_due(layout, cache.policy(), counts, row);
    std::vector<UnitScores> scores(counts.size());
    std::vector<int> stored = counts;
    std::vector<SharedChoice> choices;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const Unit unit{g, g + 1};
        UnitScores& own = scores[to_index(g)];
        if (!leaves[to_index(g)] && !needs_scores) continue;
        pool_with_pins(cache, unit, own);
        rank_unit(cache, unit, unit_policy(layout, cache.policy(), g), row, leaves[to_index(g)], needs_scores,
                  own);
        if (leaves[to_index(g)])
            choices.push_back(
                {0, unit, own.positions, own.pooled, own.ties, own.pinned, &stored[to_index(g)]});
    }
    share_row_budgets(layout, cache.policy(), choices);
    std::vector<int> victims;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        UnitScores& own = scores[to_index(g)];
        if (own.positions.empty()) continue;
        victims.clear();
        float threshold = std::numeric_limits<float>::quiet_NaN();
        if (leaves[to_index(g)])
            threshold =
                select_victims(own.positions, own.pooled, own.pinned,
                               with_stored(unit_policy(layout, cache.policy(), g), stored[to_index(g)]), row,
                               victims, own.ties);
        remove_victims(cache, {g, g + 1}, row, own, victims, threshold, values, evictions);
    }
}

std::vector<Eviction> select_row(CpuKvCache& cache, int row, Due due) {
    UnitScores scores;
    std::vector<int> victims;
    std::vector<Eviction> evictions;
    if (cache.policy().shares_at_rows()) {
        evict_sharing(cache, row, due, nullptr, evictions);
        return evictions;
    }
    for (const Unit& unit : units_of(cache.layout(), cache.policy().scope))
        evict_unit(cache, unit, row, due, scores, victims, nullptr, evictions);
    if (cache.policy().scope == Scope::column) sort_by_kv_head(evictions);
    return evictions;
}

void evict_unit(CpuKvCache& cache, const Unit& unit, int row, Due due, UnitScores& scores,
                std::vector<int>& victims, RowValues* values, std::vector<Eviction>& evictions) {
    const ResolvedPolicy& policy = unit_policy(cache.layout(), cache.policy(), unit.first);
    int most = 0;
    for (int g = unit.first; g < unit.last; g += unit.step) most = std::max(most, cache.count(g));
    const bool may_evict = policy.evicts() && (due == Due::now || policy.evicts_after(row)) &&
                           (unit.n_heads() > 1 || must_select(policy, most, row));
    const bool needs_scores = values != nullptr && !values->scores.empty();
    if (!may_evict && !needs_scores) return;
    if (!may_evict && unit.n_heads() == 1 &&
        !policy.has_formula())  // nothing leaves: the usual case when recording
        return pool_head(cache, unit.first, scores_in(cache),
                         values->scores.data() + values->offset[to_index(unit.first)]);
    if (!needs_scores && (!policy.has_formula() || ranks_by_slot(cache, unit, policy)) &&
        must_select(policy, most, row)) {
        if (const int victim = single_victim(cache, unit, policy, row, scores); victim >= 0) {
            for (int g = unit.first; g < unit.last; g += unit.step) {
                evictions.push_back({g, cache.positions(g)[cache.order(g)[victim]], row});
                cache.evict(g, std::span<const int>(&victim, 1));
            }
            return;
        }
    }
    pool_with_pins(cache, unit, scores);
    victims.clear();
    float threshold = std::numeric_limits<float>::quiet_NaN();
    const bool leave = may_evict && must_select(policy, static_cast<int>(scores.positions.size()), row);
    rank_unit(cache, unit, policy, row, leave, needs_scores, scores);
    if (may_evict)
        threshold =
            select_victims(scores.positions, scores.pooled, scores.pinned, policy, row, victims, scores.ties);
    remove_victims(cache, unit, row, scores, victims, threshold, values, evictions);
}

}  // namespace keyhole::cpu
