#include "engine/analysis/checked_lane.h"

#include "engine/analysis/run_rows.h"

#include <algorithm>
#include <bit>
#include <set>

namespace keyhole {

CheckedLane::CheckedLane(const RunHistory& of, int index, int at, const LaneRecord& lane_record)
    : history(of), lane(index), row(at), record(lane_record) {
    count_stored();
}

std::string CheckedLane::head_name(int g) const {
    return kv_head_text(layout(), g);
}

std::optional<int> CheckedLane::rows_beyond(int g) const {
    const ResolvedPolicy& now = policy(g);
    if (now.evict == Evict::always) return 0;
    if (now.evict == Evict::prompt) return rows_since_prompt(g);
    for (int r = row; r > row - now.every && r >= now.n_prompt; --r)
        if (now.evicts_after(r)) return 0;
    return {};
}

std::optional<int> CheckedLane::rows_since_prompt(int g) const {
    const ResolvedPolicy& now = policy(g);
    const int end = now.n_prompt - 1;
    if (now.prefill == PrefillMode::stepwise || row < end) return {};
    const LaneRecord* then = history.lane_record(end, lane);
    if (then == nullptr || then->info->id != record.info->id ||
        !(then->info->policy.at(reader(g).layer, reader(g).head) == now))
        return {};
    return row - end;
}

void CheckedLane::count_stored() {
    const RunHistory::Lane& of = history.lanes()[to_index(lane)];
    const auto shown = static_cast<std::uint32_t>(row);
    for (int g = 0; g < n_kv(); ++g) {
        const std::int32_t* evicted = &of.evicted_at[to_index(std::int64_t{g} * history.capacity())];
        int n = 0;
        for (int p = 0; p <= row; ++p)
            n += static_cast<std::uint32_t>(evicted[p]) > shown ? 1 : 0;  // -1 (never) is the largest
        stored_.push_back(n);
    }
}

int CheckedLane::n_stored(const Unit& unit) const {
    if (unit.n_heads() == 1) return n_stored(unit.first);
    std::vector<bool> stored(to_index(row) + 1, false);
    for (int i = 0; i < unit.n_heads(); ++i)
        for (const std::int32_t p : history.held_positions(lane, unit.head(i), row))
            if (history.evicted_at(lane, unit.head(i), p) != row) stored[to_index(p)] = true;
    return static_cast<int>(std::count(stored.begin(), stored.end(), true));
}

int CheckedLane::n_hidden(int g) const {
    if (record.hidden == nullptr) return 0;
    int n = 0;
    for (auto byte = record.hidden->offset[to_index(g)]; byte < record.hidden->offset[to_index(g) + 1];
         ++byte)
        n += std::popcount(record.hidden->bits[to_index(byte)]);
    return n;
}

int CheckedLane::n_pinned(const Unit& unit) const {
    if (record.pins == nullptr) return 0;
    std::set<std::int32_t> positions;
    for (int i = 0; i < unit.n_heads(); ++i)
        for (const Pin& pin : *record.pins)
            if (pin.kv_head == unit.head(i)) positions.insert(pin.position);
    return static_cast<int>(positions.size());
}

std::vector<std::int32_t> CheckedLane::left_with_row(int g) const {
    std::vector<std::int32_t> left;
    for (const Eviction& e : record.evictions)
        if (e.kv_head == g && e.row == row) left.push_back(e.position);
    std::sort(left.begin(), left.end());
    return left;
}

int CheckedLane::window_of(int g) const {
    const std::vector<int>& windows = history.run().config.window;
    int window = 0;
    for (const HeadRef reader : layout().kv_head(g).readers) {
        if (windows.empty() || windows[to_index(reader.layer)] == 0) return 0;
        window = std::max(window, windows[to_index(reader.layer)]);
    }
    return window;
}

}  // namespace keyhole
