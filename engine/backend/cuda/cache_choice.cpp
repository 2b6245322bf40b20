// What the host reads of a cache and ranks where no kernel selects.
#include "engine/backend/common/row_scores.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cuda/cache.h"
#include "engine/base/index.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace keyhole::cuda {

/// Returns the accumulator by which a query head selects under a lane's policy, which may be the next one:
/// what that will start begins as a copy of its relative.
std::size_t CudaKvCache::accumulator_for(const ResolvedPolicy& policy, const HeadRef& reader) const {
    if (begins_formula(policy_, policy, reader.layer, reader.head)) return kSum;
    return to_index(nearest_relative(accumulator_of(policy.at(reader.layer, reader.head)), store_.running));
}

/// Returns what a KV head stores as the formulas of a lane's policy see it: downloaded, in text order.
ChoiceHead CudaKvCache::choice_head(int g, const ResolvedPolicy& of_lane) const {
    const ResolvedPolicy& policy = unit_policy(*layout_, of_lane, g);
    ChoiceHead head;
    head.positions = stored_positions(g);
    const std::int64_t capacity = this->capacity(g), n = count(g);
    const AnyHead on_device = device_head(store_, g);
    const auto widened = [&]<class K>(const std::byte* from, bool are_keys, std::vector<float>& out) {
        std::vector<K> stored(to_index(capacity * head_dim_));
        executor_->download(stored.data(), from, stored.size() * sizeof(K));
        executor_->wait();
        out.resize(to_index(n * head_dim_));
        for (std::int64_t i = 0; i < n; ++i)
            for (int c = 0; c < head_dim_; ++c) {
                const std::int64_t slot = order(g)[to_index(i)];
                out[to_index(i * head_dim_ + c)] = widen(stored[to_index(
                    are_keys ? (c / 8 * capacity + slot) * 8 + c % 8 : slot * head_dim_ + c)]);
            }
    };
    with_number(store_.type, [&]<class K>() {
        if (reads_keys(policy)) widened.template operator()<K>(on_device.keys, true, head.keys);
        if (reads_values(policy)) widened.template operator()<K>(on_device.values, false, head.values);
    });
    for (const HeadRef& reader : layout_->kv_head(g).readers) {
        if (!reads_head_scores(policy)) break;
        const std::size_t accumulator = accumulator_for(of_lane, reader);
        std::vector<float> by_slot(positions(g).size());
        executor_->download(
            by_slot.data(),
            head_scores(store_, reader.layer * layout_->n_heads() + reader.head).score[accumulator],
            by_slot.size() * sizeof(float));
        executor_->wait();
        std::vector<float>& own = head.scores.emplace_back();
        for (const std::int32_t slot : order(g)) own.push_back(by_slot[to_index(slot)]);
    }
    return head;
}

void CudaKvCache::order_of_row(int g, std::span<std::int32_t> slots) const {
    std::copy(order(g).begin(), order(g).end(), slots.begin());
    slots[to_index(count(g))] = count(g);
}

int CudaKvCache::position_in_order(int g, int i, int row) const {
    return i < count(g) ? positions(g)[to_index(order(g)[to_index(i)])] : row;
}

void CudaKvCache::future_of_row(int g, int row, std::span<float> sums) const {
    for (int i = 0; i <= count(g); ++i)
        sums[to_index(i)] = future() != nullptr ? future()->at(g, row, position_in_order(g, i, row)) : 0.0f;
}

void CudaKvCache::repeat_of_row(int g, int row, std::span<float> most) const {
    for (int i = 0; i <= count(g); ++i)
        most[to_index(i)] = repeats() != nullptr ? repeats()->at(g, position_in_order(g, i, row)) : 0.0f;
}

std::vector<WinRows> CudaKvCache::kept_rows(const ResolvedPolicy& policy, int row) const {
    if (store_.window == 0 || policy.kept_rows() == 0) return {};
    KeptRows kept = kept_;
    if (policy.ranks_as_rkv_code != policy_.ranks_as_rkv_code || policy.fair != policy_.fair)
        kept.change(policy_, policy, store_.window, row);
    std::vector<WinRows> rows = kept.at(policy, row);
    for (WinRows& own : rows) own.first = std::max(own.first, own.last - store_.window + 1);
    return rows;
}

bool CudaKvCache::knows_rows(const ResolvedPolicy& policy, int row) const {
    const std::vector<WinRows> rows = kept_rows(policy, row);
    return std::any_of(rows.begin(), rows.end(), [](const WinRows& own) { return own.n() > 0; });
}

