#include "engine/analysis/row_shape.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace keyhole {

double sparse_share(std::span<const float> row, double threshold) {
    KH_ASSERT(!row.empty());
    const double limit = threshold * static_cast<double>(*std::max_element(row.begin(), row.end()));
    const auto n =
        std::count_if(row.begin(), row.end(), [&](float a) { return static_cast<double>(a) <= limit; });
    return static_cast<double>(n) / static_cast<double>(row.size());
}

void add_mass_curve(std::span<const float> row, std::span<double> out) {
    KH_ASSERT(out.size() >= 2);
    std::vector<float> sorted(row.begin(), row.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    std::vector<double> sums{0};
    for (float a : sorted) sums.push_back(sums.back() + static_cast<double>(a));
    if (!(sums.back() > 0)) return;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const double at =
            static_cast<double>(i) / static_cast<double>(out.size() - 1) * static_cast<double>(sorted.size());
        const auto below = std::min(static_cast<std::size_t>(at), sorted.size() - 1);
        const double part = at - static_cast<double>(below);
        out[i] += (sums[below] + part * (sums[below + 1] - sums[below])) / sums.back();
    }
}

}  // namespace keyhole
