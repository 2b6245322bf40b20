#include "engine/backend/cpu/score.h"

#include "engine/backend/common/kernels.h"
#include "engine/backend/common/row_scores.h"
#include "engine/base/index.h"
#include "engine/policy/math.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

namespace keyhole::cpu {

void RowScratch::grow(int n) {
    for (std::vector<float>* v : {&logits, &probabilities, &tempered, &row_noise})
        if (v->size() < to_index(n)) v->resize(to_index(n));
    if (hidden.size() < to_index(n)) hidden.resize(to_index(n));
}

namespace {

bool mask_hidden(const CpuKvCache& cache, int g, const ResolvedPolicy& policy, int row, int window,
                 RowScratch& scratch) {
    const int first_seen = window > 0 ? row - window + 1 : 0;
    bool any = !scratch.unread.empty();
    std::copy(scratch.unread.begin(), scratch.unread.end(), scratch.hidden.begin());
    if (!policy.hides_places() && first_seen <= 0) return any;
    const std::int32_t* positions = cache.positions(g);
    for (int slot = 0; slot < cache.count(g); ++slot) {
        const bool hidden = positions[slot] < first_seen || policy.hides(row, positions[slot]) ||
                            (!scratch.unread.empty() && scratch.unread[to_index(slot)] != 0);
        scratch.hidden[to_index(slot)] = hidden ? 1 : 0;
        if (hidden) scratch.logits[to_index(slot)] = -std::numeric_limits<float>::infinity();
        any = any || hidden;
    }
    return any;
}

}  // namespace

ScoredRow score_row(CpuKvCache& cache, const HeadRef& reader, int row, RowScratch& scratch, int window,
                    const float* sink) {
    const KvLayout& layout = cache.layout();
    const int g = layout.kv_head_from_head(reader.layer, reader.head), n = cache.count(g);
    const int head = reader.layer * layout.n_heads() + reader.head;
    const ResolvedPolicy& policy = cache.policy().at(reader.layer, reader.head);
    scratch.grow(n);
    ScoredRow out;
    out.hides = mask_hidden(cache, g, policy, row, window, scratch);
    out.noise = cache.noise(head);
    out.sink_logit = sink;
    const bool tempers = policy.tempers();
    // Prefetches what is read next: noise during the plain softmax, scores during the last softmax before the
    // fold.
    std::array<const void*, kAccumulators + 2> soon{};
    std::size_t n_soon = 0;
    for (int a = 0; a < kAccumulators; ++a)
        if (const float* score = cache.score(a, head)) soon[n_soon++] = score;
    if (policy.evicts() && policy.makes_scores) {  // a head selects right after the row
        soon[n_soon++] = cache.order(g);
        soon[n_soon++] = cache.positions(g);
    }
    const std::span<const void* const> scores(soon.data(), n_soon);
    const void* const noise_at_hand = out.noise;
    const std::span<const void* const> noise(&noise_at_hand, out.noise != nullptr ? 1 : 0);
    softmax(scratch.logits.data(), n, scratch.probabilities.data(), tempers ? noise : scores);
    if (sink != nullptr)
        out.sink = share_with_sink(scratch.logits.data(), n, *sink, scratch.probabilities.data());
    scratch.laps.end(scratch.laps.attention);

    if (policy.noise != NoiseKind::none && out.noise == nullptr) {
        for (int slot = 0; slot < n; ++slot)
            scratch.row_noise[to_index(slot)] = noise_at(policy.noise, policy.draw, policy.seed, reader.layer,
                                                         reader.head, row, cache.positions(g)[slot]);
        out.noise = scratch.row_noise.data();
    }
    if (tempers) {
        const float tau = policy.tau_at(row);
        temper_logits(scratch.logits.data(), out.noise, n, policy.gain, tau, scratch.tempered.data());
        if (sink != nullptr) {
            if (scratch.with_sink.size() < to_index(n)) scratch.with_sink.resize(to_index(n));
            std::copy_n(scratch.tempered.data(), n, scratch.with_sink.data());
        }
        softmax(scratch.tempered.data(), n, scratch.tempered.data(), scores);
        if (sink != nullptr)
            share_with_sink(scratch.with_sink.data(), n, *sink / tau, scratch.tempered.data());
    }
    // Damping applies to decode rows only.
    const float weight = row < policy.n_prompt ? 1.0f : policy.damping;
    for (int a = 0; a < kByFormula; ++a) {
        float* score = cache.score(a, head);
        if (score == nullptr) continue;
        fold_scores(is_tempered(a) && tempers ? scratch.tempered.data() : scratch.probabilities.data(), n,
                    is_forgetting(a) ? policy.alpha : 1.0f, weight, score);
        round_scores({score, to_index(n)}, policy.score_dtype);
    }
    const float* ptau = tempers ? scratch.tempered.data() : scratch.probabilities.data();
    PlaceFacts facts = place_facts(policy, row, n, reader.layer, reader.head, layout.kv_head(g).index);
    facts.sinkmass = out.sink;
    if (float* score = cache.score(kByFormula, head); score != nullptr && policy.score)
        fold_by_formula(*policy.score,
                        {facts,
                         scratch.probabilities.data(),
                         scratch.logits.data(),
                         ptau,
                         cache.positions(g),
                         {cache.order(g), to_index(n)},
                         cache.lengths(Quantity::knorm, g),
                         cache.lengths(Quantity::vnorm, g),
                         cache.lengths(Quantity::wvnorm, g)},
                        policy.score_dtype, {score, to_index(n)}, scratch.by_formula);
    if (float* kept = cache.kept_row(row, head); kept != nullptr) {
        const float* seen = (policy.ranks_as_rkv_code ? scratch.logits : scratch.probabilities).data();
        const std::int32_t begin = begin_of_span(policy, row);
        if (begin == 0) std::copy_n(seen, n, kept);
        for (int i = 0; i < n && begin > 0; ++i)
            if (cache.positions(g)[i] >= begin) kept[i] = seen[i];
    }
    scratch.laps.end(scratch.laps.scoring);
    return out;
}

}  // namespace keyhole::cpu
