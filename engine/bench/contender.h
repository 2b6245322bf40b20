/// Lanes that decode together and are timed. A bench runs several contenders in turn (A B A B ...). Engine
/// thread only. Knows the backend, not the bench.
#pragma once

#include "engine/backend/backend.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

struct ContenderSetup {
    std::string name;
    std::vector<ResolvedPolicy> policies;  ///< one per lane
    RowRequest requested;
    int context = 0;  ///< tokens of the prompt, at least 1
    /// Another contender, or null. This one computes no scores and repeats, untimed, the evictions of the
    /// other; the difference in time is the cost of scoring and evicting. The other must keep its whole
    /// prompt and decode first.
    const class Contender* follows = nullptr;
    bool keeps = false;  ///< keeps evictions and digests of the logits, for a contender that follows
};

class Contender {
  public:
    /// Processes the prompt; all contenders with the same context get the same prompt.
    Contender(const Model& model, Backend& backend, ContenderSetup setup);

    void decode(int n_steps);
    /// Discards the times so far.
    void restart() { step_ms.clear(); }

    const ContenderSetup& setup() const { return setup_; }
    int n_lanes() const { return static_cast<int>(caches_.size()); }
    /// K and V that a step reads, all lanes. Where heads read pages: the bounds of all of them, and the pages
    /// that they choose, as if no two query heads of a KV head chose the same.
    std::int64_t read_bytes() const;
    std::int64_t allocated_bytes() const;  ///< with scores
    /// Digests of the logits, one per step and lane, when kept: equal exactly when the bits are.
    const std::vector<std::uint64_t>& digests() const { return digests_; }

    double prompt_ms = 0;  ///< time of the prompt, on the wall clock
    std::vector<double> step_ms;
    /// Returns the milliseconds that `work` took. Wall clock unless replaced.
    std::function<double(const std::function<void()>& work)> clock;

  private:
    int token(int row, int lane) const;
    /// For a model with learned positions: throws Error(wrong_use) when it has too few for the rows before
    /// `end` or when a lane moves keys.
    void check_positions(int end) const;

    Backend& backend_;
    ContenderSetup setup_;
    const KvLayout& layout_;
    int head_dim_;
    int n_vocab_, row_;
    int n_learned_;  // number of learned positions; 0: no limit
    std::vector<std::unique_ptr<KvCache>> caches_;
    std::vector<RowOutput> outputs_;
    std::vector<std::vector<std::vector<Eviction>>> gone_;  // [step][lane]
    std::vector<std::uint64_t> digests_;
};

}  // namespace keyhole
