// Which slots hold which tokens: the host's lists, evictions and pins, and the moves on the device.
#include "engine/backend/cuda/cache.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace keyhole::cuda {

void CudaKvCache::note_appended(int row) {
    for (int g = 0; g < n_kv_heads(); ++g) {
        KH_ASSERT(count(g) < capacity(g), "count={} capacity={}", count(g), capacity(g));
        order_[to_index(g)].push_back(count(g));
        positions_[to_index(g)].push_back(row);
    }
}

void CudaKvCache::note_removed(int g, std::span<const std::int32_t> slots, std::vector<std::int32_t>& out) {
    std::vector<std::int32_t>& of_head = positions_[to_index(g)];
    const std::size_t first = out.size();
    if (!slots.empty()) in_text_order_[to_index(g)] = 0;
    if (!slots.empty()) stale_from_ = 0;
    for (const std::int32_t slot : slots) {
        const int index = order_index(g, of_head[to_index(slot)]);
        KH_ASSERT(index >= 0, "slot={}", slot);
        out.push_back(of_head[to_index(slot)]);
        order_[to_index(g)].erase(order_[to_index(g)].begin() + index);
    }
    std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
    // The same moves as in CompactHead: slots beyond the new end fill the holes below it, both in order.
    const int end = count(g) - static_cast<int>(slots.size());
    std::size_t hole = 0, victim = 0;
    while (victim < slots.size() && slots[victim] < end) ++victim;
    for (int slot = end; slot < count(g); ++slot) {
        if (victim < slots.size() && slots[victim] == slot) {
            ++victim;
            continue;
        }
        const int to = slots[hole++];
        order_[to_index(g)][to_index(order_index(g, of_head[to_index(slot)]))] = to;
        of_head[to_index(to)] = of_head[to_index(slot)];
    }
    of_head.resize(to_index(end));
}

void CudaKvCache::note_filled(int g, std::vector<std::int32_t> positions) {
    order_[to_index(g)].resize(positions.size());
    std::iota(order_[to_index(g)].begin(), order_[to_index(g)].end(), 0);
    positions_[to_index(g)] = std::move(positions);
    in_text_order_[to_index(g)] = 1;
    stale_from_ = 0;
}

void CudaKvCache::adopt() {
    find_units();
    write_tables();
    if (!store_.has_noise) return;
    std::vector<RowRule> rules;
    row_rules(policy_, 0, false, rules);
    draw_noise(uploaded(executor_, rules));
}

int CudaKvCache::order_index(int g, int position) const {
    const std::vector<std::int32_t>& slots = order(g);
    const auto found = std::lower_bound(
        slots.begin(), slots.end(), position,
        [&](std::int32_t slot, int wanted) { return positions(g)[to_index(slot)] < wanted; });
    return found != slots.end() && positions(g)[to_index(*found)] == position
               ? static_cast<int>(found - slots.begin())
               : -1;
}

bool CudaKvCache::evict(int g, int position) {
    if (order_index(g, position) < 0) return false;
    std::vector<std::vector<std::int32_t>> positions(positions_.size());
    positions[to_index(g)].push_back(position);
    remove(positions);
    return true;
}

void CudaKvCache::remove(const PositionLists& removed) {
    remove_in_place(removed);
    if (unpin(removed)) write_pins();
}

/// Makes the moves of note_removed() on the device. A second store would double the memory for a moment.
void CudaKvCache::remove_in_place(const PositionLists& removed) {
    PositionLists slots(positions_.size());
    std::vector<std::int32_t> from, to, offset = {0};
    for (int g = 0; g < n_kv_heads(); ++g) {
        std::vector<std::int32_t>& victims = slots[to_index(g)];
        if (!removed.empty())
            for (const std::int32_t position : removed[to_index(g)])
                if (const int at = order_index(g, position); at >= 0)
                    victims.push_back(order(g)[to_index(at)]);
        std::sort(victims.begin(), victims.end());
        const int end = count(g) - static_cast<int>(victims.size());
        std::size_t hole = 0;
        for (int slot = end; slot < count(g); ++slot) {
            if (std::binary_search(victims.begin(), victims.end(), slot)) continue;
            from.push_back(slot);
            to.push_back(victims[hole++]);
        }
        offset.push_back(static_cast<std::int32_t>(from.size()));
    }
    if (!from.empty()) {
        const Buffer<std::int32_t> device_from = uploaded(executor_, from),
                                   device_to = uploaded(executor_, to),
                                   device_offset = uploaded(executor_, offset);
        with_number(store_.type, [&]<class K>() {
            executor_->launch(MoveSlots<K>{reinterpret_cast<const DeviceHead<K>*>(device_heads()),
                                           device_scores(), of_->layout.table(), device_from.data(),
                                           device_to.data(), device_offset.data(), head_dim_},
                              {n_kv_heads()}, 64);
        });
        executor_->wait();
    }
    std::vector<std::int32_t> positions;
    for (int g = 0; g < n_kv_heads(); ++g) note_removed(g, slots[to_index(g)], positions);
    find_units();
    if (any_unit_out_of_step()) try {
            return rebuild(all_slots(), store_of(store_.capacity));
        } catch (const Error& error) {
            if (error.code() != ErrorCode::no_memory) throw;  // without memory, the host goes on selecting
        }
    write_tables();
}

/// Returns whether a unit's KV heads hold the same tokens, but in other slots.
bool CudaKvCache::any_unit_out_of_step() const {
    for (std::size_t u = 0; u < units_.size(); ++u) {
        if (!is_on_host(u)) continue;
        const std::vector<std::int32_t> first = stored_positions(units_[u].first);
        bool same = true;
        for (int g = units_[u].head(1); g < units_[u].last && same; g += units_[u].step)
            same = stored_positions(g) == first;
        if (same) return true;
    }
    return false;
}

bool CudaKvCache::any_pins() const {
    return std::any_of(pinned_.begin(), pinned_.end(), [](const auto& of_head) { return !of_head.empty(); });
}

/// Returns the slots of the other tokens, in text order.
CudaKvCache::PositionLists CudaKvCache::slots_without(const PositionLists& removed) const {
    if (removed.empty()) return all_slots();
    PositionLists kept(positions_.size());
    for (int g = 0; g < n_kv_heads(); ++g) {
        const std::vector<std::int32_t>& of_head = removed[to_index(g)];
        for (const std::int32_t slot : order(g))
            if (!std::binary_search(of_head.begin(), of_head.end(), positions(g)[to_index(slot)]))
                kept[to_index(g)].push_back(slot);
    }
    return kept;
}

/// Returns whether one of the tokens was pinned.
bool CudaKvCache::unpin(const PositionLists& removed) {
    bool unpinned = false;
    for (std::size_t g = 0; g < removed.size(); ++g)
        for (const std::int32_t position : removed[g]) unpinned |= std::erase(pinned_[g], position) > 0;
    return unpinned;
}

bool CudaKvCache::set_pinned(int g, int position, bool pinned) {
    if (order_index(g, position) < 0) return false;
    std::vector<std::int32_t>& of_head = pinned_[to_index(g)];
    const auto found = std::lower_bound(of_head.begin(), of_head.end(), position);
    const bool is_pinned = found != of_head.end() && *found == position;
    if (pinned == is_pinned) return true;
    if (pinned)
        of_head.insert(found, position);
    else
        of_head.erase(found);
    write_pins();
    return true;
}

}  // namespace keyhole::cuda
