#include "engine/backend/common/kernels.h"
#include "engine/backend/common/row_scores.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cuda/step.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/attention.h"

#include <algorithm>
#include <limits>

namespace keyhole::cuda {

void CudaBackend::download_output(const Plan& plan) {
    const ModelConfig& c = model_->config();
    const std::size_t n = plan.lanes.size(), n_kv_heads = to_index(plan.n_kv_heads);
    const std::size_t heads = to_index(c.n_layers * c.n_heads), stride = to_index(plan.row_stride),
                      units = to_index(plan.max_units);
    const auto all = [&](auto& to, const auto& from, std::size_t size) {
        executor_->download(to.data(), from.data(), size * sizeof(*to.data()));
    };
    for (std::size_t lane = 0; lane < n; ++lane) {
        RowBlock* block = plan.blocks[lane].get();
        if (block == nullptr) continue;
        const PackedLane packed = packed_lane(plan, lane);
        const auto values = [&](auto& to, const void* from) {
            const std::size_t n_bytes = to.size() * sizeof(to[0]);
            if (to.get_allocator().source() != nullptr)
                executor_->download_async(to.data(), from, n_bytes);
            else
                executor_->download(to.data(), from, n_bytes);
        };
        values(block->attention, packed.attention);
        values(block->scores, packed.scores);
        if (!block->attention.empty())
            executor_->download(host_.first_attention.data() + lane * heads * PackRow::kFirst, packed.first,
                                heads * PackRow::kFirst * sizeof(float));
    }
    all(host_.logits, scratch_.logits, n * to_index(c.n_vocab));
    all(host_.n_victims, scratch_.n_victims, n * n_kv_heads);
    all(host_.faults, scratch_.faults, n * n_kv_heads * kFaultKinds);
    all(host_.victims, scratch_.victims, n * n_kv_heads * to_index(plan.most_victims));
    for (std::size_t lane = 0; lane < n; ++lane) {
        const RowRequest& requested = plan.lanes[lane].requested;
        const bool as_floats = requested.form != RowForm::packed;
        const std::size_t width = to_index(plan.n_rows[lane]) * sizeof(float);
        const auto rows = [&](bool wanted, HostBuffer<float>& to, const Buffer<float>& from,
                              std::size_t n_lines) {
            if (wanted)
                executor_->download_rows(to.data() + lane * n_lines * stride, stride * sizeof(float),
                                         from.data() + lane * n_lines * stride, stride * sizeof(float), width,
                                         n_lines);
        };
        rows((requested.attention && as_floats) || cache_of(plan.lanes[lane]).shadow() != nullptr,
             host_.row_attention, scratch_.row_attention, heads);
        rows(requested.logits, host_.row_logits, scratch_.row_logits, heads);
        rows(requested.noise, host_.row_noise, scratch_.row_noise, heads);
        rows(requested.scores && as_floats, host_.pooled, scratch_.pooled, units);
    }
    if (plan.requested.scores) all(host_.threshold, scratch_.threshold, n * units);
    for (std::size_t lane = 0; lane < n; ++lane) {
        const std::size_t of_lane = heads * to_index(plan.page_stride);
        if (!plan.pages[lane].empty())
            executor_->download(host_.pages_read.data() + lane * of_lane,
                                scratch_.pages_read.data() + lane * of_lane, of_lane);
    }
    if (plan.keeps_parts) all(host_.parts, scratch_.parts, to_index(c.n_layers) * row_parts(plan).end);
    if (plan.keeps_queries)
        all(host_.queries, scratch_.queries, to_index(c.n_layers) * queries_of_layer(plan));
}

/// Notes in the caches which keys and values of the row are not finite as they are stored.
void CudaBackend::note_faults(const Plan& plan) {
    const std::size_t of_lane = to_index(plan.n_kv_heads) * kFaultKinds;
    const std::span<const std::uint8_t> all(host_.faults.data(), plan.lanes.size() * of_lane);
    if (std::all_of(all.begin(), all.end(), [](std::uint8_t set) { return set == 0; })) return;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (all[i] == 0) continue;
        const LaneStep& step = plan.lanes[i / of_lane];
        const auto kind = static_cast<FaultKind>(i % kFaultKinds);
        cache_of(step).note_fault(static_cast<int>(i % of_lane / kFaultKinds), step.row,
                                  kind == kRoundedKey || kind == kBadKey,
                                  kind == kRoundedKey || kind == kRoundedValue);
    }
    executor_->clear(scratch_.faults.data(), scratch_.faults.size_bytes());
}

