#include "engine/metrics/distribution.h"

#include "engine/base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

void log_softmax(std::span<const float> logits, std::span<float> log_probs) {
    KH_ASSERT(!logits.empty() && logits.size() == log_probs.size(), "{} and {} values", logits.size(),
              log_probs.size());
    double largest = -std::numeric_limits<double>::infinity();
    for (float x : logits) largest = std::max(largest, static_cast<double>(x));
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x) - largest);
    const double shift = largest + std::log(sum);
    for (std::size_t v = 0; v < logits.size(); ++v)
        log_probs[v] = static_cast<float>(static_cast<double>(logits[v]) - shift);
}

double entropy(std::span<const float> log_probs) {
    double sum = 0;
    for (float x : log_probs) {
        const double log_p = x;
        const double p = std::exp(log_p);
        if (p != 0) sum -= p * log_p;
    }
    return sum;
}

double kl_divergence(std::span<const float> log_p, std::span<const float> log_q) {
    KH_ASSERT(log_p.size() == log_q.size(), "{} and {} values", log_p.size(), log_q.size());
    double sum = 0;
    for (std::size_t v = 0; v < log_p.size(); ++v) {
        const double p = std::exp(static_cast<double>(log_p[v]));
        if (p != 0) sum += p * (static_cast<double>(log_p[v]) - static_cast<double>(log_q[v]));
    }
    return sum < 0 ? 0 : sum;  // rounding of float inputs; NaN passes through
}

std::vector<int> top_k(std::span<const float> values, int k) {
    std::vector<int> index;
    index.reserve(values.size());
    for (std::size_t v = 0; v < values.size(); ++v)
        if (!std::isnan(values[v])) index.push_back(static_cast<int>(v));
    const auto n = std::min<std::size_t>(index.size(), static_cast<std::size_t>(std::max(k, 0)));
    std::partial_sort(
        index.begin(), index.begin() + static_cast<std::ptrdiff_t>(n), index.end(), [&](int a, int b) {
            const float x = values[static_cast<std::size_t>(a)], y = values[static_cast<std::size_t>(b)];
            return x != y ? x > y : a < b;
        });
    index.resize(n);
    return index;
}

}  // namespace keyhole
