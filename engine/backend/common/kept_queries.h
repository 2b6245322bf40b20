/// The newest queries of a lane before their rotation, in main memory: what `expected` and `tri` rank by
/// after rows where no calibration is given. Several threads may write different heads. Knows no cache.
#pragma once

#include "engine/backend/common/query_statistics.h"
#include "engine/base/index.h"
#include "engine/model/kv_layout.h"
#include "engine/policy/params.h"
#include "engine/policy/selection.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace keyhole {

class KeptQueries {
  public:
    /// Begins where the policy needs them and none are kept, and forgets them where it needs none. n_heads:
    /// of all layers; last_row: the last one so far.
    void change(const ResolvedPolicy& policy, int n_heads, int head_dim, int last_row);
    /// Tells from which row on they are kept.
    void begin(int row) { first_ = row; }
    bool any() const { return !queries_.empty(); }
    std::int64_t size_bytes() const { return static_cast<std::int64_t>(queries_.size() * sizeof(float)); }
    /// The query of one of the newest rows, [head_dim] of query head `head`; null where none are kept.
    float* at(int row, int head) { return const_cast<float*>(std::as_const(*this).at(row, head)); }
    const float* at(int row, int head) const {
        if (queries_.empty()) return nullptr;
        const std::int64_t row_at = row % ResolvedPolicy::kKeptQueries;
        return queries_.data() + to_index((row_at * n_heads_ + head) * head_dim_);
    }
    /// Returns the first row whose query is kept by `row`.
    int first(int row) const { return std::max(first_, row - ResolvedPolicy::kKeptQueries + 1); }

  private:
    std::vector<float> queries_;  // [kKeptQueries, n_heads_, head_dim_] or none
    int n_heads_ = 0, head_dim_ = 0;
    int first_ = 0;  // first row whose query is kept
};

/// Returns what is known after a row of the query heads that read a unit's KV heads, in their order: from the
/// calibration, or from the kept queries but those of the first tokens, which `sinks` protects. Empty where
/// the policy ranks by none. policy: the unit's.
std::vector<QueryMoments> queries_after_row(const KvLayout& layout, const ModelConfig& config,
                                            const Unit& unit, const ResolvedPolicy& policy,
                                            const KeptQueries& kept, int row);

}  // namespace keyhole
