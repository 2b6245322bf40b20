// Attention of a step: one KV head of a layer for one lane, on the worker that took it.
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/position_remap.h"

#include "engine/backend/common/kernels.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/common/value_reach.h"
#include "engine/base/index.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace keyhole::cpu {

namespace {

// That a thread without a KV head of its own takes of another's.
constexpr std::int64_t kSlotsOfPart = 512, kPagesOfPart = 128;

}  // namespace

/// One KV head of a layer in the step of a lane. Its parts follow run(), in that order.
class CpuBackend::HeadStep {
  public:
    HeadStep(CpuBackend& backend, int layer, int g, int lane, const LaneStep& step, int worker)
        : backend_(backend),
          layer_(layer),
          g_(g),
          lane_(lane),
          worker_(worker),
          step_(step),
          cache_(static_cast<CpuKvCache&>(*step.cache)),
          layout_(cache_.layout()),
          config_(cache_.model()->config()),
          model_tables_(*backend.group_of(lane).tables),
          tables_(model_tables_.layers[to_index(layer)]),
          kv_(layout_.kv_head(g)),
          owns_(kv_.owner_layer == layer),
          d_(config_.head_dim),
          scratch_(backend.workers_[to_index(worker)]),
          row_(scratch_.row) {
        const int half = config_.rotary.dims / 2;
        rotary_ = rotary_of(config_, layer);
        is_local_ = rotary_ == &config_.local_rotary;
        const StepScratch& s = backend.scratch_;
        if (rotary_ == nullptr) return;
        cosine_ = cosine_here_ = (is_local_ ? s.local_cosine : s.cosine).data() + lane * half;
        sine_ = sine_here_ = (is_local_ ? s.local_sine : s.sine).data() + lane * half;
    }

    void run() {
        Laps& laps = row_.laps;
        laps.begin();
        if (owns_) append_token();
        n_ = cache_.count(g_);
        RowValues& values = step_.out->values;
        if (!values.positions.empty())
            cache_.copy_in_order(g_, cache_.positions(g_),
                                 values.positions.data() + values.offset[to_index(g_)]);
        row_.grow(n_);
        place_keys();
        take_queries();
        const ResolvedPolicy& own = unit_policy(layout_, cache_.policy(), g_);
        by_pages_ = own.reads_pages() && step_.row >= own.n_prompt && !readers_.empty() &&
                    cache_.pages(g_, own.page).n_pages() > own.n_pages_read();
        write_logits(own);
        for (std::size_t i = 0; i < readers_.size(); ++i) score(i);
        row_.unread = {};
        sum_values();
        laps.end(laps.attention);
        // A head that is a unit selects at once, while its scores are in the processor's cache.
        if (cache_.policy().scope == Scope::head && !cache_.policy().shares_at_rows() &&
            kv_.readers.back().layer == layer_)
            evict_unit(cache_, {g_, g_ + 1}, step_.row, Due::by_row, scratch_.unit, scratch_.victims, &values,
                       backend_.gone_[to_index(lane_) * backend_.n_kv_heads_ + to_index(g_)]);
        laps.end(laps.eviction);
    }

