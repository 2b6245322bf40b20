#include "tests/reference/shared_budgets.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace reference {
namespace {

using keyhole::to_index;

/// Rounds parts over a common denominator down, and gives what is missing to the largest remainders; of equal
/// ones to the first.
std::vector<int> whole(const std::vector<std::int64_t>& parts, std::int64_t under) {
    std::vector<int> out;
    std::int64_t sum = 0, given = 0;
    for (const std::int64_t part : parts) {
        out.push_back(static_cast<int>(part / under));
        sum += part;
        given += out.back();
    }
    std::vector<bool> has(parts.size(), false);
    // Where the sum is no whole number, it is rounded.
    for (std::int64_t missing = (2 * sum + under) / (2 * under) - given; missing > 0; --missing) {
        std::size_t best = parts.size();
        for (std::size_t i = 0; i < parts.size(); ++i)
            if (!has[i] && (best == parts.size() || parts[i] % under > parts[best] % under)) best = i;
        has[best] = true;
        ++out[best];
    }
    return out;
}

}  // namespace

std::vector<int> pyramid_line(int n_layers, int budget, int kept, int n_prompt, Quotient beta, bool as_code) {
    const std::int64_t mean = budget - kept, most = n_prompt - kept;
    const std::vector<int> flat(to_index(n_layers), budget - kept);
    if (n_prompt <= budget || n_layers == 1) return flat;
    if (as_code) {
        if (n_prompt < 2 * mean) return flat;
        std::int64_t low = mean * beta.under / beta.over, high = 2 * mean - low;
        if (high > most) high = most, low = 2 * mean - high;
        std::vector<int> out;
        for (int l = 0; l < n_layers; ++l)
            out.push_back(static_cast<int>(high - l * ((high - low) / (n_layers - 1))));
        return out;
    }
    // In parts of beta.over * (n_layers - 1).
    const std::int64_t steps = n_layers - 1;
    std::int64_t low = mean * beta.under, high = 2 * mean * beta.over - low;
    if (high > most * beta.over) high = most * beta.over, low = 2 * mean * beta.over - high;
    std::vector<std::int64_t> parts;
    for (int l = 0; l < n_layers; ++l) parts.push_back(high * steps - l * (high - low));
    return whole(parts, beta.over * steps);
}

bool Competitor::operator<(const Competitor& other) const {
    if (value != other.value) return value > other.value;
    if (plain != other.plain) return plain > other.plain;
    return position != other.position ? position > other.position : head > other.head;
}

bool is_near(double a, double b, double eps) {
    return a == b || (std::isfinite(a - b) && std::abs(a - b) <= eps * std::abs(a));
}

bool is_decided(const std::vector<Competitor>& sorted, int n, double eps) {
    if (n <= 0 || n >= static_cast<int>(sorted.size()) || eps == 0) return true;
    const Competitor &last = sorted[to_index(n - 1)], &next = sorted[to_index(n)];
    if (!is_near(last.value, next.value, eps) || std::isinf(last.value)) return true;
    for (const Competitor& token : sorted)
        if (token.value != last.value && is_near(token.value, last.value, eps)) return false;
    return last.value == next.value && !is_near(last.plain, next.plain, eps);
}

Rooms shared_rooms(std::vector<Competitor> tokens, const std::vector<int>& own, int floor_percent,
                   bool as_code, double eps) {
    std::sort(tokens.begin(), tokens.end());
    const int total = std::accumulate(own.begin(), own.end(), 0), n = static_cast<int>(tokens.size());
    Rooms rooms;
    rooms.is_decided = is_decided(tokens, total, eps);
    std::vector<int> among(own.size(), 0), n_free(own.size(), 0);
    for (int i = 0; i < n; ++i) {
        ++n_free[to_index(tokens[to_index(i)].head)];
        if (i < total) ++among[to_index(tokens[to_index(i)].head)];
    }
    std::vector<std::int64_t> parts;
    for (std::size_t g = 0; g < own.size(); ++g) {
        const int of_best = (100 - floor_percent) * among[g];
        if (!as_code) {
            parts.push_back(floor_percent * own[g] + of_best);
            continue;
        }
        const int down = of_best / 100, rest = of_best % 100;
        const int rounded = down + (rest > 50 || (rest == 50 && down % 2 == 1) ? 1 : 0);
        rooms.of_head.push_back(std::min(rounded + floor_percent * own[g] / 100, n_free[g]));
    }
    if (as_code) return rooms;
    rooms.of_head = whole(parts, 100);
    int rest = 0;
    for (std::size_t g = 0; g < own.size(); ++g) {
        rest += std::max(rooms.of_head[g] - n_free[g], 0);
        rooms.of_head[g] = std::min(rooms.of_head[g], n_free[g]);
    }
    // What heads without so many tokens leave goes to the best tokens that would leave.
    std::vector<Competitor> would_leave;
    std::vector<int> seen(own.size(), 0);
    for (const Competitor& token : tokens)
        if (++seen[to_index(token.head)] > rooms.of_head[to_index(token.head)]) would_leave.push_back(token);
    rooms.is_decided = rooms.is_decided && is_decided(would_leave, rest, eps);
    for (int i = 0; i < std::min(rest, static_cast<int>(would_leave.size())); ++i)
        ++rooms.of_head[to_index(would_leave[to_index(i)].head)];
    return rooms;
}

const char* wrong_with_two_stages(const std::vector<Competitor>& tokens, const Vector& products,
                                  const std::vector<bool>& kept, int n_first, double eps) {
    std::vector<Competitor> sorted = tokens;
    std::sort(sorted.begin(), sorted.end());
    n_first = std::min(n_first, static_cast<int>(tokens.size()));
    // The first stage is sure of those above what may be swapped. Of the others it takes as many as it has
    // left; these may be the kept ones with the least products.
    std::vector<double> swapped, stay, leave;
    int n_sure = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const double least = n_first == 0 ? 0 : sorted[to_index(n_first - 1)].value;
        const bool is_tied = n_first > 0 && is_near(tokens[i].value, least, eps);
        if (n_first > 0 && !is_tied && tokens[i].value > least) {
            ++n_sure;
            if (!kept[i]) return "a token of the first stage left";
        } else if (kept[i]) {
            (is_tied ? swapped : stay).push_back(products[i]);
        } else {
            leave.push_back(products[i]);
        }
    }
    const int n_more = n_first - n_sure;
    if (static_cast<int>(swapped.size()) < n_more) return "too few of the first stage stay";
    std::sort(swapped.begin(), swapped.end());
    stay.insert(stay.end(), swapped.begin() + n_more, swapped.end());
    for (const double worst : stay)
        for (const double best : leave)
            if (best > worst && !is_near(best, worst, eps)) return "a worse token of the second stage stays";
    return "";
}

std::vector<bool> retrieval_heads(const Vector& numbers, const double* sparsity, double threshold) {
    std::vector<bool> all;
    const auto clipped = [](double x) { return std::min(std::max(x, 0.0), 1.0); };
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        int below = 0;  // that stream before it
        for (std::size_t j = 0; j < numbers.size(); ++j) {
            const double own = clipped(numbers[i]), other = clipped(numbers[j]);
            below += other < own || (other == own && j < i) ? 1 : 0;
        }
        const double n = static_cast<double>(numbers.size());
        all.push_back(sparsity != nullptr ? below >= std::round(*sparsity * n)
                                          : clipped(numbers[i]) >= threshold);
    }
    return all;
}

}  // namespace reference
