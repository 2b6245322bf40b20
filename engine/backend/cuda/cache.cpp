#include "engine/backend/cuda/cache.h"

#include "engine/backend/common/row_scores.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/kv_default.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace keyhole::cuda {
namespace {

constexpr std::size_t kAlign = 256;

template <class V>
void upload_all(Executor& executor, V* to, const std::vector<V>& from) {
    executor.upload(to, from.data(), from.size() * sizeof(V));
}

NumberType number_type(KvType type) {
    KH_ASSERT(type != KvType::q8);
    return type == KvType::f16 ? NumberType::f16 : type == KvType::bf16 ? NumberType::bf16 : NumberType::f32;
}

KvType kv_type_of(NumberType type) {
    return type == NumberType::f16 ? KvType::f16 : type == NumberType::bf16 ? KvType::bf16 : KvType::f32;
}

std::int64_t number_bytes(NumberType type) {
    return type == NumberType::f32 ? 4 : 2;
}

struct TableSizes {
    std::size_t heads = 0, scores, units, unit_of_head, end;
};

TableSizes table_sizes(int n_kv_heads, int n_query_heads) {
    const auto n = to_index(n_kv_heads);
    TableSizes at;
    at.scores = at.heads + n * sizeof(AnyHead);
    at.units = at.scores + to_index(n_query_heads) * sizeof(HeadScores);
    at.unit_of_head = at.units + n * sizeof(DeviceUnit);
    at.end = at.unit_of_head + n * sizeof(std::int32_t);
    return at;
}

}  // namespace

CudaKvCache::CudaKvCache(std::shared_ptr<Executor> executor, std::shared_ptr<const OnDevice> of)
    : executor_(std::move(executor)),
      of_(std::move(of)),
      layout_(&of_->model->layout()),
      head_dim_(of_->model->config().head_dim),
      positions_(to_index(layout_->n_kv_heads())),
      order_(positions_.size()),
      in_text_order_(positions_.size(), 1),
      pinned_(positions_.size()),
      faults_(positions_.size()) {
    store_ = make_store(std::vector<int>(positions_.size(), 0), store_.running, false, false, 0, of_->type);
    find_units();
    write_tables();
}

CacheUse CudaKvCache::use() const {
    CacheUse use;
    for (const auto& of_head : positions_) use.stored_tokens += static_cast<std::int64_t>(of_head.size());
    use.stored_bytes = use.stored_tokens * 2 * head_dim_ * number_bytes(store_.type);
    use.allocated_bytes = static_cast<std::int64_t>(store_.size_bytes() + page_extremes_.size_bytes() +
                                                    page_tokens_.size_bytes()) +
                          known_bytes() + queries_.size_bytes();
    if (shadow_) use.shadow_bytes = shadow_->bytes();
    return use;
}

std::vector<std::int32_t> CudaKvCache::stored_positions(int g) const {
    std::vector<std::int32_t> out;
    out.reserve(order(g).size());
    for (const std::int32_t slot : order(g)) out.push_back(positions(g)[to_index(slot)]);
    return out;
}

int CudaKvCache::largest_capacity() const {
    return *std::max_element(store_.capacity.begin(), store_.capacity.end());
}

int CudaKvCache::largest_count() const {
    std::size_t most = 0;
    for (const auto& of_head : positions_) most = std::max(most, of_head.size());
    return static_cast<int>(most);
}

bool CudaKvCache::any_on_host() const {
    return std::find(on_host_.begin(), on_host_.end(), 1) != on_host_.end();
}

CudaKvCache::Store CudaKvCache::make_store(std::vector<int> capacity,
                                           const std::array<bool, kAccumulators>& running, bool has_noise,
                                           bool has_reach, int window, NumberType type) const {
    Store store;
    store.type = type;
    store.window = window;
    store.capacity = std::move(capacity);
    store.running = running;
    store.has_noise = has_noise;
    store.has_reach = has_reach;
    store.first_slot.resize(to_index(n_kv_heads()));
    store.first_score.resize(to_index(n_query_heads()));
    for (int layer = 0; layer < layout_->n_layers(); ++layer) store.parts.push_back(make_part(store, layer));
    return store;
}

