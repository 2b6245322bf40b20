#include "engine/session/checkpoints.h"

#include "engine/base/index.h"

#include <algorithm>
#include <set>

namespace keyhole {

namespace {

/// Returns the bytes of the weights that a variant does not share with its base.
std::size_t merged_bytes(const Model& variant, const Model& base) {
    std::set<const void*> of_base;
    visit_weights(base.weights(), [&](const Weight& w) { of_base.insert(w.data); });
    std::size_t sum = 0;
    visit_weights(variant.weights(), [&](const Weight& w) {
        if (!of_base.contains(w.data)) sum += to_index(stored_bytes(w));
    });
    return sum;
}

bool runs(const SessionState& state, const Model* model) {
    return std::any_of(state.lanes.begin(), state.lanes.end(),
                       [&](const Lane& lane) { return lane.model.get() == model; });
}

}  // namespace

void Checkpoints::offer(const SessionState& state) {
    if (budget_ == 0) return;
    if (const std::size_t bytes = state.bytes(); bytes <= budget_ / 4) {
        // Adds one row of spacing for each MB: copying stays a small share of decoding, which reads the
        // weights.
        const int spacing = std::max(spacing_, static_cast<int>(bytes >> 20));
        if (kept_.empty() || state.row - kept_.back().state.row >= spacing)
            kept_.push_back({state.copy(), bytes});
    }
    fit(state);  // a model that no lane runs any more counts from now on, even if this state is not kept
}

std::map<const Model*, std::size_t> Checkpoints::only_kept(const SessionState& running) const {
    std::map<const Model*, std::size_t> models;
    for (const Kept& kept : kept_)
        for (const Lane& lane : kept.state.lanes) {
            const Model* model = lane.model.get();
            if (model != base_ && !models.contains(model) && !runs(running, model))
                models[model] = merged_bytes(*model, *base_) + to_index(lane.cache->variant_bytes());
        }
    return models;
}

std::size_t Checkpoints::bytes(const SessionState& running) const {
    std::size_t sum = 0;
    for (const Kept& kept : kept_) sum += kept.bytes;
    for (const auto& [model, bytes] : only_kept(running)) sum += bytes;
    return sum;
}

void Checkpoints::fit(const SessionState& running) {
    while (bytes(running) > budget_) {
        const auto models = only_kept(running);
        std::size_t of_models = 0;
        for (const auto& [model, bytes] : models) of_models += bytes;
        if (of_models > budget_ / 2) {
            const auto largest =
                std::max_element(models.begin(), models.end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; });
            std::erase_if(kept_, [&](const Kept& kept) { return runs(kept.state, largest->first); });
            continue;
        }
        spacing_ *= 2;
        std::vector<Kept> thinned;
        for (std::size_t i = 0; i < kept_.size(); i += 2) thinned.push_back(std::move(kept_[i]));
        kept_ = std::move(thinned);
    }
}

const SessionState* Checkpoints::latest(int row) const {
    const SessionState* found = nullptr;
    for (const Kept& kept : kept_)
        if (kept.state.row <= row) found = &kept.state;
    return found;
}

void Checkpoints::drop_after(int row) {
    while (!kept_.empty() && kept_.back().state.row > row) kept_.pop_back();
}

}  // namespace keyhole