  private:
    /// Rotates the new token's key and writes it and the value to the cache.
    void append_token() {
        const int slot = cache_.append(g_, step_.row);
        const std::int64_t at = lane_ * backend_.d_kv_ + kv_.index * d_;
        float *key = backend_.scratch_.k.data() + at, *value = backend_.scratch_.v.data() + at;
        const auto keep = [&](std::vector<float>& to, const float* from) {
            float* own = to.data() + std::int64_t{g_} * d_;
            std::copy_n(from, d_, own);
            return own;
        };
        RowInputs& inputs = step_.out->inputs;
        if (step_.requested.inputs)
            model_tables_.norm_and_rotate(keep(inputs.raw_k, key), tables_.k_norm, nullptr, nullptr);
        if (float* raw = raw_key(); raw != nullptr) {
            std::copy_n(key, d_, raw);
            model_tables_.norm_and_rotate(raw, tables_.k_norm, nullptr, nullptr);
        }
        model_tables_.norm_and_rotate(key, tables_.k_norm, cosine_, sine_);
        if (config_.clip_qkv > 0) clip(value, config_.clip_qkv, d_);
        if (step_.requested.inputs) {
            keep(inputs.k, key);
            keep(inputs.v, value);
        }
        cache_.write(g_, slot, key, value);
        if (const NewReach& reach = backend_.new_reach_[to_index(lane_)]; reach.w != nullptr)
            cache_.set_reach(g_, slot, reach_of_lengths(*reach.w, kv_, reach.lengths.data()));
        else
            cache_.measure_reach(g_);
        if (cache_.shadow() != nullptr) cache_.shadow()->append(g_, key, value, 1);
    }

    /// Finds the keys of the row, and turns them where the policy counts positions in the cache.
    void place_keys() {
        keys_ = cache_.keys(g_);
        place_ = step_.row;
        const Positions positions = cache_.policy().positions;
        if (positions == Positions::original) return;
        scratch_.steps.resize(to_index(n_));
        place_ = steps_back(cache_, g_, positions, scratch_.steps);
        steps_ = scratch_.steps.data();
        if (rotary_ == nullptr) return;
        const int half = config_.rotary.dims / 2;
        have_room(scratch_.turned, static_cast<std::int64_t>(n_) * d_);
        float* turned = scratch_.turned.data();
        widen_kv(keys_, n_, turned);
        turn_keys(turned, steps_, n_, d_, *rotary_,
                  (is_local_ ? backend_.local_turns_ : backend_.turns_).row(0), turned);
        keys_ = {reinterpret_cast<std::byte*>(turned), KvType::f32, d_};
        have_room(scratch_.cosine, half);
        have_room(scratch_.sine, half);
        model_tables_.angles(*rotary_, place_, step_.row + 1, scratch_.cosine.data(), scratch_.sine.data());
        cosine_here_ = scratch_.cosine.data();
        sine_here_ = scratch_.sine.data();
    }

    /// Rotates the queries of this layer that read the KV head, which are computed together.
    void take_queries() {
        const auto of_layer = [&](const HeadRef& reader) { return reader.layer == layer_; };
        const auto first = std::find_if(kv_.readers.begin(), kv_.readers.end(), of_layer);
        readers_ = {first, std::find_if_not(first, kv_.readers.end(), of_layer)};
        scratch_.begin_heads(readers_.size(), n_);
        RowInputs& inputs = step_.out->inputs;
        for (std::size_t i = 0; i < readers_.size(); ++i) {
            const int head = layer_ * layout_.n_heads() + readers_[i].head;
            const std::int64_t at = (std::int64_t{lane_} * layout_.n_heads() + readers_[i].head) * d_,
                               of_head = std::int64_t{head} * d_;
            float* q = backend_.scratch_.q.data() + at;
            scratch_.queries[i] = q;
            scratch_.sums_out[i] = backend_.scratch_.attended.data() + at;
            if (cache_.shadow() != nullptr) scratch_.shadow_queries[i].assign(q, q + d_);
            if (float* kept = cache_.kept_queries().at(step_.row, head)) {
                std::copy_n(q, d_, kept);
                model_tables_.norm_and_rotate(kept, tables_.q_norm, nullptr, nullptr);
            }
            if (step_.requested.inputs) {
                std::copy_n(q, d_, inputs.raw_q.data() + of_head);
                model_tables_.norm_and_rotate(inputs.raw_q.data() + of_head, tables_.q_norm, nullptr,
                                              nullptr);
            }
            model_tables_.norm_and_rotate(q, tables_.q_norm, cosine_here_, sine_here_);
            if (step_.requested.inputs) std::copy_n(q, d_, inputs.q.data() + of_head);
        }
    }