/// Makes the memory of one layer for the store's capacities, and sets where its heads begin in it.
CudaKvCache::Part CudaKvCache::make_part(Store& store, int layer) const {
    Part part;
    std::int64_t n_slots = 0, n_scores = 0;
    for (int g = layout_->first_of_layer(layer); g < layout_->first_of_layer(layer + 1); ++g) {
        const std::int64_t own = store.capacity[to_index(g)];
        store.first_slot[to_index(g)] = std::exchange(n_slots, n_slots + own);
        for (const HeadRef& reader : layout_->kv_head(g).readers)
            store.first_score[to_index(reader.layer * layout_->n_heads() + reader.head)] =
                std::exchange(n_scores, n_scores + own);
    }
    std::size_t bytes = 0;
    const auto take = [&bytes](std::int64_t n, std::size_t size) {
        const std::size_t wanted = to_index(n) * size;
        return std::exchange(bytes, bytes + (wanted + kAlign - 1) / kAlign * kAlign);
    };
    const auto size = to_index(number_bytes(store.type));
    part.keys_at = take(n_slots * head_dim_, size);
    part.values_at = take(n_slots * head_dim_, size);
    part.positions_at = take(n_slots, sizeof(std::int32_t));
    part.pinned_at = take(n_slots, 1);
    for (std::size_t a = 0; a < kAccumulators; ++a)
        if (store.running[a]) part.score_at[a] = take(n_scores, sizeof(float));
    if (store.has_noise) part.noise_at = take(n_scores, sizeof(float));
    if (store.has_reach) part.reach_at = take(n_slots, sizeof(float));
    part.n_scores = n_scores;
    part.kept_at = take(store.window * n_scores, sizeof(float));
    part.data = Buffer<std::byte>(executor_, bytes);
    return part;
}

AnyHead CudaKvCache::device_head(const Store& store, int g) const {
    const Part& part = store.parts[to_index(layout_->kv_head(g).owner_layer)];
    std::byte* base = part.data.data();
    const std::int64_t first = store.first_slot[to_index(g)];
    const std::int64_t first_byte = first * head_dim_ * number_bytes(store.type);
    return {base + part.keys_at + first_byte,
            base + part.values_at + first_byte,
            reinterpret_cast<std::int32_t*>(base + part.positions_at) + first,
            reinterpret_cast<std::uint8_t*>(base + part.pinned_at) + first,
            count(g),
            store.capacity[to_index(g)],
            store.has_reach ? reinterpret_cast<float*>(base + part.reach_at) + first : nullptr};
}

HeadScores CudaKvCache::head_scores(const Store& store, int head) const {
    HeadScores scores{};
    const int g = layout_->kv_head_from_head(head / layout_->n_heads(), head % layout_->n_heads());
    const Part& part = store.parts[to_index(layout_->kv_head(g).owner_layer)];
    std::byte* base = part.data.data();
    const std::int64_t first = store.first_score[to_index(head)];
    for (std::size_t a = 0; a < kAccumulators; ++a)
        if (store.running[a]) scores.score[a] = reinterpret_cast<float*>(base + part.score_at[a]) + first;
    if (store.has_noise) scores.noise = reinterpret_cast<float*>(base + part.noise_at) + first;
    if (store.window > 0) scores.kept = reinterpret_cast<float*>(base + part.kept_at) + first;
    scores.kept_stride = part.n_scores;
    scores.window = store.window;
    scores.variant = policy_.variant_of_head.empty() ? 0 : policy_.variant_of_head[to_index(head)] + 1;
    return scores;
}

void CudaKvCache::find_units() {
    units_ = units_of(*layout_, policy_.scope);
    on_host_.assign(units_.size(), 0);
    for (std::size_t u = 0; u < units_.size(); ++u)
        for (int g = units_[u].head(1); g < units_[u].last; g += units_[u].step)
            if (positions(g) != positions(units_[u].first)) on_host_[u] = 1;
}

