// What lanes keep of a prompt: the host ranks and chooses, the device copies.
#include "engine/backend/cuda/prefill.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <limits>

namespace keyhole::cuda {

/// Each lane chooses and copies what it keeps of layers [first_layer, first_layer + stores.size()).
void Prefill::give_to_lanes(int first_layer, std::span<const LayerStore> stores) {
    const KvLayout& layout = model_.layout();
    const int first = layout.first_of_layer(first_layer),
              last = layout.first_of_layer(first_layer + static_cast<int>(stores.size()));
    std::vector<LayerScores> scores;
    for (const LayerStore& store : stores) {
        LayerScores& of = scores.emplace_back();
        const auto download = [&](std::vector<float>& to, const Buffer<float>& from) {
            to.resize(from.size());
            if (!to.empty()) executor_->download(to.data(), from.data(), from.size_bytes());
        };
        download(of.scores, store.scores);
        download(of.win_rows, store.win_rows);
        download(of.win_logits, store.win_logits);
    }
    executor_->wait();
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        const ResolvedPolicy& policy = lanes_[lane].cache->policy();
        if (cache(lane).has_no_room()) {
            std::vector<int> n_stored;
            for (int g = 0; g < layout.n_kv_heads(); ++g) {
                const ResolvedPolicy& own = unit_policy(layout, policy, g);
                const bool is_known = own.alloc == Alloc::uniform && !own.has_threshold();
                n_stored.push_back(own.exceeded(n_, n_ - 1) && is_known ? own.stored : n_);
            }
            cache(lane).reserve(wanted_capacity(layout, policy, n_stored, n_));
        }
        std::vector<Ranked> ranked;
        // One set over all layers matters only where something is evicted.
        const bool whole = policy.at(0, 0).exceeded(n_, n_ - 1);
        for (const Unit& unit :
             units_of(layout, spans_layers(policy.scope) && !whole ? Scope::head : policy.scope))
            if (unit.first < last && unit.last > first)
                ranked.push_back(rank(lane, unit, first_layer, stores, scores));
        if (policy.alloc != Alloc::uniform) {
            const std::vector<std::int32_t> positions = prompt_positions(n_);
            std::vector<SharedChoice> choices;
            for (Ranked& r : ranked)
                choices.push_back({lane, r.unit, positions, r.pooled, r.ties, r.guarded, &r.stored});
            share_prompt_budgets(
                layout, n_, [&](std::size_t) -> const ResolvedPolicy& { return policy; }, choices);
        }
        for (const Ranked& r : ranked) choose(lane, r);
        if (policy.scope == Scope::column) sort_by_kv_head(lanes_[lane].out->evictions);
        for (std::size_t i = 0; i < stores.size(); ++i) {
            keep(lane, first_layer + static_cast<int>(i), stores[i]);
            if (cache(lane).shadow() != nullptr && owns(first_layer + static_cast<int>(i)))
                give_to_shadow(lane, first_layer + static_cast<int>(i), stores[i]);
        }
    }
}

/// Evaluates the policy's formulas for a unit: `pooled` becomes what is ranked, `guarded` what cannot leave.
/// Returns what orders tokens of equal rank.
std::vector<float> Prefill::rank_by_formula(std::size_t lane, const Unit& unit, const ResolvedPolicy& policy,
                                            int first_layer, std::span<const LayerStore> stores,
                                            std::span<const LayerScores> scores,
                                            const std::vector<std::int32_t>& positions,
                                            std::vector<float>& pooled, std::vector<std::int32_t>& guarded) {
    const int d = model_.config().head_dim;
    const std::size_t of_head = to_index(n_) * to_index(d);
    const auto rounded = [&](const Buffer<float>& from, const KvHead& kv) {
        std::vector<float> rows(of_head);
        executor_->download(rows.data(), from.data() + to_index(kv.index) * of_head, of_head * sizeof(float));
        executor_->wait();
        with_number(cache(lane).kv_type(), [&]<class K>() {
            for (float& x : rows) {
                K stored;
                narrow(x, stored);
                x = widen(stored);
            }
        });
        return rows;
    };
    std::vector<ChoiceHead> heads;
    for (int g = unit.first; g < unit.last; g += unit.step) {
        const KvHead& kv = model_.layout().kv_head(g);
        const LayerStore& store = stores[to_index(kv.owner_layer - first_layer)];
        ChoiceHead& head = heads.emplace_back(ChoiceHead{positions});
        if (reads_keys(policy)) head.keys = rounded(store.keys, kv);
        if (reads_values(policy)) head.values = rounded(store.values, kv);
        for (const HeadRef& reader : kv.readers) {
            if (!reads_head_scores(policy)) break;
            const auto own = score_row(scores[to_index(reader.layer - first_layer)].scores,
                                       plan_.own(lanes_[lane], lane, reader.layer, reader.head), reader.head);
            head.scores.emplace_back(own, own + n_);
        }
    }
    std::vector<float> win;
    const auto win_row = [&](const HeadRef& reader, int row, std::vector<float> LayerScores::*rows) {
        const std::size_t at = to_index(reader.head) * win_rows_.size() + to_index(place_of_win_row(row));
        return (scores[to_index(reader.layer - first_layer)].*rows).data() + at * to_index(n_);
    };
    if (policy.names(Quantity::win) && policy.ranks_as_rkv_code) {  // one KV head
        const auto& readers = model_.layout().kv_head(unit.first).readers;
        const int n_rows = std::min(policy.window, n_);
        win = win_of_logits(positions, policy.newest, n_ - 1, n_rows, static_cast<int>(readers.size()),
                            [&](int reader, int r, std::size_t i) {
                                return win_row(readers[to_index(reader)], n_ - n_rows + r,
                                               &LayerScores::win_logits)[i];
                            });
    } else if (policy.names(Quantity::win)) {
        win = pool_last_rows(model_.layout(), unit, policy, n_, [&](const HeadRef& reader, int row) {
            return win_row(reader, row, &LayerScores::win_rows);
        });
    }
    const auto queries = queries_of_unit(model_.layout(), unit, policy, query_sinks_, [&](int layer) {
        return std::span<const QueryMoments>(stores[to_index(layer - first_layer)].queries);
    });
    return choose_on_host(
        {model_.layout(), unit, policy, n_ - 1, d, cache(lane).future().get(), heads, positions, win,
         cache(lane).repeats().get(), cache(lane).of().model.get(), queries},
        pooled, guarded);
}

