#include "engine/policy/selection.h"

#include "engine/base/index.h"
#include "engine/policy/allocation.h"
#include "engine/policy/formula_maths.h"
#include "engine/policy/win_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

std::vector<Unit> units_of(const KvLayout& layout, Scope scope) {
    std::vector<Unit> units;
    switch (scope) {
        case Scope::head:
            for (int g = 0; g < layout.n_kv_heads(); ++g) units.push_back({g, g + 1});
            break;
        case Scope::layer:
            for (int l = 0; l < layout.n_layers(); ++l)
                if (layout.first_of_layer(l) < layout.first_of_layer(l + 1))
                    units.push_back({layout.first_of_layer(l), layout.first_of_layer(l + 1)});
            break;
        case Scope::shared:
            units.push_back({0, layout.n_kv_heads()});
            break;
        case Scope::column:
            for (int g = 0, n = layout.first_of_layer(1); g < n; ++g)
                units.push_back({g, layout.n_kv_heads(), n});
            break;
    }
    return units;
}

Unit unit_of(const KvLayout& layout, Scope scope, int kv_head) {
    for (const Unit& unit : units_of(layout, scope))
        for (int i = 0; i < unit.n_heads(); ++i)
            if (unit.head(i) == kv_head) return unit;
    return {kv_head, kv_head + 1};
}

bool must_select(const ResolvedPolicy& policy, int n, int row) {
    return policy.exceeded(n, row) ||
           (policy.gap == ResolvedPolicy::Gap::dropped && policy.evicts() && row + 1 > policy.budget);
}

namespace {

/// Returns the index of the column that the released Keyformer evicts with this row, -1 when there is none.
int dropped_index(std::span<const std::int32_t> positions, const ResolvedPolicy& policy, int row) {
    if (policy.gap != ResolvedPolicy::Gap::dropped) return -1;
    const auto at = std::lower_bound(positions.begin(), positions.end(), row - policy.recent + 1);
    return at != positions.end() && *at == row - policy.recent + 1 ? static_cast<int>(at - positions.begin())
                                                                   : -1;
}

/// A block of the text: the tokens of it that compete.
struct TextBlock {
    float score = 0, tie = 0;  ///< means
    std::size_t first = 0, n = 0;
};

std::vector<TextBlock> blocks_of(std::span<const std::int32_t> positions, std::span<const float> score,
                                 std::span<const float> tie, int unit, std::span<const int> competing) {
    std::vector<TextBlock> blocks;
    for (std::size_t i = 0; i < competing.size(); ++i) {
        const auto at = to_index(competing[i]);
        const bool is_new = i == 0 || positions[at] / unit != positions[to_index(competing[i - 1])] / unit;
        if (is_new) blocks.push_back({.first = i});
        TextBlock& block = blocks.back();
        block.score = add(block.score, score[at]);
        if (!tie.empty()) block.tie = add(block.tie, tie[at]);
        ++block.n;
    }
    for (TextBlock& block : blocks) {
        block.score = lowest_if_nan(block.score / static_cast<float>(block.n));
        block.tie = lowest_if_nan(block.tie / static_cast<float>(block.n));
    }
    return blocks;
}

/// Leaves the tokens of the worst blocks in `competing`, as few blocks as hold n_victims tokens. Returns the
/// lowest mean of a block that stays.
float keep_worst_blocks(std::span<const std::int32_t> positions, std::span<const float> score,
                        std::span<const float> tie, int unit, int n_victims, std::vector<int>& competing) {
    std::vector<TextBlock> blocks = blocks_of(positions, score, tie, unit, competing);
    std::sort(blocks.begin(), blocks.end(), [](const TextBlock& a, const TextBlock& b) {
        if (a.score != b.score) return a.score < b.score;
        return a.tie != b.tie ? a.tie < b.tie : a.first < b.first;
    });
    std::vector<int> leaving;
    std::size_t b = 0;
    for (; b < blocks.size() && leaving.size() < to_index(n_victims); ++b)
        for (std::size_t i = 0; i < blocks[b].n; ++i) leaving.push_back(competing[blocks[b].first + i]);
    competing = std::move(leaving);
    return b < blocks.size() ? blocks[b].score : std::numeric_limits<float>::quiet_NaN();
}

/// What a unit, or a span of it, chooses from: indices [first, last) of its positions.
struct VictimChoice {
    std::span<const std::int32_t> positions;
    std::span<const float> score, tie;
    std::span<const std::int32_t> pinned;
    SpanShare share;
    int n_victims = 0, unit = 1;
    float threshold = 0;  ///< ResolvedPolicy::threshold
    int dropped = -1;

