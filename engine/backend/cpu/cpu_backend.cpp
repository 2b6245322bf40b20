#include "engine/backend/cpu/cpu_backend.h"

#include "engine/backend/cpu/kernels.h"
#include "engine/backend/shared.h"
#include "engine/base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<const Model> model, int n_threads) {
    return std::make_unique<cpu::CpuBackend>(std::move(model), n_threads);
}

}  // namespace keyhole

namespace keyhole::cpu {

namespace {

std::vector<float> widened(const Weight& w) {
    std::vector<float> out(static_cast<std::size_t>(w.rows * w.cols));
    widen_rows(w, 0, w.rows, out.data());
    return out;
}

std::size_t grow(std::vector<float>& v, std::int64_t n) {
    if (v.size() < static_cast<std::size_t>(n)) v.resize(static_cast<std::size_t>(n));
    return v.size();
}

}  // namespace

ModelTables::ModelTables(const Model& model) {
    for (const LayerWeights& layer : model.weights().layers) {
        attention_norm.push_back(widened(layer.attention_norm));
        mlp_norm.push_back(widened(layer.mlp_norm));
    }
    final_norm = widened(model.weights().final_norm);
    const int head_dim = model.config().head_dim;
    for (int i = 0; i < head_dim / 2; ++i)
        inverse_frequency.push_back(
            std::pow(static_cast<double>(model.config().rope_theta), -2.0 * i / head_dim));
}

void ModelTables::angles(int position, float* cosine, float* sine) const {
    for (std::size_t i = 0; i < inverse_frequency.size(); ++i) {
        const double angle = position * inverse_frequency[i];
        cosine[i] = static_cast<float>(std::cos(angle));
        sine[i] = static_cast<float>(std::sin(angle));
    }
}

CpuBackend::CpuBackend(std::shared_ptr<const Model> model, int n_threads)
    : model_(std::move(model)),
      tables_(*model_),
      turns_(tables_.inverse_frequency),
      pool_(n_threads),
      workers_(static_cast<std::size_t>(pool_.n_threads())) {}

std::string CpuBackend::name() const {
    return fmt::format("cpu, {} thread{}, {}", pool_.n_threads(), pool_.n_threads() == 1 ? "" : "s",
                       simd_name());
}

std::unique_ptr<KvCache> CpuBackend::make_cache() {
    return std::make_unique<CpuKvCache>(model_->layout(), model_->config().head_dim);
}

void CpuBackend::multiply(std::span<const Linear> products, int n_batch) {
    // 64 KiB of weights a chunk: small enough to share out beside a busy process, large enough to pay for
    // taking it.
    constexpr std::int64_t kChunkBytes = 64 << 10;
    struct Range {
        std::int64_t n_chunks, rows;
    };
    std::array<Range, 4> ranges{};
    std::int64_t n_chunks = 0;
    for (std::size_t i = 0; i < products.size(); ++i) {
        const Weight& w = *products[i].w;
        const std::int64_t row_bytes = w.cols * static_cast<std::int64_t>(dtype_bytes(w.dtype));
        const std::int64_t rows = std::max<std::int64_t>(4, kChunkBytes / row_bytes / 4 * 4);
        ranges[i] = {(w.rows + rows - 1) / rows, rows};
        n_chunks += ranges[i].n_chunks;
    }
    pool_.parallel_for(n_chunks, [&](std::int64_t chunk, int) {
        std::size_t i = 0;
        while (chunk >= ranges[i].n_chunks) chunk -= ranges[i++].n_chunks;
        const Linear& p = products[i];
        const std::int64_t first = chunk * ranges[i].rows, last = std::min(p.w->rows, first + ranges[i].rows);
        multiply_rows(*p.w, first, last, p.x, p.x_stride, n_batch, p.y, p.y_stride);
    });
}

/// Sizes and offsets of a row's values: positions attended by every KV head, once all heads appended the new
/// token.
void CpuBackend::begin_values(const LaneStep& step) const {
    const KvLayout& layout = model_->layout();
    const auto& cache = static_cast<const CpuKvCache&>(*step.cache);
    std::vector<int> n_attended;
    for (int g = 0; g < layout.n_kv_heads(); ++g) n_attended.push_back(cache.count(g) + 1);
    size_row(layout, n_attended, cache.policy(), step.wants, *step.out);
    begin_shadow(layout, cache.shadow(), step.row, step.wants.shadow, *step.out);
}

void CpuBackend::step(std::span<const LaneStep> lanes) {
    const ModelConfig& config = model_->config();
    const ModelWeights& weights = model_->weights();
    const int n_batch = static_cast<int>(lanes.size());
    const std::int64_t d = config.d_model, d_q = config.n_heads * config.head_dim,
                       d_kv = config.n_kv_heads * config.head_dim;
    const std::int64_t d_ff = config.d_ff, half = config.head_dim / 2;
    StepScratch& s = scratch_;
    for (auto [v, width] :
         std::initializer_list<std::pair<std::vector<float>*, std::int64_t>>{{&s.x, d},
                                                                             {&s.normed, d},
                                                                             {&s.q, d_q},
                                                                             {&s.k, d_kv},
                                                                             {&s.v, d_kv},
                                                                             {&s.attended, d_q},
                                                                             {&s.projected, d},
                                                                             {&s.gate, d_ff},
                                                                             {&s.up, d_ff},
                                                                             {&s.cosine, half},
                                                                             {&s.sine, half},
                                                                             {&s.logits, config.n_vocab}})
        grow(*v, n_batch * width);

    gone_.resize(static_cast<std::size_t>(n_batch * model_->layout().n_kv_heads()));
    for (int b = 0; b < n_batch; ++b) {
        const LaneStep& lane = lanes[static_cast<std::size_t>(b)];
        KH_ASSERT(lane.token >= 0 && lane.token < config.n_vocab, "token={}", lane.token);
        auto& cache = static_cast<CpuKvCache&>(*lane.cache);
        if (const std::vector<int> room = room_for_row(cache, lane.row); !room.empty()) cache.reserve(room);
        if (cache.policy().positions != Positions::original) turns_.grow(lane.row);
        begin_values(lane);
        lane.out->evictions.clear();
        widen_rows(weights.embedding, lane.token, lane.token + 1, s.x.data() + b * d);
        tables_.angles(lane.row, s.cosine.data() + b * half, s.sine.data() + b * half);
    }
    auto norm_all = [&](const std::vector<float>& gain) {
        for (int b = 0; b < n_batch; ++b)
            rms_norm({s.x.data() + b * d, static_cast<std::size_t>(d)}, gain.data(), config.norm_eps,
                     s.normed.data() + b * d);
    };
    for (int l = 0; l < config.n_layers; ++l) {
        const LayerWeights& w = weights.layers[static_cast<std::size_t>(l)];
        norm_all(tables_.attention_norm[static_cast<std::size_t>(l)]);
        multiply(std::array{Linear{&w.q, s.normed.data(), d, s.q.data(), d_q},
                            Linear{&w.k, s.normed.data(), d, s.k.data(), d_kv},
                            Linear{&w.v, s.normed.data(), d, s.v.data(), d_kv}},
                 n_batch);
        attend(l, lanes);
        multiply(std::array{Linear{&w.o, s.attended.data(), d_q, s.projected.data(), d}}, n_batch);
        add_to(s.x.data(), s.projected.data(), n_batch * d);

        norm_all(tables_.mlp_norm[static_cast<std::size_t>(l)]);
        multiply(std::array{Linear{&w.gate, s.normed.data(), d, s.gate.data(), d_ff},
                            Linear{&w.up, s.normed.data(), d, s.up.data(), d_ff}},
                 n_batch);
        silu_times(s.gate.data(), s.up.data(), n_batch * d_ff);
        multiply(std::array{Linear{&w.down, s.gate.data(), d_ff, s.projected.data(), d}}, n_batch);
        add_to(s.x.data(), s.projected.data(), n_batch * d);
    }
    norm_all(tables_.final_norm);
    multiply(std::array{Linear{&weights.output, s.normed.data(), d, s.logits.data(), config.n_vocab}},
             n_batch);
    for (int b = 0; b < n_batch; ++b) {
        const float* logits = s.logits.data() + static_cast<std::int64_t>(b) * config.n_vocab;
        lanes[static_cast<std::size_t>(b)].out->next_logits.assign(logits, logits + config.n_vocab);
    }
    for (const LaneStep& lane : lanes) {
        std::vector<std::uint8_t>& hidden = lane.out->values.hidden;
        if (std::find(hidden.begin(), hidden.end(), 1) == hidden.end()) hidden.clear();
    }
    select(lanes);
}

void CpuBackend::attend(int layer, std::span<const LaneStep> lanes) {
    const KvLayout& layout = model_->layout();
    const int first = layout.kv_head_from_head(layer, 0),
              last = layout.kv_head_from_head(layer, layout.n_heads() - 1) + 1;
    const int n_read = last - first;
    pool_.parallel_for(static_cast<std::int64_t>(lanes.size()) * n_read, [&](std::int64_t chunk, int worker) {
        const int lane = static_cast<int>(chunk / n_read), g = first + static_cast<int>(chunk % n_read);
        attend_kv_head(layer, g, lane, lanes[static_cast<std::size_t>(lane)], worker);
    });
}

// Rotate and append the new token (owner layer), then for every query head of this layer that reads the KV
// head: logits, softmax, values, and the accumulators that run.
void CpuBackend::attend_kv_head(int layer, int g, int lane, const LaneStep& step, int worker) {
    const KvLayout& layout = model_->layout();
    const int d = model_->config().head_dim, half = d / 2;
    const KvHead& kv = layout.kv_head(g);
    auto& cache = static_cast<CpuKvCache&>(*step.cache);
    WorkerScratch& scratch = workers_[static_cast<std::size_t>(worker)];
    const float* cosine = scratch_.cosine.data() + lane * half;
    const float* sine = scratch_.sine.data() + lane * half;

    if (kv.owner_layer == layer) {
        const std::int64_t at =
            static_cast<std::int64_t>(lane) * model_->config().n_kv_heads * d + kv.index * d;
        const int slot = cache.append(g, step.row);
        rotate_head(scratch_.k.data() + at, cosine, sine, d);
        std::copy_n(scratch_.k.data() + at, d, cache.keys(g) + static_cast<std::int64_t>(slot) * d);
        std::copy_n(scratch_.v.data() + at, d, cache.values(g) + static_cast<std::int64_t>(slot) * d);
        if (cache.shadow() != nullptr)
            cache.shadow()->append(g, scratch_.k.data() + at, scratch_.v.data() + at, 1);
    }
    const int n = cache.count(g);
    const std::int32_t* order = cache.order(g);
    RowValues& values = step.out->values;
    if (!values.positions.empty())
        for (int i = 0; i < n; ++i)
            values.positions[static_cast<std::size_t>(values.offset[static_cast<std::size_t>(g)] + i)] =
                cache.positions(g)[order[i]];
    RowScratch& row = scratch.row;
    row.grow(n);
    const float* keys = cache.keys(g);
    if (const Positions positions = cache.policy().positions; positions != Positions::original) {
        scratch.steps.resize(static_cast<std::size_t>(n));
        grow(scratch.turned, static_cast<std::int64_t>(n) * d);
        cosine = turns_.row(steps_back(cache, g, positions, scratch.steps));
        sine = cosine + half;
        turn_keys(keys, scratch.steps.data(), n, d, turns_.row(0), scratch.turned.data());
        keys = scratch.turned.data();
    }
    for (const HeadRef& reader : kv.readers) {
        if (reader.layer != layer) continue;
        const int head = layer * layout.n_heads() + reader.head;
        const std::int64_t q_at = (static_cast<std::int64_t>(lane) * layout.n_heads() + reader.head) * d;
        float* q = scratch_.q.data() + q_at;
        if (cache.shadow() != nullptr) scratch.shadow.query.assign(q, q + d);
        rotate_head(q, cosine, sine, d);
        dot_keys(q, keys, n, d, 1.0f / std::sqrt(static_cast<float>(d)), row.logits.data());
        const ScoredRow scored = score_row(cache, reader, step.row, row);
        weigh_values(row.probabilities.data(), cache.values(g), n, d, scratch_.attended.data() + q_at);
        write_values(step, g, head, row, scored);
        if (cache.shadow() == nullptr) continue;
        const std::int64_t angles_at = static_cast<std::int64_t>(lane) * half;  // of the original position
        rotate_head(scratch.shadow.query.data(), scratch_.cosine.data() + angles_at,
                    scratch_.sine.data() + angles_at, d);
        measure_shadow(step, g, reader, scratch_.attended.data() + q_at, scored, row, scratch.shadow);
    }
    // A head that is a unit chooses at once, while its scores are at hand.
    if (cache.policy().scope == Scope::head && kv.readers.back().layer == layer)
        evict_unit(cache, {g, g + 1}, step.row, Due::by_row, scratch.unit, scratch.victims, &values,
                   gone_[static_cast<std::size_t>(lane * layout.n_kv_heads() + g)]);
}

/// The row just scored against full attention.
void CpuBackend::measure_shadow(const LaneStep& step, int g, const HeadRef& reader, const float* output,
                                const ScoredRow& scored, const RowScratch& row,
                                ShadowScratch& scratch) const {
    const auto& cache = static_cast<const CpuKvCache&>(*step.cache);
    const auto n = static_cast<std::size_t>(cache.count(g));
    SeenRow seen{{cache.positions(g), n}, {row.probabilities.data(), n}, {}, output};
    if (scored.hides) seen.hidden = {row.hidden.data(), n};
    measure_row(*cache.shadow(), g, reader.layer * model_->layout().n_heads() + reader.head,
                cache.policy().at(reader.layer, reader.head).budget, seen, scratch, *step.out);
}

/// A scored row of a query head, in the order of the text, for who wants it.
void CpuBackend::write_values(const LaneStep& step, int g, int head, const RowScratch& row,
                              const ScoredRow& scored) const {
    const auto& cache = static_cast<const CpuKvCache&>(*step.cache);
    RowValues& values = step.out->values;
    const std::int32_t* order = cache.order(g);
    const int n = cache.count(g);
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    const auto in_order = [&](std::vector<float>& to, const float* from) {
        if (to.empty()) return;
        float* out = to.data() + values.head_offset[static_cast<std::size_t>(head)];
        for (int i = 0; i < n; ++i) out[i] = from != nullptr ? from[order[i]] : kNone;
    };
    in_order(values.attention, row.probabilities.data());
    in_order(values.logits, row.logits.data());
    in_order(values.noise, scored.noise);
    if (!scored.hides) return;
    std::uint8_t* hidden = values.hidden.data() + values.offset[static_cast<std::size_t>(g)];
    for (int i = 0; i < n; ++i) {
        hidden[i] = row.hidden[static_cast<std::size_t>(order[i])];
        if (hidden[i] != 0 && !values.logits.empty())
            values.logits[static_cast<std::size_t>(values.head_offset[static_cast<std::size_t>(head)] + i)] =
                kNone;
    }
}

void CpuBackend::select(std::span<const LaneStep> lanes) {
    struct Work {
        const LaneStep* step;
        Unit unit;
        std::vector<Eviction> evictions;
    };
    std::vector<Work> work;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        const LaneStep& step = lanes[lane];
        if (step.policy->scope == Scope::head) {
            const std::size_t n_kv_heads = static_cast<std::size_t>(model_->layout().n_kv_heads());
            for (std::size_t g = 0; g < n_kv_heads; ++g) {
                std::vector<Eviction>& of_head = gone_[lane * n_kv_heads + g];
                step.out->evictions.insert(step.out->evictions.end(), of_head.begin(), of_head.end());
                of_head.clear();
            }
            continue;
        }
        for (const Unit& unit : units_of(model_->layout(), step.policy->scope))
            work.push_back({&step, unit, {}});
    }
    if (work.empty()) return;
    pool_.parallel_for(static_cast<std::int64_t>(work.size()), [&](std::int64_t i, int worker) {
        WorkerScratch& scratch = workers_[static_cast<std::size_t>(worker)];
        Work& w = work[static_cast<std::size_t>(i)];
        evict_unit(static_cast<CpuKvCache&>(*w.step->cache), w.unit, w.step->row, Due::by_row, scratch.unit,
                   scratch.victims, &w.step->out->values, w.evictions);
    });
    for (Work& w : work)
        w.step->out->evictions.insert(w.step->out->evictions.end(), w.evictions.begin(), w.evictions.end());
}

std::vector<Eviction> CpuBackend::apply_policy(KvCache& cache, const ResolvedPolicy& policy, int last_row) {
    auto& store = static_cast<CpuKvCache&>(cache);
    store.set_policy(policy);
    if (store.has_no_room()) return {};  // before the prompt, which decides the size
    std::vector<Eviction> evictions = select_row(store, last_row, Due::now);
    std::vector<int> n_stored, had;
    for (int g = 0; g < model_->layout().n_kv_heads(); ++g) {
        n_stored.push_back(store.count(g));
        had.push_back(store.capacity(g));
    }
    const std::vector<int> wanted = wanted_capacity(store.layout(), policy, n_stored, last_row + 1);
    if (wanted != had) store.reserve(wanted);
    return evictions;
}

}  // namespace keyhole::cpu
