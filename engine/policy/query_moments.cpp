#include "engine/policy/calibration.h"

#include "engine/base/index.h"

#include <cmath>

namespace keyhole {

std::pair<std::size_t, std::size_t> rotated_channels(const Rotary& rotary, std::size_t pair) {
    return rotary.interleaved ? std::pair{2 * pair, 2 * pair + 1}
                              : std::pair{pair, pair + to_index(rotary.dims / 2)};
}

std::size_t n_rotated_pairs(const Rotary* rotary) {
    return rotary == nullptr ? 0 : to_index(rotary->dims / 2);
}

QueryMoments query_moments(std::span<const float* const> rows, int head_dim, const Rotary* rotary) {
    const std::size_t d = to_index(head_dim);
    QueryMoments of{static_cast<int>(rows.size()), std::vector<double>(d), std::vector<double>(d * d),
                    std::vector<double>(n_rotated_pairs(rotary))};
    if (rows.empty()) return of;
    const auto n = static_cast<double>(rows.size());
    for (const float* row : rows)
        for (std::size_t c = 0; c < d; ++c) of.mean[c] += double{row[c]};
    for (double& x : of.mean) x /= n;
    std::vector<double> away(d);
    for (const float* row : rows) {
        for (std::size_t c = 0; c < d; ++c) away[c] = double{row[c]} - of.mean[c];
        for (std::size_t c = 0; c < d; ++c) {
            double* to = of.covariance.data() + c * d;
            for (std::size_t e = c; e < d; ++e) to[e] += away[c] * away[e];
        }
        for (std::size_t f = 0; f < of.lengths.size(); ++f) {
            const auto [i, j] = rotated_channels(*rotary, f);
            of.lengths[f] += std::sqrt(double{row[i]} * double{row[i]} + double{row[j]} * double{row[j]});
        }
    }
    for (std::size_t c = 0; c < d; ++c)
        for (std::size_t e = c; e < d; ++e)
            of.covariance[c * d + e] = of.covariance[e * d + c] = of.covariance[c * d + e] / n;
    for (double& x : of.lengths) x /= n;
    return of;
}

}  // namespace keyhole
