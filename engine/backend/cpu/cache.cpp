#include "engine/backend/cpu/cache.h"

#include "engine/backend/common/shared.h"
#include "engine/backend/common/value_reach.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/large_pages.h"
#include "engine/base/reserved_pages.h"
#include "engine/model/kv_default.h"
#include "engine/policy/formula_maths.h"
#include "engine/policy/math.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace keyhole::cpu {
CpuKvCache::CpuKvCache(const KvLayout& layout, int head_dim)
    : layout_(&layout),
      head_dim_(head_dim),
      count_(to_index(layout.n_kv_heads()), 0),
      in_order_(count_.size(), 1),
      pinned_(count_.size()),
      faults_(count_.size()),
      store_(make_store(std::vector<int>(count_.size(), 0), {true}, false)),
      pages_(count_.size()) {}

CpuKvCache::CpuKvCache(std::shared_ptr<const Model> model)
    : CpuKvCache(model->layout(), model->config().head_dim) {
    model_ = std::move(model);
}

CacheUse CpuKvCache::use() const {
    CacheUse use;
    for (int n : count_) use.stored_tokens += n;
    const std::int64_t row_bytes = kv_row_bytes(store_.type, head_dim_);
    use.stored_bytes = use.stored_tokens * 2 * row_bytes;
    for (int g = 0; g < layout_->n_kv_heads(); ++g) {
        // K and V, position, order and lengths, then scores, noise and kept rows of each reader.
        const auto n_running = std::count(store_.running.begin(), store_.running.end(), true) +
                               (store_.has_noise ? 1 : 0) + store_.window;
        const auto n_lengths = std::count(store_.has_lengths.begin(), store_.has_lengths.end(), true);
        const auto words =
            2 + n_lengths + n_running * static_cast<std::int64_t>(layout_->kv_head(g).readers.size());
        use.allocated_bytes +=
            capacity(g) * (2 * row_bytes + words * static_cast<std::int64_t>(sizeof(float)));
    }
    use.allocated_bytes += known_bytes() + queries_.size_bytes() + page_bytes();
    if (shadow_) use.shadow_bytes = shadow_->bytes();
    return use;
}

RankedUnit CpuKvCache::rank(int kv_head, const RankFormulas& by, int row) const {
    return rank_by(*this, kv_head, by, row);
}

std::vector<std::int32_t> CpuKvCache::stored_positions(int g) const {
    std::vector<std::int32_t> out(to_index(count(g)));
    copy_in_order(g, positions(g), out.data());
    return out;
}

std::unique_ptr<KvCache> CpuKvCache::clone() const {
    auto copy = std::make_unique<CpuKvCache>(*layout_, head_dim_);
    copy->model_ = model_;
    copy->policy_ = policy_;
    copy->count_ = count_;
    copy->in_order_ = in_order_;
    copy->pinned_ = pinned_;
    copy->faults_ = faults_;
    copy->shadow_ = shadow_;
    copy->kept_ = kept_;
    copy->queries_ = queries_;
    copy->pages_ = pages_;
    copy->store_ = make_store(store_.capacity, store_.running, store_.has_noise);
    copy->copy_from(store_);
    copy->set_future(future());
    copy->set_repeats(repeats());
    return copy;
}

int CpuKvCache::order_index(int g, int position) const {
    const std::int32_t* first = order(g);
    const std::int32_t* last = first + count(g);
    const std::int32_t* found = std::lower_bound(
        first, last, position, [&](std::int32_t slot, int wanted) { return positions(g)[slot] < wanted; });
    return found != last && positions(g)[*found] == position ? static_cast<int>(found - first) : -1;
}

bool CpuKvCache::evict(int g, int position) {
    const int index = order_index(g, position);
    if (index < 0) return false;
    evict(g, std::span<const int>(&index, 1));
    return true;
}

