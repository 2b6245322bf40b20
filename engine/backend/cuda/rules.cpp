#include "engine/backend/cuda/rules.h"

#include "engine/backend/common/accumulators.h"
#include "engine/policy/win_rows.h"

#include <algorithm>

namespace keyhole::cuda {
namespace {

RowRule rule_of(const ResolvedPolicy& policy, int row, Pool pool, bool needs_scores) {
    using Gap = ResolvedPolicy::Gap;
    RowRule rule{};
    rule.seed = policy.seed;
    rule.alpha = policy.alpha;
    rule.gain = policy.gain;
    rule.tau = policy.tau_at(row);
    rule.weight = row < policy.n_prompt ? 1.0f : policy.damping;  // damping applies to decode rows only
    rule.tempers = policy.tempers() ? 1 : 0;
    rule.score_dtype = static_cast<std::int32_t>(policy.score_dtype);
    rule.noise_kind = static_cast<std::int32_t>(policy.noise);
    rule.noise_draw = static_cast<std::int32_t>(policy.draw);
    const bool blinks = policy.gap == Gap::hidden && policy.hides(row, row - policy.recent);
    rule.hidden_position = blinks ? row - policy.recent : -1;
    rule.dilation = policy.dilation;
    rule.span = policy.budget;
    rule.stored = policy.stored;
    rule.due_at = policy.evicts() ? policy.due_at() : policy.stored;
    rule.n_prompt = policy.n_prompt;
    rule.window = policy.window;
    rule.mix = policy.mix;
    rule.newest = policy.newest;
    rule.unit = policy.unit;
    rule.sinks = policy.sinks;
    rule.kept_from = begin_of_span(policy, row);
    rule.as_rkv_code = policy.ranks_as_rkv_code ? 1 : 0;
    // As exceeded() and must_select(), without the number of stored tokens, which only the device knows.
    rule.evicts =
        policy.evicts() && policy.evicts_after(row) && (!policy.counts_columns || row + 1 > policy.budget);
    rule.dropped_position = policy.gap == Gap::dropped && rule.evicts != 0 && row + 1 > policy.budget
                                ? row - policy.recent + 1
                                : -1;
    rule.needs_scores = needs_scores ? 1 : 0;
    rule.accumulator = accumulator_of(policy);
    rule.pool = static_cast<std::int32_t>(pool);
    return rule;
}

}  // namespace

bool has_no_kernel(const ResolvedPolicy& policy) {
    if (policy.any([](const ResolvedPolicy& one) { return one.has_threshold() || !one.fair.empty(); }))
        return true;
    if (policy.scope == Scope::column) return true;  // kernels select for KV heads that follow each other
    // Kernels evaluate one formula of selections for all units, and pool one score.
    if (policy.any([&](const ResolvedPolicy& one) {
            return !(one.score == policy.score && one.choose == policy.choose &&
                     one.protect == policy.protect);
        }))
        return true;
    if (!policy.names_queries()) return false;
    const bool differs = policy.any([&](const ResolvedPolicy& one) {
        return !(one.calibration == policy.calibration) || one.ahead != policy.ahead;
    });
    // What a formula protects is known after its quantities, and `tri` is of those that compete.
    return policy.calibration.read == nullptr || differs || (policy.protect && policy.names(Quantity::tri));
}

KeptSpans kept_spans(const ResolvedPolicy& policy, int row) {
    static_assert(KeptSpans::kMost == Spans::kMost);
    KeptSpans spans{};
    const std::vector<WinRows> rows = win_rows(policy, row);
    for (std::size_t s = 0; s < KeptSpans::kMost; ++s) {
        const bool is_span = s < rows.size();
        spans.begin[s] = is_span ? rows[s].begin : NamedSpan::kOpen;
        spans.last[s] = is_span && rows[s].last >= rows[s].begin ? rows[s].last : -1;
    }
    return spans;
}

std::vector<FormulaRef> score_formulas(const ResolvedPolicy& policy) {
    std::vector<FormulaRef> formulas;
    const auto add = [&](const ResolvedPolicy& one) {
        if (one.score && std::find(formulas.begin(), formulas.end(), one.score) == formulas.end())
            formulas.push_back(one.score);
    };
    add(policy);
    for (const ResolvedPolicy& variant : policy.variants) add(variant);
    return formulas;
}

void row_rules(const ResolvedPolicy& policy, int row, bool needs_scores, std::vector<RowRule>& out) {
    const std::vector<FormulaRef> formulas = score_formulas(policy);
    out.clear();
    const auto add = [&](const ResolvedPolicy& one) {
        RowRule& rule = out.emplace_back(rule_of(one, row, policy.pool, needs_scores));
        const auto found = std::find(formulas.begin(), formulas.end(), one.score);
        rule.score = found != formulas.end() ? static_cast<std::int32_t>(found - formulas.begin()) : -1;
    };
    add(policy);
    for (const ResolvedPolicy& variant : policy.variants) add(variant);
}

}  // namespace keyhole::cuda
