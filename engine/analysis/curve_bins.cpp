#include "engine/analysis/curve_bins.h"

#include "engine/analysis/no_value.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

std::size_t values_a_bin(std::size_t n_values, std::size_t most_bins) {
    std::size_t n = 1;
    while (n * most_bins < n_values) n *= 2;
    return n;
}

std::vector<float> means_of_bins(std::span<const float> values, std::size_t n, bool logarithmic,
                                 double lowest) {
    std::vector<float> means;
    for (std::size_t begin = 0; begin < values.size(); begin += n) {
        double sum = 0;
        int known = 0;
        for (const float value : values.subspan(begin, std::min(n, values.size() - begin))) {
            if (std::isnan(value)) continue;
            sum += logarithmic ? std::log(std::max(double(value), lowest)) : double(value);
            ++known;
        }
        const double mean = sum / known;
        means.push_back(known == 0 ? kNoValue : static_cast<float>(logarithmic ? std::exp(mean) : mean));
    }
    return means;
}

}  // namespace keyhole
