/// Runs the engine's scoring and selection on given attention logits, without a model, so that tests can
/// compare them with the simulations. Single thread.
#pragma once

#include "tests/reference/simulation.h"

#include <string>

namespace reference {

/// Returns [KV head of the whole model][row]: a lane of this spec that reads the text row by row. n_generate
/// is the horizon of the tau schedule where the spec names none. One-shot prompts are read as rows that evict
/// only after the last one, which gives the same scores.
std::vector<Simulated> run_engine_scores(const Observed& text, const std::string& spec, int n_generate);

/// The same with other specs from given rows on, and with the user's commands applied to every KV head.
struct Turn {
    int from_row = 0;
    std::string spec;
};
std::vector<Simulated> run_engine_scores(const Observed& text, const std::vector<Turn>& turns,
                                         const std::vector<ManualChange>& hands, int n_generate);

}  // namespace reference
