/// What the answers of a run come from, by its records: for its page, and for the picture of its story. Any
/// thread; knows no window. Lanes are numbered by their order at the end of the run.
#pragma once

#include "app/view/pictures.h"
#include "app/view/story_text.h"

#include <optional>
#include <string>
#include <vector>

namespace keyhole {

struct RunFacts {
    const PictureSource& source;
    const RunHistory& history;
    std::vector<ShownLane> lanes;
    std::vector<int> known;  ///< [lane] into history.lanes()
    std::vector<ShownAnswer> answers;
    int other_settings = -1;  ///< a lane whose answer is not known with the settings of its records; -1: none
    Story story;
    std::optional<TokenSpan> words;
    int full = 0;  ///< the lane to which the others are compared; into history.lanes()
    HeadPlace focus;
    std::vector<int> telling;  ///< heads, most telling first
};

/// Refers to the source.
RunFacts run_facts(const PictureSource& source);

/// Settings of a lane, and the first step with them.
struct SettingsFrom {
    int row = 0;
    std::string name, effective;
};

/// Returns the settings that a lane had, with names that tell them apart.
std::vector<SettingsFrom> settings_of(const RunHistory& history, int lane);

}  // namespace keyhole
