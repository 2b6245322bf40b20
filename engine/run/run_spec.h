/// How a run starts. Plain values, for any thread; knows no session.
#pragma once

#include "engine/run/answer.h"
#include "engine/run/command.h"
#include "engine/trace/record.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// With `commands` it describes the whole run: see replay().
struct RunSpec {
    std::string prompt;
    std::vector<int> prompt_tokens;  ///< if not empty, processed in place of the tokens of `prompt`
    std::vector<LaneSpec> lanes;     ///< lane 0 is the reference
    Sampling sampling;
    std::uint64_t seed = 1;
    bool follow = false;  ///< all lanes are fed lane 0's token; otherwise each its own
    /// Fed to every lane after the prompt, whatever the lanes choose. `follow` applies after them.
    std::vector<int> forced;
    bool ignore_eos = false;
    bool chat = false;     ///< prompt and `say` are a user's turns, in the form of the model's chat template
    int n_generate = 0;    ///< tokens to generate, also the horizon of tau; 0: no limit
    RowRequest requested;  ///< values for the sink and the records, which hold attention and scores
    /// Set: the engine computes each lane's own answer beside the run, and play() pauses where the answer is
    /// complete. It changes no record.
    std::optional<AnswerEnd> answer_end;
    std::string right_answer, watch;      ///< for the records: RunStart
    std::vector<int> looks;               ///< the same
    int n_top = 10;                       ///< most likely next tokens in each record
    std::vector<LoggedCommand> commands;  ///< applied at their rows by replay(); ascending
};

/// Returns the KV layout of each lane. Throws Error(wrong_use) if the model's heads cannot be shared in that
/// way.
std::vector<KvLayout> layouts_of(const Model& model, const std::vector<LaneSpec>& lanes);

/// Returns the RunSpec that a record's run was started with. commands: in text form.
RunSpec run_spec_of(const RunInfo& run, std::span<const RunCommand> commands);

}  // namespace keyhole
