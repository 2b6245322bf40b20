#include "engine/analysis/competing.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cstdint>

namespace keyhole {
namespace {

/// What `protect` may name of a token that a record knows by its place alone.
struct PlaceEnv {
    const ResolvedPolicy& policy;
    const std::vector<std::int32_t>& held;
    const KvHead& head;
    int row;

    int budget() const { return policy.budget; }
    float quantity(Quantity q, int i) const {
        const int position = held[to_index(i)];
        switch (q) {
            case Quantity::row:
                return static_cast<float>(row);
            case Quantity::t:
                return static_cast<float>(std::max(row - policy.n_prompt + 1, 0));
            case Quantity::n:
                return static_cast<float>(policy.n_prompt);
            case Quantity::count:
                return static_cast<float>(held.size());
            case Quantity::budget:
                return static_cast<float>(policy.budget);
            case Quantity::layer:
                return static_cast<float>(head.owner_layer);
            case Quantity::kvhead:
                return static_cast<float>(head.index);
            case Quantity::alpha:
                return policy.alpha;
            case Quantity::tau:
                return policy.tau_at(row);
            case Quantity::gain:
                return policy.gain;
            case Quantity::mix:
                return policy.mix;
            case Quantity::window:
                return static_cast<float>(policy.window);
            case Quantity::age:
                return static_cast<float>(row - position);
            case Quantity::position:
                return static_cast<float>(position);
            case Quantity::slot:
                return static_cast<float>(i);
            case Quantity::prompt:
                return position < policy.n_prompt ? 1.0f : 0.0f;
            default:
                return 0;
        }
    }
};

bool is_of_places(const FormulaTable& protect) {
    for (const Quantity q :
         {Quantity::s, Quantity::p, Quantity::logit, Quantity::ptau, Quantity::knorm, Quantity::vnorm,
          Quantity::wvnorm, Quantity::keydiff, Quantity::redundancy, Quantity::win, Quantity::lag,
          Quantity::caote, Quantity::repeat, Quantity::future, Quantity::u})
        if (protect.names(q)) return false;
    return true;
}

}  // namespace

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
    for (int i = 0; i < n; ++i) {
        const std::int32_t p = held[to_index(i)];
        Standing& own = out[to_index(i)];
        if (history.pinned(lane, kv_head, p, row))
            own = Standing::pinned;
        else if (p < policy.sinks)
            own = Standing::first;
        else if (i >= n - policy.newest)
            own = Standing::newest;
        competes[to_index(i)] = own == Standing::competes ? 1 : 0;
    }
    if (!policy.protect || n == 0 || !is_of_places(*policy.protect)) return out;
    std::vector<float> lists(to_index(policy.protect->n_lists) * held.size());
    const PlaceEnv env{policy, held, head, row};
    FormulaRun<PlaceEnv>::Sums sums;
    const FormulaRun<PlaceEnv> formula{env, *policy.protect, lists.data(), n, competes.data(), n, 0, 1, sums};
    for (int step = 0; step < policy.protect->n_steps; ++step) formula.step(step);
    for (std::size_t i = 0; i < out.size(); ++i)
        if (out[i] == Standing::competes && lists[i] != 0) out[i] = Standing::protected_;
    return out;
}

}  // namespace keyhole
