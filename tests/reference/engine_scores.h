/// Drives the engine's scoring and selection on given attention logits, without a model: what the simulations are compared with.
#pragma once

#include "tests/reference/simulation.h"

#include <string>

namespace reference {

/// [KV head of the whole model][row]: a lane of this spec reading the text row by row. n_generate is the horizon of the tau
/// schedule where the spec names none. One-shot prompts are read as rows that evict only after the last, which gives the same scores.
std::vector<Simulated> run_engine_scores(const Observed& text, const std::string& spec, int n_generate);

/// The same with another spec from some rows on, and what a user does by hand, in every KV head.
struct Turn {
    int from_row = 0;
    std::string spec;
};
std::vector<Simulated> run_engine_scores(const Observed& text, const std::vector<Turn>& turns,
                                         const std::vector<Hand>& hands, int n_generate);

}  // namespace reference
