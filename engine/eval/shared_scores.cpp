#include "engine/eval/shared_scores.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/selection.h"

#include <algorithm>

namespace keyhole {

namespace {

/// Removes ascending indices from a vector.
template <class T>
void erase_at(std::vector<T>& values, std::span<const int> indices) {
    for (std::size_t i = indices.size(); i-- > 0;) values.erase(values.begin() + indices[i]);
}

}  // namespace

SharedScores::SharedScores(Backend& backend, const Lane& lane, int n_beams, int n_generate)
    : backend_(backend), model_(lane.model), policy_(lane.policy()), n_generate_(n_generate) {
    if (policy_.pool == Pool::max)
        fail(
            ErrorCode::wrong_use,
            "lane '{}' pools scores by max, so the scores of beams cannot be summed; take pool=mean, or keep "
            "the beams' scores apart",
            lane.info->spec);
    if (policy_.any([](const ResolvedPolicy& one) { return one.has_formula(); }))
        fail(ErrorCode::wrong_use,
             "lane '{}' ranks by a formula, and shared scores of beams are sums of what rows add; keep the "
             "beams' scores apart",
             lane.info->spec);
    const RowValues& values = lane.out.values;
    const int n_kv_heads = model_->layout().n_kv_heads();
    for (int g = 0; g < n_kv_heads; ++g) {
        const std::vector<std::int32_t> stored = lane.cache->stored_positions(g);
        std::vector<float> own;
        int i = values.offset[to_index(g)];
        for (const std::int32_t position : stored) {
            while (values.positions[to_index(i)] != position) ++i;
            own.push_back(values.scores.empty() ? 0 : values.scores[to_index(i)]);
        }
        std::vector<float> sum;
        for (const float score : own) sum.push_back(static_cast<float>(n_beams) * score);
        positions_.push_back(stored);
        own_.push_back(std::move(own));
        sum_.push_back(std::move(sum));
    }
}

KvScores SharedScores::begin(KvCache& cache, int row) const {
    ResolvedPolicy quiet = policy_;
    quiet.every = n_generate_ + 1;  // a block that no row of this text ends
    for (ResolvedPolicy& variant : quiet.variants) variant.every = quiet.every;
    backend_.apply_policy(cache, quiet, row);
    return own_;
}

const ResolvedPolicy& SharedScores::policy_of(int kv_head) const {
    const HeadRef& reader = model_->layout().kv_head(kv_head).readers.front();
    return policy_.at(reader.layer, reader.head);
}

void SharedScores::add_row(std::span<const Of> beams, int g, int row) {
    const float alpha = policy_of(g).alpha;
    std::vector<float>& sum = sum_[to_index(g)];
    positions_[to_index(g)].push_back(row);
    sum.push_back(0);
    for (float& score : sum) score *= alpha;
    for (const Of& beam : beams) {
        std::vector<float>& own = (*beam.own)[to_index(g)];
        own.push_back(0);
        KH_ASSERT(beam.values->offset[to_index(g) + 1] - beam.values->offset[to_index(g)] ==
                  static_cast<int>(own.size()));
        if (beam.values->scores.empty()) continue;  // the policy needs none
        const float* now = beam.values->scores.data() + beam.values->offset[to_index(g)];
        for (std::size_t i = 0; i < own.size(); ++i) {
            sum[i] += now[i] - alpha * own[i];
            own[i] = now[i];
        }
    }
}

void SharedScores::erase(std::span<const Of> beams, int g, std::span<const int> victims) {
    for (const int i : victims)
        for (const Of& beam : beams) beam.cache->evict(g, positions_[to_index(g)][to_index(i)]);
    erase_at(positions_[to_index(g)], victims);
    erase_at(sum_[to_index(g)], victims);
    for (const Of& beam : beams) erase_at((*beam.own)[to_index(g)], victims);
}

void SharedScores::evict(std::span<const Of> beams, int row) {
    std::vector<int> victims;
    for (const Unit& unit : units_of(model_->layout(), policy_.scope)) {
        for (int g = unit.first; g < unit.last; g += unit.step) add_row(beams, g, row);
        const ResolvedPolicy& policy = policy_of(unit.first);
        const std::vector<std::int32_t>& positions = positions_[to_index(unit.first)];
        if (!policy.evicts_after(row) || !must_select(policy, static_cast<int>(positions.size()), row))
            continue;
        select_victims(positions, sum_[to_index(unit.first)], {}, policy, row, victims);
        for (int g = unit.first; g < unit.last; g += unit.step) erase(beams, g, victims);
    }
}

}  // namespace keyhole