    void write_logits(const ResolvedPolicy& own) {
        if (readers_.empty()) return;
        const AttentionRule rule = attention_rule(config_, layer_, readers_[0].head);
        if (!by_pages_) {
            backend_.pool_.split(worker_, n_, kSlotsOfPart, [&](std::int64_t first, std::int64_t last) {
                dot_keys(scratch_.queries, keys_, static_cast<int>(first), static_cast<int>(last), rule.scale,
                         scratch_.logits_out);
            });
            return;
        }
        const KeyPages& pages = cache_.pages(g_, own.page);
        scratch_.bounds.begin(scratch_.queries.size(), to_index(pages.n_pages()));
        if (scratch_.pages.size() < readers_.size()) scratch_.pages.resize(readers_.size());
        for (std::size_t i = 0; i < readers_.size(); ++i) scratch_.pages[i].begin(n_, pages.n_pages(), d_);
        backend_.pool_.split(worker_, pages.n_pages(), kPagesOfPart,
                             [&](std::int64_t first, std::int64_t last) {
                                 pages.bound(scratch_.queries, static_cast<int>(first),
                                             static_cast<int>(last), scratch_.bounds);
                             });
        of_each_query(
            [&](std::size_t i) { scratch_.read_pages(i, pages, cache_, g_, own, rule.scale, rule.cap); });
    }

    /// From the logits of query i to its probabilities, scores and what is recorded of them.
    void score(std::size_t i) {
        const HeadRef& reader = readers_[i];
        const AttentionRule rule = attention_rule(config_, layer_, reader.head);
        float* logits = scratch_.logits_out[i];
        if (by_pages_) row_.unread = {scratch_.pages[i].unread.data(), to_index(n_)};
        const bool reads_own = row_.unread.empty() || row_.unread[to_index(n_ - 1)] == 0;
        // Layers that borrow unrotated keys have this row's own from the owner.
        const float* own_key = owns_ ? nullptr : raw_key();
        if (own_key != nullptr && reads_own)
            dot_keys(scratch_.queries[i], own_key, 1, d_, rule.scale, logits + n_ - 1);
        if (rule.cap > 0 && !by_pages_) soft_cap(logits, rule.cap, n_);
        if (rule.slope != 0) add_distances(cache_.positions(g_), steps_, n_, rule.slope, place_, logits);
        const float* sink = tables_.sinks.empty() ? nullptr : tables_.sinks.data() + reader.head;
        // The scratch of a row holds this head's while it is scored.
        row_.logits.swap(scratch_.logits[i]);
        row_.probabilities.swap(scratch_.probabilities[i]);
        const ScoredRow scored = score_row(cache_, reader, step_.row, row_, rule.window, sink);
        backend_.write_values(step_, g_, layer_ * layout_.n_heads() + reader.head, row_, scored,
                              i == 0 && owns_);
        if (cache_.shadow() != nullptr) {
            weighted_sum(row_.probabilities.data(), cache_.values(g_), n_, scratch_.sums_out[i]);
            scratch_.shadow.own_key = own_key;
            scratch_.shadow.query.swap(scratch_.shadow_queries[i]);
            model_tables_.norm_and_rotate(scratch_.shadow.query.data(), tables_.q_norm, cosine_, sine_);
            backend_.measure_shadow(step_, g_, reader, scratch_.sums_out[i], scored, row_, scratch_.shadow);
        }
        row_.logits.swap(scratch_.logits[i]);
        row_.probabilities.swap(scratch_.probabilities[i]);
    }

    void sum_values() {
        if (by_pages_) return of_each_query([&](std::size_t i) { scratch_.sum_pages(i, cache_.values(g_)); });
        backend_.pool_.split(
            worker_, d_, n_ < kSlotsOfPart ? d_ : kKvBlock, [&](std::int64_t first, std::int64_t last) {
                weighted_sums(scratch_.weights, cache_.values(g_), n_, static_cast<int>(first),
                              static_cast<int>(last), scratch_.sums_out);
            });
    }

