/// Lanes that decode together, timed: one of those that a bench runs in turn (A B A B ...). Engine thread only; knows backend.
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
    std::vector<ResolvedPolicy> policies;  ///< one a lane
    RowWants wants;
    int context = 0;  ///< tokens of the prompt, at least 1
    /// Null, or whose evictions it repeats, untimed, making no scores: what choosing and evicting costs is the difference. That one must
    /// keep its whole prompt and decode first.
    const class Contender* follows = nullptr;
    bool keeps = false;  ///< what left, and a digest of the logits, for who follows
};

class Contender {
  public:
    /// Processes the prompt, the same for all of one context.
    Contender(const Model& model, Backend& backend, ContenderSetup setup);

    void decode(int n_steps);
    /// Forgets the times so far.
    void restart() { step_ms.clear(); }

    const ContenderSetup& setup() const { return setup_; }
    int n_lanes() const { return static_cast<int>(caches_.size()); }
    std::int64_t stored_bytes() const;     ///< of K and V, all lanes
    std::int64_t allocated_bytes() const;  ///< scores included
    /// Of the logits of every step and lane, where it keeps them: equal when their bits are.
    const std::vector<std::uint64_t>& digests() const { return digests_; }

    std::vector<double> step_ms;
    /// Milliseconds that `work` took; the clock of the wall unless replaced.
    std::function<double(const std::function<void()>& work)> clock;

  private:
    int token(int row, int lane) const;
    /// Throws Error(wrong_use) where positions are learned and there is none for the rows before `end`.
    void check_positions(int end) const;

    Backend& backend_;
    ContenderSetup setup_;
    int n_vocab_, row_;
    int n_learned_;  // positions; 0: any number
    std::vector<std::unique_ptr<KvCache>> caches_;
    std::vector<RowOutput> outputs_;
    std::vector<std::vector<std::vector<Eviction>>> gone_;  // [step][lane]
    std::vector<std::uint64_t> digests_;
};

}  // namespace keyhole
