#include "engine/analysis/competing.h"

#include "engine/analysis/record_env.h"
#include "engine/base/index.h"
#include "engine/policy/selection.h"

#include <algorithm>
#include <cstdint>

namespace keyhole {

bool knows_protected(const ResolvedPolicy& policy) {
    return !policy.protect || RecordEnv{}.knows_all(*policy.protect);
}

bool hold_the_same(const RunHistory& history, int lane, const Unit& unit, int row) {
    const std::vector<std::int32_t> first = history.held_positions(lane, unit.first, row);
    for (int i = 1; i < unit.n_heads(); ++i)
        if (history.held_positions(lane, unit.head(i), row) != first) return false;
    return true;
}

std::vector<Standing> standings(const RunHistory& history, int lane, int kv_head, int row) {
    const LaneRecord* record = history.lane_record(row, lane);
    if (record == nullptr) return {};
    const KvHead& head = history.layout(lane).kv_head(kv_head);
    const HeadRef& reader = head.readers.front();
    const ResolvedPolicy& policy = record->info->policy.at(reader.layer, reader.head);
    const std::vector<std::int32_t> held = history.held_positions(lane, kv_head, row);
    const int n = static_cast<int>(held.size());
    std::vector<Standing> out(held.size(), Standing::competes);
    std::vector<std::uint8_t> competes(held.size());
    std::vector<std::int32_t> pinned;
    for (const std::int32_t p : held)
        if (history.pinned(lane, kv_head, p, row)) pinned.push_back(p);
    std::uint8_t span = 0;
    for (const SpanShare& share : span_shares(held, pinned, policy, row)) {
        ++span;
        for (int i = share.first; i < share.last; ++i) {
            const std::int32_t p = held[to_index(i)];
            Standing& own = out[to_index(i)];
            if (std::binary_search(pinned.begin(), pinned.end(), p))
                own = Standing::pinned;
            else if (p < share.sinks)
                own = Standing::first;
            else if (i >= share.last - share.newest)
                own = Standing::newest;
            competes[to_index(i)] = own == Standing::competes ? span : std::uint8_t{0};
        }
    }
    if (!policy.protect || n == 0 || !knows_protected(policy)) return out;
    const RecordEnv env{.facts = place_facts(policy, row, n, head.owner_layer, 0, head.index), .held = held};
    const std::vector<float> holds = env.evaluate(*policy.protect, competes);
    for (std::size_t i = 0; i < out.size(); ++i)
        if (out[i] == Standing::competes && holds[i] != 0) out[i] = Standing::protected_;
    return out;
}

}  // namespace keyhole