    template <class Compute>
    void of_each_query(const Compute& compute) {
        backend_.pool_.split(worker_, static_cast<std::int64_t>(readers_.size()), 1,
                             [&](std::int64_t first, std::int64_t last) {
                                 for (std::int64_t i = first; i < last; ++i)
                                     compute(static_cast<std::size_t>(i));
                             });
    }

    /// This row's key before rotation, for layers that borrow unrotated keys; null in other models.
    float* raw_key() const {
        return config_.borrows_unrotated
                   ? backend_.scratch_.raw_keys.data() + lane_ * backend_.d_kv_ + kv_.index * d_
                   : nullptr;
    }

    CpuBackend& backend_;
    const int layer_, g_, lane_, worker_;
    const LaneStep& step_;
    CpuKvCache& cache_;
    const KvLayout& layout_;
    const ModelConfig& config_;
    const ModelTables& model_tables_;
    const ModelTables::Layer& tables_;
    const KvHead& kv_;
    const bool owns_;  // the layer has the KV head, and does not borrow it
    const int d_;
    WorkerScratch& scratch_;
    RowScratch& row_;
    // Angles of the original position; cosine_here_ and sine_here_: of the query's place.
    const Rotary* rotary_ = nullptr;
    bool is_local_ = false, by_pages_ = false;
    const float *cosine_ = nullptr, *sine_ = nullptr, *cosine_here_ = nullptr, *sine_here_ = nullptr;
    int n_ = 0, place_ = 0;  // keys; the query's place
    KvRows keys_;
    const std::int32_t* steps_ = nullptr;  // that keys are turned back; null: none
    std::span<const HeadRef> readers_;
};

void CpuBackend::attend_kv_head(int layer, int g, int lane, const LaneStep& step, int worker) {
    HeadStep(*this, layer, g, lane, step, worker).run();
}

void CpuBackend::WorkerScratch::begin_heads(std::size_t n_heads, int n) {
    for (auto* rows : {&logits, &probabilities}) {
        if (rows->size() < n_heads) rows->resize(n_heads);
        for (std::size_t i = 0; i < n_heads; ++i)
            if ((*rows)[i].size() < to_index(n)) (*rows)[i].resize(to_index(n));
    }
    if (shadow_queries.size() < n_heads) shadow_queries.resize(n_heads);
    queries.resize(n_heads);
    weights.resize(n_heads);
    logits_out.resize(n_heads);
    sums_out.resize(n_heads);
    for (std::size_t i = 0; i < n_heads; ++i) {
        logits_out[i] = logits[i].data();
        weights[i] = probabilities[i].data();
    }
}

void CpuBackend::WorkerScratch::fetch_ahead(const KvRows& rows, std::span<const std::pair<int, int>> of,
                                            std::size_t run) {
    constexpr std::size_t kAhead = 2, kLine = 64;
    if (run + kAhead >= of.size()) return;
    const auto [first, last] = of[run + kAhead];
    const std::byte* end = rows.from_row(last).data;
    for (const std::byte* at = rows.from_row(first).data; at < end; at += kLine) hwy::Prefetch(at);
}

void CpuBackend::WorkerScratch::PagesOfHead::begin(int n_slots, int n_pages, int head_dim) {
    runs.reserve(to_index(n_slots));  // a slot is a run where slots are not in the text's order
    unread.resize(to_index(n_slots));
    best.reserve(to_index(n_pages));
    chosen.reserve(to_index(n_pages));
    part.resize(to_index(head_dim));
}

