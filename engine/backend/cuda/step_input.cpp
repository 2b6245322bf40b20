#include "engine/backend/cuda/products.h"
#include "engine/backend/cuda/rules.h"
#include "engine/backend/cuda/step.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace keyhole::cuda {

namespace {

/// Returns whether kernels read a lane's slots in text order.
bool needs_order(const CudaKvCache& cache, bool reads_pages) {
    const ResolvedPolicy& policy = cache.policy();
    if (policy.has_formula() || policy.any_score() || policy.unit > 1 || policy.shares_at_rows()) return true;
    return reads_pages && !cache.all_in_text_order();
}

/// Returns how the KV heads of a lane share their budgets after a row.
std::vector<ShareRule> share_rules(const CudaKvCache& cache, int row) {
    const ResolvedPolicy& policy = cache.policy();
    const KvLayout& layout = cache.layout();
    const int n = layout.n_kv_heads();
    std::vector<int> counts;
    for (int g = 0; g < n; ++g) counts.push_back(cache.count(g) + 1);
    std::vector<bool> due(counts.size(), false);
    if (policy.evicts_after(row)) due = heads_due(layout, policy, counts, row);
    std::vector<ShareRule> rules;
    for (int g = 0; g < n; ++g) {
        const int layer = layout.kv_head(g).owner_layer;
        const bool is_global = policy.alloc == Alloc::global;
        rules.push_back({policy.floor, is_global ? 0 : layout.first_of_layer(layer),
                         is_global ? n : layout.first_of_layer(layer + 1), due[to_index(g)] ? 1 : 0,
                         policy.rounds_shares ? 1 : 0});
    }
    return rules;
}

/// Places things in a block of bytes, one after the other.
class Places {
  public:
    /// Returns where the next n bytes begin, at a multiple of 16.
    std::size_t take(std::size_t n) { return std::exchange(size_, size_ + (n + 15) / 16 * 16); }
    std::size_t size() const { return size_; }

  private:
    std::size_t size_ = 0;
};

/// The block on the host, and where it will lie on the device.
struct Upload {
    std::byte *host, *device;

    template <class T>
    T* on_host(std::size_t at) const {
        return reinterpret_cast<T*>(host + at);
    }
    template <class T>
    const T* on_device(std::size_t at) const {
        return reinterpret_cast<const T*>(device + at);
    }
    /// Writes values and returns where they will lie.
    template <class T>
    const T* put_list(std::span<const T> values, std::size_t at) const {
        std::memcpy(host + at, values.data(), values.size_bytes());
        return on_device<T>(at);
    }
    template <class T>
    const T* put(const T& value, std::size_t at) const {
        return put_list(std::span<const T>(&value, 1), at);
    }
};

/// What kernels see of a lane in a step: where it lies in the block, and what is put there.
class LaneInput {
  public:
    struct Of {
        const LaneStep& step;
        const CudaKvCache& cache;
        bool on_host;                  ///< the host selects
        int row_stride;                ///< slots of a KV head that lists have room for
        const DeviceQueries* queries;  ///< what the lane ranks by; or null
        const RowBlock* block;         ///< of the coming row; or null
        std::span<const PageRule> pages;
    };

    LaneInput(const Of& of, Places& places) : of_(of) {
        place_rules(places);
        pages_at_ = places.take(of.pages.size_bytes());
        needs_order_ = needs_order(of.cache, !of.pages.empty());
        if (needs_order_) place_lists(places);
        if (of.queries != nullptr) {
            queries_at_ = places.take(sizeof(LaneQueries));
            turns_at_ = places.take(of.queries->n_turns() * sizeof(double));
        }
        if (of.block != nullptr) {
            offset_at_ = places.take(of.block->offset.size() * sizeof(of.block->offset[0]));
            head_offset_at_ = places.take(of.block->head_offset.size() * sizeof(of.block->head_offset[0]));
        }
    }