CudaBackend::PagesRead CudaBackend::pages_read(const Plan& plan, int lane, int g, int head) const {
    const std::vector<PageRule>& rules = plan.pages[to_index(lane)];
    if (rules.empty() || rules[to_index(g)].length == 0) return {};
    const std::int64_t n_heads = std::int64_t{model_->config().n_layers} * model_->config().n_heads;
    return {host_.pages_read.data() + (lane * n_heads + head) * plan.page_stride, rules[to_index(g)].length};
}

/// Marks the tokens of a KV head that the row did not see, in text order. Query heads read pages of their
/// own: hidden is what none of them reads. Returns whether there are any.
bool CudaBackend::mark_hidden(const Plan& plan, int lane, int g, std::uint8_t* hidden) const {
    const LaneStep& step = plan.lanes[to_index(lane)];
    const Cache& cache = cache_of(step);
    const KvLayout& layout = cache.layout();
    const ResolvedPolicy& policy = unit_policy(layout, cache.policy(), g);
    const AttentionRule rule = attention_rule(model_->config(), layout.kv_head(g).owner_layer, 0);
    int length = 0;
    std::vector<std::uint8_t> unread;  // by page; empty: all are read
    for (const HeadRef& reader : layout.kv_head(g).readers) {
        const PagesRead pages = pages_read(plan, lane, g, reader.layer * layout.n_heads() + reader.head);
        if (pages.read == nullptr) break;
        length = pages.length;
        unread.resize(to_index(step.row / length + 1), 1);
        for (std::size_t page = 0; page < unread.size(); ++page) unread[page] &= pages.read[page] == 0;
    }
    const bool by_place = policy.hides_places() || rule.window > 0, in_text_order = cache.in_text_order(g);
    bool any = false;
    int page = 0, end = length;
    for (int i = 0; i < cache.count(g); ++i) {
        const int slot = in_text_order ? i : cache.order(g)[to_index(i)];
        const std::int32_t position = cache.positions(g)[to_index(slot)];
        if (position >= end && length > 0) {
            page = position / length;
            end = (page + 1) * length;
        }
        const bool hides = (!unread.empty() && unread[to_index(page)] != 0) ||
                           (by_place && (policy.hides(step.row, position) || rule.hides(step.row, position)));
        hidden[i] = hides ? 1 : 0;
        any = any || hides;
    }
    return any;
}