void CudaKvCache::write_tables() {
    const TableSizes sizes = table_sizes(n_kv_heads(), n_query_heads());
    if (tables_.size() != sizes.end) tables_ = Buffer<std::byte>(executor_, sizes.end);
    std::vector<std::byte> host(sizes.end);
    const auto put = [&](std::size_t where, const auto& value) {
        std::memcpy(host.data() + where, &value, sizeof(value));
    };
    for (int g = 0; g < n_kv_heads(); ++g)
        put(sizes.heads + to_index(g) * sizeof(AnyHead), device_head(store_, g));
    for (int h = 0; h < n_query_heads(); ++h)
        put(sizes.scores + to_index(h) * sizeof(HeadScores), head_scores(store_, h));
    for (std::size_t u = 0; u < units_.size(); ++u) {
        const HeadRef& reader = layout_->kv_head(units_[u].first).readers.front();
        const int head = reader.layer * layout_->n_heads() + reader.head;
        put(sizes.units + u * sizeof(DeviceUnit),
            DeviceUnit{units_[u].first, units_[u].last,
                       policy_.variant_of_head.empty() ? 0 : policy_.variant_of_head[to_index(head)] + 1,
                       on_host_[u] != 0 || units_[u].step > 1 ? 1 : 0});
        for (int g = units_[u].first; g < units_[u].last; g += units_[u].step)
            put(sizes.unit_of_head + to_index(g) * sizeof(std::int32_t), static_cast<std::int32_t>(u));
    }
    executor_->upload(tables_.data(), host.data(), host.size());
    executor_->wait();
}

/// Uploads the pins. A position pinned in any head of a unit is pinned in all.
void CudaKvCache::write_pins() {
    std::vector<std::vector<std::uint8_t>> flags(positions_.size());  // until they have been copied
    for (const Unit& unit : units_) {
        std::vector<std::int32_t> pinned;
        for (int g = unit.first; g < unit.last; g += unit.step)
            pinned.insert(pinned.end(), pinned_[to_index(g)].begin(), pinned_[to_index(g)].end());
        std::sort(pinned.begin(), pinned.end());
        for (int g = unit.first; g < unit.last; g += unit.step) {
            std::vector<std::uint8_t>& of_head = flags[to_index(g)];
            for (const std::int32_t position : positions(g))
                of_head.push_back(std::binary_search(pinned.begin(), pinned.end(), position) ? 1 : 0);
            upload_all(*executor_, device_head(store_, g).pinned, of_head);
        }
    }
    executor_->wait();
}

AnyLane CudaKvCache::view(const RowRule* rules, int row) const {
    const TableSizes sizes = table_sizes(n_kv_heads(), n_query_heads());
    std::byte* base = tables_.data();
    AnyLane lane{};
    lane.heads = reinterpret_cast<AnyHead*>(base + sizes.heads);
    lane.scores = reinterpret_cast<const HeadScores*>(base + sizes.scores);
    lane.units = reinterpret_cast<const DeviceUnit*>(base + sizes.units);
    lane.unit_of_head = reinterpret_cast<const std::int32_t*>(base + sizes.unit_of_head);
    lane.rules = rules;
    lane.n_units = static_cast<std::int32_t>(units_.size());
    lane.row = row;
    if (store_.window > 0) lane.n_kept_rows = kept_.at(policy_, row).front().n();
    return lane;
}

std::vector<PageRule> CudaKvCache::page_rules(int row) const {
    std::vector<PageRule> rules;
    if (row < policy_.n_prompt || !policy_.any_reads_pages()) return rules;
    for (int g = 0; g < n_kv_heads(); ++g) {
        const ResolvedPolicy& own = unit_policy(*layout_, policy_, g);
        rules.push_back(
            {own.reads_pages() ? own.page : 0, own.n_pages_read(), own.reads_own_page ? 1 : 0, 0});
    }
    return rules;
}