/// Pools the values of a unit's readers over its tokens `all`, which not all of its KV heads store. Under
/// scope column the readers of each KV head are pooled, then the mean of the KV heads that store the token is
/// taken. values_of(g, reader): by slot of KV head g.
template <class ValuesOf>
std::vector<float> CudaKvCache::pool_unit(const Unit& unit, const ResolvedPolicy& policy,
                                          std::span<const std::int32_t> all, ValuesOf values_of) const {
    const bool by_column = policy.scope == Scope::column;
    const auto n = static_cast<std::int64_t>(all.size());
    const std::vector<float> none(all.size(),
                                  policy.pool == Pool::max ? -std::numeric_limits<float>::infinity() : 0.0f);
    std::vector<float> pooled = by_column ? std::vector<float>(all.size()) : none, of_head;
    std::vector<int> n_heads(all.size(), 0);  // that store the token
    int n_readers = 0;
    for (int g = unit.first; g < unit.last; g += unit.step) {
        if (by_column) of_head = none, n_readers = 0;
        const auto visit_stored = [&](auto visit) {
            std::size_t column = 0;
            for (const std::int32_t slot : order(g)) {
                while (all[column] != positions(g)[to_index(slot)]) ++column;
                visit(column++, slot);
            }
        };
        for (const HeadRef& reader : layout_->kv_head(g).readers) {
            const std::vector<float> values = values_of(g, reader);
            ++n_readers;
            visit_stored([&](std::size_t at, std::int32_t slot) {
                float& to = (by_column ? of_head : pooled)[at];
                to = policy.pool == Pool::max ? std::max(to, values[to_index(slot)])
                                              : to + values[to_index(slot)];
            });
        }
        if (!by_column) continue;
        finish_pool(policy.pool, n_readers, n, of_head.data());
        visit_stored([&](std::size_t at, std::int32_t) { pooled[at] += of_head[at], ++n_heads[at]; });
    }
    if (!by_column)
        finish_pool(policy.pool, n_readers, n, pooled.data());
    else
        for (std::size_t i = 0; i < pooled.size(); ++i)
            pooled[i] /= static_cast<float>(std::max(n_heads[i], 1));
    return pooled;
}

/// Returns the means over the newest rows of a unit's tokens `all`, pooled over its readers; empty where no
/// row is kept.
std::vector<float> CudaKvCache::win_on_host(const Unit& unit, const ResolvedPolicy& policy, int row,
                                            std::span<const std::int32_t> all) const {
    if (!knows_rows(policy, row)) return {};
    const std::vector<WinRows> rows = kept_rows(policy, row);
    if (policy.ranks_as_rkv_code) return win_of_code(unit.first, policy, row, rows.front());
    std::vector<float> values;
    return pool_unit(unit, policy, all, [&](int g, const HeadRef& reader) {
        const HeadScores scores = head_scores(store_, reader.layer * layout_->n_heads() + reader.head);
        values.resize(positions(g).size());
        return means_of_rows(rows, positions(g).data(), count(g), [&](int r) -> const float* {
            executor_->download(values.data(), scores.kept_row(r), values.size() * sizeof(float));
            executor_->wait();
            return values.data();
        });
    });
}

/// Returns `win` of a KV head's tokens as R-KV's code has it.
std::vector<float> CudaKvCache::win_of_code(int g, const ResolvedPolicy& policy, int row,
                                            const WinRows& rows) const {
    const std::vector<HeadRef>& readers = layout_->kv_head(g).readers;
    const auto n_rows = to_index(rows.n()), n = to_index(count(g));
    std::vector<float> logits(readers.size() * n_rows * n);  // [reader][row][slot]
    for (std::size_t i = 0; i < readers.size(); ++i) {
        const HeadScores scores =
            head_scores(store_, readers[i].layer * layout_->n_heads() + readers[i].head);
        for (std::size_t r = 0; r < n_rows; ++r)
            executor_->download(logits.data() + (i * n_rows + r) * n,
                                scores.kept_row(rows.first + static_cast<int>(r)), n * sizeof(float));
    }
    executor_->wait();
    return win_of_logits(
        stored_positions(g), policy.newest, row, rows.n(), static_cast<int>(readers.size()),
        [&](int reader, int r, std::size_t i) {
            return logits[(to_index(reader) * n_rows + to_index(r)) * n + to_index(order(g)[i])];
        });
}

