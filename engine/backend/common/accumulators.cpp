#include "engine/backend/common/accumulators.h"

#include "engine/base/half.h"
#include "engine/base/index.h"

namespace keyhole {

Accumulator accumulator_of(const ResolvedPolicy& policy) {
    if (policy.score) return kByFormula;
    const int index = (policy.alpha != 1.0f ? 1 : 0) + (policy.tempers() ? 2 : 0);
    return static_cast<Accumulator>(index);
}

bool is_forgetting(int accumulator) {
    return (accumulator & 1) != 0;
}
bool is_tempered(int accumulator) {
    return (accumulator & 2) != 0;
}

std::array<bool, kAccumulators> running_accumulators(const ResolvedPolicy& policy,
                                                     const std::array<bool, kAccumulators>& already) {
    if (!policy.makes_scores) return {};
    bool forgets = policy.alpha != 1.0f || already[kForgetting],
         tempers = policy.tempers() || already[kTempered];
    for (const ResolvedPolicy& variant : policy.variants) {
        forgets = forgets || variant.alpha != 1.0f;
        tempers = tempers || variant.tempers();
    }
    return {true, forgets, tempers, forgets && tempers, policy.any_score()};
}

int nearest_relative(int accumulator, const std::array<bool, kAccumulators>& running) {
    for (int candidate : {accumulator, accumulator & 2, accumulator & 1})
        if (running[to_index(candidate)]) return candidate;
    return kSum;
}

bool begins_formula(const ResolvedPolicy& before, const ResolvedPolicy& now, int layer, int head) {
    return now.at(layer, head).score && !before.at(layer, head).score;
}

std::vector<int> heads_that_begin_a_formula(const ResolvedPolicy& before, const ResolvedPolicy& now,
                                            int n_layers, int n_heads) {
    std::vector<int> heads;
    for (int head = 0; now.any_score() && head < n_layers * n_heads; ++head)
        if (begins_formula(before, now, head / n_heads, head % n_heads)) heads.push_back(head);
    return heads;
}

bool draws_token_noise(const ResolvedPolicy& policy) {
    return policy.noise != NoiseKind::none && policy.draw == NoiseDraw::token;
}

void round_scores(std::span<float> score, ScoreType type) {
    switch (type) {
        case ScoreType::fp32:
            return;
        case ScoreType::fp16:
            for (float& s : score) s = float_from_fp16(fp16_from_float(s));
            return;
        case ScoreType::bf16:
            for (float& s : score) s = float_from_bf16(bf16_from_float(s));
            return;
    }
}

}  // namespace keyhole