    AnyLane put(const Upload& to) const {
        AnyLane view = of_.cache.view(to.put_list(std::span<const RowRule>(rules_), rules_at_), of_.step.row);
        if (rotates()) put_steps(to, view);
        if (!of_.pages.empty()) view.pages = of_.cache.pages(to.put_list(of_.pages, pages_at_));
        if (needs_order_) {
            put_lists(to, view);
            put_formulas(to, view);
        }
        if (!shares_.empty()) view.shares = to.put_list(std::span<const ShareRule>(shares_), shares_at_);
        if (of_.queries != nullptr) {
            const LaneQueries at =
                of_.queries->turns_at(of_.step.row, {to.on_host<double>(turns_at_), of_.queries->n_turns()},
                                      to.on_device<double>(turns_at_));
            view.queries = to.put(at, queries_at_);
        }
        return view;
    }
    void put_block(const Upload& to, PackedLane& packed) const {
        if (of_.block == nullptr) return;
        packed.offset = to.put_list(std::span(of_.block->offset), offset_at_);
        packed.head_offset = to.put_list(std::span(of_.block->head_offset), head_offset_at_);
    }

  private:
    int n_kv_heads() const { return of_.cache.layout().n_kv_heads(); }
    bool names(Quantity quantity) const { return of_.cache.policy().names(quantity); }
    bool rotates() const { return of_.cache.policy().positions != Positions::original; }
    /// Slots of all lists of the lane.
    std::size_t n_listed() const { return to_index(n_kv_heads()) * to_index(of_.row_stride); }
    /// A KV head's part of a list, with the new token.
    template <class T>
    std::span<T> list_of(const Upload& to, std::size_t at, int g) const {
        return {to.on_host<T>(at) + std::int64_t{g} * of_.row_stride, to_index(of_.cache.count(g) + 1)};
    }

    void place_rules(Places& places) {
        const ResolvedPolicy& policy = of_.cache.policy();
        row_rules(policy, of_.step.row, of_.step.requested.scores && !of_.on_host, rules_);
        if (of_.on_host)
            for (RowRule& rule : rules_) rule.evicts = 0;
        rules_at_ = places.take(rules_.size() * sizeof(RowRule));
        if (rotates()) {
            steps_at_ = places.take(n_listed() * sizeof(std::int32_t));
            places_at_ = places.take(to_index(n_kv_heads()) * sizeof(std::int32_t));
        }
        if (!policy.shares_at_rows() || of_.on_host) return;
        shares_ = share_rules(of_.cache, of_.step.row);
        shares_at_ = places.take(shares_.size() * sizeof(ShareRule));
    }
    void place_lists(Places& places) {
        for (std::size_t* at : {&choose_at_, &protect_at_, &unsmoothed_at_})
            *at = places.take(sizeof(FormulaTable));
        scores_ = score_formulas(of_.cache.policy());
        score_at_ = places.take(scores_.size() * sizeof(FormulaTable));
        order_at_ = places.take(n_listed() * sizeof(std::int32_t));
        if (names(Quantity::future)) future_at_ = places.take(n_listed() * sizeof(float));
        if (names(Quantity::repeat)) repeat_at_ = places.take(n_listed() * sizeof(float));
    }

    void put_steps(const Upload& to, AnyLane& view) const {
        for (int g = 0; g < n_kv_heads(); ++g)
            to.on_host<std::int32_t>(places_at_)[g] =
                of_.cache.steps_back(g, of_.step.row, list_of<std::int32_t>(to, steps_at_, g));
        view.steps = to.on_device<std::int32_t>(steps_at_);
        view.places = to.on_device<std::int32_t>(places_at_);
        view.steps_stride = of_.row_stride;
    }
    void put_lists(const Upload& to, AnyLane& view) const {
        const bool future = names(Quantity::future), repeat = names(Quantity::repeat);
        for (int g = 0; g < n_kv_heads(); ++g) {
            of_.cache.order_of_row(g, list_of<std::int32_t>(to, order_at_, g));
            if (future) of_.cache.future_of_row(g, of_.step.row, list_of<float>(to, future_at_, g));
            if (repeat) of_.cache.repeat_of_row(g, of_.step.row, list_of<float>(to, repeat_at_, g));
        }
        view.order = to.on_device<std::int32_t>(order_at_);
        if (future) view.future = to.on_device<float>(future_at_);
        if (repeat) view.repeat = to.on_device<float>(repeat_at_);
        view.list_stride = of_.row_stride;
    }
    void put_formulas(const Upload& to, AnyLane& view) const {
        const ResolvedPolicy& policy = of_.cache.policy();
        const auto put = [&](const FormulaTable* formula, std::size_t at) {
            return formula == nullptr ? nullptr : to.put(*formula, at);
        };
        view.choose = put(policy.choose.table(), choose_at_);
        view.protect = put(policy.protect.table(), protect_at_);
        view.unsmoothed = put(policy.choose.unsmoothed(), unsmoothed_at_);
        if (scores_.empty()) return;
        std::vector<FormulaTable> tables;
        for (const FormulaRef& score : scores_) tables.push_back(*score);
        view.score = to.put_list(std::span<const FormulaTable>(tables), score_at_);
    }

