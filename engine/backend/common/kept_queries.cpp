#include "engine/backend/common/kept_queries.h"

#include "engine/backend/common/choice.h"

namespace keyhole {

void KeptQueries::change(const ResolvedPolicy& policy, int n_heads, int head_dim, int last_row) {
    const bool needs = policy.kept_queries() > 0;
    if (needs == any()) return;
    n_heads_ = n_heads;
    head_dim_ = head_dim;
    first_ = last_row + 1;
    queries_ =
        needs ? std::vector<float>(to_index(policy.kept_queries()) * to_index(n_heads) * to_index(head_dim))
              : std::vector<float>();
}

std::vector<QueryMoments> queries_after_row(const KvLayout& layout, const ModelConfig& config,
                                            const Unit& unit, const ResolvedPolicy& policy,
                                            const KeptQueries& kept, int row) {
    if (policy.calibration) return calibrated_queries(layout, unit, policy);
    std::vector<QueryMoments> moments;
    if (!policy.names_queries()) return moments;
    for (int g = unit.first; g < unit.last; g += unit.step)
        for (const HeadRef& reader : layout.kv_head(g).readers) {
            std::vector<const float*> rows;
            for (int r = std::max(kept.first(row), policy.sinks); r <= row; ++r)
                if (const float* query = kept.at(r, reader.layer * layout.n_heads() + reader.head))
                    rows.push_back(query);
            moments.push_back(query_moments(rows, config.head_dim, rotary_of(config, reader.layer)));
        }
    return moments;
}

}  // namespace keyhole
