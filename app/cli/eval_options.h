/// Reads the options that eval and sweep share: model, lanes and questions.
/// Main thread; knows no window.
#pragma once

#include "app/cli/command.h"

#include "app/cli/data_arguments.h"
#include "app/cli/options.h"
#include "engine/eval/evaluate.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace keyhole {

struct EvalOptions {
    RunOptions run;  ///< model, lanes, backend
    std::string text, task, passages, distance;
    std::string ask = "question";
    int context = 0;  ///< 0: the model's n_ctx, at most 1024
    int n_prefill = 0;
    int n_samples = 0;
    std::uint64_t seed = 1;
    int n_bounds = 0;  ///< seeds of `random` beside the lanes, with an `oracle`; 0: neither
    DataArguments data;

    void add(const CliCommand& command);
    /// Returns the questions of each task or of the data files, or the windows of the text. Throws
    /// Error(wrong_use) if the options name none of them, or are invalid.
    std::vector<QuestionSet> questions(const std::shared_ptr<const Model>& model) const;
    int context_of(const Model& model) const;
    /// Returns what was asked, for --json: context, seed, samples, and the text or --ask of tasks.
    nlohmann::json about_json(const Model& model) const;
    /// Returns the lanes as typed, `full` if none was given, and then the bounds.
    std::vector<LaneSpec> lanes() const;
    std::vector<LaneSpec> typed_lanes() const;
    /// Returns lanes() as text.
    std::vector<std::string> labels() const;
};

}  // namespace keyhole