    Of of_;
    std::vector<RowRule> rules_;
    std::vector<FormulaRef> scores_;
    std::vector<ShareRule> shares_;
    bool needs_order_ = false;
    std::size_t pages_at_ = 0;
    std::size_t rules_at_ = 0, steps_at_ = 0, places_at_ = 0, shares_at_ = 0;
    std::size_t choose_at_ = 0, protect_at_ = 0, unsmoothed_at_ = 0, score_at_ = 0;
    std::size_t order_at_ = 0, future_at_ = 0, repeat_at_ = 0;
    std::size_t queries_at_ = 0, turns_at_ = 0, offset_at_ = 0, head_offset_at_ = 0;
};

}  // namespace

void CudaBackend::size_buffers(const Plan& plan) {
    const ModelConfig& c = model_->config();
    const std::size_t n = plan.lanes.size(), d_q = to_index(c.n_heads * c.head_dim);
    const std::size_t heads = n * to_index(c.n_heads), all_heads = heads * to_index(c.n_layers),
                      stride = to_index(plan.row_stride);
    const std::size_t kv_heads = n * to_index(plan.n_kv_heads), units = n * to_index(plan.max_units);
    int d_ff = 0;
    bool raw_keys = false;
    for (const Group& group : plan.groups) {
        d_ff = std::max(d_ff, group.of->weights.d_ff);
        raw_keys |= group.of->model->config().borrows_unrotated;
    }
    const auto grow = [&](auto& buffer, std::size_t size) { buffer.grow(executor_, size); };
    Scratch& s = scratch_;
    for (auto* buffer : {&s.x, &s.normed, &s.projected, &s.fed}) grow(*buffer, n * to_index(c.d_model));
    if (weights_.project_in.rows > 0) grow(s.embedded, n * to_index(weights_.embedding.cols));
    const int widest = std::max({c.d_model, d_ff, c.n_heads * c.head_dim, weights_.embedding.cols});
    if (takes_cublas(static_cast<int>(n))) grow(s.narrowed, n * to_index(widest));
    if (products_.integers && !all_plain_)
        grow(s.narrow_tiles, narrow_tiles(widest, std::min(static_cast<int>(n), kMostProductLanes)));
    for (auto* buffer : {&s.q, &s.attended}) grow(*buffer, n * d_q);
    for (auto* buffer : {&s.k, &s.v}) grow(*buffer, to_index(plan.kv_size));
    if (raw_keys) grow(s.raw_keys, to_index(plan.kv_size));
    for (auto* buffer : {&s.gate, &s.up}) grow(*buffer, to_index(plan.hidden_size));
    grow(s.logits, n * to_index(c.n_vocab));
    if (plan.requested.logits) grow_clear(s.row_logits, all_heads * stride);
    if (plan.requested.attention) grow_clear(s.row_attention, all_heads * stride);
    if (plan.requested.noise) grow_clear(s.row_noise, all_heads * stride);
    grow(s.sums, heads * to_index(plan.max_splits));
    grow_clear(s.n_done, heads);
    grow(s.partial_values, heads * to_index(plan.max_splits) * to_index(c.head_dim));
    grow_clear(s.pooled, units * stride);
    grow(s.leaves, units * stride);
    grow(s.leaving, units);
    grow_clear(s.threshold, units);
    if (plan.n_lists > 0) {
        grow(s.formula_lists, units * stride * to_index(plan.n_lists));
        grow(s.competes, units * stride);
        grow(s.guarded, units * stride);
    }
    if (plan.any_smoothing) grow(s.ties, units * stride);
    if (plan.any_shares) {
        for (auto* buffer : {&s.share_found, &s.share_sorted}) grow(*buffer, units * stride);
        for (auto* buffer : {&s.n_free, &s.share_best, &s.share_kept, &s.share_missing, &s.share_leave})
            grow(*buffer, units);
        for (auto* buffer : {&s.share_part, &s.share_rest}) grow(*buffer, units);
    }
    if (plan.any_block_leaves) grow(s.leaving_blocks, units * stride);
    if (plan.any_keydiff || plan.any_redundancy) {
        grow(s.key_lengths, kv_heads * stride);
        grow(s.key_directions, kv_heads * to_index(kDirection));
    }
    if (plan.any_redundancy) {
        grow(s.likeness, kv_heads * stride);
        grow(s.similar, kv_heads * stride);
    }
    if (plan.any_code_win) {
        grow(s.code_win, kv_heads * stride);
        grow(s.largest_logits, kv_heads * stride);
        grow(s.win_sums, kv_heads * stride);
    }
    if (plan.any_caote) grow(s.errors, kv_heads * stride);
    if (plan.any_wvnorm) grow(s.reach, kv_heads * stride);
    if (plan.any_expected || plan.any_tri) grow(s.query_logits, all_heads * stride);
    if (plan.any_expected) grow(s.expected, kv_heads * stride);
    if (plan.any_tri) grow(s.tri, kv_heads * stride);
    if (plan.any_lag) {
        grow(s.lags, kv_heads * stride);
        grow(s.lag_deviations, kv_heads * stride);
        grow(s.lag_values, kv_heads * stride);
    }
    grow_clear(s.victims, kv_heads * to_index(plan.most_victims));
    grow_clear(s.n_victims, kv_heads);
    grow_clear(s.faults, kv_heads * kFaultKinds);
    if (plan.page_stride > 0) {
        grow(s.page_bounds, heads * to_index(plan.page_stride));
        grow_clear(s.pages_read, all_heads * to_index(plan.page_stride));
        grow(host_.pages_read, all_heads * to_index(plan.page_stride));
    }
    if (plan.keeps_parts) grow_clear(s.parts, to_index(c.n_layers) * row_parts(plan).end);
    if (plan.keeps_parts) grow(host_.parts, to_index(c.n_layers) * row_parts(plan).end);
    if (plan.keeps_queries) grow(s.queries, to_index(c.n_layers) * n * d_q);
    if (plan.keeps_queries) grow(host_.queries, to_index(c.n_layers) * n * d_q);
    grow(host_.logits, n * to_index(c.n_vocab));
    if (plan.any_block) {
        grow(s.packed_attention, plan.requested.attention ? all_heads * stride : 0);
        grow(s.packed_scores, plan.requested.scores ? kv_heads * stride : 0);
        grow(s.order, plan.any_unordered ? kv_heads * stride : 0);
        grow_clear(s.first_attention, all_heads * PackRow::kFirst);
        grow(host_.first_attention, all_heads * PackRow::kFirst);
    }
    if (plan.floats.attention) grow(host_.row_attention, all_heads * stride);
    if (plan.requested.logits) grow(host_.row_logits, all_heads * stride);
    if (plan.requested.noise) grow(host_.row_noise, all_heads * stride);
    if (plan.floats.scores) grow(host_.pooled, units * stride);
    if (plan.requested.scores) grow(host_.threshold, units);
    grow(host_.victims, kv_heads * to_index(plan.most_victims));
    grow(host_.n_victims, kv_heads);
    grow(host_.faults, kv_heads * kFaultKinds);
}

