#include "engine/eval/statistics.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace keyhole {

namespace {
constexpr double kZ = 1.959963984540054;

Interval interval_of_share(double p, double n) {
    const double z2n = kZ * kZ / n;
    const double middle = p + z2n / 2, half = kZ * std::sqrt(p * (1 - p) / n + z2n / (4 * n));
    // At the ends of the scale the limits are 0 and 1, apart from rounding.
    return {p == 0 ? 0 : std::max(0.0, (middle - half) / (1 + z2n)),
            p == 1 ? 1 : std::min(1.0, (middle + half) / (1 + z2n))};
}

/// sum, squares: of n differences from -1 to 1. Bonett and Price add one question to each of the two counts:
/// a difference of 1 and one of -1.
Estimate estimate_of_differences(double sum, double squares, double n) {
    const double d = sum / (n + 2), half = kZ * std::sqrt(((squares + 2) / (n + 2) - d * d) / (n + 2));
    return {sum / n, {std::max(-1.0, d - half), std::min(1.0, d + half)}};
}

}  // namespace

Interval wilson_interval(int k, int n) {
    KH_ASSERT(k >= 0 && k <= n, "k={} n={}", k, n);
    if (n == 0) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        return {nan, nan};
    }
    return interval_of_share(static_cast<double>(k) / n, n);
}

Estimate paired_difference(int only_first, int only_second, int n) {
    KH_ASSERT(n > 0 && only_first >= 0 && only_second >= 0 && only_first + only_second <= n);
    return estimate_of_differences(only_second - only_first, only_first + only_second, n);
}

Estimate mean_of_shares(std::span<const double> values) {
    KH_ASSERT(!values.empty());
    const auto n = static_cast<double>(values.size());
    const double p = std::clamp(std::accumulate(values.begin(), values.end(), 0.0) / n, 0.0, 1.0);
    return {p, interval_of_share(p, n)};
}

Estimate mean_of_differences(std::span<const double> values) {
    KH_ASSERT(!values.empty());
    double sum = 0, squares = 0;
    for (const double v : values) sum += v, squares += v * v;
    return estimate_of_differences(sum, squares, static_cast<double>(values.size()));
}

Estimate mean_estimate(std::span<const double> values) {
    KH_ASSERT(!values.empty());
    const auto n = static_cast<double>(values.size());
    double sum = 0, squares = 0;
    for (double v : values) sum += v;
    const double mean = sum / n;
    for (double v : values) squares += (v - mean) * (v - mean);
    if (values.size() == 1) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        return {mean, {nan, nan}};
    }
    const double half = student_t(static_cast<int>(values.size()) - 1) * std::sqrt(squares / (n - 1) / n);
    return {mean, {mean - half, mean + half}};
}

double student_t(int df) {
    KH_ASSERT(df >= 1, "df={}", df);
    constexpr std::array<double, 10> kTable = {12.7062, 4.3027, 3.1824, 2.7764, 2.5706,
                                               2.4469,  2.3646, 2.3060, 2.2622, 2.2281};
    if (df <= static_cast<int>(kTable.size())) return kTable[to_index(df) - 1];
    // Cornish and Fisher's expansion in 1 / df (Abramowitz and Stegun, 26.7.5).
    const double z = kZ, n = df;
    return z + (z * z * z + z) / (4 * n) + (5 * std::pow(z, 5) + 16 * std::pow(z, 3) + 3 * z) / (96 * n * n) +
           (3 * std::pow(z, 7) + 19 * std::pow(z, 5) + 17 * std::pow(z, 3) - 15 * z) / (384 * n * n * n);
}

}  // namespace keyhole
