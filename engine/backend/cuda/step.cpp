#include "engine/backend/cuda/step.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/common/row_scores.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/kv_default.h"

#include <algorithm>
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

bool any_tempers(const ResolvedPolicy& policy) {
    return policy.tempers() || std::any_of(policy.variants.begin(), policy.variants.end(),
                                           [](const ResolvedPolicy& variant) { return variant.tempers(); });
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
    if (!rounds() && weights_.multiplies_integers)
        return "prompts are computed in floats, and on processors with AMX in integers: of the tokens that a "
               "small budget keeps about 0.01 % are not those of such a CPU; --precision float computes both "
               "in "
               "floats";
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
        plan_pages(lane, plan);
        const bool as_floats = lane.requested.form != RowForm::packed;
        plan.keeps_parts |= cache.shadow() != nullptr || lane.requested.inputs;
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
            plan.any_unordered = plan.any_unordered || !cache.all_in_text_order();
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
        plan.any_row_reach |=
            cache.policy().any([](const ResolvedPolicy& one) { return names_reach(one.score); });
        plan.any_smoothing |= cache.policy().choose.unsmoothed() != nullptr;
        plan.any_block_leaves |= cache.policy().unit > 1;
        plan.any_score |= cache.policy().any_score();
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

/// Makes room for the pages of the coming row, and notes in which layers the lane reads some.
void CudaBackend::plan_pages(const LaneStep& lane, Plan& plan) {
    Cache& cache = cache_of(lane);
    plan.pages.push_back(cache.page_rules(lane.row));
    const std::span<const PageRule> rules = plan.pages.back();
    if (rules.empty()) return;
    cache.reserve_pages(rules, lane.row);
    plan.page_stride = std::max(plan.page_stride, cache.page_stride());
    const auto group = std::find_if(plan.groups.begin(), plan.groups.end(), [&](const Group& of) {
        return of.of == &cache.of() && of.kv == cache.kv_type();
    });
    KH_ASSERT(group != plan.groups.end());
    group->reads_pages.resize(to_index(cache.layout().n_layers()));
    for (std::size_t g = 0; g < rules.size(); ++g)
        if (rules[g].length > 0)
            for (const HeadRef& reader : cache.layout().kv_head(static_cast<int>(g)).readers)
                group->reads_pages[to_index(reader.layer)] = 1;
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
        if (!plan.pages[to_index(lane)].empty()) cache_of(step).note_pages(step.row);
        if (cache_of(step).kept_queries().any()) keep_queries(plan, lane);
        if (cache_of(step).shadow() != nullptr) write_shadow(plan, lane);
        if (step.requested.inputs) write_inputs(plan, lane);
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
            is({"MatrixVector", "Laid", "Narrow", "AddBias"})                    ? times_->linear
            : is({"AttendSplit", "SummarisePages", "BoundPages", "ChoosePages"}) ? times_->attention
            : is({"FoldRow", "FoldByFormula"})                                   ? times_->scoring
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

/// Sets the policy, evicts down to its budget and resizes the cache's memory. When the device has no memory
/// for that, the cache keeps its tokens, which may be converted already.
std::vector<Eviction> CudaBackend::apply_policy(KvCache& cache, const ResolvedPolicy& policy, int last_row) {
    (void)kv_type(policy.kv_dtype);
    auto& store = static_cast<Cache&>(cache);
    if (store.has_no_room()) {  // before the prompt, which sets the size
        store.set_policy(policy);
        return {};
    }
    std::vector<Eviction> evictions;
    if (!keeps_alike(store.policy(), policy)) {
        // Tokens are ranked by keys and values as they are stored from now on.
        ResolvedPolicy before = store.policy();
        before.kv_dtype = policy.kv_dtype;
        if (kv_type(before.kv_dtype) != kv_type(store.policy().kv_dtype))
            store.set_policy(before, {}, last_row);
        evictions = evictions_under(policy, store, last_row);
    }

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
        for (int g = unit.first; g < unit.last; g += unit.step) most = std::max(most, store.count(g));
        if (!own.evicts() || (unit.n_heads() == 1 && !must_select(own, most, last_row))) continue;
        const HostSelection chosen = store.select_on_host(unit, policy, last_row, true);
        for (int g = unit.first; g < unit.last; g += unit.step) {
            const std::vector<std::int32_t> stored = store.stored_positions(g);
            for (const int victim : chosen.victims) {
                const std::int32_t position = chosen.positions[to_index(victim)];
                if (!std::binary_search(stored.begin(), stored.end(), position)) continue;
                evictions.push_back({g, position, last_row});
            }
        }
    }
    if (policy.scope == Scope::column) sort_by_kv_head(evictions);
    return evictions;
}

}  // namespace keyhole::cuda