void CpuBackend::WorkerScratch::read_pages(std::size_t i, const KeyPages& all, const CpuKvCache& cache, int g,
                                           const ResolvedPolicy& policy, float scale, float cap) {
    const KvRows keys = cache.keys(g);
    const int n = cache.count(g);
    auto& [runs, unread, best, part, chosen] = pages[i];
    choose_pages(bounds.values[i], policy.n_pages_read(), policy.reads_own_page, best, chosen);
    runs.clear();
    for (const int page : chosen) {
        const auto [first, last] = all.tokens(page);
        if (cache.is_in_order(g))
            runs.emplace_back(first, last);
        else
            for (int at = first; at < last; ++at)
                runs.emplace_back(cache.order(g)[at], cache.order(g)[at] + 1);
    }
    unread.assign(to_index(n), 1);
    std::fill_n(logits_out[i], n, -std::numeric_limits<float>::infinity());
    for (std::size_t run = 0; run < runs.size(); ++run) {
        const auto [first, last] = runs[run];
        fetch_ahead(keys, runs, run);
        std::fill_n(unread.begin() + first, last - first, std::uint8_t{0});
        dot_keys(queries[i], keys.from_row(first), last - first, scale, logits_out[i] + first);
        if (cap > 0) soft_cap(logits_out[i] + first, cap, last - first);
    }
}

void CpuBackend::WorkerScratch::sum_pages(std::size_t i, const KvRows& values) {
    PagesOfHead& read = pages[i];
    std::fill_n(sums_out[i], values.head_dim, 0.0f);
    for (std::size_t run = 0; run < read.runs.size(); ++run) {
        const auto [first, last] = read.runs[run];
        fetch_ahead(values, read.runs, run);
        weighted_sum(weights[i] + first, values.from_row(first), last - first, read.part.data());
        add_to(sums_out[i], read.part.data(), values.head_dim);
    }
}

/// Compares the row just scored with full attention.
void CpuBackend::measure_shadow(const LaneStep& step, int g, const HeadRef& reader, const float* output,
                                const ScoredRow& scored, const RowScratch& row,
                                ShadowScratch& scratch) const {
    const auto& cache = static_cast<const CpuKvCache&>(*step.cache);
    const auto n = to_index(cache.count(g));
    SeenRow seen{{cache.positions(g), n}, {row.probabilities.data(), n}, {}, output, scored.sink_logit};
    if (scored.hides) seen.hidden = {row.hidden.data(), n};
    measure_row(*cache.shadow(), g, reader.layer * model_->layout().n_heads() + reader.head,
                cache.policy().at(reader.layer, reader.head).budget,
                attention_rule(model_->config(), reader.layer, reader.head), seen, scratch, *step.out);
}

/// Copies the wanted values of a query head's scored row in text order.
void CpuBackend::write_values(const LaneStep& step, int g, int head, const RowScratch& row,
                              const ScoredRow& scored, bool is_first) const {
    const auto& cache = static_cast<const CpuKvCache&>(*step.cache);
    RowValues& values = step.out->values;
    const std::int32_t* order = cache.order(g);
    const int n = cache.count(g);
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    const auto in_order = [&](std::vector<float>& to, const float* from) {
        if (to.empty()) return;
        float* out = to.data() + values.head_offset[to_index(head)];
        if (from == nullptr)
            std::fill_n(out, n, kNone);
        else
            cache.copy_in_order(g, from, out);
    };
    in_order(values.attention, row.probabilities.data());
    in_order(values.logits, row.logits.data());
    in_order(values.noise, scored.noise);
    if (!scored.hides) return;
    std::uint8_t* hidden = values.hidden.data() + values.offset[to_index(g)];
    const std::uint8_t* own = row.hidden.data();
    // Query heads read pages of their own: hidden is what none of them reads.
    const bool is_common = !is_first && !row.unread.empty();
    if (!cache.is_in_order(g))
        for (int i = 0; i < n; ++i) hidden[i] = is_common ? hidden[i] & own[order[i]] : own[order[i]];
    else if (is_common)
        and_bytes(own, n, hidden);
    else
        std::copy_n(own, n, hidden);
    if (values.logits.empty()) return;
    float* logits = values.logits.data() + values.head_offset[to_index(head)];
    for (int i = 0; i < n; ++i)
        if (own[order[i]] != 0) logits[i] = kNone;
}

}  // namespace keyhole::cpu