/// Copies what the lane saw from slot order to text order.
void CudaBackend::write_rows(const Plan& plan, int lane) {
    const LaneStep& step = plan.lanes[to_index(lane)];
    const Cache& cache = cache_of(step);
    const KvLayout& layout = cache.layout();
    RowValues& values = step.out->values;
    std::vector<int> n_attended;
    for (int g = 0; g < layout.n_kv_heads(); ++g) n_attended.push_back(cache.count(g));
    RowRequest floats = step.requested;
    if (floats.form == RowForm::packed) floats.attention = floats.scores = false;
    size_row(layout, n_attended, cache.policy(), floats, model_hides(model_->config(), step.row), *step.out);
    begin_shadow(layout, cache.shadow(), step.row, step.requested.shadow, *step.out);
    size_inputs(layout, model_->config().head_dim, step.requested, *step.out);
    const float* logits = host_.logits.data() + std::int64_t{lane} * model_->config().n_vocab;
    step.out->next_logits.assign(logits, logits + model_->config().n_vocab);

    const std::int64_t stride = plan.row_stride, n_heads = layout.n_layers() * layout.n_heads();
    bool any_hidden = false;
    for (int g = 0; g < layout.n_kv_heads() && !values.positions.empty(); ++g) {
        std::int32_t* to = values.positions.data() + values.offset[to_index(g)];
        if (cache.in_text_order(g))
            std::copy_n(cache.positions(g).begin(), cache.count(g), to);
        else
            for (int i = 0; i < cache.count(g); ++i)
                to[i] = cache.positions(g)[to_index(cache.order(g)[to_index(i)])];
    }
    for (int g = 0; g < layout.n_kv_heads() && !values.hidden.empty(); ++g)
        any_hidden |= mark_hidden(plan, lane, g, values.hidden.data() + values.offset[to_index(g)]);
    const bool any_rows = !values.attention.empty() || !values.logits.empty() || !values.noise.empty();
    for (int head = 0; head < static_cast<int>(n_heads) && any_rows; ++head) {
        const int layer = head / layout.n_heads(), h = head % layout.n_heads();
        const int g = layout.kv_head_from_head(layer, h), n = cache.count(g);
        const std::vector<std::int32_t>& order = cache.order(g);
        const bool in_text_order = cache.in_text_order(g);
        const std::int64_t from = (lane * n_heads + head) * stride;
        const auto in_order = [&](std::vector<float>& to, const HostBuffer<float>& row) {
            if (to.empty()) return;
            float* out = to.data() + values.head_offset[to_index(head)];
            if (in_text_order)
                std::copy_n(row.data() + from, n, out);
            else
                for (int i = 0; i < n; ++i) out[i] = row.data()[from + order[to_index(i)]];
        };
        in_order(values.attention, host_.row_attention);
        in_order(values.logits, host_.row_logits);
        if (cache.policy().at(layer, h).noise != NoiseKind::none) in_order(values.noise, host_.row_noise);
        const PagesRead pages = pages_read(plan, lane, g, head);
        if (values.logits.empty() || (!any_hidden && pages.read == nullptr)) continue;
        for (int i = 0; i < n; ++i)
            if ((any_hidden && values.hidden[to_index(values.offset[to_index(g)] + i)] != 0) ||
                pages.leave_out(cache.positions(g)[to_index(order[to_index(i)])]))
                values.logits[to_index(values.head_offset[to_index(head)] + i)] =
                    std::numeric_limits<float>::quiet_NaN();
    }
    if (!any_hidden) values.hidden.clear();
}

std::size_t CudaBackend::queries_of_layer(const Plan& plan) const {
    return plan.lanes.size() * to_index(model_->config().n_heads * model_->config().head_dim);
}

CudaBackend::RowParts CudaBackend::row_parts(const Plan& plan) const {
    const ModelConfig& c = model_->config();
    const std::size_t of_q = plan.lanes.size() * to_index(c.n_heads * c.head_dim),
                      of_k = to_index(plan.kv_size);
    return {0, of_q, of_q + of_k, of_q + 2 * of_k, 2 * (of_q + of_k)};
}

/// Keeps the row's queries as they are before their rotation.
void CudaBackend::keep_queries(const Plan& plan, int lane) {
    const LaneStep& step = plan.lanes[to_index(lane)];
    const ModelConfig& c = model_->config();
    const ModelTables& tables = group_of(plan, lane).of->tables;
    const std::size_t d = to_index(c.head_dim), d_q = to_index(c.n_heads) * d;
    for (int layer = 0; layer < c.n_layers; ++layer) {
        const float* of_row =
            host_.queries.data() + to_index(layer) * queries_of_layer(plan) + to_index(lane) * d_q;
        for (int h = 0; h < c.n_heads; ++h) {
            float* kept = cache_of(step).kept_queries().at(step.row, layer * c.n_heads + h);
            std::copy_n(of_row + to_index(h) * d, d, kept);
            tables.norm_and_rotate(kept, tables.layers[to_index(layer)].q_norm, nullptr, nullptr);
        }
    }
}