void CudaKvCache::reserve_pages(std::span<const PageRule> rules, int row) {
    int n_pages = 0;
    for (const PageRule& rule : rules)
        if (rule.length > 0) n_pages = std::max(n_pages, row / rule.length + 1);
    if (n_pages <= page_stride_) return;
    const int stride = std::max(page_stride_ + page_stride_ / 4, n_pages + 31) / 32 * 32;
    const std::size_t n = to_index(n_kv_heads()) * to_index(stride);
    page_stride_ = stale_from_ = 0;
    page_extremes_ = {};
    page_extremes_ = Buffer<float>(executor_, n * 2 * to_index(head_dim_));
    page_tokens_ = Buffer<std::int32_t>(executor_, n);
    page_stride_ = stride;
}

LanePages CudaKvCache::pages(const PageRule* rules) const {
    return {rules, page_extremes_.data(), page_tokens_.data(), page_stride_, stale_from_};
}

int CudaKvCache::steps_back(int g, int row, std::span<std::int32_t> steps) const {
    int place = 0, before = 0;
    for (int i = 0; i <= count(g); ++i) {
        const int slot = i < count(g) ? order(g)[to_index(i)] : i;
        const int here = i < count(g) ? positions(g)[to_index(slot)] : row;
        if (policy_.positions == Positions::compressed)
            place += compressed_gap(here - before);
        else
            place = policy_.positions == Positions::cache ? i : here;
        before = here;
        steps[to_index(slot)] = here - place;
    }
    return place;
}

int CudaKvCache::place_of_last(int g) const {
    if (policy_.positions != Positions::compressed)
        return policy_.positions == Positions::cache ? count(g) - 1 : positions(g)[to_index(order(g).back())];
    int place = 0, before = 0;
    for (int i = 0; i < count(g); ++i) {
        const int here = positions(g)[to_index(order(g)[to_index(i)])];
        place += compressed_gap(here - before);
        before = here;
    }
    return place;
}

const AnyHead* CudaKvCache::device_heads() const {
    return view(nullptr, 0).heads;
}

const HeadScores* CudaKvCache::device_scores() const {
    return view(nullptr, 0).scores;
}

std::vector<std::vector<std::int32_t>> CudaKvCache::all_slots() const {
    return order_;
}

CudaKvCache::SlotLists CudaKvCache::upload_slots(const std::vector<std::vector<std::int32_t>>& slots) const {
    std::vector<std::int32_t> all, offset = {0};
    int most = 0;
    for (const std::vector<std::int32_t>& of_head : slots) {
        most = std::max(most, static_cast<int>(of_head.size()));
        all.insert(all.end(), of_head.begin(), of_head.end());
        offset.push_back(static_cast<std::int32_t>(all.size()));
    }
    return {uploaded(executor_, all), uploaded(executor_, offset), most};
}

void CudaKvCache::copy_slots(const SlotLists& lists, const Buffer<std::byte>& from,
                             const std::array<bool, kAccumulators>& running, int first, int last) {
    if (lists.most == 0 || first == last) return;
    const TableSizes sizes = table_sizes(n_kv_heads(), n_query_heads());
    const ReaderTable table = of_->layout.table();
    with_number(store_.type, [&]<class K>() {
        CopySlots<K> copy{};
        copy.from = reinterpret_cast<const DeviceHead<K>*>(from.data() + sizes.heads) + first;
        copy.to = reinterpret_cast<const DeviceHead<K>*>(device_heads()) + first;
        copy.from_scores = reinterpret_cast<const HeadScores*>(from.data() + sizes.scores);
        copy.to_scores = device_scores();
        copy.kept = lists.slots.data();
        copy.offset = lists.offset.data() + first;
        copy.table = {table.readers, table.offset + first};
        for (int a = 0; a < kScores; ++a) copy.relative[a] = nearest_relative(a, running);
        copy.head_dim = head_dim_;
        copy.spans = kept_spans(policy_, last_row_);
        executor_->launch(copy, {last - first, (lists.most + copy.kSlots - 1) / copy.kSlots}, 256);
    });
    executor_->wait();
}

