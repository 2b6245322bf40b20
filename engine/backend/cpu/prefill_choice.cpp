// What lanes keep of a prompt: they rank, choose and copy.
#include "engine/backend/cpu/prefill.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/cpu/select.h"
#include "engine/base/index.h"

#include <algorithm>
#include <limits>

namespace keyhole::cpu {

void Prefill::give_to_lanes(int first_layer, std::span<const LayerStore> stores) {
    struct Work {
        std::size_t lane;
        Unit unit;
        std::vector<Eviction> evictions{};
        Ranked ranked{};
    };
    const KvLayout& layout = model_.layout();
    const int first = layout.first_of_layer(first_layer),
              last = layout.first_of_layer(first_layer + static_cast<int>(stores.size()));
    std::vector<Work> work;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        const ResolvedPolicy& policy = lanes_[lane].cache->policy();
        auto& cache = static_cast<CpuKvCache&>(*lanes_[lane].cache);
        if (cache.largest_count() == 0) {
            std::vector<int> n_stored;
            for (int g = 0; g < layout.n_kv_heads(); ++g) {
                const ResolvedPolicy& own = unit_policy(layout, policy, g);
                const bool is_known = own.alloc == Alloc::uniform && !own.has_threshold();
                n_stored.push_back(own.exceeded(n_, n_ - 1) && is_known ? own.stored : n_);
            }
            cache.reserve(wanted_capacity(layout, policy, n_stored, n_));
        }
        if (cache.shadow() != nullptr) give_to_shadow(*cache.shadow(), first, last, first_layer, stores);
        // One set over all layers matters only where something is evicted.
        const bool whole = policy.at(0, 0).exceeded(n_, n_ - 1);
        for (const Unit& unit :
             units_of(layout, spans_layers(policy.scope) && !whole ? Scope::head : policy.scope))
            if (unit.first < last && unit.last > first) work.push_back({lane, unit});
    }
    const bool shares = std::any_of(lanes_.begin(), lanes_.end(), [](const LanePrefill& lane) {
        return lane.cache->policy().alloc != Alloc::uniform;
    });
    const auto rank = [&](std::int64_t i, int) {
        Work& w = work[to_index(i)];
        w.ranked = rank_unit(lanes_[w.lane], w.lane, w.unit, first_layer, stores);
    };
    if (shares) {
        pool_.parallel_for(static_cast<std::int64_t>(work.size()), rank);
        const std::vector<std::int32_t> positions = prompt_positions(n_);
        std::vector<SharedChoice> choices;
        for (Work& w : work)
            choices.push_back({w.lane, w.unit, positions, w.ranked.pooled, w.ranked.ties, w.ranked.guarded,
                               &w.ranked.stored});
        const auto of_lane = [&](std::size_t lane) -> const ResolvedPolicy& {
            return lanes_[lane].cache->policy();
        };
        share_prompt_budgets(layout, n_, of_lane, choices);
    }
    pool_.parallel_for(static_cast<std::int64_t>(work.size()), [&](std::int64_t i, int worker) {
        if (!shares) rank(i, worker);
        Work& w = work[to_index(i)];
        give_unit(lanes_[w.lane], w.lane, w.unit, w.ranked, first_layer, stores, w.evictions);
        w.ranked = {};
    });
    for (const Work& w : work) {
        std::vector<Eviction>& all = lanes_[w.lane].out->evictions;
        all.insert(all.end(), w.evictions.begin(), w.evictions.end());
        if (w.unit.step > 1) sort_by_kv_head(all);
    }
}

/// Where heads share a budget, gives each the room that its share needs.
void Prefill::fit_caches() const {
    for (const LanePrefill& lane : lanes_) {
        auto& cache = static_cast<CpuKvCache&>(*lane.cache);
        if (cache.policy().alloc == Alloc::uniform) continue;
        std::vector<int> n_stored;
        for (int g = 0; g < model_.layout().n_kv_heads(); ++g) n_stored.push_back(cache.count(g));
        cache.reserve(wanted_capacity(model_.layout(), cache.policy(), n_stored, n_));
    }
}

void Prefill::give_to_shadow(ShadowStore& shadow, int first, int last, int first_layer,
                             std::span<const LayerStore> stores) const {
    const std::int64_t d = model_.config().head_dim, n = n_;
    for (int g = first; g < last; ++g) {
        const KvHead& kv = model_.layout().kv_head(g);
        const LayerStore& store = stores[to_index(kv.owner_layer - first_layer)];
        shadow.append(g, data(store.keys) + kv.index * n * d, data(store.values) + kv.index * n * d, n_);
    }
}