const float* CudaBackend::row_query(const Plan& plan, int lane, int layer, int h) const {
    const ModelConfig& c = model_->config();
    const RowParts parts = row_parts(plan);
    return host_.parts.data() + to_index(layer) * parts.end + parts.q +
           (to_index(lane) * to_index(c.n_heads) + to_index(h)) * to_index(c.head_dim);
}

CudaBackend::RowKv CudaBackend::row_kv(const Plan& plan, int lane, int g) const {
    const Group& group = group_of(plan, lane);
    const ModelTables& tables = group.of->tables;
    const ModelConfig& c = group.of->model->config();
    const KvHead& kv = group.of->model->layout().kv_head(g);
    const RowParts parts = row_parts(plan);
    const std::vector<float>& k_norm = tables.layers[to_index(kv.owner_layer)].k_norm;
    const std::size_t half = to_index(c.rotary.dims / 2);
    const float* of_head =
        host_.parts.data() + to_index(kv.owner_layer) * parts.end +
        to_index(group.kv_at + (std::int64_t{lane - group.first} * c.n_kv_heads + kv.index) * c.head_dim);
    RowKv of;
    of.key.assign(of_head + parts.k, of_head + parts.k + c.head_dim);
    of.value.assign(of_head + parts.v, of_head + parts.v + c.head_dim);
    of.raw_key = of.key;
    std::vector<float> cosine(half), sine(half);
    const int row = plan.lanes[to_index(lane)].row;
    tables.angles(row, row + 1, cosine.data(), sine.data());
    tables.norm_and_rotate(of.raw_key.data(), k_norm, nullptr, nullptr);
    tables.norm_and_rotate(of.key.data(), k_norm, cosine.data(), sine.data());
    if (c.clip_qkv > 0) clip(of.value.data(), c.clip_qkv, c.head_dim);
    return of;
}

/// Writes the queries, keys and values of the row's token. A query is turned to its place, which policies
/// may count in the cache.
void CudaBackend::write_inputs(const Plan& plan, int lane) {
    const LaneStep& step = plan.lanes[to_index(lane)];
    const ModelTables& tables = group_of(plan, lane).of->tables;
    const Cache& cache = cache_of(step);
    const KvLayout& layout = cache.layout();
    const std::int64_t d = model_->config().head_dim;
    const std::size_t half = to_index(model_->config().rotary.dims / 2);
    RowInputs& inputs = step.out->inputs;
    std::vector<float> cosine(half), sine(half);
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const RowKv kv = row_kv(plan, lane, g);
        std::copy_n(kv.key.data(), d, inputs.k.data() + g * d);
        std::copy_n(kv.raw_key.data(), d, inputs.raw_k.data() + g * d);
        std::copy_n(kv.value.data(), d, inputs.v.data() + g * d);
        tables.angles(cache.place_of_last(g), step.row + 1, cosine.data(), sine.data());
        for (const HeadRef& reader : layout.kv_head(g).readers) {
            const std::int64_t at = (std::int64_t{reader.layer} * layout.n_heads() + reader.head) * d;
            const std::vector<float>& q_norm = tables.layers[to_index(reader.layer)].q_norm;
            const float* query = row_query(plan, lane, reader.layer, reader.head);
            for (float* to : {inputs.q.data() + at, inputs.raw_q.data() + at}) std::copy_n(query, d, to);
            tables.norm_and_rotate(inputs.raw_q.data() + at, q_norm, nullptr, nullptr);
            tables.norm_and_rotate(inputs.q.data() + at, q_norm, cosine.data(), sine.data());
        }
    }
}