    bool is_pinned(int i) const {
        return !pinned.empty() && std::binary_search(pinned.begin(), pinned.end(), positions[to_index(i)]);
    }
    /// NaN from a broken checkpoint must not break the ordering.
    bool is_worse(int a, int b) const {
        const auto rank_in = [](std::span<const float> of, int i) { return lowest_if_nan(of[to_index(i)]); };
        const float x = rank_in(score, a), y = rank_in(score, b);
        if (x != y || tie.empty()) return x < y || (x == y && a < b);
        const float own = rank_in(tie, a), other = rank_in(tie, b);
        return own < other || (own == other && a < b);
    }
};

/// Replaces `victims` by those of a choice, in any order; returns the lowest score that stays.
float choose_victims(const VictimChoice& of, std::vector<int>& victims) {
    victims.clear();
    int first = of.share.first;
    const int n = of.share.last;
    int n_victims = of.n_victims;
    while (first < n && of.positions[to_index(first)] < of.share.sinks) ++first;
    const int last = std::max(first, n - of.share.newest);
    const auto worse = [&](int a, int b) { return of.is_worse(a, b); };
    for (int i = first; i < last; ++i)
        if (i != of.dropped && !of.is_pinned(i)) victims.push_back(i);
    if (of.threshold != 0) {
        const auto below = [&](int i) { return lowest_if_nan(of.score[to_index(i)]) < of.threshold; };
        n_victims =
            std::max(n_victims, static_cast<int>(std::count_if(victims.begin(), victims.end(), below)));
    }
    float threshold = std::numeric_limits<float>::quiet_NaN();
    const int n_competing = static_cast<int>(victims.size());
    if (of.unit > 1 && n_victims > 0 && n_victims < n_competing) {
        threshold = keep_worst_blocks(of.positions, of.score, of.tie, of.unit, n_victims, victims);
    } else if (n_victims < n_competing) {
        const auto end = victims.begin() + n_victims;
        if (n_victims <= 4)  // as in most rows; one pass then
            std::partial_sort(victims.begin(), end + 1, victims.end(), worse);
        else
            std::nth_element(victims.begin(), end, victims.end(), worse);
        threshold = of.score[to_index(*end)];
        victims.erase(end, victims.end());
    } else {  // too few compete because of pins: evicts the oldest of the newest, then the newest sinks
        int missing = n_victims - n_competing;
        for (int i = last; i < n && missing > 0; ++i)
            if (i != of.dropped && !of.is_pinned(i)) victims.push_back(i), --missing;
        for (int i = first - 1; i >= of.share.first && missing > 0; --i)
            if (i != of.dropped && !of.is_pinned(i)) victims.push_back(i), --missing;
    }
    return threshold;
}

/// Returns how many tokens of a fair span the text has up to a row.
int span_length(const NamedSpan& span, int row) {
    return std::max(std::min(span.last, row) - std::min(span.first, row + 1) + 1, 0);
}

}  // namespace

