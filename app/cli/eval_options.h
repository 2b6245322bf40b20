/// What eval and sweep share: which questions are asked, on the command line. Main thread.
#pragma once

#include "app/cli/options.h"
#include "engine/eval/evaluate.h"

#include <string>
#include <vector>

namespace keyhole {

struct EvalOptions {
    RunOptions run;  ///< model, lanes, backend
    std::string text, task, passages, distance;
    int context = 0;  ///< 0: the model's, at most 1024
    int n_prefill = 0;
    int n_samples = 0;
    std::uint64_t seed = 1;

    void add(CLI::App& command);
    /// Throws Error(wrong_use) when neither or nothing valid is asked for.
    std::vector<QuestionSet> questions(const std::shared_ptr<const Model>& model) const;
    int context_of(const Model& model) const;
    /// The lanes as typed, `full` without any.
    std::vector<LaneSpec> lanes() const;
    /// The same, as text.
    std::vector<std::string> labels() const;
};

}  // namespace keyhole
