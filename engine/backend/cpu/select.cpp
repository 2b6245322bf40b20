#include "engine/backend/cpu/select.h"

#include "engine/base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace keyhole::cpu {

std::vector<Unit> units_of(const KvLayout& layout, Scope scope) {
    std::vector<Unit> units;
    switch (scope) {
        case Scope::head:
            for (int g = 0; g < layout.n_kv_heads(); ++g) units.push_back({g, g + 1});
            break;
        case Scope::layer:
            for (int l = 0; l < layout.n_layers(); ++l)
                if (layout.first_of_layer(l) < layout.first_of_layer(l + 1))
                    units.push_back({layout.first_of_layer(l), layout.first_of_layer(l + 1)});
            break;
        case Scope::shared:
            units.push_back({0, layout.n_kv_heads()});
            break;
    }
    return units;
}

namespace {

void unite_positions(const CpuKvCache& cache, int first, int last, UnitScores& out) {
    auto fill = [&](int g, std::vector<std::int32_t>& to) {
        to.resize(static_cast<std::size_t>(cache.count(g)));
        for (std::size_t i = 0; i < to.size(); ++i) to[i] = cache.positions(g)[cache.order(g)[i]];
    };
    fill(first, out.positions);
    for (int g = first + 1; g < last; ++g) {
        fill(g, out.scratch);
        if (out.scratch == out.positions) continue;
        std::vector<std::int32_t> both;
        std::set_union(out.positions.begin(), out.positions.end(), out.scratch.begin(), out.scratch.end(),
                       std::back_inserter(both));
        out.positions = std::move(both);
    }
}

}  // namespace

void pool_unit(const CpuKvCache& cache, const KvLayout& layout, int first, int last, UnitScores& out) {
    const ResolvedPolicy& policy = cache.policy();
    const Accumulator accumulator = accumulator_of(policy);
    unite_positions(cache, first, last, out);
    out.pooled.assign(out.positions.size(),
                      policy.pool == Pool::max ? -std::numeric_limits<float>::infinity() : 0.0f);
    int n_readers = 0;
    for (int g = first; g < last; ++g) {
        for (const HeadRef& reader : layout.kv_head(g).readers) {
            const float* score = cache.score(accumulator, reader.layer * layout.n_heads() + reader.head);
            ++n_readers;
            std::size_t at = 0;
            for (int i = 0; i < cache.count(g); ++i, ++at) {
                const std::int32_t slot = cache.order(g)[i];
                while (out.positions[at] != cache.positions(g)[slot]) ++at;
                float& pooled = out.pooled[at];
                pooled = policy.pool == Pool::max ? std::max(pooled, score[slot]) : pooled + score[slot];
            }
        }
    }
    if (policy.pool == Pool::mean && n_readers > 1)
        for (float& pooled : out.pooled) pooled /= static_cast<float>(n_readers);
}

float select_victims(std::span<const std::int32_t> positions, std::span<const float> score,
                     const ResolvedPolicy& policy, std::vector<int>& victims) {
    victims.clear();
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    const int n = static_cast<int>(positions.size());
    if (!policy.evicts() || n <= policy.stored) return kNone;
    const int n_victims = n - policy.stored;
    int first = 0;
    while (first < n && positions[static_cast<std::size_t>(first)] < policy.sinks) ++first;
    const int last = std::max(first, n - policy.newest);
    KH_ASSERT(n_victims <= last - first, "victims={} competing={}", n_victims, last - first);

    auto rank = [&](int i) {  // NaN from a broken checkpoint must not break the ordering
        const float s = score[static_cast<std::size_t>(i)];
        return std::isnan(s) ? -std::numeric_limits<float>::infinity() : s;
    };
    auto worse = [&](int a, int b) { return rank(a) < rank(b) || (rank(a) == rank(b) && a < b); };
    victims.resize(static_cast<std::size_t>(last - first));
    std::iota(victims.begin(), victims.end(), first);
    const auto end = victims.begin() + n_victims;
    float threshold = kNone;
    if (end != victims.end()) {
        std::nth_element(victims.begin(), end, victims.end(), worse);
        threshold = score[static_cast<std::size_t>(*end)];
    }
    victims.erase(end, victims.end());
    std::sort(victims.begin(), victims.end());
    return threshold;
}

}  // namespace keyhole::cpu
