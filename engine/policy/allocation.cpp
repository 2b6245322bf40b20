#include "engine/policy/allocation.h"

#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"
#include "engine/policy/share_maths.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace keyhole {

std::vector<int> by_largest_remainder(std::span<const double> parts) {
    std::vector<int> whole;
    std::vector<double> rest;
    double sum = 0;
    for (const double part : parts) {
        const WholePart in_whole = whole_part(part);
        whole.push_back(in_whole.whole);
        rest.push_back(in_whole.rest);
        sum += part;
    }
    std::int64_t missing = std::llround(sum) - std::accumulate(whole.begin(), whole.end(), std::int64_t{0});
    std::vector<std::size_t> order(parts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return rest[a] > rest[b] + kWholeWithin; });
    for (std::size_t i = 0; i < order.size() && missing > 0; ++i, --missing) ++whole[order[i]];
    return whole;
}

std::vector<int> share_by_length(int budget, std::span<const int> lengths, std::span<const int> least,
                                 std::span<const int> most) {
    const std::size_t n = lengths.size();
    std::vector<bool> is_bound(n, false);  // its share is one of its bounds
    std::vector<int> shares(n, 0);
    for (;;) {
        double left = budget, length = 0;
        for (std::size_t i = 0; i < n; ++i) is_bound[i] ? left -= shares[i] : length += lengths[i];
        std::vector<double> parts(n, 0);
        for (std::size_t i = 0; i < n; ++i)
            if (!is_bound[i] && length > 0) parts[i] = std::max(left, 0.0) * lengths[i] / length;
        const std::vector<int> whole = by_largest_remainder(parts);
        int excess = 0;
        for (std::size_t i = 0; i < n; ++i) {
            if (is_bound[i]) continue;
            shares[i] = std::clamp(whole[i], least[i], most[i]);
            excess += shares[i] - whole[i];
        }
        if (excess == 0) return shares;
        for (std::size_t i = 0; i < n; ++i)
            if (!is_bound[i]) is_bound[i] = excess > 0 ? shares[i] > whole[i] : shares[i] < whole[i];
    }
}

std::vector<int> share_budget(std::span<const HeadShare> heads, double floor, bool rounds) {
    struct Token {
        float score, tie;
        std::int32_t position;
        std::size_t head;
    };
    std::vector<Token> all;
    std::int64_t total = 0;
    for (std::size_t g = 0; g < heads.size(); ++g) {
        total += heads[g].budget;
        for (std::size_t i = 0; i < heads[g].positions.size(); ++i)
            all.push_back({lowest_if_nan(heads[g].score[i]),
                           heads[g].tie.empty() ? 0.0f : lowest_if_nan(heads[g].tie[i]),
                           heads[g].positions[i], g});
    }
    const auto better = [](const Token& a, const Token& b) {
        if (a.score != b.score) return a.score > b.score;
        if (a.tie != b.tie) return a.tie > b.tie;
        if (a.position != b.position) return a.position > b.position;
        return a.head > b.head;
    };
    const std::size_t n_best = std::min(static_cast<std::size_t>(total), all.size());
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n_best), all.end(), better);
    std::vector<int> of_best(heads.size(), 0);
    for (std::size_t i = 0; i < n_best; ++i) ++of_best[all[i].head];
    std::vector<double> parts;
    for (std::size_t g = 0; g < heads.size(); ++g)
        parts.push_back(part_of_budget(floor, rounds ? 0 : heads[g].budget, of_best[g]));
    std::vector<int> kept;
    if (rounds)
        for (std::size_t g = 0; g < heads.size(); ++g)
            kept.push_back(std::min(nearest_even(parts[g]) + static_cast<int>(floor * heads[g].budget),
                                    static_cast<int>(heads[g].positions.size())));
    else
        kept = by_largest_remainder(parts);
    std::int64_t missing = 0;
    for (std::size_t g = 0; g < heads.size(); ++g) {
        const int n = static_cast<int>(heads[g].positions.size());
        missing += std::max(kept[g] - n, 0);
        kept[g] = std::min(kept[g], n);
    }
    if (missing == 0) return kept;
    // Heads that have not as many give theirs to the best tokens that would leave.
    std::sort(all.begin(), all.end(), better);
    std::vector<int> seen(heads.size(), 0);
    for (std::size_t i = 0; i < all.size() && missing > 0; ++i) {
        int& own = kept[all[i].head];
        if (++seen[all[i].head] <= own) continue;
        ++own;
        --missing;
    }
    return kept;
}

std::vector<int> pyramid_budgets(int n_layers, int budget, int kept, int n, double beta) {
    const double mean = std::max(budget - kept, 0), most = std::max(n - kept, 0);
    std::vector<double> parts(to_index(n_layers), mean);
    if (n > budget && n_layers > 1) {
        double low = mean / beta, high = 2 * mean - low;
        if (high > most) {
            high = most;
            low = 2 * mean - high;
        }
        for (int l = 0; l < n_layers; ++l) parts[to_index(l)] = high - l * (high - low) / (n_layers - 1);
    }
    return by_largest_remainder(parts);
}

std::vector<int> released_pyramid_budgets(int n_layers, int budget, int kept, int n, double beta) {
    const int mean = std::max(budget - kept, 0), most = std::max(n - kept, 0);
    std::vector<int> budgets(to_index(n_layers), mean);
    if (n <= budget || n < 2 * mean || n_layers == 1) return budgets;
    int low = static_cast<int>(mean / beta), high = 2 * mean - low;
    if (high > most) {
        high = most;
        low = 2 * mean - high;
    }
    const int step = (high - low) / (n_layers - 1);
    for (int l = 0; l < n_layers; ++l) budgets[to_index(l)] = high - l * step;
    return budgets;
}

}  // namespace keyhole