HostSelection CudaKvCache::pool_on_host(const Unit& unit, const ResolvedPolicy& policy) const {
    HostSelection out;
    std::vector<std::int32_t>& pinned = out.pinned;
    for (int g = unit.first; g < unit.last; g += unit.step) {
        out.positions.insert(out.positions.end(), positions(g).begin(), positions(g).end());
        pinned.insert(pinned.end(), pinned_[to_index(g)].begin(), pinned_[to_index(g)].end());
    }
    for (auto* list : {&out.positions, &pinned}) {
        std::sort(list->begin(), list->end());
        list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    std::vector<std::vector<float>> score;
    for (int g = unit.first; g < unit.last; g += unit.step)
        for (const HeadRef& reader : layout_->kv_head(g).readers) {
            const int head = reader.layer * layout_->n_heads() + reader.head;
            const std::size_t own = accumulator_for(policy, reader);
            score.emplace_back(positions(g).size());
            executor_->download(score.back().data(), head_scores(store_, head).score[own],
                                score.back().size() * sizeof(float));
        }
    executor_->wait();
    auto next = score.begin();
    out.pooled =
        pool_unit(unit, policy, out.positions, [&](int, const HeadRef&) { return std::move(*next++); });
    out.threshold = std::numeric_limits<float>::quiet_NaN();
    return out;
}

void CudaKvCache::evaluate_on_host(const Unit& unit, const ResolvedPolicy& policy, int row,
                                   HostSelection& out, std::vector<float> win) const {
    const ResolvedPolicy& own = unit_policy(*layout_, policy, unit.first);
    std::vector<ChoiceHead> heads;
    for (int g = unit.first; g < unit.last; g += unit.step) heads.push_back(choice_head(g, policy));
    if (own.names(Quantity::win) && win.empty()) win = win_on_host(unit, policy, row, out.positions);
    const KeptQueries none;  // of a policy to be set that keeps none
    const std::vector<QueryMoments> queries = queries_after_row(
        *layout_, of_->model->config(), unit, own, policy.kept_queries() > 0 ? queries_ : none, row);
    out.ties = choose_on_host({*layout_, unit, own, row, head_dim_, future().get(), heads, out.positions, win,
                               repeats().get(), of_->model.get(), queries},
                              out.pooled, out.pinned);
}

HostSelection CudaKvCache::rank_on_host(const Unit& unit, const ResolvedPolicy& policy, int row,
                                        bool may_evict) {
    HostSelection out = pool_on_host(unit, policy);
    const ResolvedPolicy& own = unit_policy(*layout_, policy, unit.first);
    const bool leave = may_evict && (own.alloc != Alloc::uniform ||
                                     must_select(own, static_cast<int>(out.positions.size()), row));
    if (own.has_formula() && (leave || ranks_for_record(own, knows_rows(policy, row))))
        evaluate_on_host(unit, policy, row, out);
    else if (own.choose)
        std::fill(out.pooled.begin(), out.pooled.end(), std::numeric_limits<float>::quiet_NaN());
    return out;
}

RankedUnit CudaKvCache::rank(int kv_head, const RankFormulas& by, int row) const {
    const ResolvedPolicy policy = with_formulas(policy_, by);
    const Unit unit = unit_of(*layout_, policy.scope, kv_head);
    HostSelection out = pool_on_host(unit, policy);
    evaluate_on_host(unit, policy, row, out, given_win(policy_, by, out.positions));
    return {std::move(out.positions), std::move(out.pooled), std::move(out.ties), std::move(out.pinned)};
}

HostSelection CudaKvCache::select_on_host(const Unit& unit, const ResolvedPolicy& policy, int row,
                                          bool may_evict) {
    HostSelection out = rank_on_host(unit, policy, row, may_evict);
    if (may_evict)
        out.threshold = select_victims(out.positions, out.pooled, out.pinned,
                                       unit_policy(*layout_, policy, unit.first), row, out.victims, out.ties);
    return out;
}

std::vector<HostSelection> CudaKvCache::select_sharing(const ResolvedPolicy& policy, int row, bool is_due) {
    std::vector<int> counts;
    for (int g = 0; g < n_kv_heads(); ++g) counts.push_back(count(g));
    std::vector<bool> leaves(counts.size(), false);
    if (is_due) leaves = heads_due(*layout_, policy, counts, row);
    std::vector<HostSelection> out;
    for (int g = 0; g < n_kv_heads(); ++g)
        out.push_back(rank_on_host({g, g + 1}, policy, row, leaves[to_index(g)]));
    std::vector<SharedChoice> choices;
    for (int g = 0; g < n_kv_heads(); ++g) {
        const HostSelection& own = out[to_index(g)];
        if (leaves[to_index(g)])
            choices.push_back(
                {0, {g, g + 1}, own.positions, own.pooled, own.ties, own.pinned, &counts[to_index(g)]});
    }
    share_row_budgets(*layout_, policy, choices);
    for (int g = 0; g < n_kv_heads(); ++g) {
        HostSelection& own = out[to_index(g)];
        if (leaves[to_index(g)])
            own.threshold = select_victims(own.positions, own.pooled, own.pinned,
                                           with_stored(unit_policy(*layout_, policy, g), counts[to_index(g)]),
                                           row, own.victims, own.ties);
    }
    return out;
}

}  // namespace keyhole::cuda