bool CpuKvCache::set_pinned(int g, int position, bool pinned) {
    if (order_index(g, position) < 0) return false;
    std::vector<std::int32_t>& of_head = pinned_[to_index(g)];
    const auto at = std::lower_bound(of_head.begin(), of_head.end(), position);
    const bool is_pinned = at != of_head.end() && *at == position;
    if (pinned && !is_pinned) of_head.insert(at, position);
    if (!pinned && is_pinned) of_head.erase(at);
    return true;
}

int CpuKvCache::largest_count() const {
    return *std::max_element(count_.begin(), count_.end());
}

void CpuKvCache::clear() {
    std::fill(count_.begin(), count_.end(), 0);
    std::fill(in_order_.begin(), in_order_.end(), char{1});
    for (std::vector<std::int32_t>& of_head : pinned_) of_head.clear();
    std::fill(faults_.begin(), faults_.end(), std::nullopt);
    if (shadow_) shadow_.emplace(layout_->n_kv_heads(), head_dim_);
    kept_.begin(policy_, 0);
    queries_.begin(0);
    for (KeyPages& of_head : pages_) of_head = {};
    store_ = make_store(std::vector<int>(count_.size(), 0), store_.running, store_.has_noise);
}

template <class Visit>
void CpuKvCache::for_readers(int g, Visit visit) const {
    for (const HeadRef& reader : layout_->kv_head(g).readers)
        visit(reader, reader.layer * layout_->n_heads() + reader.head);
}

std::vector<int> CpuKvCache::slots_to_keep(std::span<const int> capacity) const {
    constexpr std::int64_t kMostKept = 8;  // as a multiple of the capacity
    std::vector<int> kept(capacity.begin(), capacity.end());
    const std::int64_t bytes = std::accumulate(capacity.begin(), capacity.end(), std::int64_t{0}) * 2 *
                               kv_row_bytes(wanted_type(), head_dim_);
    if (model_ == nullptr || bytes == 0) return kept;
    // Large pages are read faster, but they take memory for all slots: within these bounds few slots are
    // kept, and the cache moves when they are full. A smaller one grows in place up to them.
    constexpr std::int64_t kMoves = std::int64_t{32} << 20, kTooMuchToMove = std::int64_t{256} << 20;
    const bool moves = has_large_pages() && bytes >= kMoves && bytes < kTooMuchToMove;
    const auto most_of = [&](std::int64_t slots) {
        if (moves) return slots * 17 / 16 - 1;
        if (bytes >= kMoves || !has_large_pages()) return kMostKept * slots;
        return std::min(kMostKept * slots, slots * kMoves / bytes);
    };
    for (int g = 0; g < layout_->n_kv_heads(); ++g) {
        const ResolvedPolicy& policy = unit_policy(*layout_, policy_, g);
        int& slots = kept[to_index(g)];
        if (slots == 0 || !policy.grows()) continue;
        // An odd number, so that heads reach the ends of their pages in different rows.
        const auto most = std::min<std::int64_t>(model_->config().n_ctx, most_of(slots)) | 1;
        slots = std::max(slots, static_cast<int>(most));
    }
    return kept;
}

CpuKvCache::Store CpuKvCache::make_store(std::vector<int> capacity,
                                         const std::array<bool, kAccumulators>& running,
                                         bool has_noise) const {
    std::vector<int> kept = slots_to_keep(capacity);
    if (kept == capacity) return make_store(capacity, std::move(kept), running, has_noise);
    try {
        return make_store(capacity, std::move(kept), running, has_noise);
    } catch (const Error&) {  // no room for that many addresses: growing will move the cache
        return make_store(capacity, capacity, running, has_noise);
    }
}