/// Compares the row with full attention on the lane's own queries. Runs on the host, with the CPU's code,
/// since it only serves measures.
void CudaBackend::write_shadow(const Plan& plan, int lane) {
    const LaneStep& step = plan.lanes[to_index(lane)];
    const Group& group = group_of(plan, lane);
    const ModelTables& tables = group.of->tables;
    const ModelConfig& c = group.of->model->config();
    Cache& cache = cache_of(step);
    const KvLayout& layout = cache.layout();
    const RowParts parts = row_parts(plan);
    const int d = c.head_dim;
    const std::size_t half = to_index(c.rotary.dims / 2);
    std::vector<float> cosine(half), sine(half);
    tables.angles(step.row, step.row + 1, cosine.data(), sine.data());
    std::vector<std::uint8_t> hidden;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const KvHead& kv = layout.kv_head(g);
        const RowKv row = row_kv(plan, lane, g);
        cache.shadow()->append(g, row.key.data(), row.value.data(), 1);
        const ResolvedPolicy& policy = unit_policy(layout, cache.policy(), g);
        for (const HeadRef& reader : kv.readers) {
            const int head = reader.layer * layout.n_heads() + reader.head;
            const AttentionRule rule = attention_rule(c, reader.layer, reader.head);
            const PagesRead pages = pages_read(plan, lane, g, head);
            hidden.clear();
            if (policy.hides_any() || rule.window > 0)
                for (const std::int32_t position : cache.positions(g)) {
                    const bool hides = pages.leave_out(position) || policy.hides(step.row, position) ||
                                       rule.hides(step.row, position);
                    hidden.push_back(hides ? 1 : 0);
                }
            const float* query = row_query(plan, lane, reader.layer, reader.head);
            shadow_scratch_.query.assign(query, query + d);
            tables.norm_and_rotate(shadow_scratch_.query.data(), tables.layers[to_index(reader.layer)].q_norm,
                                   cosine.data(), sine.data());
            const bool borrows_raw = c.borrows_unrotated && reader.layer != kv.owner_layer;
            shadow_scratch_.own_key = borrows_raw ? row.raw_key.data() : nullptr;
            const std::size_t row_at = (to_index(lane) * to_index(c.n_layers * c.n_heads) + to_index(head)) *
                                       to_index(plan.row_stride);
            const SeenRow seen{cache.positions(g),
                               {host_.row_attention.data() + row_at, cache.positions(g).size()},
                               hidden,
                               query - parts.q + parts.attended};
            measure_row(*cache.shadow(), g, head, policy.budget, rule, seen, shadow_scratch_, *step.out);
        }
    }
    shadow_scratch_.own_key = nullptr;
}

void CudaBackend::write_evictions(const Plan& plan, int lane) {
    const LaneStep& step = plan.lanes[to_index(lane)];
    Cache& cache = cache_of(step);
    RowValues& values = step.out->values;
    RowBlock* const block = plan.blocks[to_index(lane)].get();
    for (std::size_t u = 0; u < cache.units().size(); ++u) {
        if (plan.on_host[to_index(lane)] != 0 || cache.is_on_host(u) || !step.requested.scores) continue;
        const std::size_t unit_at = to_index(lane) * to_index(plan.max_units) + u;
        for (int g = cache.units()[u].first; g < cache.units()[u].last; ++g) {
            if (block != nullptr) block->threshold[to_index(g)] = host_.threshold[unit_at];
            if (values.scores.empty()) continue;
            const float* pooled = host_.pooled.data() + unit_at * to_index(plan.row_stride);
            float* to = values.scores.data() + values.offset[to_index(g)];
            if (cache.in_text_order(g))
                std::copy_n(pooled, cache.count(g), to);
            else
                for (int i = 0; i < cache.count(g); ++i) to[i] = pooled[cache.order(g)[to_index(i)]];
            values.threshold[to_index(g)] = host_.threshold[unit_at];
        }
    }
    std::vector<std::int32_t> evicted;
    for (int g = 0; g < cache.layout().n_kv_heads(); ++g) {
        const std::size_t head_at = to_index(lane) * to_index(plan.n_kv_heads) + to_index(g);
        const std::int32_t* slots = host_.victims.data() + head_at * to_index(plan.most_victims);
        if (host_.n_victims[head_at] == 0) continue;
        evicted.clear();
        cache.note_removed(g, {slots, to_index(host_.n_victims[head_at])}, evicted);
        for (const std::int32_t position : evicted) step.out->evictions.push_back({g, position, step.row});
    }
}

