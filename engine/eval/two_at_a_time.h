/// Answers two questions at a time on two halves of the CPU's threads, which wait less for each other than
/// all threads at one question. An answer does not depend on that. Main thread; knows eval.
#pragma once

#include "engine/eval/evaluate.h"

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace keyhole {

/// A question of a set, and the lanes that answer it.
struct Asked {
    int question = 0;
    std::vector<LaneSpec> lanes;
};

class TwoAtATime {
  public:
    /// Most bytes that all lanes of the questions at a time should store after their prompts.
    static constexpr double kBytes = 3e9;

    /// backend: of the model; it must outlive this object. If it is no CPU, or has one thread, it answers the
    /// questions one by one. n_threads: as in BackendOptions.
    TwoAtATime(std::shared_ptr<const Model> model, Backend& backend, int n_threads);

    int n_at_a_time() const { return halves_.empty() ? 1 : 2; }
    /// As hold_models(), for all later questions, in place of the lanes held before.
    void hold(std::span<const LaneSpec> lanes);
    /// Calls each(asked, outcomes) for every question in order, on this thread. Throws the session's Error.
    void ask(const QuestionSet& set, std::span<const Asked> asked,
             const std::function<void(const Asked&, const std::vector<Outcome>&)>& each);

  private:
    std::shared_ptr<const Model> model_;
    Backend& whole_;
    std::vector<std::unique_ptr<Backend>> halves_;  ///< two or none
    std::vector<std::unique_ptr<KvCache>> held_;
};

}  // namespace keyhole