CpuKvCache::Store CpuKvCache::make_store(std::vector<int> capacity, std::vector<int> kept,
                                         const std::array<bool, kAccumulators>& running,
                                         bool has_noise) const {
    Store store;
    store.capacity = std::move(capacity);
    store.kept = std::move(kept);
    store.running = running;
    store.has_noise = has_noise;
    store.type = wanted_type();
    store.has_lengths = wanted_lengths();
    store.window = policy_.kept_rows();
    std::int64_t n_slots = 0, n_scores = 0;
    store.first_score.resize(to_index(layout_->n_layers() * layout_->n_heads()));
    for (int g = 0; g < layout_->n_kv_heads(); ++g) {
        const std::int64_t own = store.kept[to_index(g)];
        store.first_slot.push_back(std::exchange(n_slots, n_slots + own));
        for_readers(g, [&](const HeadRef&, int head) {
            store.first_score[to_index(head)] = std::exchange(n_scores, n_scores + own);
        });
    }
    std::size_t words = 0;
    auto take = [&words](std::int64_t n) { return std::exchange(words, words + to_index(n)); };
    constexpr std::int64_t kWord = sizeof(float);
    const std::int64_t kv_words = (n_slots * kv_row_bytes(store.type, head_dim_) + kWord - 1) / kWord;
    store.keys_at = take(kv_words);
    store.values_at = take(kv_words);
    store.positions_at = take(n_slots);
    store.order_at = take(n_slots);
    for (std::size_t i = 0; i < kLengths.size(); ++i)
        if (store.has_lengths[i]) store.lengths_at[i] = take(n_slots);
    for (std::size_t a = 0; a < kAccumulators; ++a)
        if (running[a]) store.score_at[a] = take(n_scores);
    if (has_noise) store.noise_at = take(n_scores);
    store.n_scores = n_scores;
    store.window_at = take(store.window * n_scores);
    if (words > 0) store.pages = pages_for(words * sizeof(float), "the KV cache of a lane");
    // Large pages also take memory for slots that are reserved alone: no more than a quarter of the rest.
    const auto sum = [](const std::vector<int>& v) { return std::accumulate(v.begin(), v.end(), 0LL); };
    if (4 * sum(store.kept) <= 5 * sum(store.capacity))
        ask_for_large_pages(store.pages.as<const std::byte>());
    return store;
}

void CpuKvCache::copy_from(const Store& old) {
    for (int g = 0; g < layout_->n_kv_heads(); ++g) {
        const std::size_t n = to_index(count(g));
        if (n == 0) continue;
        convert_kv(old.rows(old.keys_at, g, head_dim_), count(g), keys(g));
        convert_kv(old.rows(old.values_at, g, head_dim_), count(g), values(g));
        std::copy_n(old.ints(old.positions_at, g), n, positions(g));
        std::copy_n(old.ints(old.order_at, g), n, order(g));
        copy_lengths(old, g);
        for_readers(g, [&](const HeadRef&, int head) {
            for (int a = 0; a < kAccumulators; ++a)
                if (float* to = score(a, head))
                    std::copy_n(old.score(nearest_relative(a, old.running), head), n, to);
            if (old.has_noise && store_.has_noise)
                std::copy_n(old.of_head(old.noise_at, head), n, noise(head));
            copy_kept_rows(old, g, head);
        });
    }
}

/// Copies a head's lengths, or computes them where they were not kept or the type rounds otherwise.
void CpuKvCache::copy_lengths(const Store& old, int g) {
    const bool same = old.type == store_.type && old.has_lengths == store_.has_lengths;
    for (std::size_t i = 0; i < kLengths.size() && same; ++i)
        if (store_.has_lengths[i])
            std::copy_n(old.floats(old.lengths_at[i], g), count(g), store_.floats(store_.lengths_at[i], g));
    for (int slot = 0; slot < count(g) && !same; ++slot) measure(g, slot);
}

void CpuKvCache::measure(int g, int slot) {
    std::vector<float> row;
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
        if (!store_.has_lengths[i]) continue;
        if (kLengths[i] == Quantity::wvnorm) {
            store_.floats(store_.lengths_at[i], g)[slot] = kReachDue;
            continue;
        }
        row.resize(to_index(head_dim_));
        widen_kv((kLengths[i] == Quantity::knorm ? keys(g) : values(g)).from_row(slot), 1, row.data());
        store_.floats(store_.lengths_at[i], g)[slot] =
            length_of(head_dim_, [&](int c) { return row[to_index(c)]; });
    }
}

