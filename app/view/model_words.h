/// What parts of a model mean for a lane, in words: layers that see a part of the text, experts, learned
/// sinks. Pure functions; any thread; knows no GL.
#pragma once

#include "engine/trace/record.h"

#include <string>
#include <string_view>

namespace keyhole {

/// Says what a budget means in the layers that slide; empty: no layer has a window below the budget.
/// budget: tokens; 0: none, all tokens are kept.
std::string sliding_words(const ModelConfig& config, int budget);

/// Says why a run has no curve of a measure of learned sinks.
std::string no_sinks_text(std::string_view measure);

/// Names the experts that ran in a layer at a step, the best first: "7, 2 of 8"; "none" in a layer
/// without experts; empty: the model has none, or they are not known.
std::string expert_words(const ModelConfig& config, const LaneRecord& record, int layer);
/// The same of all layers, a line each.
std::string all_expert_words(const ModelConfig& config, const LaneRecord& record);

}  // namespace keyhole
