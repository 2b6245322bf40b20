#include "tests/reference/engine_scores.h"

#include "engine/backend/cpu/score.h"
#include "engine/backend/cpu/select.h"
#include "engine/base/index.h"
#include "engine/model/kv_layout.h"
#include "engine/policy/lane_spec.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace reference {
namespace {

using namespace keyhole;

HeadGrid grid_of(const KvLayout& layout) {
    HeadGrid grid{layout.n_layers(), layout.n_heads(), {}};
    for (int l = 0; l < layout.n_layers(); ++l)
        for (int h = 0; h < layout.n_heads(); ++h) grid.kv_head.push_back(layout.kv_head_from_head(l, h));
    return grid;
}

/// Scores one row of every query head. hidden[g]: the positions that KV head g hides from this row.
void score_heads(const Observed& text, const KvLayout& layout, cpu::CpuKvCache& cache, int row,
                 cpu::RowScratch& scratch, std::vector<PositionSet>& hidden) {
    for (int l = 0; l < layout.n_layers(); ++l)
        for (int h = 0; h < layout.n_heads(); ++h) {
            const int g = layout.kv_head_from_head(l, h);
            scratch.grow(cache.count(g));
            for (int slot = 0; slot < cache.count(g); ++slot)
                scratch.logits[keyhole::to_index(slot)] =
                    static_cast<float>(text.logit(row, l, h, cache.positions(g)[slot]));
            const cpu::ScoredRow scored = cpu::score_row(cache, {l, h}, row, scratch);
            for (int slot = 0; scored.hides && slot < cache.count(g); ++slot)
                if (scratch.hidden[keyhole::to_index(slot)] != 0)
                    hidden[keyhole::to_index(g)].insert(cache.positions(g)[slot]);
        }
}

/// Pooled scores of all stored entries, by position.
std::vector<Vector> pooled_scores(const cpu::CpuKvCache& cache, int row) {
    std::vector<Vector> scores(keyhole::to_index(cache.layout().n_kv_heads()));
    cpu::UnitScores unit_scores;
    for (const keyhole::Unit& unit : units_of(cache.layout(), cache.policy().scope)) {
        cpu::pool_unit(cache, unit, unit_scores);
        Vector by_position(keyhole::to_index(row + 1), std::nan(""));
        for (std::size_t i = 0; i < unit_scores.positions.size(); ++i)
            by_position[keyhole::to_index(unit_scores.positions[i])] =
                static_cast<double>(unit_scores.pooled[i]);
        for (int g = unit.first; g < unit.last; g += unit.step) scores[keyhole::to_index(g)] = by_position;
    }
    return scores;
}

PositionSet stored(const cpu::CpuKvCache& cache, int g) {
    const std::vector<std::int32_t> positions = cache.stored_positions(g);
    if (!std::is_sorted(positions.begin(), positions.end()))
        throw std::runtime_error("stored positions do not ascend");
    const PositionSet unique(positions.begin(), positions.end());
    if (unique.size() != positions.size()) throw std::runtime_error("a position is stored twice");
    return unique;
}

ResolvedPolicy resolved(const std::string& spec, const Observed& text, const KvLayout& layout,
                        int n_generate) {
    const PolicyParams params = parse_lane_spec(spec).policy;
    const std::vector<std::string> faults = check_overrides(params, grid_of(layout));
    if (!faults.empty()) throw std::runtime_error(spec + ": " + faults.front());
    return resolve(params, text.n_prompt, n_generate, grid_of(layout));
}

void act(const ManualChange& hand, cpu::CpuKvCache& cache) {
    for (int g = 0; g < cache.layout().n_kv_heads(); ++g) {
        const bool done = hand.act == ManualChange::evict
                              ? cache.evict(g, hand.position)
                              : cache.set_pinned(g, hand.position, hand.act == ManualChange::pin);
        if (!done) throw std::runtime_error("a token to act on by hand is not stored");
    }
}

}  // namespace

std::vector<Simulated> run_engine_scores(const Observed& text, const std::string& spec, int n_generate) {
    return run_engine_scores(text, {{0, spec}}, {}, n_generate);
}

std::vector<Simulated> run_engine_scores(const Observed& text, const std::vector<Turn>& turns,
                                         const std::vector<ManualChange>& hands, int n_generate) {
    const KvLayout layout = KvLayout::grouped(text.n_layers, text.n_heads, text.n_kv_heads);
    ResolvedPolicy policy = resolved(turns.front().spec, text, layout, n_generate);
    cpu::CpuKvCache cache(layout, 1);
    cache.set_policy(policy);
    cache.reserve(text.n_rows);

    std::vector<Simulated> rows(keyhole::to_index(layout.n_kv_heads()));
    cpu::RowScratch scratch;
    for (int row = 0; row < text.n_rows; ++row) {
        for (int g = 0; g < layout.n_kv_heads(); ++g) cache.append(g, row);
        std::vector<PositionSet> hidden(rows.size());
        score_heads(text, layout, cache, row, scratch, hidden);
        // Prefill reads a one-shot prompt with full attention.
        if (row < text.n_prompt && policy.prefill == PrefillMode::oneshot) hidden.assign(rows.size(), {});
        const std::vector<Vector> scores = pooled_scores(cache, row);
        for (int g = 0; g < layout.n_kv_heads(); ++g) {
            SimulatedRow out;
            for (int p : stored(cache, g))
                if (!hidden[keyhole::to_index(g)].contains(p)) out.visible.insert(p);
            out.scores = scores[keyhole::to_index(g)];
            rows[keyhole::to_index(g)].push_back(out);
        }
        cpu::select_row(cache, row);
        for (const ManualChange& hand : hands)
            if (hand.after_row == row) act(hand, cache);
        for (const Turn& turn : turns) {
            if (turn.from_row != row + 1) continue;
            policy = resolved(turn.spec, text, layout, n_generate);
            cache.set_policy(policy);
            cpu::select_row(cache, row, cpu::Due::now);
        }
        for (int g = 0; g < layout.n_kv_heads(); ++g)
            rows[keyhole::to_index(g)].back().kept = stored(cache, g);
    }
    return rows;
}

}  // namespace reference