void CpuKvCache::measure_reach(int g) {
    float* reach = const_cast<float*>(lengths(Quantity::wvnorm, g));
    if (reach == nullptr) return;
    std::vector<int> due;
    for (int slot = 0; slot < count(g); ++slot)
        if (reach[slot] == kReachDue) due.push_back(slot);
    if (due.empty()) return;
    std::vector<float> rows(due.size() * to_index(head_dim_)), found(due.size(), NAN);
    for (std::size_t i = 0; i < due.size(); ++i)
        widen_kv(values(g).from_row(due[i]), 1, rows.data() + i * to_index(head_dim_));
    if (model_ != nullptr) reach_of_values(*model_, layout_->kv_head(g), rows.data(), found);
    for (std::size_t i = 0; i < due.size(); ++i) reach[due[i]] = found[i];
}

/// Copies a head's kept rows. Where their number changes, the last ones of each token go to their new places.
void CpuKvCache::copy_kept_rows(const Store& old, int g, int head) {
    const int n = count(g), n_rows = std::min(old.window, store_.window);
    const auto old_row = [&](int row) {
        return old.of_head(old.window_at, head) + row % old.window * old.n_scores;
    };
    if (old.window == store_.window) {
        for (int r = 0; r < n_rows; ++r) std::copy_n(old_row(r), n, kept_row(r, head));
        return;
    }
    for (const WinRows& own : win_rows(policy_, last_row_))
        for (int r = 0; r < n_rows && own.last - r >= 0; ++r) {
            const float* from = old_row(own.last - r);
            float* to = kept_row(own.last - r, head);
            for (int slot = 0; slot < n; ++slot)
                if (positions(g)[slot] >= own.begin && positions(g)[slot] < own.end) to[slot] = from[slot];
        }
}

void CpuKvCache::move_to(Store store) {
    const Store old = std::exchange(store_, std::move(store));
    copy_from(old);
    if (store_.type == old.type) return;
    find_faults(old);
    for (KeyPages& of_head : pages_) of_head.clear();
}

std::optional<KvFault> CpuKvCache::fault() const {
    for (const std::optional<KvFault>& of_head : faults_)
        if (of_head) return of_head;
    return std::nullopt;
}

void CpuKvCache::note_fault(int g, int slot, bool is_key, bool was_finite) {
    if (std::optional<KvFault>& of_head = faults_[to_index(g)]; !of_head)
        of_head = KvFault{g, positions(g)[slot], is_key, store_.type, was_finite};
}

void CpuKvCache::find_faults(const Store& old) {
    for (int g = 0; g < layout_->n_kv_heads(); ++g)
        for (int i = 0; i < count(g); ++i) {
            const int slot = order(g)[i];
            if (!is_finite_kv(keys(g).from_row(slot)))
                note_fault(g, slot, true, is_finite_kv(old.rows(old.keys_at, g, head_dim_).from_row(slot)));
            if (!is_finite_kv(values(g).from_row(slot)))
                note_fault(g, slot, false,
                           is_finite_kv(old.rows(old.values_at, g, head_dim_).from_row(slot)));
        }
}

void CpuKvCache::reserve(std::span<const int> capacity) {
    std::vector<int> room(capacity.begin(), capacity.end());
    bool in_place = true;
    for (std::size_t g = 0; g < room.size(); ++g) {
        room[g] = std::max(room[g], count_[g]);
        in_place = in_place && room[g] >= store_.capacity[g] && room[g] <= store_.kept[g];
    }
    if (in_place)
        store_.capacity = std::move(room);
    else
        move_to(make_store(std::move(room), store_.running, store_.has_noise));
}

void CpuKvCache::reserve(int capacity) {
    reserve(std::vector<int>(count_.size(), capacity));
}