/// Evaluates the policy's formulas for a unit: `pooled` becomes what is ranked, `guarded` what cannot leave.
/// Returns what orders tokens of equal rank.
std::vector<float> Prefill::choose(const LanePrefill& lane, std::size_t lane_index, const Unit& unit,
                                   const ResolvedPolicy& policy, int first_layer,
                                   std::span<const LayerStore> stores,
                                   const std::vector<std::int32_t>& positions, std::vector<float>& pooled,
                                   std::vector<std::int32_t>& guarded) const {
    const int d = model_.config().head_dim;
    const auto& cache = static_cast<const CpuKvCache&>(*lane.cache);
    std::vector<ChoiceHead> heads;
    for (int g = unit.first; g < unit.last; g += unit.step) {
        const KvHead& kv = model_.layout().kv_head(g);
        const LayerStore& store = stores[to_index(kv.owner_layer - first_layer)];
        const std::int64_t first = kv.index * std::int64_t{n_} * d;
        ChoiceHead& head = heads.emplace_back(ChoiceHead{positions});
        if (reads_keys(policy)) head.keys = rounded_as(cache.kv_type(), data(store.keys) + first, n_, d);
        if (reads_values(policy))
            head.values = rounded_as(cache.kv_type(), data(store.values) + first, n_, d);
        for (const HeadRef& reader : kv.readers) {
            if (!reads_head_scores(policy)) break;
            const float* score =
                score_row(stores[to_index(reader.layer - first_layer)],
                          plan_.own(lane, lane_index, reader.layer, reader.head), reader.head);
            head.scores.emplace_back(score, score + n_);
        }
    }
    std::vector<float> win;
    if (policy.names(Quantity::win) && policy.ranks_as_rkv_code) {  // one KV head
        const auto& readers = model_.layout().kv_head(unit.first).readers;
        const int n_rows = std::min(policy.window, n_);
        win = win_of_logits(positions, policy.newest, n_ - 1, n_rows, static_cast<int>(readers.size()),
                            [&](int reader, int r, std::size_t i) {
                                const HeadRef& of = readers[to_index(reader)];
                                return win_row_of(stores[to_index(of.layer - first_layer)], of.head,
                                                  n_ - n_rows + r, true)[i];
                            });
    } else if (policy.names(Quantity::win))
        win = pool_last_rows(model_.layout(), unit, policy, n_, [&](const HeadRef& reader, int row) {
            return win_row_of(stores[to_index(reader.layer - first_layer)], reader.head, row);
        });
    const auto queries = queries_of_unit(model_.layout(), unit, policy, query_sinks_, [&](int layer) {
        return std::span<const QueryMoments>(stores[to_index(layer - first_layer)].queries);
    });
    return choose_on_host({model_.layout(), unit, policy, n_ - 1, d, cache.future().get(), heads, positions,
                           win, cache.repeats().get(), cache.model().get(), queries},
                          pooled, guarded);
}

Prefill::Ranked Prefill::rank_unit(const LanePrefill& lane, std::size_t lane_index, const Unit& unit,
                                   int first_layer, std::span<const LayerStore> stores) const {
    const KvLayout& layout = model_.layout();
    const ResolvedPolicy& policy = unit_policy(layout, lane.cache->policy(), unit.first);
    auto store_of = [&](int layer) -> const LayerStore& { return stores[to_index(layer - first_layer)]; };
    Ranked ranked;
    ranked.stored = policy.stored;
    std::vector<float>& pooled = ranked.pooled;
    pooled.resize(to_index(n_));
    const std::vector<std::int32_t> positions = prompt_positions(n_);
    const bool needs_scores = !lane.out->values.scores.empty(),
               may_leave = may_leave_prompt(lane.cache->policy(), policy, n_);
    if (may_leave || needs_scores)
        pooled = pool_unit_of_prompt(layout, unit, policy, n_, [&](const HeadRef& reader) {
            return score_row(store_of(reader.layer), plan_.own(lane, lane_index, reader.layer, reader.head),
                             reader.head);
        });
    if (ranks_prompt(policy, may_leave, needs_scores))
        ranked.ties =
            choose(lane, lane_index, unit, policy, first_layer, stores, positions, pooled, ranked.guarded);
    else if (policy.choose)
        std::fill(pooled.begin(), pooled.end(), std::numeric_limits<float>::quiet_NaN());
    return ranked;
}

void Prefill::give_unit(const LanePrefill& lane, std::size_t lane_index, const Unit& unit,
                        const Ranked& ranked, int first_layer, std::span<const LayerStore> stores,
                        std::vector<Eviction>& evictions) const {
    const KvLayout& layout = model_.layout();
    auto& cache = static_cast<CpuKvCache&>(*lane.cache);
    const std::int64_t d = model_.config().head_dim, n = n_;
    auto store_of = [&](int layer) -> const LayerStore& { return stores[to_index(layer - first_layer)]; };
    const std::vector<float>& pooled = ranked.pooled;
    std::vector<int> victims;
    const float threshold = prompt_victims(unit_policy(layout, cache.policy(), unit.first), n_, ranked.stored,
                                           pooled, ranked.ties, ranked.guarded, victims);

    RowValues& values = lane.out->values;
    const std::vector<WinRows> kept_rows = cache.kept_rows(n_ - 1);
    for (int g = unit.first; g < unit.last; g += unit.step) {
        const KvHead& kv = layout.kv_head(g);
        const LayerStore& store = store_of(kv.owner_layer);
        std::size_t victim = 0;
        for (std::int32_t p = 0; p < n_; ++p) {
            if (victim < victims.size() && victims[victim] == p) {
                evictions.push_back({g, p, n_ - 1});
                ++victim;
                continue;
            }
            const int slot = cache.append(g, p);
            cache.write(g, slot, data(store.keys) + (kv.index * n + p) * d,
                        data(store.values) + (kv.index * n + p) * d);
            for (const HeadRef& reader : kv.readers)
                for (int a = 0; a < kAccumulators; ++a)
                    if (float* score = cache.score(a, reader.layer * layout.n_heads() + reader.head))
                        score[slot] =
                            score_row(store_of(reader.layer),
                                      plan_.of(lane_index, reader.layer, reader.head, a), reader.head)[p];
            for (const WinRows& rows : kept_rows) {
                if (p < rows.begin || p >= rows.end) continue;
                for (const HeadRef& reader : kv.readers)
                    for (int row = rows.first; row <= rows.last; ++row)
                        cache.kept_row(row, reader.layer * layout.n_heads() + reader.head)[slot] = win_row_of(
                            store_of(reader.layer), reader.head, row, cache.policy().ranks_as_rkv_code)[p];
            }
        }
        if (values.scores.empty()) continue;
        std::copy_n(pooled.data(), n, values.scores.data() + static_cast<std::int64_t>(g) * n);
        values.threshold[to_index(g)] = threshold;
    }
}

}  // namespace keyhole::cpu