/// Makes room for the rows that wait until their scores are folded, and chooses for how many layers. Logits
/// have memory of their own only where neither they nor the attention that they become are kept.
void CudaBackend::size_waiting_rows(Plan& plan) {
    const ModelConfig& c = model_->config();
    const std::size_t heads = plan.lanes.size() * to_index(c.n_heads), stride = to_index(plan.row_stride);
    const bool own_logits = !plan.requested.logits && !plan.requested.attention;
    const std::size_t n_rows = (own_logits ? 1u : 0u) + (plan.tempers ? 1u : 0u);
    const auto layer_bytes =
        static_cast<std::int64_t>(heads * (n_rows * stride * sizeof(float) + sizeof(SplitSum)));
    for (;;) try {
            plan.fold_layers = layers_per_fold(c.n_layers, layer_bytes, most_waiting_bytes_);
            const std::size_t n = heads * to_index(plan.fold_layers);
            if (own_logits) grow_clear(scratch_.row_logits, n * stride);
            if (plan.tempers) scratch_.row_tempered.grow(executor_, n * stride);
            scratch_.totals.grow(executor_, n);
            return;
        } catch (const Error& error) {
            if (error.code() != ErrorCode::no_memory || plan.fold_layers == 1) throw;
            most_waiting_bytes_ = layer_bytes * plan.fold_layers / 2;
        }
}