void CpuKvCache::set_policy(const ResolvedPolicy& policy, int last_row) {
    const bool had_noise = store_.has_noise, has_noise = draws_token_noise(policy);
    const bool redraw =
        has_noise && (!had_noise || policy.seed != policy_.seed || policy.noise != policy_.noise);
    std::vector<int> beginning;
    if (store_.running[kByFormula])
        beginning = heads_that_begin_a_formula(policy_, policy, layout_->n_layers(), layout_->n_heads());
    ResolvedPolicy before = std::exchange(policy_, policy);
    std::optional<Store> store;
    try {  // takes the memory before anything changes
        store = store_for_policy();
    } catch (...) {
        policy_ = std::move(before);
        throw;
    }
    if (policy.kept_rows() != store_.window ||
        policy.ranks_as_rkv_code != before.ranks_as_rkv_code ||  // logits, or not
        policy.fair != before.fair)
        kept_.change(before, policy, store_.window, last_row);
    last_row_ = last_row;
    queries_.change(policy, layout_->n_layers() * layout_->n_heads(), head_dim_, last_row);
    if (!policy.any_reads_pages())
        for (KeyPages& of_head : pages_) of_head = {};
    if (!policy.shadow) shadow_.reset();
    if (policy.shadow && !shadow_ && has_no_room()) shadow_.emplace(layout_->n_kv_heads(), head_dim_);
    if (store) move_to(std::move(*store));
    for (const int head : beginning) begin_formula(head);
    for (int g = 0; g < layout_->n_kv_heads(); ++g) measure_reach(g);
    if (!redraw) return;
    for (int g = 0; g < layout_->n_kv_heads(); ++g)
        for (int slot = 0; slot < count(g); ++slot) draw_noise(g, slot);
}

/// Returns what the policy needs; nothing where the present store will do.
std::optional<CpuKvCache::Store> CpuKvCache::store_for_policy() const {
    // Without tokens there are no running scores to continue.
    const auto running = running_accumulators(
        policy_, largest_count() > 0 ? store_.running : std::array<bool, kAccumulators>{});
    const bool has_noise = draws_token_noise(policy_);
    if (running == store_.running && has_noise == store_.has_noise && wanted_type() == store_.type &&
        policy_.kept_rows() == store_.window && wanted_lengths() == store_.has_lengths)
        return std::nullopt;
    return make_store(store_.capacity, running, has_noise);
}

/// Begins a head's scores by formula as those of a lane begin whose first formula it is.
void CpuKvCache::begin_formula(int head) {
    const int n_heads = layout_->n_heads(), g = layout_->kv_head_from_head(head / n_heads, head % n_heads);
    std::copy_n(score(nearest_relative(kByFormula, {true}), head), count(g), score(kByFormula, head));
}

void CpuKvCache::draw_noise(int g, int slot) {
    for_readers(g, [&](const HeadRef& reader, int head) {
        noise(head)[slot] = noise_at(policy_.noise, policy_.draw, policy_.seed, reader.layer, reader.head, 0,
                                     positions(g)[slot]);
    });
}

const KeyPages& CpuKvCache::pages(int g, int page) {
    KeyPages& pages = pages_[to_index(g)];
    pages.begin(page, head_dim_);
    std::vector<float> key(to_index(head_dim_));
    for (int i = pages.n_tokens(); i < count(g); ++i) {
        const std::int32_t slot = order(g)[i];
        widen_kv(keys(g).from_row(slot), 1, key.data());
        pages.add(positions(g)[slot], key.data());
    }
    return pages;
}

std::int64_t CpuKvCache::page_bytes() const {
    std::int64_t sum = 0;
    for (const KeyPages& of_head : pages_) sum += of_head.bytes();
    return sum;
}

KvType CpuKvCache::wanted_type() const {
    if (model_ != nullptr) return kv_type_for(policy_.kv_dtype, *model_);
    return policy_.kv_dtype == KvType::automatic ? KvType::f32 : policy_.kv_dtype;
}