/// Allocates all memory before it changes anything, so that the cache stays unchanged when there is none
/// left.
void CudaKvCache::rebuild(const std::vector<std::vector<std::int32_t>>& kept, Store store) {
    Buffer<std::byte> tables(executor_, table_sizes(n_kv_heads(), n_query_heads()).end);
    const SlotLists lists = upload_slots(kept);

    // Both stores and both tables must exist until the slots are copied.
    const Buffer<std::byte> old_tables = std::exchange(tables_, std::move(tables));
    const Store old = std::exchange(store_, std::move(store));
    stale_from_ = 0;
    for (int g = 0; g < n_kv_heads(); ++g) {
        std::vector<std::int32_t> positions;
        for (const std::int32_t slot : kept[to_index(g)])
            positions.push_back(positions_[to_index(g)][to_index(slot)]);
        order_[to_index(g)].resize(positions.size());
        std::iota(order_[to_index(g)].begin(), order_[to_index(g)].end(), 0);
        positions_[to_index(g)] = std::move(positions);
        in_text_order_[to_index(g)] = 1;
    }
    find_units();
    write_tables();
    copy_slots(lists, old_tables, old.running, 0, n_kv_heads());
}

void CudaKvCache::reserve(std::span<const int> capacity) {
    if (largest_count() == 0) {  // nothing to copy layer by layer
        const std::vector<int> wanted(capacity.begin(), capacity.end());
        if (wanted == store_.capacity) return;
        store_ = store_of(wanted);
        return write_tables();
    }
    const SlotLists lists = upload_slots(slots_in_place());
    for (int layer = 0; layer < layout_->n_layers(); ++layer) {
        const int first = layout_->first_of_layer(layer), last = layout_->first_of_layer(layer + 1);
        // A store of this layer alone; the other parts stay where they are.
        Store next;
        next.capacity = store_.capacity;
        next.first_slot = store_.first_slot;
        next.first_score = store_.first_score;
        next.running = store_.running;
        next.has_noise = store_.has_noise;
        next.has_reach = store_.has_reach;
        next.window = store_.window;
        next.type = store_.type;
        for (int g = first; g < last; ++g)
            next.capacity[to_index(g)] = std::max(capacity[to_index(g)], count(g));
        if (next.capacity == store_.capacity) continue;
        Part part = make_part(next, layer);
        Buffer<std::byte> tables(executor_, tables_.size());
        next.parts = std::move(store_.parts);
        std::swap(next.parts[to_index(layer)], part);  // `part` is the old one until the slots are copied
        store_ = std::move(next);
        std::swap(tables_, tables);
        write_tables();
        copy_slots(lists, tables, store_.running, first, last);
    }
}

void CudaKvCache::clear() {
    for (auto* lists : {&positions_, &order_, &pinned_})
        for (std::vector<std::int32_t>& of_head : *lists) of_head.clear();
    in_text_order_.assign(in_text_order_.size(), 1);
    stale_from_ = 0;
    faults_.assign(faults_.size(), std::nullopt);
    if (shadow_) shadow_.emplace(n_kv_heads(), head_dim_);
    kept_.begin(policy_, 0);
    queries_.begin(0);
    store_ = store_of(std::vector<int>(positions_.size(), 0));
    find_units();
    write_tables();
}

std::unique_ptr<KvCache> CudaKvCache::clone() const {
    auto copy = std::make_unique<CudaKvCache>(executor_, of_);
    copy->policy_ = policy_;
    copy->positions_ = positions_;
    copy->order_ = order_;
    copy->in_text_order_ = in_text_order_;
    copy->pinned_ = pinned_;
    copy->faults_ = faults_;
    copy->shadow_ = shadow_;
    copy->kept_ = kept_;
    copy->queries_ = queries_;
    copy->store_ = store_of(store_.capacity);
    copy->units_ = units_;
    copy->on_host_ = on_host_;
    copy->write_tables();
    copy->copy_slots(upload_slots(slots_in_place()), tables_, store_.running, 0, n_kv_heads());
    copy->set_future(future());
    copy->set_repeats(repeats());
    return copy;
}