/// Uploads one block of bytes: tokens, what kernels see of each lane, and the numbers of its policy at its
/// row.
void CudaBackend::upload_input(const Plan& plan) {
    const std::size_t n = plan.lanes.size();
    Places places;
    const std::size_t views_at = places.take(n * sizeof(AnyLane)),
                      tokens_at = places.take(n * sizeof(std::int32_t)),
                      rows_at = places.take(n * sizeof(std::int32_t)),
                      packed_at = places.take(plan.any_block ? n * sizeof(PackedLane) : 0);
    std::vector<LaneInput> inputs;
    int last_row = 0;
    for (std::size_t lane = 0; lane < n; ++lane) {
        const LaneStep& step = plan.lanes[lane];
        inputs.emplace_back(
            LaneInput::Of{step, cache_of(step), plan.on_host[lane] != 0, plan.row_stride,
                          plan.queries[lane].get(), plan.blocks[lane].get(), plan.pages[lane]},
            places);
        last_row = std::max(last_row, step.row);
    }
    rotation_rows_ = rotations_.rows(executor_, last_row);
    if (scratch_.input.size() < places.size()) scratch_.input.grow(executor_, 2 * places.size());
    if (host_.input.size() < places.size()) host_.input.grow(executor_, 2 * places.size());
    const Upload to{host_.input.data(), scratch_.input.data()};
    for (std::size_t lane = 0; lane < n; ++lane) {
        AnyLane view = inputs[lane].put(to);
        if (view.shares != nullptr)
            view.n_shared = scratch_.share_leave.data() + lane * to_index(plan.max_units);
        if (plan.any_block) {
            PackedLane packed = packed_lane(plan, lane);
            inputs[lane].put_block(to, packed);
            to.put(packed, packed_at + lane * sizeof(packed));
        }
        to.put(view, views_at + lane * sizeof(view));
        to.put(std::int32_t{plan.lanes[lane].token}, tokens_at + lane * sizeof(std::int32_t));
        to.put(std::int32_t{plan.lanes[lane].row}, rows_at + lane * sizeof(std::int32_t));
    }
    views_ = to.on_device<AnyLane>(views_at);
    tokens_ = to.on_device<std::int32_t>(tokens_at);
    rows_ = to.on_device<std::int32_t>(rows_at);
    packed_ = to.on_device<PackedLane>(packed_at);
    executor_->upload(to.device, to.host, places.size());
}

/// Returns where a lane's packed values lie on the device; null where nothing of it is packed.
PackedLane CudaBackend::packed_lane(const Plan& plan, std::size_t lane) const {
    PackedLane packed{};
    const RowBlock* block = plan.blocks[lane].get();
    if (block == nullptr) return packed;
    const std::size_t heads = to_index(model_->config().n_layers * model_->config().n_heads),
                      kv_heads = to_index(plan.n_kv_heads), stride = to_index(plan.row_stride);
    if (!cache_of(plan.lanes[lane]).all_in_text_order())
        packed.order = scratch_.order.data() + lane * kv_heads * stride;
    if (!block->attention.empty()) {
        packed.attention = scratch_.packed_attention.data() + lane * heads * stride;
        packed.first = scratch_.first_attention.data() + lane * heads * PackRow::kFirst;
    }
    if (!block->scores.empty()) packed.scores = scratch_.packed_scores.data() + lane * kv_heads * stride;
    return packed;
}

}  // namespace keyhole::cuda
