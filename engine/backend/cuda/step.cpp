#include "engine/backend/cuda/step.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/common/kernels.h"
#include "engine/backend/common/row_scores.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cuda/choice_launch.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/products.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/kv_default.h"
#include "engine/policy/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace keyhole {

std::unique_ptr<Backend> make_cuda_backend(std::shared_ptr<const Model> model,
                                           std::shared_ptr<cuda::Executor> executor,
                                           const cuda::ProductOptions& products) {
    using namespace cuda;
    if (const std::string why = unsupported_shape(*model); !why.empty())
        fail(ErrorCode::unsupported, "{}", why);
    const std::int64_t needed = device_weight_bytes(*model, products.integers),
                       free = executor->memory().free_bytes;
    if (needed > free)
        fail(ErrorCode::no_memory,
             "the weights of {} take {:.1f} GB and {} has {:.1f} GB free: close other programs that use it "
             "or take a smaller model",
             model->path().string(), static_cast<double>(needed) / 1e9, executor->name(),
             static_cast<double>(free) / 1e9);
    return std::make_unique<CudaBackend>(std::move(model), std::move(executor), products);
}

}  // namespace keyhole

namespace keyhole::cuda {
namespace {

constexpr int kThreads = 256;

int blocks_for(std::int64_t n) {
    return static_cast<int>((n + kThreads - 1) / kThreads);
}

bool any_tempers(const ResolvedPolicy& policy) {
    return policy.tempers() || std::any_of(policy.variants.begin(), policy.variants.end(),
                                           [](const ResolvedPolicy& variant) { return variant.tempers(); });
}

/// Returns whether kernels read a lane's slots in text order.
bool needs_order(const ResolvedPolicy& policy) {
    return policy.has_formula() || policy.score || policy.unit > 1 || policy.shares_at_rows();
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
}  // namespace

DeviceRotations::DeviceRotations(const Model& model)
    : host_(model.config().rotary.inverse_frequency), dims_(to_index(model.config().rotary.dims)) {}

const float* DeviceRotations::rows(const std::shared_ptr<Executor>& executor, int last) {
    if (dims_ > 0 && last >= n_rows_) {
        const int wanted = std::max({last + 1, 2 * n_rows_, 2048});
        host_.grow(wanted - 1);
        n_rows_ = 0;  // when growing fails, the old rows are lost
        device_.grow(executor, to_index(wanted) * dims_);
        executor->upload(device_.data(), host_.row(0), to_index(wanted) * dims_ * sizeof(float));
        executor->wait();
        n_rows_ = wanted;
    }
    return device_.data();
}

CudaBackend::CudaBackend(std::shared_ptr<const Model> model, std::shared_ptr<Executor> executor,
                         const ProductOptions& products)
    : products_(products),
      model_(std::move(model)),
      executor_(std::move(executor)),
      type_(number_type_of(common_type(*model_))),
      products_of_type_(executor_->has_products(type_)),
      all_plain_(has_one_type(*model_)),
      store_(executor_, common_type(*model_), products_.integers),
      own_(std::make_shared<const OnDevice>(store_, model_)),
      weights_(own_->weights),
      rotations_(*model_),
      pool_(std::make_shared<PinnedPool>(executor_)) {}

std::string CudaBackend::name() const {
    return fmt::format("cuda, {}{}{}", executor_->name(),
                       rounds() ? fmt::format(", {} precision", dtype_name(common_type(*model_))) : "",
                       weights_.multiplies_integers ? ", integers" : "");
}

std::string CudaBackend::precision_text() const {
    if (!rounds()) return {};
    return fmt::format(
        "prompts are computed in {0}, as the weights: 0.15 to 0.5 % of the tokens that a small budget keeps "
        "are not those of the CPU; --precision float computes them as the CPU does",
        dtype_name(common_type(*model_)));
}

std::unique_ptr<KvCache> CudaBackend::make_cache(const ResolvedPolicy& policy,
                                                 std::shared_ptr<const Model> variant) {
    (void)kv_type(policy.kv_dtype);
    auto cache = std::make_unique<Cache>(executor_, variant != nullptr ? on_device(variant) : own_);
    cache->set_policy(policy);
    return cache;
}

KvType CudaBackend::kv_type(KvType wanted) const {
    if (wanted == KvType::q8)
        fail(ErrorCode::unsupported,
             "a lane wants kv_dtype=q8, and on CUDA keys and values are f32, f16 or bf16; take one of these, "
             "or --backend cpu");
    return kv_type_for(wanted, *model_);
}

std::string CudaBackend::policy_fault(const ResolvedPolicy& policy) const {
    if (policy.any([](const ResolvedPolicy& one) { return one.reads_pages(); }))
        return "read is for the CPU: on CUDA a step attends to all that is stored; take --backend cpu";
    if (policy.scope == Scope::column)
        return "scope=column is for the CPU: CUDA keeps a set for neighbouring KV heads alone; take "
               "scope=head, or "
               "--backend cpu";
    const bool differs = policy.any([&](const ResolvedPolicy& one) {
        return !(one.score == policy.score && one.choose == policy.choose && one.protect == policy.protect);
    });
    if (differs)
        return "score, choose and protect by head are for the CPU: on CUDA a lane has one formula of each; "
               "give all heads one, or take --backend cpu";
    return {};
}

void CudaBackend::refuse_inputs(std::span<const LanePrefill> lanes) {
    for (const LanePrefill& lane : lanes)
        if (lane.requested.inputs)
            fail(ErrorCode::unsupported,
                 "q, k and v are exported by the CPU alone, and this run is on CUDA; take --backend cpu");
}

std::shared_ptr<const OnDevice> CudaBackend::on_device(const std::shared_ptr<const Model>& model) {
    if (model == model_) return own_;
    std::erase_if(variants_, [](const auto& known) { return known.expired(); });
    for (const auto& known : variants_)
        if (auto variant = known.lock(); variant != nullptr && variant->model == model) return variant;
    if (const std::string why = unsupported_shape(*model); !why.empty())
        fail(ErrorCode::unsupported, "the CUDA backend cannot run {} with {} KV heads: {}",
             model->path().string(), model->layout().n_kv_heads(), why);
    auto variant = std::make_shared<const OnDevice>(store_, model);
    variants_.push_back(variant);
    return variant;
}

/// Groups lanes by model and type of K and V, models in the order in which they first appear. Models that
/// share an MLP are put next to each other, so that it runs for all their lanes at once.
void CudaBackend::group_lanes(std::span<const LaneStep> lanes, Plan& plan) const {
    const auto mlp = [](const OnDevice* of) { return of->weights.layers.front().up.data.data(); };
    std::vector<const OnDevice*> models;
    for (const LaneStep& lane : lanes) {
        const OnDevice* of = &cache_of(lane).of();
        if (std::find(models.begin(), models.end(), of) != models.end()) continue;
        const auto last = std::find_if(models.rbegin(), models.rend(),
                                       [&](const OnDevice* m) { return mlp(m) == mlp(of); });
        models.insert(last != models.rend() ? last.base() : models.end(), of);
    }
    for (const OnDevice* of : models)
        for (const NumberType type : {NumberType::f32, NumberType::f16, NumberType::bf16}) {
            Group group{of, static_cast<int>(plan.lanes.size()), 0, type, plan.kv_size, plan.hidden_size};
            for (const LaneStep& lane : lanes)
                if (&cache_of(lane).of() == of && cache_of(lane).kv_type() == type)
                    plan.lanes.push_back(lane);
            group.n = static_cast<int>(plan.lanes.size()) - group.first;
            if (group.n == 0) continue;
            const ModelConfig& c = of->model->config();
            plan.kv_size += std::int64_t{group.n} * c.n_kv_heads * c.head_dim;
            plan.hidden_size += std::int64_t{group.n} * of->weights.d_ff;
            plan.n_kv_heads = std::max(plan.n_kv_heads, of->model->layout().n_kv_heads());
            plan.groups.push_back(group);
        }
}

const CudaBackend::Group& CudaBackend::group_of(const Plan& plan, int lane) const {
    std::size_t i = 0;
    while (lane >= plan.groups[i].first + plan.groups[i].n) ++i;
    return plan.groups[i];
}

CudaBackend::Plan CudaBackend::plan(std::span<const LaneStep> lanes) {
    Plan plan;
    group_lanes(lanes, plan);
    for (const LaneStep& lane : plan.lanes) {
        [[maybe_unused]] const ModelConfig& c = model_->config();
        KH_ASSERT(lane.token >= 0 && lane.token < c.n_vocab, "token={}", lane.token);
        KH_ASSERT(c.positions != PositionKind::learned || lane.row < c.n_ctx, "row={} n_ctx={}", lane.row,
                  c.n_ctx);
        Cache& cache = cache_of(lane);
        if (const std::vector<int> room = room_for_row(cache, lane.row); !room.empty()) cache.reserve(room);
        const bool as_floats = lane.requested.form != RowForm::packed;
        plan.any_shadow |= cache.shadow() != nullptr;
        plan.keeps_queries |= cache.kept_queries().any();
        plan.requested.attention |= lane.requested.attention || cache.shadow() != nullptr;
        plan.floats.attention |= (lane.requested.attention && as_floats) || cache.shadow() != nullptr;
        plan.floats.scores |= lane.requested.scores && as_floats;
        plan.requested.logits |= lane.requested.logits;
        plan.requested.noise |= lane.requested.noise;
        plan.requested.scores |= lane.requested.scores;
        plan.blocks.push_back(new_block(lane));
        if (plan.blocks.back() != nullptr) {
            plan.any_block = true;
            plan.any_unordered = plan.any_unordered || !all_in_text_order(cache);
        }
        plan.row_stride = std::max(plan.row_stride, cache.largest_capacity());
        plan.tempers |= any_tempers(cache.policy());
        for (const FormulaRef& formula : {cache.policy().choose, cache.policy().protect})
            if (formula) plan.n_lists = std::max(plan.n_lists, formula->n_lists);
        plan.any_keydiff |= cache.policy().names(Quantity::keydiff);
        plan.any_redundancy |= cache.policy().names(Quantity::redundancy);
        plan.any_caote |= cache.policy().names(Quantity::caote);
        plan.any_lag |= cache.policy().names(Quantity::lag);
        plan.any_wvnorm |= cache.policy().names(Quantity::wvnorm);
        plan.any_code_win |= cache.policy().ranks_as_rkv_code;
        plan.any_row_reach |= names_reach(cache.policy().score);
        plan.any_smoothing |= cache.policy().choose.unsmoothed() != nullptr;
        plan.any_block_leaves |= cache.policy().unit > 1;
        plan.any_score |= static_cast<bool>(cache.policy().score);
        plan.max_units = std::max(plan.max_units, static_cast<int>(cache.units().size()));
        plan.n_rows.push_back(cache.largest_count() + 1);
        plan.any_shares |= cache.policy().shares_at_rows();
        const int most = most_that_leave(cache);
        plan.on_host.push_back(most > CompactHead<float>::kMost || has_no_kernel(cache.policy()) ? 1 : 0);
        plan.queries.push_back(plan.on_host.back() == 0 ? queries_of(cache) : nullptr);
        if (plan.queries.back() != nullptr) {
            plan.any_expected |= cache.policy().names(Quantity::expected);
            plan.any_tri |= cache.policy().names(Quantity::tri);
        }
        if (plan.on_host.back() != 0) continue;
        while (plan.most_victims < most) plan.most_victims *= 2;
    }
    plan.row_stride = (plan.row_stride + 31) / 32 * 32;
    plan.max_splits = (plan.row_stride + kSplit - 1) / kSplit;
    return plan;
}

std::shared_ptr<const DeviceQueries> CudaBackend::queries_of(const Cache& cache) {
    const ResolvedPolicy& policy = cache.policy();
    if (!policy.names_queries()) return nullptr;
    std::erase_if(queries_, [](const auto& known) { return known->is_expired(); });
    for (const auto& known : queries_)
        if (known->serves(cache.of(), policy)) return known;
    return queries_.emplace_back(std::make_shared<const DeviceQueries>(executor_, cache.of(), policy));
}

/// Returns the most tokens that leave a KV head after the coming row: from the policy, so that the list stays
/// the same while the cache fills and empties; from the counts where more than that are stored.
int CudaBackend::most_that_leave(const Cache& cache) const {
    constexpr int kMost = CompactHead<float>::kMost;
    const bool shares = cache.policy().shares_at_rows();
    std::int64_t most = 1, of_all = 0, over_all = 0;
    for (std::size_t u = 0; u < cache.units().size(); ++u) {
        const ResolvedPolicy& own = unit_policy(cache.layout(), cache.policy(), cache.units()[u].first);
        if (!own.evicts() || cache.is_on_host(u)) continue;
        // The last 1: dropped_position, or of a share that is rounded. With the last of the tokens that must
        // leave its whole block leaves.
        const int over = cache.count(cache.units()[u].first) + 1 - own.stored, more = std::max(own.unit, 1),
                  planned = std::min(own.most_stored() - own.stored, kMost / 2);
        most = std::max<std::int64_t>({most, planned + more, shares ? 0 : over + more});
        of_all += planned + 2;
        over_all += over + 2;
    }
    // One of the heads that share may lose what all of them store beyond their budgets.
    if (shares) most = std::max({most, of_all, over_all});
    return static_cast<int>(std::min<std::int64_t>(most, kMost + 1));
}

/// Returns a block with the sizes of the coming row, null where none is wanted.
std::shared_ptr<RowBlock> CudaBackend::new_block(const LaneStep& lane) const {
    const RowRequest& requested = lane.requested;
    if (requested.form == RowForm::floats || (!requested.attention && !requested.scores)) return nullptr;
    const Cache& cache = cache_of(lane);
    std::vector<int> n_attended;
    for (int g = 0; g < cache.layout().n_kv_heads(); ++g) n_attended.push_back(cache.count(g) + 1);
    auto block = std::make_shared<RowBlock>();
    row_offsets(cache.layout(), n_attended, block->offset, block->head_offset);
    const auto size = [&]<class V>(UninitialisedVector<V>& values, std::int64_t n) {
        try {
            values = UninitialisedVector<V>(to_index(n), UninitialisedAllocator<V>(pool_));
        } catch (const Error& error) {
            if (error.code() != ErrorCode::no_memory) throw;
            values.resize(to_index(n));  // in pages that the driver copies to by way of its own
        }
    };
    if (requested.attention) size(block->attention, block->head_offset.back());
    if (requested.scores) size(block->scores, block->offset.back());
    if (requested.scores) block->threshold.assign(n_attended.size(), std::numeric_limits<float>::quiet_NaN());
    return block;
}

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
    if (plan.any_shadow) grow_clear(s.shadow, to_index(c.n_layers) * shadow_parts(plan).end);
    if (plan.any_shadow) grow(host_.shadow, to_index(c.n_layers) * shadow_parts(plan).end);
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
    std::size_t bytes = 0;
    const auto take = [&bytes](std::size_t wanted) {
        return std::exchange(bytes, bytes + (wanted + 15) / 16 * 16);
    };
    const std::size_t views_at = take(n * sizeof(AnyLane)), tokens_at = take(n * sizeof(std::int32_t)),
                      rows_at = take(n * sizeof(std::int32_t)),
                      packed_at = take(plan.any_block ? n * sizeof(PackedLane) : 0);
    struct Part {
        std::vector<RowRule> rules;
        std::size_t rules_at = 0, steps_at = 0, places_at = 0, offset_at = 0, head_offset_at = 0;
        std::size_t choose_at = 0, protect_at = 0, unsmoothed_at = 0, score_at = 0, order_at = 0,
                    future_at = 0, repeat_at = 0, shares_at = 0, queries_at = 0, turns_at = 0;
        std::vector<ShareRule> shares;
        bool rotates = false;
    };
    std::vector<Part> parts(n);
    int last_row = 0;
    for (std::size_t lane = 0; lane < n; ++lane) {
        Part& part = parts[lane];
        const ResolvedPolicy& policy = cache_of(plan.lanes[lane]).policy();
        const int n_kv_heads = cache_of(plan.lanes[lane]).layout().n_kv_heads();
        row_rules(policy, plan.lanes[lane].row, plan.lanes[lane].requested.scores && plan.on_host[lane] == 0,
                  part.rules);
        if (plan.on_host[lane] != 0)
            for (RowRule& rule : part.rules) rule.evicts = 0;
        part.rules_at = take(part.rules.size() * sizeof(RowRule));
        part.rotates = policy.positions != Positions::original;
        if (part.rotates)
            part.steps_at = take(to_index(n_kv_heads) * to_index(plan.row_stride) * sizeof(std::int32_t));
        if (part.rotates) part.places_at = take(to_index(n_kv_heads) * sizeof(std::int32_t));
        if (policy.shares_at_rows() && plan.on_host[lane] == 0) {
            part.shares = share_rules(cache_of(plan.lanes[lane]), plan.lanes[lane].row);
            part.shares_at = take(part.shares.size() * sizeof(ShareRule));
        }
        if (needs_order(policy)) {
            const std::size_t n_listed = to_index(n_kv_heads) * to_index(plan.row_stride);
            for (std::size_t* at : {&part.choose_at, &part.protect_at, &part.unsmoothed_at, &part.score_at})
                *at = take(sizeof(FormulaTable));
            part.order_at = take(n_listed * sizeof(std::int32_t));
            if (policy.names(Quantity::future)) part.future_at = take(n_listed * sizeof(float));
            if (policy.names(Quantity::repeat)) part.repeat_at = take(n_listed * sizeof(float));
        }
        if (const auto& queries = plan.queries[lane]; queries != nullptr) {
            part.queries_at = take(sizeof(LaneQueries));
            part.turns_at = take(queries->n_turns() * sizeof(double));
        }
        if (const auto& block = plan.blocks[lane]; block != nullptr) {
            part.offset_at = take(block->offset.size() * sizeof(block->offset[0]));
            part.head_offset_at = take(block->head_offset.size() * sizeof(block->head_offset[0]));
        }
        last_row = std::max(last_row, plan.lanes[lane].row);
    }
    rotation_rows_ = rotations_.rows(executor_, last_row);
    if (scratch_.input.size() < bytes) scratch_.input.grow(executor_, 2 * bytes);
    if (host_.input.size() < bytes) host_.input.grow(executor_, 2 * bytes);
    std::byte* host = host_.input.data();
    std::byte* device = scratch_.input.data();
    for (std::size_t lane = 0; lane < n; ++lane) {
        const Part& part = parts[lane];
        const Cache& cache = cache_of(plan.lanes[lane]);
        const int row = plan.lanes[lane].row;
        AnyLane view = cache.view(reinterpret_cast<const RowRule*>(device + part.rules_at), row);
        std::memcpy(host + part.rules_at, part.rules.data(), part.rules.size() * sizeof(RowRule));
        if (part.rotates) {
            auto* steps = reinterpret_cast<std::int32_t*>(host + part.steps_at);
            auto* places = reinterpret_cast<std::int32_t*>(host + part.places_at);
            for (int g = 0; g < cache.layout().n_kv_heads(); ++g)
                places[g] = cache.steps_back(
                    g, row, {steps + std::int64_t{g} * plan.row_stride, to_index(cache.count(g) + 1)});
            view.steps = reinterpret_cast<const std::int32_t*>(device + part.steps_at);
            view.places = reinterpret_cast<const std::int32_t*>(device + part.places_at);
            view.steps_stride = plan.row_stride;
        }
        const ResolvedPolicy& policy = cache.policy();
        const bool is_ordered = needs_order(policy);
        for (int g = 0; is_ordered && g < cache.layout().n_kv_heads(); ++g) {
            const std::int64_t first = std::int64_t{g} * plan.row_stride;
            const std::size_t n_listed = to_index(cache.count(g) + 1);
            cache.order_of_row(g, {reinterpret_cast<std::int32_t*>(host + part.order_at) + first, n_listed});
            if (policy.names(Quantity::future))
                cache.future_of_row(g, row,
                                    {reinterpret_cast<float*>(host + part.future_at) + first, n_listed});
            if (policy.names(Quantity::repeat))
                cache.repeat_of_row(g, row,
                                    {reinterpret_cast<float*>(host + part.repeat_at) + first, n_listed});
        }
        if (is_ordered) {
            const auto put = [&](const FormulaTable* formula, std::size_t at) -> const FormulaTable* {
                if (formula == nullptr) return nullptr;
                std::memcpy(host + at, formula, sizeof(FormulaTable));
                return reinterpret_cast<const FormulaTable*>(device + at);
            };
            view.choose = put(policy.choose.table(), part.choose_at);
            view.protect = put(policy.protect.table(), part.protect_at);
            view.unsmoothed = put(policy.choose.unsmoothed(), part.unsmoothed_at);
            view.score = put(policy.score.table(), part.score_at);
            view.order = reinterpret_cast<const std::int32_t*>(device + part.order_at);
            if (policy.names(Quantity::future))
                view.future = reinterpret_cast<const float*>(device + part.future_at);
            if (policy.names(Quantity::repeat))
                view.repeat = reinterpret_cast<const float*>(device + part.repeat_at);
            view.list_stride = plan.row_stride;
        }
        if (!part.shares.empty()) {
            std::memcpy(host + part.shares_at, part.shares.data(), part.shares.size() * sizeof(ShareRule));
            view.shares = reinterpret_cast<const ShareRule*>(device + part.shares_at);
            view.n_shared = scratch_.share_leave.data() + lane * to_index(plan.max_units);
        }
        if (const auto& queries = plan.queries[lane]; queries != nullptr) {
            const LaneQueries at =
                queries->turns_at(row, {reinterpret_cast<double*>(host + part.turns_at), queries->n_turns()},
                                  reinterpret_cast<const double*>(device + part.turns_at));
            std::memcpy(host + part.queries_at, &at, sizeof(at));
            view.queries = reinterpret_cast<const LaneQueries*>(device + part.queries_at);
        }
        if (plan.any_block) {
            PackedLane packed = packed_lane(plan, lane);
            if (const auto& block = plan.blocks[lane]; block != nullptr) {
                const auto put = [&]<class V>(const std::vector<V>& values, std::size_t at, const V*& there) {
                    std::memcpy(host + at, values.data(), values.size() * sizeof(V));
                    there = reinterpret_cast<const V*>(device + at);
                };
                put(block->offset, part.offset_at, packed.offset);
                put(block->head_offset, part.head_offset_at, packed.head_offset);
            }
            std::memcpy(host + packed_at + lane * sizeof(packed), &packed, sizeof(packed));
        }
        std::memcpy(host + views_at + lane * sizeof(view), &view, sizeof(view));
        const std::int32_t token = plan.lanes[lane].token;
        std::memcpy(host + tokens_at + lane * sizeof(token), &token, sizeof(token));
        std::memcpy(host + rows_at + lane * sizeof(std::int32_t), &row, sizeof(std::int32_t));
    }
    views_ = reinterpret_cast<const AnyLane*>(device + views_at);
    tokens_ = reinterpret_cast<const std::int32_t*>(device + tokens_at);
    rows_ = reinterpret_cast<const std::int32_t*>(device + rows_at);
    packed_ = reinterpret_cast<const PackedLane*>(device + packed_at);
    executor_->upload(device, host, bytes);
}

/// Returns where a lane's packed values lie on the device; null where nothing of it is packed.
PackedLane CudaBackend::packed_lane(const Plan& plan, std::size_t lane) const {
    PackedLane packed{};
    const RowBlock* block = plan.blocks[lane].get();
    if (block == nullptr) return packed;
    const std::size_t heads = to_index(model_->config().n_layers * model_->config().n_heads),
                      kv_heads = to_index(plan.n_kv_heads), stride = to_index(plan.row_stride);
    if (!all_in_text_order(cache_of(plan.lanes[lane])))
        packed.order = scratch_.order.data() + lane * kv_heads * stride;
    if (!block->attention.empty()) {
        packed.attention = scratch_.packed_attention.data() + lane * heads * stride;
        packed.first = scratch_.first_attention.data() + lane * heads * PackRow::kFirst;
    }
    if (!block->scores.empty()) packed.scores = scratch_.packed_scores.data() + lane * kv_heads * stride;
    return packed;
}

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

void CudaBackend::keep_for_shadow(const Plan& plan, int layer, const Buffer<float>& from, std::size_t part,
                                  std::size_t size) {
    if (!plan.any_shadow) return;
    copy_floats(from, scratch_.shadow.data() + to_index(layer) * shadow_parts(plan).end + part, size);
}

/// From q, k and v of all lanes, computes the heads' outputs. After the last of the layers that are folded
/// together, folds their scores.
void CudaBackend::attend(const Plan& plan, int layer) {
    const ShadowParts parts = shadow_parts(plan);
    Scratch& s = scratch_;
    if (plan.keeps_queries)
        copy_floats(s.q, s.queries.data() + to_index(layer) * queries_of_layer(plan), queries_of_layer(plan));
    keep_for_shadow(plan, layer, s.q, parts.q, parts.k - parts.q);
    keep_for_shadow(plan, layer, s.k, parts.k, parts.v - parts.k);
    keep_for_shadow(plan, layer, s.v, parts.v, parts.attended - parts.v);
    for (const Group& group : plan.groups)
        with_number(group.kv, [&]<class K>() { attend_group<K>(plan, group, layer); });
    if ((layer + 1) % plan.fold_layers == 0 || layer + 1 == model_->config().n_layers)
        for (const Group& group : plan.groups)
            with_number(group.kv, [&]<class K>() { fold_group<K>(plan, group, layer); });
    keep_for_shadow(plan, layer, s.attended, parts.attended, parts.end - parts.attended);
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
    executor_->launch(attend, {plan.max_splits, c.n_heads, group.n}, kSplit);
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
    if (plan.any_shadow) all(host_.shadow, scratch_.shadow, to_index(c.n_layers) * shadow_parts(plan).end);
    if (plan.keeps_queries)
        all(host_.queries, scratch_.queries, to_index(c.n_layers) * queries_of_layer(plan));
}

void CudaBackend::step(std::span<const LaneStep> lanes) {
    if (lanes.empty()) return;
    executor_->wait_for_copies();  // until the row before is packed and copied
    Plan plan = this->plan(lanes);
    size_buffers(plan);
    size_waiting_rows(plan);
    upload_input(plan);
    executor_->begin_graph();
    try {
        launch_all(plan);
    } catch (...) {
        executor_->drop_graph();
        throw;
    }
    executor_->end_graph();
    download_output(plan);
    executor_->wait();
    if (times_ != nullptr) add_times();
    note_faults(plan);
    for (int lane = 0; lane < static_cast<int>(plan.lanes.size()); ++lane) {
        const LaneStep& step = plan.lanes[to_index(lane)];
        cache_of(step).note_appended(step.row);
        write_rows(plan, lane);
        if (cache_of(step).kept_queries().any()) keep_queries(plan, lane);
        if (cache_of(step).shadow() != nullptr) write_shadow(plan, lane);
        if (plan.blocks[to_index(lane)] != nullptr) write_block(plan, lane);
        write_evictions(plan, lane);
        if (plan.on_host[to_index(lane)] == 0 && !cache_of(step).any_on_host()) continue;
        try {
            select_on_host(step, plan.blocks[to_index(lane)].get(), plan.on_host[to_index(lane)] != 0);
        } catch (const Error& error) {  // the row is only half processed
            fail(ErrorCode::device, "{}; start the run again", error.what());
        }
    }
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

/// Adds times by the purpose of a kernel.
void CudaBackend::add_times() {
    const std::vector<double> seconds = executor_->take_times();
    int kernel = 0;
    Kernels::for_each([&]<class Kernel>() {
        const std::string_view name = kernel_name<Kernel>();
        const auto is = [&](std::initializer_list<std::string_view> names) {
            return std::any_of(names.begin(), names.end(),
                               [&](std::string_view n) { return name.starts_with(n); });
        };
        double& part =
            is({"MatrixVector", "Laid", "Narrow", "AddBias"}) ? times_->linear
            : is({"AttendSplit"})                             ? times_->attention
            : is({"FoldRow", "FoldByFormula"})                ? times_->scoring
            : is({"BeginRow", "SelectVictims", "CompactHead", "KeyDirections", "SimilarKeys", "KeyLikeness",
                  "ShareLikeness", "WinOfLogits", "OutputErrors", "OutputReach", "LagRanks", "QueryLogits",
                  "QueryRanks", "ChooseScores", "SortShares", "CountBest", "ShareBudgets"})
                ? times_->eviction
                : times_->rest;
        part += seconds[to_index(kernel++)];
    });
    times_->linear += seconds[to_index(Launch::kProduct)];
    ++times_->n_steps;
}

bool CudaBackend::time_parts(StepTimes* times) {
    times_ = times;
    executor_->time_launches(times != nullptr);
    return true;
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
    const float* logits = host_.logits.data() + std::int64_t{lane} * model_->config().n_vocab;
    step.out->next_logits.assign(logits, logits + model_->config().n_vocab);

    const std::int64_t stride = plan.row_stride, n_heads = layout.n_layers() * layout.n_heads();
    bool any_hidden = false;
    for (int g = 0; g < layout.n_kv_heads() && (!values.positions.empty() || !values.hidden.empty()); ++g) {
        const std::size_t first = to_index(values.offset[to_index(g)]);
        if (values.hidden.empty() && cache.in_text_order(g)) {
            std::copy_n(cache.positions(g).begin(), cache.count(g),
                        values.positions.begin() + static_cast<std::ptrdiff_t>(first));
            continue;
        }
        const ResolvedPolicy& policy = unit_policy(layout, cache.policy(), g);
        const AttentionRule rule = attention_rule(model_->config(), layout.kv_head(g).owner_layer, 0);
        for (int i = 0; i < cache.count(g); ++i) {
            const std::int32_t position = cache.positions(g)[to_index(cache.order(g)[to_index(i)])];
            if (!values.positions.empty()) values.positions[first + to_index(i)] = position;
            if (values.hidden.empty()) continue;
            if (!policy.hides(step.row, position) && !rule.hides(step.row, position)) continue;
            values.hidden[first + to_index(i)] = 1;
            any_hidden = true;
        }
    }
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
        if (!any_hidden || values.logits.empty()) continue;
        for (int i = 0; i < n; ++i)
            if (values.hidden[to_index(values.offset[to_index(g)] + i)] != 0)
                values.logits[to_index(values.head_offset[to_index(head)] + i)] =
                    std::numeric_limits<float>::quiet_NaN();
    }
    if (!any_hidden) values.hidden.clear();
}

std::size_t CudaBackend::queries_of_layer(const Plan& plan) const {
    return plan.lanes.size() * to_index(model_->config().n_heads * model_->config().head_dim);
}

CudaBackend::ShadowParts CudaBackend::shadow_parts(const Plan& plan) const {
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

/// Compares the row with full attention on the lane's own queries. Runs on the host, with the CPU's code,
/// since it only serves measures.
void CudaBackend::write_shadow(const Plan& plan, int lane) {
    const LaneStep& step = plan.lanes[to_index(lane)];
    const Group& group = group_of(plan, lane);
    const ModelTables& tables = group.of->tables;
    const ModelConfig& c = group.of->model->config();
    Cache& cache = cache_of(step);
    const KvLayout& layout = cache.layout();
    const ShadowParts parts = shadow_parts(plan);
    const int d = c.head_dim;
    const std::size_t half = to_index(c.rotary.dims / 2);
    std::vector<float> key(to_index(d)), raw_key(to_index(d)), value(to_index(d)), cosine(half), sine(half);
    tables.angles(step.row, step.row + 1, cosine.data(), sine.data());
    std::vector<std::uint8_t> hidden;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const KvHead& kv = layout.kv_head(g);
        const float* of_layer = host_.shadow.data() + to_index(kv.owner_layer) * parts.end;
        const std::size_t kv_at =
            to_index(group.kv_at + (std::int64_t{lane - group.first} * c.n_kv_heads + kv.index) * d);
        std::copy_n(of_layer + parts.k + kv_at, d, key.data());
        raw_key = key;
        const std::vector<float>& k_norm = tables.layers[to_index(kv.owner_layer)].k_norm;
        tables.norm_and_rotate(raw_key.data(), k_norm, nullptr, nullptr);
        tables.norm_and_rotate(key.data(), k_norm, cosine.data(), sine.data());
        std::copy_n(of_layer + parts.v + kv_at, d, value.data());
        if (c.clip_qkv > 0) clip(value.data(), c.clip_qkv, d);
        cache.shadow()->append(g, key.data(), value.data(), 1);
        const ResolvedPolicy& policy = unit_policy(layout, cache.policy(), g);
        for (const HeadRef& reader : kv.readers) {
            const int head = reader.layer * layout.n_heads() + reader.head;
            const AttentionRule rule = attention_rule(c, reader.layer, reader.head);
            hidden.clear();
            if (policy.hides_any() || rule.window > 0)
                for (const std::int32_t position : cache.positions(g))
                    hidden.push_back(policy.hides(step.row, position) || rule.hides(step.row, position) ? 1
                                                                                                        : 0);
            const std::size_t q_at =
                (to_index(lane) * to_index(c.n_heads) + to_index(reader.head)) * to_index(d);
            const float* of_reader = host_.shadow.data() + to_index(reader.layer) * parts.end;
            shadow_scratch_.query.assign(of_reader + parts.q + q_at,
                                         of_reader + parts.q + q_at + to_index(d));
            tables.norm_and_rotate(shadow_scratch_.query.data(), tables.layers[to_index(reader.layer)].q_norm,
                                   cosine.data(), sine.data());
            const bool borrows_raw = c.borrows_unrotated && reader.layer != kv.owner_layer;
            shadow_scratch_.own_key = borrows_raw ? raw_key.data() : nullptr;
            const std::size_t row_at = (to_index(lane) * to_index(c.n_layers * c.n_heads) + to_index(head)) *
                                       to_index(plan.row_stride);
            const SeenRow seen{cache.positions(g),
                               {host_.row_attention.data() + row_at, cache.positions(g).size()},
                               hidden,
                               of_reader + parts.attended + q_at};
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
        for (int g = unit.first; g < unit.last; ++g) {
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

/// Sets the policy, evicts down to its budget and resizes the cache's memory. When the device has no memory
/// for that, the cache stays unchanged.
std::vector<Eviction> CudaBackend::apply_policy(KvCache& cache, const ResolvedPolicy& policy, int last_row) {
    (void)kv_type(policy.kv_dtype);
    auto& store = static_cast<Cache&>(cache);
    if (store.has_no_room()) {  // before the prompt, which sets the size
        store.set_policy(policy);
        return {};
    }
    const std::vector<Eviction> evictions = evictions_under(policy, store, last_row);
    Cache::PositionLists evicted(to_index(store.layout().n_kv_heads()));
    for (const Eviction& e : evictions) evicted[to_index(e.kv_head)].push_back(e.position);
    store.set_policy(policy, evicted, last_row);
    std::vector<int> n_stored, had;
    for (int g = 0; g < store.layout().n_kv_heads(); ++g) {
        n_stored.push_back(store.count(g));
        had.push_back(store.capacity(g));
    }
    const std::vector<int> wanted = wanted_capacity(store.layout(), policy, n_stored, last_row + 1);
    if (wanted == had) return evictions;
    try {
        store.reserve(wanted);
    } catch (const Error& error) {
        // Without memory for the copy, resizing has to wait. Rows still fit.
        if (error.code() != ErrorCode::no_memory) throw;
    }
    return evictions;
}

/// Returns what the policy evicts when it is set after a row, ascending in each KV head.
std::vector<Eviction> CudaBackend::evictions_under(const ResolvedPolicy& policy, Cache& store, int last_row) {
    std::vector<Eviction> evictions;
    if (policy.shares_at_rows()) {
        const std::vector<HostSelection> chosen = store.select_sharing(policy, last_row, true);
        for (int g = 0; g < store.layout().n_kv_heads(); ++g)
            for (const int victim : chosen[to_index(g)].victims)
                evictions.push_back({g, chosen[to_index(g)].positions[to_index(victim)], last_row});
        return evictions;
    }
    for (const Unit& unit : units_of(store.layout(), policy.scope)) {
        const ResolvedPolicy& own = unit_policy(store.layout(), policy, unit.first);
        int most = 0;
        for (int g = unit.first; g < unit.last; ++g) most = std::max(most, store.count(g));
        if (!own.evicts() || (unit.last - unit.first == 1 && !must_select(own, most, last_row))) continue;
        const HostSelection chosen = store.select_on_host(unit, policy, last_row, true);
        for (int g = unit.first; g < unit.last; ++g) {
            const std::vector<std::int32_t> stored = store.stored_positions(g);
            for (const int victim : chosen.victims) {
                const std::int32_t position = chosen.positions[to_index(victim)];
                if (!std::binary_search(stored.begin(), stored.end(), position)) continue;
                evictions.push_back({g, position, last_row});
            }
        }
    }
    return evictions;
}

}  // namespace keyhole::cuda