CpuKvCache::Lengths CpuKvCache::wanted_lengths() const {
    Lengths wanted{};
    for (std::size_t i = 0; i < kLengths.size(); ++i)
        wanted[i] = policy_.any([&](const ResolvedPolicy& one) {
            const bool keeps_for_selections = kLengths[i] != Quantity::wvnorm && policy_.evicts_at_rows();
            return (one.names(kLengths[i]) && keeps_for_selections) ||
                   (one.score && one.score->names(kLengths[i]));
        });
    return wanted;
}

void CpuKvCache::write(int g, int slot, const float* key, const float* value) {
    const auto store = [&](const float* x, const KvRows& row, bool is_key) {
        narrow_kv(x, row);
        if (is_finite_kv(row)) return;
        note_fault(g, slot, is_key, std::all_of(x, x + head_dim_, [](float v) { return std::isfinite(v); }));
    };
    store(key, keys(g).from_row(slot), true);
    store(value, values(g).from_row(slot), false);
    measure(g, slot);
}

int CpuKvCache::append(int g, int position) {
    int& n = count_[to_index(g)];
    KH_ASSERT(n < capacity(g), "count={} capacity={}", n, capacity(g));
    const int slot = n++;
    positions(g)[slot] = position;
    order(g)[slot] = slot;
    for_readers(g, [&](const HeadRef&, int head) {
        for (int a = 0; a < kAccumulators; ++a)
            if (float* scores = score(a, head)) scores[slot] = 0;
    });
    if (store_.has_noise) draw_noise(g, slot);
    return slot;
}

void CpuKvCache::move_slot(int g, int from, int to) {
    convert_kv(keys(g).from_row(from), 1, keys(g).from_row(to));
    convert_kv(values(g).from_row(from), 1, values(g).from_row(to));
    positions(g)[to] = positions(g)[from];
    for (std::size_t i = 0; i < kLengths.size(); ++i)
        if (store_.has_lengths[i]) {
            float* lengths = store_.floats(store_.lengths_at[i], g);
            lengths[to] = lengths[from];
        }
    for_readers(g, [&](const HeadRef&, int head) {
        for (int a = 0; a < kAccumulators; ++a)
            if (float* scores = score(a, head)) scores[to] = scores[from];
        if (float* draws = noise(head)) draws[to] = draws[from];
        for (int r = 0; r < store_.window; ++r) kept_row(r, head)[to] = kept_row(r, head)[from];
    });
}

void CpuKvCache::evict(int g, std::span<const int> order_indices) {
    if (order_indices.empty()) return;
    in_order_[to_index(g)] = 0;
    pages_[to_index(g)].clear();
    int& n = count_[to_index(g)];
    std::int32_t* by_position = order(g);
    const int kept = n - static_cast<int>(order_indices.size());
    std::vector<std::int32_t> holes;  // freed slots below the new end
    std::int32_t* to = by_position + order_indices.front();
    for (std::size_t v = 0; v < order_indices.size(); ++v) {
        const int index = order_indices[v], next = v + 1 < order_indices.size() ? order_indices[v + 1] : n;
        KH_ASSERT(index < next && next <= n, "index={} next={} count={}", index, next, n);
        const std::int32_t slot = by_position[index];
        if (!pinned(g).empty()) std::erase(pinned_[to_index(g)], positions(g)[slot]);
        if (slot < kept) holes.push_back(slot);
        to = std::copy(by_position + index + 1, by_position + next, to);
    }
    n = kept;
    // Slots beyond the new end move into the holes. The newest token usually has the last slot, so the search
    // starts at the end.
    std::size_t hole = 0;
    for (int i = kept - 1; hole < holes.size(); --i) {
        if (by_position[i] < kept) continue;
        move_slot(g, by_position[i], holes[hole]);
        by_position[i] = holes[hole++];
    }
}

}  // namespace keyhole::cpu