/// Returns the slots that hold tokens, so that sums keep their order. Others are not read.
CudaKvCache::PositionLists CudaKvCache::slots_in_place() const {
    PositionLists slots(positions_.size());
    for (int g = 0; g < n_kv_heads(); ++g) {
        slots[to_index(g)].resize(to_index(count(g)));
        std::iota(slots[to_index(g)].begin(), slots[to_index(g)].end(), 0);
    }
    return slots;
}

void CudaKvCache::set_policy(const ResolvedPolicy& policy, const PositionLists& removed, int last_row) {
    const bool had_noise = store_.has_noise, has_noise = draws_token_noise(policy);
    const bool redraw =
        has_noise && (!had_noise || policy.seed != policy_.seed || policy.noise != policy_.noise);
    std::vector<RowRule> rules;
    row_rules(policy, 0, false, rules);
    const Buffer<RowRule> rule = uploaded(executor_, rules);
    const bool is_empty =
        std::all_of(positions_.begin(), positions_.end(), [](const auto& p) { return p.empty(); });
    const auto running =
        running_accumulators(policy, is_empty ? std::array<bool, kAccumulators>{} : store_.running);
    const NumberType type = number_type(kv_type_for(policy.kv_dtype, *of_->model));
    std::optional<Store> converted;
    const int window = policy.kept_rows(), had_window = store_.window;
    const bool has_reach = policy.any([](const ResolvedPolicy& one) { return names_reach(one.score); });
    if (type != store_.type)
        converted = make_store(store_.capacity, running, has_noise, has_reach, window, type);
    std::vector<int> beginning;
    if (store_.running[kByFormula])
        beginning = heads_that_begin_a_formula(policy_, policy, layout_->n_layers(), layout_->n_heads());
    ResolvedPolicy old = std::exchange(policy_, policy);
    last_row_ = last_row;
    stale_from_ = 0;
    try {
        if (running == store_.running && has_noise == had_noise && has_reach == store_.has_reach &&
            window == store_.window)
            remove_in_place(removed);
        else
            rebuild(slots_without(removed),
                    make_store(store_.capacity, running, has_noise, has_reach, window, store_.type));
    } catch (...) {
        policy_ = std::move(old);
        throw;
    }
    if (window != had_window || policy.ranks_as_rkv_code != old.ranks_as_rkv_code ||  // logits, or not
        policy.fair != old.fair)
        kept_.change(old, policy, had_window, last_row);
    queries_.change(policy, n_query_heads(), head_dim_, last_row);
    if (converted) convert_to(std::move(*converted));
    for (const int head : beginning) {
        const int g = layout_->kv_head_from_head(head / layout_->n_heads(), head % layout_->n_heads());
        const HeadScores scores = head_scores(store_, head);
        executor_->copy(scores.score[kByFormula], scores.score[kSum], to_index(count(g)) * sizeof(float));
    }
    if (!policy.any_reads_pages()) {
        page_extremes_ = {};
        page_tokens_ = {};
        page_stride_ = 0;
    }
    if (!policy.shadow) shadow_.reset();
    if (policy.shadow && !shadow_ && has_no_room()) shadow_.emplace(n_kv_heads(), head_dim_);
    const bool unpinned = unpin(removed);
    if (unpinned || any_pins()) write_pins();
    if (redraw) draw_noise(rule);
}

std::optional<KvFault> CudaKvCache::fault() const {
    for (const std::optional<KvFault>& of_head : faults_)
        if (of_head) return of_head;
    return std::nullopt;
}

void CudaKvCache::note_fault(int g, int position, bool is_key, bool by_rounding) {
    if (std::optional<KvFault>& of_head = faults_[to_index(g)]; !of_head)
        of_head = KvFault{g, position, is_key, kv_type_of(store_.type), by_rounding};
}

