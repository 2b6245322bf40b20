#include "engine/backend/cuda/choice_launch.h"
#include "engine/backend/cuda/products.h"
#include "engine/backend/cuda/step.h"
#include "engine/base/index.h"
#include "engine/policy/attention.h"

#include <algorithm>
#include <array>

namespace keyhole::cuda {

/// w has up to three matrices; those that the model lacks come last. Up to 8 lanes read the weights once.
void CudaBackend::multiply(std::span<const MatrixView> w, const float* x, std::span<float* const> y,
                           int n_batch, const ProductUse& use) {
    while (w.back().rows == 0) w = w.first(w.size() - 1);
    if (takes_cublas(n_batch)) return multiply_by_cublas(w, x, y, n_batch);
    for (int first = 0; first < n_batch; first += kMostProductLanes) {
        std::array<float*, 3> to{};
        const std::size_t n_outputs = std::min(w.size(), y.size());
        for (std::size_t i = 0; i < n_outputs; ++i) to[i] = y[i] + std::int64_t{first} * w[i].rows;
        launch_products(*executor_, w, x + std::int64_t{first} * w[0].cols, std::span(to).first(n_outputs),
                        std::min(n_batch - first, kMostProductLanes), use, scratch_.narrow_tiles.data());
    }
}

/// Multiplies for all lanes at once, on tensor cores where weights have 16 bits. Inputs are rounded to the
/// weights' type.
void CudaBackend::multiply_by_cublas(std::span<const MatrixView> w, const float* x, std::span<float* const> y,
                                     int n_batch) {
    const void* input = x;
    if (type_ != NumberType::f32) {
        narrow(*executor_, type_, x, scratch_.narrowed.data(), std::int64_t{n_batch} * w[0].cols);
        input = scratch_.narrowed.data();
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
        executor_->multiply(product_of(w[i], input, n_batch, y[i], type_));
        const std::int64_t n = std::int64_t{n_batch} * w[i].rows;
        if (w[i].bias != nullptr)
            executor_->launch(AddBias{y[i], w[i].bias, n, w[i].rows}, {blocks_for(n)}, kThreads);
    }
}

/// x_ <- x_ + y + z; writes the norm of it to out.
void CudaBackend::add_norm(const float* y, const float* z, const DeviceModel::Norm& norm, float* out, int n) {
    executor_->launch(AddNorm{scratch_.x.data(), y, z, rule_of(norm), out, model_->config().d_model}, {n},
                      kThreads);
}

NormRule CudaBackend::rule_of(const DeviceModel::Norm& norm) const {
    const ModelConfig& c = model_->config();
    return {norm.gain.data(), norm.bias.data(), c.norm_eps, c.norm == NormKind::layer ? 1 : 0};
}

CudaBackend::Input CudaBackend::normed_input(const DeviceModel::Norm& norm, int n) {
    if (n <= kMostNormed) return {scratch_.x.data(), rule_of(norm)};
    add_norm(nullptr, nullptr, norm, scratch_.normed.data(), n);
    return {scratch_.normed.data(), {}};
}

/// Does the same with the outputs that earlier layers left to add (`any`: there are some).
void CudaBackend::add_pending_norm(bool any, const DeviceModel::Norm& norm, int n) {
    const bool late = adds_late(model_->config());
    const float *fed = scratch_.fed.data(), *projected = scratch_.projected.data();
    any = any && !model_->config().post_norm;
    add_norm(!any   ? nullptr
             : late ? projected
                    : fed,
             any && late ? fed : nullptr, norm, scratch_.normed.data(), n);
}

void CudaBackend::embed(int n) {
    const ModelConfig& c = model_->config();
    Scratch& s = scratch_;
    const bool projects = weights_.project_in.rows > 0;
    launch_rows<Embed>(*executor_, weights_.embedding.view(), n, tokens_,
                       projects ? s.embedded.data() : s.x.data(), weights_.embedding.cols);
    if (projects)
        multiply(std::array{weights_.project_in.view()}, s.embedded.data(), std::array{s.x.data()}, n);
    if (c.positions == PositionKind::learned)
        launch_rows<AddPositions>(*executor_, weights_.position_embedding.view(), n, rows_, s.x.data(),
                                  c.d_model, c.position_offset);
}

void CudaBackend::launch_all(const Plan& plan) {
    const ModelConfig& c = model_->config();
    const int n = static_cast<int>(plan.lanes.size());
    Scratch& s = scratch_;
    for (const Group& group : plan.groups)
        with_number(group.kv, [&]<class K>() {
            executor_->launch(BeginRow<K>{views_of<K>(group), group.of->layout.table(), c.n_heads},
                              {group.of->model->layout().n_kv_heads(), group.n}, 32);
            if (!group.reads_pages.empty())
                executor_->launch(
                    SummarisePages<K>{views_of<K>(group), c.head_dim},
                    {SummarisePages<K>::kBlocks, group.of->model->layout().n_kv_heads(), group.n}, 64);
        });
    embed(n);
    for (int layer = 0; layer < c.n_layers; ++layer)
        fuses(n) ? launch_fused_layer(plan, layer) : launch_layer(plan, layer);
    if (!fuses(n)) add_pending_norm(true, weights_.final_norm, n);
    Input last = fuses(n) ? normed_input(weights_.final_norm, n) : Input{s.normed.data(), {}};
    if (weights_.project_out.rows > 0) {
        multiply(std::array{weights_.project_out.view()}, last.x, std::array{s.embedded.data()}, n,
                 {.norm = last.norm});
        last = {s.embedded.data(), {}};
    }
    multiply(std::array{weights_.output()}, last.x, std::array{s.logits.data()}, n, {.norm = last.norm});
    for (const Group& group : plan.groups) {
        const int n_kv_heads = group.of->model->layout().n_kv_heads();
        const std::int64_t unit_at = std::int64_t{group.first} * plan.max_units,
                           head_at = std::int64_t{group.first} * plan.n_kv_heads;
        std::uint8_t* leaves = s.leaves.data() + unit_at * plan.row_stride;
        with_number(group.kv, [&]<class K>() {
            if (plan.n_lists > 0 || plan.any_shares) choose_scores<K>(plan, group);
            executor_->launch(
                SelectVictims<K>{
                    views_of<K>(group), group.of->layout.table(), s.pooled.data() + unit_at * plan.row_stride,
                    leaves, s.leaving.data() + unit_at, s.threshold.data() + unit_at, plan.max_units,
                    plan.row_stride,
                    plan.n_lists > 0 ? s.guarded.data() + unit_at * plan.row_stride : nullptr,
                    plan.any_smoothing ? s.ties.data() + unit_at * plan.row_stride : nullptr,
                    plan.any_block_leaves ? s.leaving_blocks.data() + unit_at * plan.row_stride : nullptr},
                {plan.max_units, group.n}, kThreads);
            if (plan.any_block) pack_rows(plan, group);  // while slots are as the row saw them
            executor_->launch(
                CompactHead<K>{views_of<K>(group), group.of->layout.table(), leaves,
                               s.leaving.data() + unit_at, s.victims.data() + head_at * plan.most_victims,
                               s.n_victims.data() + head_at, plan.max_units, plan.row_stride, plan.n_kv_heads,
                               plan.most_victims, c.head_dim},
                {n_kv_heads, group.n}, 64);
        });
    }
}

/// Evaluates the formulas of a group's lanes, and shares their budgets.
template <class K>
void CudaBackend::choose_scores(const Plan& plan, const Group& group) {
    const Model& model = *group.of->model;
    const ModelConfig& c = model.config();
    Scratch& s = scratch_;
    const std::int64_t unit_at = std::int64_t{group.first} * plan.max_units,
                       head_at = std::int64_t{group.first} * plan.n_kv_heads;
    ChoiceShape shape;
    shape.n_lanes = group.n;
    shape.max_units = plan.max_units;
    shape.n_lists = plan.n_lists;
    shape.stride = plan.row_stride;
    shape.n_kv_heads = model.layout().n_kv_heads();
    shape.kv_stride = plan.n_kv_heads;
    shape.n_heads = c.n_heads;
    shape.head_dim = c.head_dim;
    shape.group = c.n_heads / c.n_kv_heads;
    shape.d_model = c.d_model;
    shape.n_readers = c.n_layers * c.n_heads;
    ChoiceMemory memory;
    memory.pooled = s.pooled.data() + unit_at * plan.row_stride;
    if (plan.n_lists > 0) {
        memory.lists = s.formula_lists.data() + unit_at * plan.row_stride * plan.n_lists;
        memory.competes = s.competes.data() + unit_at * plan.row_stride;
        memory.guarded = s.guarded.data() + unit_at * plan.row_stride;
    }
    if (plan.any_smoothing) memory.ties = s.ties.data() + unit_at * plan.row_stride;
    if (plan.any_keydiff || plan.any_redundancy) {
        memory.lengths = s.key_lengths.data() + head_at * plan.row_stride;
        memory.directions = s.key_directions.data() + head_at * kDirection;
    }
    if (plan.any_redundancy) {
        memory.similar = s.similar.data() + head_at * plan.row_stride;
        memory.likeness = s.likeness.data() + head_at * plan.row_stride;
    }
    if (plan.any_code_win) {
        memory.code_win = s.code_win.data() + head_at * plan.row_stride;
        memory.largest = s.largest_logits.data() + head_at * plan.row_stride;
        memory.win_sums = s.win_sums.data() + head_at * plan.row_stride;
    }
    if (plan.any_caote) memory.errors = s.errors.data() + head_at * plan.row_stride;
    if (plan.any_wvnorm) {
        memory.reach = s.reach.data() + head_at * plan.row_stride;
        memory.outputs = group.of->weights.outputs.data();
    }
    if (plan.any_lag) {
        memory.lags = s.lags.data() + head_at * plan.row_stride;
        memory.deviations = s.lag_deviations.data() + head_at * plan.row_stride;
        memory.lag_values = s.lag_values.data() + head_at * plan.row_stride;
    }
    if (plan.any_expected || plan.any_tri)
        memory.query_logits =
            s.query_logits.data() + std::int64_t{group.first} * shape.n_readers * plan.row_stride;
    if (plan.any_expected) memory.expected = s.expected.data() + head_at * plan.row_stride;
    if (plan.any_tri) memory.tri = s.tri.data() + head_at * plan.row_stride;
    const auto launch = [&](const auto& kernel, const Grid& grid) {
        executor_->launch(kernel, grid, kThreads);
    };
    if (plan.n_lists > 0) launch_choice(views_of<K>(group), group.of->layout.table(), shape, memory, launch);
    if (!plan.any_shares) return;
    const std::int64_t token_at = unit_at * plan.row_stride;
    const ShareMemory shares{
        s.share_found.data() + token_at, s.share_sorted.data() + token_at, s.n_free.data() + unit_at,
        s.share_best.data() + unit_at,   s.share_kept.data() + unit_at,    s.share_missing.data() + unit_at,
        s.share_leave.data() + unit_at,  s.share_part.data() + unit_at,    s.share_rest.data() + unit_at};
    launch_shares(views_of<K>(group), group.of->layout.table(), shape, memory, shares, launch);
}

void CudaBackend::pack_rows(const Plan& plan, const Group& group) {
    const ModelConfig& c = model_->config();
    const int n_heads = c.n_layers * c.n_heads, n_kv_heads = group.of->model->layout().n_kv_heads();
    const std::int64_t first = group.first, stride = plan.row_stride;
    const AnyLane* views = views_ + first;
    const PackedLane* packed = packed_ + first;
    int last_row = 0;
    for (const LaneStep& lane : plan.lanes) last_row = std::max(last_row, lane.row);
    if (plan.any_unordered)
        executor_->launch(OrderSlots{views, packed, plan.row_stride},
                          {n_kv_heads, group.n, last_row / OrderSlots::kWindow + 1}, kThreads);
    executor_->launch(
        PackRow{views, packed, group.of->layout.kv_of_head.data(),
                plan.requested.attention ? scratch_.row_attention.data() + first * n_heads * stride : nullptr,
                scratch_.pooled.data() + first * plan.max_units * stride, n_heads, plan.max_units,
                plan.row_stride},
        {plan.max_splits, n_heads + n_kv_heads, group.n}, kSplit);
}

/// Sums are added by the next norm that reads them; see add_pending_norm.
void CudaBackend::launch_layer(const Plan& plan, int layer) {
    const ModelConfig& c = model_->config();
    const int n = static_cast<int>(plan.lanes.size());
    Scratch& s = scratch_;
    const auto& w = weights_.layers[to_index(layer)];
    float* input = c.post_norm ? s.x.data() : s.normed.data();
    if (!c.post_norm) add_pending_norm(layer > 0, w.attention_norm, n);
    project(plan, layer, {input, {}});
    attend(plan, layer);
    multiply(std::array{w.o.view()}, s.attended.data(), std::array{s.projected.data()}, n);
    if (c.post_norm)
        add_norm(s.projected.data(), nullptr, w.attention_norm, s.x.data(), n);
    else if (!c.shared_norm)
        add_norm(c.parallel ? nullptr : s.projected.data(), nullptr, w.mlp_norm, s.normed.data(), n);
    fill_hidden(plan, layer, {input, {}}, false);
    const bool gated = w.gate.rows > 0;
    executor_->launch(activation_of(c, hidden_of(layer), gated ? s.up.data() : nullptr, plan.hidden_size),
                      {blocks_for(plan.hidden_size)}, kThreads);
    add_hidden(plan, layer, s.fed.data(), false);
    if (c.post_norm) add_norm(s.fed.data(), nullptr, w.mlp_norm, s.x.data(), n);
}

/// Does the same in fewer launches, with the same bits. Where both halves read the same stream, the second
/// half's hidden values are computed before the first adds to it.
void CudaBackend::launch_fused_layer(const Plan& plan, int layer) {
    const ModelConfig& c = model_->config();
    const int n = static_cast<int>(plan.lanes.size());
    const auto& w = weights_.layers[to_index(layer)];
    const bool late = adds_late(c);
    const Input input = normed_input(w.attention_norm, n);
    project(plan, layer, input);
    if (late) fill_hidden(plan, layer, c.shared_norm ? input : normed_input(w.mlp_norm, n), true);
    attend(plan, layer);
    multiply(std::array{w.o.view()}, scratch_.attended.data(), std::array{scratch_.x.data()}, n, {.adds = 1});
    if (!late) fill_hidden(plan, layer, normed_input(w.mlp_norm, n), true);
    add_hidden(plan, layer, scratch_.x.data(), true);
}

/// Computes q once for all lanes, and k and v of each group that owns them in this layer; in one launch with
/// q where there is one group.
void CudaBackend::project(const Plan& plan, int layer, const Input& input) {
    const ModelConfig& c = model_->config();
    Scratch& s = scratch_;
    const auto& w = weights_.layers[to_index(layer)];
    const bool alone = plan.groups.size() == 1;
    if (!alone)
        multiply(std::array{w.q.view()}, input.x, std::array{s.q.data()}, static_cast<int>(plan.lanes.size()),
                 {.norm = input.norm});
    for (const Group& group : plan.groups) {
        const auto& own = group.of->weights.layers[to_index(layer)];
        float *k = s.k.data() + group.kv_at, *v = s.v.data() + group.kv_at;
        const float* x = input.x + std::int64_t{group.first} * c.d_model;
        if (alone)
            multiply(std::array{own.q.view(), own.k.view(), own.v.view()}, x, std::array{s.q.data(), k, v},
                     group.n, {.norm = input.norm});
        else if (own.k.rows > 0)
            multiply(std::array{own.k.view(), own.v.view()}, x, std::array{k, v}, group.n,
                     {.norm = input.norm});
    }
}

float* CudaBackend::hidden_of(int layer) const {
    return weights_.layers[to_index(layer)].gate.rows > 0 ? scratch_.gate.data() : scratch_.up.data();
}

/// Calls visit(weights, first group, lanes) once for groups that share their weights; they are neighbours.
template <class Visit>
void CudaBackend::for_runs(const Plan& plan, int layer, Visit visit) {
    for (std::size_t i = 0; i < plan.groups.size();) {
        const Group& first = plan.groups[i];
        const auto& w = first.of->weights.layers[to_index(layer)];
        int n = 0;
        while (i < plan.groups.size() &&
               plan.groups[i].of->weights.layers[to_index(layer)].up.data.data() == w.up.data.data())
            n += plan.groups[i++].n;
        visit(w, first, n);
    }
}

/// Computes gate and up; fused: with the activation.
void CudaBackend::fill_hidden(const Plan& plan, int layer, const Input& input, bool fused) {
    const ModelConfig& c = model_->config();
    const bool gated = weights_.layers[to_index(layer)].gate.rows > 0;
    ProductUse use{.norm = input.norm};
    if (fused) use.activates = 1;
    if (fused && gated) use.gated = 1;
    use.kind = static_cast<ActivationKind>(c.activation);
    for_runs(plan, layer, [&](const auto& w, const Group& first, int n) {
        const float* x = input.x + std::int64_t{first.first} * c.d_model;
        float *gate = scratch_.gate.data() + first.hidden_at, *up = scratch_.up.data() + first.hidden_at;
        if (!gated)
            multiply(std::array{w.up.view()}, x, std::array{up}, n, use);
        else if (fused)
            multiply(std::array{w.gate.view(), w.up.view()}, x, std::array{gate}, n, use);
        else
            multiply(std::array{w.gate.view(), w.up.view()}, x, std::array{gate, up}, n, use);
    });
}

/// Writes the product of the hidden values to `to`; fused: adds it.
void CudaBackend::add_hidden(const Plan& plan, int layer, float* to, bool fused) {
    for_runs(plan, layer, [&](const auto& w, const Group& first, int n) {
        multiply(std::array{w.down.view()}, hidden_of(layer) + first.hidden_at,
                 std::array{to + std::int64_t{first.first} * model_->config().d_model}, n,
                 {.adds = fused ? 1 : 0});
    });
}

void CudaBackend::copy_floats(const Buffer<float>& from, float* to, std::size_t size) {
    const auto n = static_cast<std::int64_t>(size);
    executor_->launch(Widen<float>{from.data(), to, n}, {blocks_for(n)}, kThreads);
}

void CudaBackend::keep_part(const Plan& plan, int layer, const Buffer<float>& from, std::size_t part,
                            std::size_t size) {
    if (!plan.keeps_parts) return;
    copy_floats(from, scratch_.parts.data() + to_index(layer) * row_parts(plan).end + part, size);
}

/// From q, k and v of all lanes, computes the heads' outputs. After the last of the layers that are folded
/// together, folds their scores.
void CudaBackend::attend(const Plan& plan, int layer) {
    const RowParts parts = row_parts(plan);
    Scratch& s = scratch_;
    if (plan.keeps_queries)
        copy_floats(s.q, s.queries.data() + to_index(layer) * queries_of_layer(plan), queries_of_layer(plan));
    keep_part(plan, layer, s.q, parts.q, parts.k - parts.q);
    keep_part(plan, layer, s.k, parts.k, parts.v - parts.k);
    keep_part(plan, layer, s.v, parts.v, parts.attended - parts.v);
    for (const Group& group : plan.groups)
        with_number(group.kv, [&]<class K>() { attend_group<K>(plan, group, layer); });
    if ((layer + 1) % plan.fold_layers == 0 || layer + 1 == model_->config().n_layers)
        for (const Group& group : plan.groups)
            with_number(group.kv, [&]<class K>() { fold_group<K>(plan, group, layer); });
    keep_part(plan, layer, s.attended, parts.attended, parts.end - parts.attended);
}

RowBuffer CudaBackend::kept_rows(const Plan& plan, const Group& group, int layer,
                                 const Buffer<float>& in) const {
    const ModelConfig& c = model_->config();
    const std::int64_t of_layer = std::int64_t{c.n_heads} * plan.row_stride;
    return {in.data() + (std::int64_t{group.first} * c.n_layers + layer) * of_layer, c.n_layers * of_layer};
}

CudaBackend::WaitingRows CudaBackend::waiting_rows(const Plan& plan, const Group& group, int layer) const {
    const Scratch& s = scratch_;
    const std::int64_t n = plan.fold_layers, heads = model_->config().n_heads;
    const std::int64_t layer_at = group.first * n + layer % n;
    const auto waiting = [&](const Buffer<float>& in) {
        const std::int64_t of_layer = heads * plan.row_stride;
        return RowBuffer{in.data() + layer_at * of_layer, n * of_layer};
    };
    WaitingRows rows{};
    rows.logits = plan.requested.logits      ? kept_rows(plan, group, layer, s.row_logits)
                  : plan.requested.attention ? kept_rows(plan, group, layer, s.row_attention)
                                             : waiting(s.row_logits);
    if (plan.tempers) rows.tempered = waiting(s.row_tempered);
    rows.totals = {s.totals.data() + layer_at * heads, n * heads};
    return rows;
}

template <class K>
void CudaBackend::attend_group(const Plan& plan, const Group& group, int layer) {
    const Model& model = *group.of->model;
    const ModelConfig& c = model.config();
    const KvLayout& layout = model.layout();
    const std::int64_t first = group.first, d_q = std::int64_t{c.n_heads} * c.head_dim;
    Scratch& s = scratch_;
    const bool owns = layout.owns(layer);
    const std::int64_t split_at = first * c.n_heads * plan.max_splits;
    const WaitingRows rows = waiting_rows(plan, group, layer);
    AttendSplit<K> attend{};
    attend.q = s.q.data() + first * d_q;
    attend.k = owns ? s.k.data() + group.kv_at : nullptr;
    attend.v = owns ? s.v.data() + group.kv_at : nullptr;
    attend.lanes = views_of<K>(group);
    attend.kv_of_head = group.of->layout.kv_of_head.data() + std::int64_t{layer} * c.n_heads;
    attend.logits = rows.logits;
    attend.tempered = rows.tempered;
    if (plan.requested.noise) attend.noise = kept_rows(plan, group, layer, s.row_noise);
    attend.sums = s.sums.data() + split_at;
    attend.partial_values = s.partial_values.data() + split_at * c.head_dim;
    attend.n_done = s.n_done.data() + first * c.n_heads;
    attend.out = s.attended.data() + first * d_q;
    attend.totals = rows.totals;
    attend.layer = layer;
    attend.n_heads = c.n_heads;
    attend.head_dim = c.head_dim;
    attend.scale = attention_rule(c, layer, 0).scale;
    attend.window = attention_rule(c, layer, 0).window;
    attend.slopes = weights_.slopes.data();
    attend.finish = group.of->weights.head_rule(c, layer);
    attend.row_stride = plan.row_stride;
    attend.max_splits = plan.max_splits;
    attend.rotations = rotation_rows_;
    attend.raw_keys = c.borrows_unrotated ? s.raw_keys.data() + group.kv_at : nullptr;
    attend.first_kv = layout.first_read(layer);
    attend.n_kv = c.n_kv_heads;
    attend.fault_stride = plan.n_kv_heads;
    attend.faults = s.faults.data() + first * plan.n_kv_heads * kFaultKinds;
    if (!group.reads_pages.empty() && group.reads_pages[to_index(layer)] != 0)
        choose_pages(plan, group, layer, attend);
    executor_->launch(attend, {plan.max_splits, c.n_heads, group.n}, kSplit);
}

/// Chooses the pages that a layer's query heads read, for the lanes that read some.
template <class K>
void CudaBackend::choose_pages(const Plan& plan, const Group& group, int layer, AttendSplit<K>& attend) {
    const ModelConfig& c = group.of->model->config();
    const std::int64_t first = group.first, stride = plan.page_stride;
    float* bounds = scratch_.page_bounds.data() + first * c.n_heads * stride;
    const HeadBuffer<std::uint8_t> read{
        scratch_.pages_read.data() + (first * c.n_layers + layer) * c.n_heads * stride,
        std::int64_t{c.n_layers} * c.n_heads * stride};
    executor_->launch(BoundPages<K>{attend, bounds, plan.page_stride},
                      {(plan.page_stride + kSplit - 1) / kSplit, c.n_heads, group.n}, kSplit);
    executor_->launch(
        ChoosePages<K>{attend.lanes, attend.kv_of_head, bounds, read, c.n_heads, plan.page_stride},
        {1, c.n_heads, group.n}, ChoosePages<K>::kThreads);
    attend.read = {read.data, read.lane_stride};
    attend.page_stride = plan.page_stride;
}

/// Computes how far those values reach that were stored since, for the formulas that fold the rows of some
/// layers.
template <class K>
void CudaBackend::launch_reach(const Plan& plan, const Group& group, int first_layer, int last_layer) {
    const ModelConfig& c = group.of->model->config();
    const KvLayout& layout = group.of->model->layout();
    int first = layout.first_read(first_layer), last = first;
    for (int layer = first_layer; layer <= last_layer; ++layer) {
        first = std::min(first, layout.first_read(layer));
        last = std::max(last, layout.last_read(layer));
    }
    const OutputReach<K> reach{views_of<K>(group),
                               group.of->layout.table(),
                               group.of->weights.outputs.data(),
                               nullptr,
                               plan.n_kv_heads,
                               plan.row_stride,
                               c.head_dim,
                               c.n_heads,
                               c.d_model,
                               first,
                               1};
    const int n_blocks = (plan.row_stride + OutputReach<K>::kTokens - 1) / OutputReach<K>::kTokens;
    executor_->launch(reach, {last - first, group.n, n_blocks}, kThreads);
}

/// layer: the last of those that are folded together.
template <class K>
void CudaBackend::fold_group(const Plan& plan, const Group& group, int layer) {
    const int n_heads = model_->config().n_heads, first = layer / plan.fold_layers * plan.fold_layers;
    const WaitingRows rows = waiting_rows(plan, group, first);
    FoldRow<K> fold{};
    fold.lanes = views_of<K>(group);
    fold.kv_of_head = group.of->layout.kv_of_head.data() + std::int64_t{first} * n_heads;
    if (plan.requested.attention) fold.probabilities = kept_rows(plan, group, first, scratch_.row_attention);
    fold.logits = rows.logits;
    fold.tempered = rows.tempered;
    fold.totals = rows.totals;
    fold.first_head = first * n_heads;
    fold.row_stride = plan.row_stride;
    const Grid grid{plan.max_splits, (layer + 1 - first) * n_heads, group.n};
    if (plan.any_row_reach) launch_reach<K>(plan, group, first, layer);
    if (plan.any_score)
        executor_->launch(FoldByFormula<K>{fold, n_heads, n_heads / group.of->model->config().n_kv_heads,
                                           group.of->model->config().head_dim},
                          grid, kSplit);
    executor_->launch(fold, grid, kSplit);
}

}  // namespace keyhole::cuda
