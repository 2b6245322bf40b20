#include "engine/run/sampler.h"

#include "engine/base/index.h"
#include "engine/base/philox.h"
#include "engine/policy/next_token_measures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace keyhole {

float sampling_uniform(std::uint64_t seed, int row) {
    constexpr std::uint32_t kPurpose = 0x53414d50u;  // keeps these draws apart from the policies' noise
    return uniform_from_bits(philox4x32_10({{static_cast<std::uint32_t>(row), kPurpose, 0, 0}}, seed).x[0]);
}

int choose_token(std::span<const float> logits, const Sampling& sampling, float uniform) {
    if (sampling.temperature <= 0) return best(logits);
    std::vector<int> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    auto logit = [&](int id) { return static_cast<double>(logits[to_index(id)]); };
    auto better = [&](int a, int b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); };
    if (sampling.top_k > 0 && to_index(sampling.top_k) < ids.size()) {
        std::partial_sort(ids.begin(), ids.begin() + sampling.top_k, ids.end(), better);
        ids.resize(to_index(sampling.top_k));
    } else {
        std::sort(ids.begin(), ids.end(), better);
    }
    std::vector<double> mass;
    mass.reserve(ids.size());
    for (int id : ids) mass.push_back(std::exp((logit(id) - logit(ids.front())) / sampling.temperature));
    double total = std::accumulate(mass.begin(), mass.end(), 0.0);
    if (sampling.top_p < 1) {
        double kept = 0;
        std::size_t n = 0;
        while (n < mass.size() && kept < sampling.top_p * total) kept += mass[n++];
        mass.resize(std::max<std::size_t>(n, 1));
        total = std::accumulate(mass.begin(), mass.end(), 0.0);
    }
    double left = static_cast<double>(uniform) * total;
    for (std::size_t i = 0; i < mass.size(); ++i) {
        left -= mass[i];
        if (left < 0) return ids[i];
    }
    return ids[mass.size() - 1];
}

}  // namespace keyhole
