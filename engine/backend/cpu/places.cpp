#include "engine/backend/cpu/places.h"

#include "engine/policy/math.h"

#include <cmath>

namespace keyhole::cpu {

int steps_back(const CpuKvCache& cache, int g, Positions positions, std::span<std::int32_t> steps) {
    const std::int32_t* order = cache.order(g);
    const std::int32_t* original = cache.positions(g);
    int place = 0, before = 0;
    for (int i = 0; i < cache.count(g); ++i) {
        const std::int32_t slot = order[i];
        const int here = original[slot];
        if (positions == Positions::compressed)
            place += compressed_gap(here - before);
        else
            place = positions == Positions::cache ? i : here;
        before = here;
        steps[static_cast<std::size_t>(slot)] = here - place;
    }
    return place;
}

void TurnTable::grow(int last) {
    const std::size_t width = 2 * inverse_frequency_.size();
    const int had = static_cast<int>(rows_.size() / width);
    if (last < had) return;
    constexpr int kMore = 256;
    const int rows = last + kMore;
    rows_.resize(static_cast<std::size_t>(rows) * width);
    for (int position = had; position < rows; ++position) {
        float* cosine = rows_.data() + static_cast<std::size_t>(position) * width;
        float* sine = cosine + width / 2;
        for (std::size_t i = 0; i < width / 2; ++i) {
            const double angle = position * inverse_frequency_[i];
            cosine[i] = static_cast<float>(std::cos(angle));
            sine[i] = static_cast<float>(std::sin(angle));
        }
    }
}

}  // namespace keyhole::cpu