/// Ranks the tokens of a unit on the host.
Prefill::Ranked Prefill::rank(std::size_t lane, const Unit& unit, int first_layer,
                              std::span<const LayerStore> stores, std::span<const LayerScores> scores) {
    const KvLayout& layout = model_.layout();
    const ResolvedPolicy& policy = unit_policy(layout, lanes_[lane].cache->policy(), unit.first);
    Ranked ranked{unit};
    ranked.stored = policy.stored;
    const std::vector<std::int32_t> positions = prompt_positions(n_);
    ranked.pooled = pool_unit_of_prompt(layout, unit, policy, n_, [&](const HeadRef& reader) {
        return score_row(scores[to_index(reader.layer - first_layer)].scores,
                         plan_.own(lanes_[lane], lane, reader.layer, reader.head), reader.head);
    });
    std::vector<float>& pooled = ranked.pooled;
    const bool may_leave = may_leave_prompt(lanes_[lane].cache->policy(), policy, n_);
    if (ranks_prompt(policy, may_leave, !lanes_[lane].out->values.scores.empty()))
        ranked.ties = rank_by_formula(lane, unit, policy, first_layer, stores, scores, positions, pooled,
                                      ranked.guarded);
    else if (policy.choose)
        std::fill(pooled.begin(), pooled.end(), std::numeric_limits<float>::quiet_NaN());
    return ranked;
}

/// Chooses what a unit keeps; writes it to kept_ and to the lane's output.
void Prefill::choose(std::size_t lane, const Ranked& ranked) {
    const Unit& unit = ranked.unit;
    const std::vector<float>& pooled = ranked.pooled;
    std::vector<int> victims;
    const float threshold =
        prompt_victims(unit_policy(model_.layout(), lanes_[lane].cache->policy(), unit.first), n_,
                       ranked.stored, pooled, ranked.ties, ranked.guarded, victims);

    RowOutput& out = *lanes_[lane].out;
    for (int g = unit.first; g < unit.last; g += unit.step) {
        std::size_t victim = 0;
        for (std::int32_t p = 0; p < n_; ++p) {
            if (victim < victims.size() && victims[victim] == p) {
                out.evictions.push_back({g, p, n_ - 1});
                ++victim;
            } else {
                kept_[lane][to_index(g)].push_back(p);
            }
        }
        if (out.values.scores.empty()) continue;
        std::copy_n(pooled.data(), n_, out.values.scores.data() + std::int64_t{g} * n_);
        out.values.threshold[to_index(g)] = threshold;
    }
}