std::vector<SpanShare> span_shares(std::span<const std::int32_t> positions,
                                   std::span<const std::int32_t> pinned, const ResolvedPolicy& policy,
                                   int row) {
    const int n = static_cast<int>(positions.size());
    if (policy.fair.empty()) return {{0, n, policy.stored, policy.sinks, policy.newest}};
    const auto index_from = [&](std::int32_t position) {
        return static_cast<int>(std::lower_bound(positions.begin(), positions.end(), position) -
                                positions.begin());
    };
    std::vector<SpanShare> shares;
    std::vector<int> lengths, n_pinned, n_held;
    for (std::size_t s = 0; s < policy.fair.size(); ++s) {
        const bool is_last = s + 1 == policy.fair.size();
        const std::int32_t begin = policy.fair[s].first,
                           end = is_last ? NamedSpan::kOpen : policy.fair[s + 1].first;
        shares.push_back({index_from(begin), index_from(end), 0, begin, 0});
        lengths.push_back(span_length(policy.fair[s], row));
        const auto held = positions.subspan(to_index(shares.back().first),
                                            to_index(shares.back().last - shares.back().first));
        const auto is_pinned = [&](std::int32_t p) {
            return std::binary_search(pinned.begin(), pinned.end(), p);
        };
        n_pinned.push_back(static_cast<int>(std::count_if(held.begin(), held.end(), is_pinned)));
        n_held.push_back(static_cast<int>(held.size()));
    }
    const std::vector<int> stored = share_by_length(std::min(policy.stored, n), lengths, n_pinned, n_held),
                           none(shares.size(), 0);
    // Where rows vote, each span keeps as many newest tokens as it has rows that do.
    const std::vector<int> newest = policy.names(Quantity::win)
                                        ? window_parts(policy, policy.newest)
                                        : share_by_length(std::min(policy.newest, n), lengths, none, stored);
    const bool keeps_tail = policy.newest + policy.sinks >= policy.stored;  // and nothing else
    for (std::size_t s = 0; s < shares.size(); ++s) {
        const int sinks = std::min(policy.sinks, stored[s]);
        shares[s].stored = stored[s];
        shares[s].sinks += sinks;
        shares[s].newest = keeps_tail ? stored[s] - sinks : std::min(newest[s], stored[s] - sinks);
    }
    return shares;
}

std::vector<std::uint8_t> competing_tokens(std::span<const std::int32_t> positions,
                                           std::span<const std::int32_t> pinned, const ResolvedPolicy& policy,
                                           int row) {
    std::vector<std::uint8_t> competes(positions.size(), 0);
    std::uint8_t span = 0;
    for (const SpanShare& share : span_shares(positions, pinned, policy, row)) {
        ++span;
        for (int i = share.first; i < share.last - share.newest; ++i) {
            const std::int32_t position = positions[to_index(i)];
            const bool is_pinned = std::binary_search(pinned.begin(), pinned.end(), position);
            competes[to_index(i)] = position >= share.sinks && !is_pinned ? span : std::uint8_t{0};
        }
    }
    return competes;
}

float select_victims(std::span<const std::int32_t> positions, std::span<const float> score,
                     std::span<const std::int32_t> pinned, const ResolvedPolicy& policy, int row,
                     std::vector<int>& victims, std::span<const float> tie) {
    victims.clear();
    float threshold = std::numeric_limits<float>::quiet_NaN();
    const int n = static_cast<int>(positions.size());
    if (!must_select(policy, n, row)) return threshold;
    // With a threshold tokens may leave before the budget is full.
    const bool is_due = !policy.has_threshold() || n >= policy.due_at();
    if (policy.fair.empty()) {
        VictimChoice whole{positions, score, tie, pinned, {0, n, policy.stored, policy.sinks, policy.newest}};
        whole.unit = policy.unit;
        whole.threshold = policy.threshold;
        whole.n_victims = is_due ? std::max(0, n - policy.stored) : 0;
        whole.dropped = dropped_index(positions, policy, row);
        if (whole.dropped >= 0 && whole.is_pinned(whole.dropped)) whole.dropped = -1;
        if (whole.dropped >= 0) whole.n_victims = std::max(0, whole.n_victims - 1);
        threshold = choose_victims(whole, victims);
        if (whole.dropped >= 0) victims.push_back(whole.dropped);
    } else {
        std::vector<int> of_span;
        for (const SpanShare& share : span_shares(positions, pinned, policy, row)) {
            const int n_victims = is_due ? share.last - share.first - share.stored : 0;
            const float own = choose_victims(
                {positions, score, tie, pinned, share, n_victims, policy.unit, policy.threshold}, of_span);
            threshold = std::fmin(threshold, own);  // NaN: nothing competed
            victims.insert(victims.end(), of_span.begin(), of_span.end());
        }
    }
    std::sort(victims.begin(), victims.end());
    return threshold;
}

}  // namespace keyhole
