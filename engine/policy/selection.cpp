#include "engine/policy/selection.h"

#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"

#include <algorithm>
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

}  // namespace

float select_victims(std::span<const std::int32_t> positions, std::span<const float> score,
                     std::span<const std::int32_t> pinned, const ResolvedPolicy& policy, int row,
                     std::vector<int>& victims, std::span<const float> tie) {
    victims.clear();
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    const int n = static_cast<int>(positions.size());
    if (!must_select(policy, n, row)) return kNone;
    // With a threshold it may be due before the budget is full.
    int n_victims = policy.has_threshold() && n < policy.due_at() ? 0 : std::max(0, n - policy.stored);
    const auto is_pinned = [&](int i) {
        return !pinned.empty() && std::binary_search(pinned.begin(), pinned.end(), positions[to_index(i)]);
    };
    int dropped = dropped_index(positions, policy, row);
    if (dropped >= 0 && is_pinned(dropped)) dropped = -1;
    if (dropped >= 0) n_victims = std::max(0, n_victims - 1);
    int first = 0;
    while (first < n && positions[to_index(first)] < policy.sinks) ++first;
    const int last = std::max(first, n - policy.newest);

    // NaN from a broken checkpoint must not break the ordering.
    const auto rank_in = [](std::span<const float> of, int i) { return lowest_if_nan(of[to_index(i)]); };
    const auto worse = [&](int a, int b) {
        const float x = rank_in(score, a), y = rank_in(score, b);
        if (x != y || tie.empty()) return x < y || (x == y && a < b);
        const float own = rank_in(tie, a), other = rank_in(tie, b);
        return own < other || (own == other && a < b);
    };
    for (int i = first; i < last; ++i)
        if (i != dropped && !is_pinned(i)) victims.push_back(i);
    if (policy.has_threshold()) {
        const auto below = [&](int i) { return rank_in(score, i) < policy.threshold; };
        n_victims =
            std::max(n_victims, static_cast<int>(std::count_if(victims.begin(), victims.end(), below)));
    }
    float threshold = kNone;
    const int n_competing = static_cast<int>(victims.size());
    if (policy.unit > 1 && n_victims > 0 && n_victims < n_competing) {
        threshold = keep_worst_blocks(positions, score, tie, policy.unit, n_victims, victims);
    } else if (n_victims < n_competing) {
        const auto end = victims.begin() + n_victims;
        if (n_victims <= 4)  // as in most rows; one pass then
            std::partial_sort(victims.begin(), end + 1, victims.end(), worse);
        else
            std::nth_element(victims.begin(), end, victims.end(), worse);
        threshold = score[to_index(*end)];
        victims.erase(end, victims.end());
    } else {  // too few compete because of pins: evicts the oldest of the newest, then the newest sinks
        int missing = n_victims - n_competing;
        for (int i = last; i < n && missing > 0; ++i)
            if (i != dropped && !is_pinned(i)) victims.push_back(i), --missing;
        for (int i = first - 1; i >= 0 && missing > 0; --i)
            if (i != dropped && !is_pinned(i)) victims.push_back(i), --missing;
    }
    if (dropped >= 0) victims.push_back(dropped);
    std::sort(victims.begin(), victims.end());
    return threshold;
}

}  // namespace keyhole