void Prefill::keep(std::size_t lane, int layer, const LayerStore& store) {
    const ModelConfig& c = model_.config();
    const int first = model_.layout().first_read(layer);
    std::vector<std::int32_t> kept, offset = {0}, streams;
    int most = 0;
    for (int g = first; g < first + c.n_kv_heads; ++g) {
        const std::vector<std::int32_t>& of_head = kept_[lane][to_index(g)];
        KH_ASSERT(static_cast<int>(of_head.size()) <= cache(lane).capacity(g));
        kept.insert(kept.end(), of_head.begin(), of_head.end());
        offset.push_back(static_cast<std::int32_t>(kept.size()));
        most = std::max(most, static_cast<int>(of_head.size()));
    }
    for (int h = 0; h < c.n_heads; ++h)
        for (int a = 0; a < kScores; ++a) streams.push_back(plan_.of(lane, layer, h, a));
    const auto upload = [&](const Buffer<std::int32_t>& to, const std::vector<std::int32_t>& from) {
        KH_ASSERT(from.size() <= to.size());
        executor_->upload(to.data(), from.data(), from.size() * sizeof(from[0]));
    };
    upload(device_kept_, kept);
    upload(device_offset_, offset);
    upload(device_streams_, streams);
    executor_->clear(device_faults_.data(), device_faults_.size_bytes());
    std::vector<std::uint8_t> faults(to_index(c.n_kv_heads));
    with_number(cache(lane).kv_type(), [&]<class K>() {
        KeepPrompt<K> kernel{};
        // Those of an earlier layer may lie in the memory of a layer that borrows.
        kernel.keys = owns(layer) ? store.keys.data() : nullptr;
        kernel.values = owns(layer) ? store.values.data() : nullptr;
        kernel.score = store.scores.data();
        kernel.streams = device_streams_.data();
        kernel.heads = reinterpret_cast<const DeviceHead<K>*>(cache(lane).device_heads()) + first;
        kernel.scores = cache(lane).device_scores() + std::int64_t{layer} * c.n_heads;
        kernel.kept = device_kept_.data();
        kernel.offset = device_offset_.data();
        kernel.n = n_;
        kernel.head_dim = c.head_dim;
        kernel.n_heads = c.n_heads;
        kernel.group = c.n_heads / c.n_kv_heads;
        kernel.faults = device_faults_.data();
        kernel.win_rows = (cache(lane).policy().ranks_as_rkv_code ? store.win_logits : store.win_rows).data();
        kernel.n_win_rows = static_cast<std::int32_t>(win_rows_.size());
        kernel.spans = kept_spans(cache(lane).policy(), n_ - 1);
        for (int s = 0; s < KeptSpans::kMost; ++s)
            kernel.spans.at[s] = place_of_win_row(kernel.spans.last[s]);
        executor_->launch(kernel, {c.n_kv_heads, (most + kernel.kSlots - 1) / kernel.kSlots}, kThreads);
    });
    executor_->download(faults.data(), device_faults_.data(), faults.size());
    executor_->wait();
    if (std::find(faults.begin(), faults.end(), 1) != faults.end()) find_faults(lane, layer, store, faults);
}

/// Notes in the lane's cache which of the tokens that it keeps of a layer are not finite as they are stored.
/// faults: 1 for KV heads that have such a token.
void Prefill::find_faults(std::size_t lane, int layer, const LayerStore& store,
                          const std::vector<std::uint8_t>& faults) {
    const std::size_t d = to_index(model_.config().head_dim), of_head = to_index(n_) * d;
    const auto look = [&]<class K>(const std::vector<float>& from, int g, std::size_t index, bool is_key) {
        for (const std::int32_t p : kept_[lane][to_index(g)])
            for (std::size_t i = 0; i < d; ++i) {
                const float value = from[index * of_head + to_index(p) * d + i];
                K stored;
                narrow(value, stored);
                if (!is_finite(widen(stored))) cache(lane).note_fault(g, p, is_key, is_finite(value));
            }
    };
    std::vector<float> keys(store.keys.size()), values(store.values.size());
    executor_->download(keys.data(), store.keys.data(), store.keys.size_bytes());
    executor_->download(values.data(), store.values.data(), store.values.size_bytes());
    executor_->wait();
    for (std::size_t i = 0; i < faults.size(); ++i) {
        if (faults[i] == 0) continue;
        const int g = model_.layout().first_of_layer(layer) + static_cast<int>(i);
        with_number(cache(lane).kv_type(), [&]<class K>() {
            look.template operator()<K>(keys, g, i, true);
            look.template operator()<K>(values, g, i, false);
        });
    }
}

/// Copies all K and V of a layer to the shadow.
void Prefill::give_to_shadow(std::size_t lane, int layer, const LayerStore& store) {
    std::vector<float> keys(store.keys.size()), values(store.values.size());
    executor_->download(keys.data(), store.keys.data(), store.keys.size_bytes());
    executor_->download(values.data(), store.values.data(), store.values.size_bytes());
    executor_->wait();
    const std::int64_t of_head = std::int64_t{n_} * model_.config().head_dim;
    for (int i = 0; i < model_.config().n_kv_heads; ++i)
        cache(lane).shadow()->append(model_.layout().first_of_layer(layer) + i, keys.data() + i * of_head,
                                     values.data() + i * of_head, n_);
}

}  // namespace keyhole::cuda
