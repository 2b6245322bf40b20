#include "engine/backend/cpu/cpu_backend.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/common/kernels.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/common/value_reach.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/kv_default.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace keyhole {

std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<const Model> model, int n_threads,
                                          Precision precision) {
    return std::make_unique<cpu::CpuBackend>(std::move(model), n_threads, precision);
}

}  // namespace keyhole

namespace keyhole::cpu {

namespace {

/// Adds the seconds from construction to destruction to *to, unless it is null.
class Stopwatch {
  public:
    explicit Stopwatch(double* to) : to_(to) {
        if (to_ != nullptr) begin_ = std::chrono::steady_clock::now();
    }
    ~Stopwatch() {
        if (to_ == nullptr) return;
        *to_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

  private:
    double* to_;
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace

CpuBackend::CpuBackend(std::shared_ptr<const Model> model, int n_threads, Precision precision)
    : model_(std::move(model)),
      tables_(*model_),
      turns_(model_->config().rotary.inverse_frequency),
      local_turns_(model_->config().local_rotary.inverse_frequency),
      pool_(n_threads),
      integers_(precision == Precision::weights ? integer_weights_of(model_, pool_) : nullptr),
      weight_pages_(integers_ == nullptr || integers_->empty() ? use_large_pages(model_, pool_)
                                                               : WeightPages()),
      workers_(to_index(pool_.n_threads())) {}

std::string CpuBackend::name() const {
    return fmt::format("cpu, {} thread{}, {}{}", pool_.n_threads(), pool_.n_threads() == 1 ? "" : "s",
                       simd_name(), integers_ == nullptr || integers_->empty() ? "" : ", integers");
}

std::int64_t CpuBackend::weight_bytes() const {
    std::int64_t sum = integers_ != nullptr ? integers_->bytes() : 0;
    visit_weights(model_->weights(), [&](const Weight& w) {
        if (integers_ == nullptr || integers_->find(w) == nullptr) sum += stored_bytes(w);
    });
    return sum;
}

std::string CpuBackend::weights_text() const {
    return integers_ != nullptr && !integers_->empty() ? integers_->text() : weight_pages_.text();
}

std::unique_ptr<KvCache> CpuBackend::make_cache(const ResolvedPolicy& policy,
                                                std::shared_ptr<const Model> variant) {
    auto cache = std::make_unique<CpuKvCache>(variant != nullptr ? std::move(variant) : model_);
    cache->set_policy(policy);
    return cache;
}

KvType CpuBackend::kv_type(KvType wanted) const {
    return kv_type_for(wanted, *model_);
}

void CpuBackend::parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& body) {
    pool_.parallel_for(n, [&](std::int64_t i, int) { body(i); });
}

bool CpuBackend::time_parts(StepTimes* times) {
    times_ = times;
    for (WorkerScratch& worker : workers_) worker.row.laps.on = times != nullptr;
    return true;
}

/// Divides the wall time of the workers' joint work in proportion to the time they measured for each part.
void CpuBackend::share_out(double seconds) {
    Laps all;
    for (WorkerScratch& worker : workers_) {
        Laps& laps = worker.row.laps;
        all.attention += std::exchange(laps.attention, 0);
        all.scoring += std::exchange(laps.scoring, 0);
        all.eviction += std::exchange(laps.eviction, 0);
    }
    const double sum = all.attention + all.scoring + all.eviction;
    if (sum <= 0) return;
    times_->attention += seconds * all.attention / sum;
    times_->scoring += seconds * all.scoring / sum;
    times_->eviction += seconds * all.eviction / sum;
}

const CpuBackend::Variant& CpuBackend::variant_of(const std::shared_ptr<const Model>& model) {
    std::erase_if(variants_, [](const Variant& known) { return known.model.expired(); });
    for (const Variant& known : variants_)
        if (known.model.lock() == model) return known;
    return variants_.emplace_back(
        Variant{model, std::make_unique<ModelTables>(*model),
                integers_ != nullptr ? integer_weights_of(model, pool_, integers_) : nullptr});
}

const ModelTables& CpuBackend::tables_of(const std::shared_ptr<const Model>& model) {
    return model == model_ ? tables_ : *variant_of(model).tables;
}

const IntegerWeights* CpuBackend::integers_of(const std::shared_ptr<const Model>& model) {
    return model == model_ ? integers_.get() : variant_of(model).integers.get();
}

std::span<const LaneStep> CpuBackend::by_model(std::span<const LaneStep> lanes) {
    groups_.clear();
    sorted_.clear();
    d_kv_ = d_ff_ = 0;
    n_kv_heads_ = 0;
    for (const LaneStep& first : lanes) {
        const std::shared_ptr<const Model>& model = static_cast<const CpuKvCache&>(*first.cache).model();
        KH_ASSERT(model != nullptr);
        if (std::any_of(groups_.begin(), groups_.end(), [&](const Group& g) { return g.model == model; }))
            continue;
        Group& group = groups_.emplace_back(
            Group{model, &tables_of(model), integers_of(model), static_cast<int>(sorted_.size()), 0});
        for (const LaneStep& lane : lanes)
            if (static_cast<const CpuKvCache&>(*lane.cache).model() == model) sorted_.push_back(lane);
        group.n = static_cast<int>(sorted_.size()) - group.first;
        const ModelConfig& config = model->config();
        d_kv_ = std::max(d_kv_, std::int64_t{config.n_kv_heads} * config.head_dim);
        d_ff_ = std::max<std::int64_t>(d_ff_, config.d_ff);
        n_kv_heads_ = std::max(n_kv_heads_, to_index(model->layout().n_kv_heads()));
    }
    return sorted_;
}

const CpuBackend::Group& CpuBackend::group_of(int lane) const {
    std::size_t i = 0;
    while (lane >= groups_[i].first + groups_[i].n) ++i;
    return groups_[i];
}

void CpuBackend::queue(int layer, Weight LayerWeights::*weight, std::vector<float> ModelTables::Layer::*bias,
                       const float* x, std::int64_t x_stride, float* y, std::int64_t y_stride) {
    const std::size_t begin = products_.size(), l = to_index(layer);
    for (const Group& group : groups_) {
        const Weight& w = group.model->weights().layers[l].*weight;
        if (w.data == nullptr) continue;
        if (products_.size() > begin && products_.back().w->data == w.data) {
            products_.back().n_batch += group.n;
            continue;
        }
        products_.push_back({&w, group.integers, or_null(group.tables->layers[l].*bias),
                             x + group.first * x_stride, x_stride, y + group.first * y_stride, y_stride,
                             group.n});
    }
}

void CpuBackend::run_queue() {
    multiply(products_);
    products_.clear();
}

NarrowInputs CpuBackend::narrowed(const Linear& product, const LaidMatrix& laid) {
    const NarrowBlock* same = nullptr;  // ordered for another type
    for (std::size_t i = 0; i < n_narrowed_; ++i) {
        const Narrowed& known = narrowed_[i];
        if (known.x != product.x || known.n_batch < product.n_batch || known.cols != laid.cols) continue;
        if (known.dtype == laid.dtype) return known.in;
        same = known.in.blocks;
    }
    if (n_narrowed_ == narrowed_.size()) narrowed_.emplace_back();
    Narrowed& own = narrowed_[n_narrowed_++];
    own.x = product.x;
    own.n_batch = product.n_batch;
    own.cols = laid.cols;
    own.dtype = laid.dtype;
    const IntegerPath path = product.integers->path();
    const std::int64_t blocks = laid.cols / kCellColumns;
    if (same == nullptr) {
        have_room(own.blocks, blocks * product.n_batch);
        for (int b = 0; b < product.n_batch; ++b)
            narrow_input(path, product.x + b * product.x_stride, laid.cols, own.blocks.data() + b * blocks);
    }
    have_room(own.ordered, ordered_bytes(path, laid.dtype, laid.cols, product.n_batch));
    own.in = {same != nullptr ? same : own.blocks.data(), own.ordered.data()};
    order_inputs(path, laid.dtype, own.in.blocks, laid.cols, product.n_batch, own.ordered.data());
    return own.in;
}

void CpuBackend::multiply(std::span<const Linear> products) {
    const Stopwatch watch(times_ != nullptr ? &times_->linear : nullptr);
    // Chunks of 64 to 256 KiB of weights. Long chunks are read faster, but there must be enough of them to
    // balance the load, even next to a busy process.
    constexpr std::int64_t kLeast = 32 << 10, kMost = 256 << 10, kEnough = 32;
    ranges_.clear();
    n_narrowed_ = 0;
    std::int64_t n_chunks = 0, n_bytes = 0;
    for (const Linear& product : products) n_bytes += stored_bytes(*product.w);
    const std::int64_t chunk_bytes = std::clamp(n_bytes / kEnough, kLeast, kMost);
    for (const Linear& product : products) {
        const Weight& w = *product.w;
        const auto row_bytes = static_cast<std::int64_t>(stored_bytes(w.dtype, w.cols));
        const LaidMatrix* const laid =
            product.integers != nullptr ? product.integers->find(*product.w) : nullptr;
        const NarrowInputs in = laid != nullptr ? narrowed(product, *laid) : NarrowInputs();
        const std::int64_t together = laid != nullptr ? kLaidRows : 4;
        const std::int64_t rows = std::max(together, chunk_bytes / row_bytes / together * together);
        ranges_.push_back({(w.rows + rows - 1) / rows, rows, laid, in});
        n_chunks += ranges_.back().n_chunks;
    }
    pool_.parallel_for(n_chunks, [&](std::int64_t chunk, int) {
        std::size_t i = 0;
        while (chunk >= ranges_[i].n_chunks) chunk -= ranges_[i++].n_chunks;
        const Linear& p = products[i];
        const Range& range = ranges_[i];
        const std::int64_t first = chunk * range.rows, last = std::min(p.w->rows, first + range.rows);
        if (range.laid != nullptr)
            multiply_laid(p.integers->path(), *range.laid, first / kLaidRows,
                          (last + kLaidRows - 1) / kLaidRows, range.in, p.n_batch, p.y, p.y_stride);
        else
            multiply_rows(*p.w, first, last, p.x, p.x_stride, p.n_batch, p.y, p.y_stride);
        if (p.bias == nullptr) return;
        for (int b = 0; b < p.n_batch; ++b)
            add_to(p.y + b * p.y_stride + first, p.bias + first, last - first);
    });
}

/// Sets sizes and offsets of a row's values: the positions that every KV head attends to, once all heads have
/// appended the new token.
void CpuBackend::begin_values(const LaneStep& step) const {
    const auto& cache = static_cast<const CpuKvCache&>(*step.cache);
    const KvLayout& layout = cache.layout();
    std::vector<int> n_attended;
    for (int g = 0; g < layout.n_kv_heads(); ++g) n_attended.push_back(cache.count(g) + 1);
    size_row(layout, n_attended, cache.policy(), step.requested, model_hides(model_->config(), step.row),
             *step.out);
    size_inputs(layout, model_->config().head_dim, step.requested, *step.out);
    begin_shadow(layout, cache.shadow(), step.row, step.requested.shadow, *step.out);
    begin_experts(model_->config(), *step.out);
}

void CpuBackend::embed(std::span<const LaneStep> lanes) {
    const ModelConfig& config = model_->config();
    const ModelWeights& weights = model_->weights();
    const std::int64_t d = config.d_model, d_embed = weights.embedding.cols, half = config.rotary.dims / 2;
    StepScratch& s = scratch_;
    const bool projects = weights.project_in.data != nullptr;
    float* embedded = projects ? s.embedded.data() : s.x.data();
    const int n_batch = static_cast<int>(lanes.size());
    for (int b = 0; b < n_batch; ++b)
        widen_rows(weights.embedding, lanes[to_index(b)].token, lanes[to_index(b)].token + 1,
                   embedded + b * d_embed);
    if (projects)
        multiply(std::array{Linear{&weights.project_in, integers_.get(), nullptr, embedded, d_embed,
                                   s.x.data(), d, n_batch}});
    for (int b = 0; b < n_batch; ++b) {
        const int row = lanes[to_index(b)].row;
        if (config.embedding_scale != 1)
            for (std::int64_t i = 0; i < d; ++i) s.x[to_index(b * d + i)] *= config.embedding_scale;
        tables_.normalize(tables_.embedding_norm, {s.x.data() + b * d, to_index(d)}, s.x.data() + b * d);
        tables_.angles(row, row + 1, s.cosine.data() + b * half, s.sine.data() + b * half);
        if (config.local_rotary.dims > 0)
            tables_.angles(config.local_rotary, row, row + 1, s.local_cosine.data() + b * half,
                           s.local_sine.data() + b * half);
        if (config.positions != PositionKind::learned) continue;
        KH_ASSERT(row < config.n_ctx, "row={} n_ctx={}", row, config.n_ctx);
        const int position = row + config.position_offset;
        widen_rows(weights.position_embedding, position, position + 1, s.projected.data());
        add_to(s.x.data() + b * d, s.projected.data(), d);
    }
}

void CpuBackend::step(std::span<const LaneStep> lanes) {
    if (times_ == nullptr) return run_step(lanes);
    const auto parts = [&] {
        return times_->linear + times_->attention + times_->scoring + times_->eviction;
    };
    const double before = parts();
    double seconds = 0;
    {
        const Stopwatch watch(&seconds);
        run_step(lanes);
    }
    times_->rest += seconds - (parts() - before);
    ++times_->n_steps;
}

void CpuBackend::run_step(std::span<const LaneStep> all_lanes) {
    const std::span<const LaneStep> lanes = by_model(all_lanes);
    const ModelConfig& config = model_->config();
    const ModelWeights& weights = model_->weights();
    const int n_batch = static_cast<int>(lanes.size());
    const std::int64_t d = config.d_model, d_q = std::int64_t{config.n_heads} * config.head_dim,
                       half = config.rotary.dims / 2;
    StepScratch& s = scratch_;
    for (auto [v, width] :
         std::initializer_list<std::pair<AlignedFloats*, std::int64_t>>{{&s.x, d},
                                                                        {&s.embedded, weights.embedding.cols},
                                                                        {&s.normed, d},
                                                                        {&s.q, d_q},
                                                                        {&s.k, d_kv_},
                                                                        {&s.v, d_kv_},
                                                                        {&s.raw_keys, d_kv_},
                                                                        {&s.attended, d_q},
                                                                        {&s.projected, d},
                                                                        {&s.gate, d_ff_},
                                                                        {&s.up, d_ff_},
                                                                        {&s.cosine, half},
                                                                        {&s.sine, half},
                                                                        {&s.local_cosine, half},
                                                                        {&s.local_sine, half},
                                                                        {&s.logits, config.n_vocab}})
        have_room(*v, n_batch * width);

    gone_.resize(to_index(n_batch) * n_kv_heads_);
    for (int b = 0; b < n_batch; ++b) {
        const LaneStep& lane = lanes[to_index(b)];
        KH_ASSERT(lane.token >= 0 && lane.token < config.n_vocab, "token={}", lane.token);
        auto& cache = static_cast<CpuKvCache&>(*lane.cache);
        if (const std::vector<int> room = room_for_row(cache, lane.row); !room.empty()) cache.reserve(room);
        if (cache.policy().positions != Positions::original) {
            KH_ASSERT(config.positions != PositionKind::learned);
            if (half > 0) turns_.grow(lane.row);
            if (config.local_rotary.dims > 0) local_turns_.grow(lane.row);
        }
        begin_values(lane);
        lane.out->evictions.clear();
    }
    embed(lanes);
    const auto norm_all = [&](const ModelTables::Norm& norm, float* to) {
        for (int b = 0; b < n_batch; ++b)
            tables_.normalize(norm, {s.x.data() + b * d, to_index(d)}, to + b * d);
    };
    for (int l = 0; l < config.n_layers; ++l) {
        const ModelTables::Layer& t = tables_.layers[to_index(l)];
        const float* input = config.post_norm ? s.x.data() : s.normed.data();
        if (!config.post_norm) norm_all(t.attention_norm, s.normed.data());
        queue(l, &LayerWeights::q, &ModelTables::Layer::q_bias, input, d, s.q.data(), d_q);
        queue(l, &LayerWeights::k, &ModelTables::Layer::k_bias, input, d, s.k.data(), d_kv_);
        queue(l, &LayerWeights::v, &ModelTables::Layer::v_bias, input, d, s.v.data(), d_kv_);
        run_queue();
        for (int b = 0; b < n_batch && !t.q_width_norm.empty(); ++b) {
            tables_.normalize_width(t.q_width_norm, s.q.data() + b * d_q);
            tables_.normalize_width(t.k_width_norm, s.k.data() + b * d_kv_);
        }
        attend(l, lanes);
        queue(l, &LayerWeights::o, &ModelTables::Layer::o_bias, s.attended.data(), d_q, s.projected.data(),
              d);
        run_queue();
        // The sum is added before the second norm; with parallel branches that norm still reads the block's
        // input.
        const auto add_attended = [&] {
            tables_.add_branch(t.attention_out_norm, s.projected.data(), n_batch, s.x.data());
        };
        if (!config.parallel) add_attended();
        if (config.post_norm) norm_all(t.attention_norm, s.x.data());
        if (!config.post_norm && !config.shared_norm) norm_all(t.mlp_norm, s.normed.data());
        if (config.parallel) add_attended();
        feed_forward(l, input);
        if (config.post_norm) norm_all(t.mlp_norm, s.x.data());
    }
    norm_all(tables_.final_norm, s.normed.data());
    write_logits(lanes);
    for (const LaneStep& lane : lanes) {
        std::vector<std::uint8_t>& hidden = lane.out->values.hidden;
        if (std::find(hidden.begin(), hidden.end(), 1) == hidden.end()) hidden.clear();
    }
    select(lanes);
    // Now, while the threads that help are still awake.
    for (const LaneStep& lane : lanes) pack_row(*this, lane.requested, *lane.out);
}

void CpuBackend::feed_forward(int layer, const float* input) {
    const std::int64_t d = model_->config().d_model;
    StepScratch& s = scratch_;
    const auto add = [&] {
        tables_.add_branch(tables_.layers[to_index(layer)].mlp_out_norm, s.projected.data(),
                           static_cast<std::int64_t>(sorted_.size()), s.x.data());
    };
    if (!model_->weights().layers[to_index(layer)].experts.empty()) {
        run_experts(layer, input);
        return add();
    }
    const bool gated = model_->weights().layers[to_index(layer)].gate.data != nullptr;
    queue(layer, &LayerWeights::gate, &ModelTables::Layer::gate_bias, input, d, s.gate.data(), d_ff_);
    queue(layer, &LayerWeights::up, &ModelTables::Layer::up_bias, input, d, s.up.data(), d_ff_);
    run_queue();
    float* hidden = gated ? s.gate.data() : s.up.data();
    pool_.parallel_for(static_cast<std::int64_t>(sorted_.size()), [&](std::int64_t lane, int) {
        const std::int64_t at = lane * d_ff_;
        activate(model_->config().activation, hidden + at, gated ? s.up.data() + at : nullptr,
                 group_of(static_cast<int>(lane)).model->config().d_ff);
    });
    queue(layer, &LayerWeights::down, &ModelTables::Layer::down_bias, hidden, d_ff_, s.projected.data(), d);
    run_queue();
    add();
}

void CpuBackend::run_experts(int layer, const float* input) {
    const ModelConfig& config = model_->config();
    const LayerWeights& w = model_->weights().layers[to_index(layer)];
    const ModelTables::Layer& t = tables_.layers[to_index(layer)];
    const std::int64_t d = config.d_model, d_expert = config.d_expert, n_experts = config.n_experts;
    const auto n_lanes = static_cast<std::int64_t>(sorted_.size());
    const std::int64_t n_used = config.n_experts_used, n = n_lanes * n_used;
    StepScratch& s = scratch_;
    have_room(s.router, n_lanes * n_experts);
    for (AlignedFloats* hidden : {&s.expert_gate, &s.expert_up}) have_room(*hidden, n * d_expert);
    have_room(s.expert_out, n * d);
    multiply(std::array{Linear{&w.router, integers_.get(), or_null(t.router_bias), input, d, s.router.data(),
                               n_experts, static_cast<int>(n_lanes)}});
    s.experts.clear();
    s.expert_weight.clear();
    for (std::int64_t lane = 0; lane < n_lanes; ++lane) {
        choose_experts(config, s.router.data() + lane * n_experts, s.chosen, s.weights);
        keep_experts(s.chosen, layer, *sorted_[to_index(lane)].out);
        s.experts.insert(s.experts.end(), s.chosen.begin(), s.chosen.end());
        s.expert_weight.insert(s.expert_weight.end(), s.weights.begin(), s.weights.end());
    }
    const auto expert = [&](std::int64_t i) { return to_index(s.experts[to_index(i)]); };
    for (std::int64_t i = 0; i < n; ++i) {
        const ExpertWeights& e = w.experts[expert(i)];
        const ModelTables::Layer::Expert& bias = t.experts[expert(i)];
        const float* x = input + i / n_used * d;
        products_.push_back({&e.gate, integers_.get(), or_null(bias.gate_bias), x, d,
                             s.expert_gate.data() + i * d_expert, d_expert, 1});
        products_.push_back({&e.up, integers_.get(), or_null(bias.up_bias), x, d,
                             s.expert_up.data() + i * d_expert, d_expert, 1});
    }
    run_queue();
    pool_.parallel_for(n, [&](std::int64_t i, int) {
        activate(config.activation, s.expert_gate.data() + i * d_expert, s.expert_up.data() + i * d_expert,
                 d_expert);
    });
    for (std::int64_t i = 0; i < n; ++i)
        products_.push_back({&w.experts[expert(i)].down, integers_.get(),
                             or_null(t.experts[expert(i)].down_bias), s.expert_gate.data() + i * d_expert,
                             d_expert, s.expert_out.data() + i * d, d, 1});
    run_queue();
    std::fill_n(s.projected.data(), n_lanes * d, 0.0f);
    for (std::int64_t i = 0; i < n; ++i)
        add_scaled(s.expert_out.data() + i * d, s.expert_weight[to_index(i)], d,
                   s.projected.data() + i / n_used * d);
}

void CpuBackend::write_logits(std::span<const LaneStep> lanes) {
    const ModelWeights& weights = model_->weights();
    const std::int64_t d = model_->config().d_model, n_vocab = model_->config().n_vocab,
                       d_embed = weights.output.cols;
    const int n_batch = static_cast<int>(lanes.size());
    StepScratch& s = scratch_;
    const float* input = s.normed.data();
    if (weights.project_out.data != nullptr) {
        multiply(std::array{Linear{&weights.project_out, integers_.get(), nullptr, input, d,
                                   s.embedded.data(), d_embed, n_batch}});
        input = s.embedded.data();
    }
    multiply(std::array{Linear{&weights.output, integers_.get(), or_null(tables_.output_bias), input, d_embed,
                               s.logits.data(), n_vocab, n_batch}});
    for (int b = 0; b < n_batch; ++b) {
        float* logits = s.logits.data() + b * n_vocab;
        finish_logits(model_->config(), logits);
        lanes[to_index(b)].out->next_logits.assign(logits, logits + n_vocab);
    }
}

void CpuBackend::attend(int layer, std::span<const LaneStep> lanes) {
    double seconds = 0;
    std::optional<Stopwatch> watch(std::in_place, times_ != nullptr ? &seconds : nullptr);
    measure_reach(layer, lanes);
    work_.clear();
    for (const Group& group : groups_) {
        const KvLayout& layout = group.model->layout();
        for (int lane = group.first; lane < group.first + group.n; ++lane)
            for (int g = layout.first_read(layer); g < layout.last_read(layer); ++g)
                work_.emplace_back(lane, g);
    }
    pool_.parallel_for(static_cast<std::int64_t>(work_.size()), [&](std::int64_t chunk, int worker) {
        const auto [lane, g] = work_[to_index(chunk)];
        attend_kv_head(layer, g, lane, lanes[to_index(lane)], worker);
    });
    watch.reset();
    if (times_ != nullptr) share_out(seconds);
}

void CpuBackend::measure_reach(int layer, std::span<const LaneStep> lanes) {
    constexpr std::int64_t kGroups = 4;  // of a chunk
    new_reach_.resize(std::max(new_reach_.size(), lanes.size()));
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        NewReach& reach = new_reach_[lane];
        reach.w = nullptr;
        const auto& cache = static_cast<const CpuKvCache&>(*lanes[lane].cache);
        const Group& group = group_of(static_cast<int>(lane));
        const ModelConfig& config = group.model->config();
        const KvLayout& layout = cache.layout();
        const int d = config.head_dim;
        if (!cache.keeps_reach() || group.integers == nullptr || !can_measure_laid(layout, layer, d))
            continue;
        reach.w = group.integers->find(group.model->weights().layers[to_index(layer)].o);
        if (reach.w == nullptr) continue;
        const int n_own = layout.first_of_layer(layer + 1) - layout.first_of_layer(layer);
        float* const values = scratch_.v.data() + static_cast<std::int64_t>(lane) * d_kv_;
        if (config.clip_qkv > 0) clip(values, config.clip_qkv, n_own * d);
        reach.values = rounded_as(cache.kv_type(), values, n_own, d);
        const std::int64_t n_groups = reach.w->n_groups();
        have_room(reach.lengths, config.n_heads * n_groups * kLaidRows);
        pool_.parallel_for((n_groups + kGroups - 1) / kGroups, [&](std::int64_t chunk, int) {
            measure_outputs(group.integers->path(), *reach.w, chunk * kGroups,
                            std::min(n_groups, (chunk + 1) * kGroups), layout, layer, d, reach.values.data(),
                            reach.lengths.data());
        });
    }
}

void CpuBackend::select(std::span<const LaneStep> lanes) {
    const Stopwatch watch(times_ != nullptr ? &times_->eviction : nullptr);
    struct Work {
        const LaneStep* step;
        Unit unit;  // {0, 0}: all, where heads share budgets
        std::vector<Eviction> evictions;
    };
    std::vector<Work> work;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        const LaneStep& step = lanes[lane];
        if (step.cache->policy().shares_at_rows()) {
            work.push_back({&step, {}, {}});
            continue;
        }
        if (step.cache->policy().scope == Scope::head) {
            for (std::size_t g = 0; g < n_kv_heads_; ++g) {
                std::vector<Eviction>& of_head = gone_[lane * n_kv_heads_ + g];
                step.out->evictions.insert(step.out->evictions.end(), of_head.begin(), of_head.end());
                of_head.clear();
            }
            continue;
        }
        for (const Unit& unit :
             units_of(static_cast<const CpuKvCache&>(*step.cache).layout(), step.cache->policy().scope))
            work.push_back({&step, unit, {}});
    }
    if (work.empty()) return;
    pool_.parallel_for(static_cast<std::int64_t>(work.size()), [&](std::int64_t i, int worker) {
        WorkerScratch& scratch = workers_[to_index(worker)];
        Work& w = work[to_index(i)];
        if (w.unit.last == 0)
            return evict_sharing(static_cast<CpuKvCache&>(*w.step->cache), w.step->row, Due::by_row,
                                 &w.step->out->values, w.evictions);
        evict_unit(static_cast<CpuKvCache&>(*w.step->cache), w.unit, w.step->row, Due::by_row, scratch.unit,
                   scratch.victims, &w.step->out->values, w.evictions);
    });
    for (Work& w : work) {
        std::vector<Eviction>& all = w.step->out->evictions;
        all.insert(all.end(), w.evictions.begin(), w.evictions.end());
        if (w.unit.step > 1) sort_by_kv_head(all);
    }
}

std::vector<Eviction> CpuBackend::apply_policy(KvCache& cache, const ResolvedPolicy& policy, int last_row) {
    auto& store = static_cast<CpuKvCache&>(cache);
    const bool selects = !keeps_alike(store.policy(), policy);
    store.set_policy(policy, last_row);
    if (store.has_no_room()) return {};  // before the prompt, which sets the size
    std::vector<Eviction> evictions =
        selects ? select_row(store, last_row, Due::now) : std::vector<Eviction>{};
    std::vector<int> n_stored, had;
    for (int g = 0; g < store.layout().n_kv_heads(); ++g) {
        n_stored.push_back(store.count(g));
        had.push_back(store.capacity(g));
    }
    const std::vector<int> wanted = wanted_capacity(store.layout(), policy, n_stored, last_row + 1);
    if (wanted == had) return evictions;
    try {
        store.reserve(wanted);
    } catch (const Error& error) {  // the tokens have left all the same; a row makes room for itself
        if (error.code() != ErrorCode::no_memory) throw;
    }
    return evictions;
}

}  // namespace keyhole::cpu
