/// Beam search of `decode`: the texts of the lanes, without records. Main thread; knows no window.
#pragma once

#include "app/cli/options.h"
#include "engine/eval/prompted_lanes.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace keyhole {

struct BeamTexts {
    int n_prompt = 0;
    std::vector<std::string> lanes;  ///< as they are in force
    std::vector<OwnText> texts;      ///< of each
};

/// Throws the errors of PromptedLanes, and Error(wrong_use) for a run whose lanes follow one text.
BeamTexts search_beams(const LoadedModel& loaded, RunSpec spec, const BeamSettings& settings);

void print_beams(const LoadedModel& loaded, const BeamTexts& found, const BeamSettings& settings);
nlohmann::json beams_json(const LoadedModel& loaded, const BeamTexts& found);

}  // namespace keyhole