template <class From, class To>
void CudaKvCache::find_faults(int g, bool is_key, std::span<const From> old, std::span<const To> now) {
    const std::int64_t capacity = this->capacity(g);
    for (const std::int32_t slot : order(g))
        for (int d = 0; d < head_dim_; ++d) {
            const auto at =
                to_index(is_key ? (d / 8 * capacity + slot) * 8 + d % 8 : std::int64_t{slot} * head_dim_ + d);
            if (is_finite(widen(now[at])) || faults_[to_index(g)]) continue;
            faults_[to_index(g)] = KvFault{g, positions(g)[to_index(slot)], is_key,
                                           kv_type_of(kNumberType<To>), is_finite(widen(old[at]))};
        }
}

/// A change of type is rare, so no kernel does it.
void CudaKvCache::convert_to(Store store) {
    for (int layer = 0; layer < layout_->n_layers(); ++layer) {
        const Part &from = store_.parts[to_index(layer)], &to = store.parts[to_index(layer)];
        if (from.data.size() == 0) continue;
        std::int64_t n_slots = 0, n_scores = 0;
        for (int g = layout_->first_of_layer(layer); g < layout_->first_of_layer(layer + 1); ++g) {
            const std::int64_t own = store_.capacity[to_index(g)];
            n_slots += own;
            n_scores += own * static_cast<std::int64_t>(layout_->kv_head(g).readers.size());
        }
        const auto copy = [&](std::size_t to_at, std::size_t from_at, std::int64_t n, std::size_t size) {
            executor_->copy(to.data.data() + to_at, from.data.data() + from_at, to_index(n) * size);
        };
        copy(to.positions_at, from.positions_at, n_slots, sizeof(std::int32_t));
        copy(to.pinned_at, from.pinned_at, n_slots, 1);
        for (std::size_t a = 0; a < kAccumulators; ++a)
            if (store.running[a]) copy(to.score_at[a], from.score_at[a], n_scores, sizeof(float));
        if (store.has_noise) copy(to.noise_at, from.noise_at, n_scores, sizeof(float));
        copy(to.kept_at, from.kept_at, store.window * n_scores, sizeof(float));
        if (store.has_reach) {  // values are rounded otherwise
            const std::vector<float> due(to_index(n_slots), kReachDue);
            executor_->upload(to.data.data() + to.reach_at, due.data(), due.size() * sizeof(float));
            executor_->wait();
        }
        const auto convert = [&]<class From, class To>(std::size_t to_at, std::size_t from_at,
                                                       bool are_keys) {
            std::vector<From> old(to_index(n_slots * head_dim_));
            std::vector<To> narrowed(old.size());
            executor_->download(old.data(), from.data.data() + from_at, old.size() * sizeof(From));
            executor_->wait();
            for (std::size_t i = 0; i < old.size(); ++i) narrow(widen(old[i]), narrowed[i]);
            executor_->upload(to.data.data() + to_at, narrowed.data(), narrowed.size() * sizeof(To));
            executor_->wait();
            for (int g = layout_->first_of_layer(layer); g < layout_->first_of_layer(layer + 1); ++g) {
                const auto first = to_index(store_.first_slot[to_index(g)] * head_dim_),
                           n = to_index(std::int64_t{capacity(g)} * head_dim_);
                find_faults<From, To>(g, are_keys, std::span(old).subspan(first, n),
                                      std::span(narrowed).subspan(first, n));
            }
        };
        with_number(store_.type, [&]<class From>() {
            with_number(store.type, [&]<class To>() {
                convert.template operator()<From, To>(to.keys_at, from.keys_at, true);
                convert.template operator()<From, To>(to.values_at, from.values_at, false);
            });
        });
    }
    store_ = std::move(store);
    write_tables();
}

void CudaKvCache::draw_noise(const Buffer<RowRule>& rule) {
    const int most = largest_count();
    if (most == 0) return;
    with_number(store_.type, [&]<class K>() {
        DrawNoise<K> draw{};
        draw.heads = reinterpret_cast<const DeviceHead<K>*>(device_heads());
        draw.scores = device_scores();
        draw.rule = rule.data();
        draw.table = of_->layout.table();
        draw.n_heads = layout_->n_heads();
        executor_->launch(draw, {n_kv_heads(), (most + 255) / 256}, 256);
    });
    executor_->wait();
}

}  // namespace keyhole::cuda
