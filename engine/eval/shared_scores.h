/// One set of scores, and one kept set, for the caches of all beams of a lane: what Keyformer's released code
/// does, which sums the scores of a batch before it selects. Used on the thread of PromptedLanes, by
/// BeamSearch only.
///
/// Row r, beams b, KV head g, position p:
///
///     S[g][p] <- alpha * S[g][p] + sum over b of (a_b[g][p] - alpha * a_b'[g][p])
///
/// a_b: what the beam's cache has accumulated after the row, pooled over query heads; a_b': before it. The
/// difference is what the row itself gave. All caches hold the same positions. They do not evict by
/// themselves: this selects by S, and evicts the same positions from each.
#pragma once

#include "engine/session/lane.h"

#include <memory>
#include <span>
#include <vector>

namespace keyhole {

/// Scores of what is stored in each KV head, [kv_head][stored], by ascending position.
using KvScores = std::vector<std::vector<float>>;

class SharedScores {
  public:
    /// lane: right after the prompt, with the scores of its last row (RowRequest). Each of the n_beams gives
    /// the prompt's scores, as in the released code, which processes the prompt once for each beam.
    /// n_generate: rows that follow. Throws Error(wrong_use) if the policy pools by `max`, since the largest
    /// of sums is not the sum of the largest.
    SharedScores(Backend& backend, const Lane& lane, int n_beams, int n_generate);

    /// Stops a copy of the lane's cache from evicting by itself. row: the last one processed. Returns what
    /// the cache has accumulated.
    KvScores begin(KvCache& cache, int row) const;

    /// A beam's cache, the values of the row just processed, and what its cache had accumulated before.
    struct Of {
        KvCache* cache = nullptr;
        const RowValues* values = nullptr;
        KvScores* own = nullptr;  ///< in/out
    };
    /// Adds the row of every beam and evicts.
    void evict(std::span<const Of> beams, int row);

  private:
    Backend& backend_;
    std::shared_ptr<const Model> model_;  ///< keeps the layout
    ResolvedPolicy policy_;               ///< as the lane has it
    int n_generate_;
    std::vector<std::vector<std::int32_t>> positions_;  ///< [kv_head][stored]
    KvScores own_;                                      ///< of one beam after the prompt
    KvScores sum_;

    const ResolvedPolicy& policy_of(int kv_head) const;
    void add_row(std::span<const Of> beams, int kv_head, int row);
    void erase(std::span<const Of> beams, int kv_head, std::span<const int> victims);
};

}  // namespace keyhole