/// Hands out the block, and the first tokens' probabilities where the floats are not there.
void CudaBackend::write_block(const Plan& plan, int lane) {
    const LaneStep& step = plan.lanes[to_index(lane)];
    const Cache& cache = cache_of(step);
    const KvLayout& layout = cache.layout();
    const std::shared_ptr<RowBlock>& block = plan.blocks[to_index(lane)];
    step.out->block = block;
    if (block->attention.empty() || !step.out->values.attention.empty()) return;
    static_assert(PackRow::kFirst == kSinkTokens);
    const int n_heads = layout.n_layers() * layout.n_heads();
    const float* first = host_.first_attention.data() + std::int64_t{lane} * n_heads * kSinkTokens;
    step.out->sink_attention.assign(first, first + n_heads * kSinkTokens);
    for (int head = 0; head < n_heads; ++head) {
        const int g = layout.kv_head_from_head(head / layout.n_heads(), head % layout.n_heads());
        for (int i = 0; i < std::min(kSinkTokens, cache.count(g)); ++i)
            if (cache.positions(g)[to_index(cache.order(g)[to_index(i)])] >= kSinkTokens)
                step.out->sink_attention[to_index(head * kSinkTokens + i)] = 0;
    }
}

/// Selects on the host for units whose heads hold different tokens, or for the whole lane. block: the row's,
/// or null.
void CudaBackend::select_on_host(const LaneStep& step, RowBlock* block, bool whole_lane) {
    Cache& cache = cache_of(step);
    RowValues& values = step.out->values;
    if (block != nullptr && !block->scores.empty()) executor_->wait_for_copies();
    std::vector<std::vector<std::int32_t>> evicted(to_index(cache.layout().n_kv_heads()));
    bool any = false;
    std::vector<HostSelection> shared;
    const bool shares = cache.policy().shares_at_rows(), may_share = cache.policy().evicts_after(step.row);
    if (shares && (may_share || step.requested.scores))
        shared = cache.select_sharing(cache.policy(), step.row, may_share);
    for (std::size_t u = 0; u < cache.units().size(); ++u) {
        if (!whole_lane && !cache.is_on_host(u)) continue;
        const Unit& unit = cache.units()[u];
        const bool may_evict = unit_policy(cache.layout(), cache.policy(), unit.first).evicts_after(step.row);
        if (shares ? shared.empty() : !may_evict && !step.requested.scores) continue;
        const HostSelection chosen =
            shares ? std::move(shared[u]) : cache.select_on_host(unit, cache.policy(), step.row, may_evict);
        for (int g = unit.first; g < unit.last; g += unit.step) {
            std::size_t column = 0;
            for (int i = 0; i < cache.count(g); ++i) {
                const std::int32_t position = cache.positions(g)[to_index(cache.order(g)[to_index(i)])];
                while (chosen.positions[column] != position) ++column;
                const std::size_t at = to_index(values.offset[to_index(g)] + i);
                if (!values.scores.empty()) values.scores[at] = chosen.pooled[column];
                if (block != nullptr && !block->scores.empty()) block->scores[at] = chosen.pooled[column];
                if (!std::binary_search(chosen.victims.begin(), chosen.victims.end(),
                                        static_cast<int>(column)))
                    continue;
                evicted[to_index(g)].push_back(position);
                step.out->evictions.push_back({g, position, step.row});
                any = true;
            }
            if (!values.scores.empty()) values.threshold[to_index(g)] = chosen.threshold;
            if (block != nullptr && !block->scores.empty()) block->threshold[to_index(g)] = chosen.threshold;
        }
    }
    if (!any) return;
    cache.remove(evicted);
    std::sort(step.out->evictions.begin(), step.out->evictions.end(),
              [](const Eviction& a, const Eviction& b) {
                  return a.kv_head != b.kv_head ? a.kv_head < b.kv_head : a.position < b.position;
              });
}

}  // namespace keyhole::cuda
