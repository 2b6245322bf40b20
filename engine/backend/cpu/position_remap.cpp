#include "engine/backend/cpu/position_remap.h"

#include "engine/base/index.h"
#include "engine/policy/math.h"

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
        steps[to_index(slot)] = here - place;
    }
    return place;
}

}  // namespace keyhole::cpu
