/// What is on show of a run: one immutable snapshot that joins each listed lane with its records. Panes take
/// a lane's name, settings, numbers and picture from here, so that they are always of the same run, lane and
/// step. What is not known yet is a state of its own. Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/run_state.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// The mark of records with other settings than the lane has by now.
inline constexpr std::string_view kOldSettings = "old settings";

struct LaneOnShow {
    enum class Source {
        own,     ///< the lane's own records
        parent,  ///< those of the lane whose state it begins with: it has no step of its own yet
        none,    ///< there are none yet
    };
    Source source = Source::none;
    std::optional<int> known;                  ///< index into history.lanes() of the records
    std::optional<int> id;                     ///< LaneInfo::id of them
    std::shared_ptr<const LaneRecord> record;  ///< its own, at the shown step; null: not present at it
    /// The settings of the records at the shown step, or at the step nearest to it. Without records those
    /// that the lane is to have.
    LaneSpec spec;
    std::string name;           ///< as lane_names() makes it from `spec`
    std::string title;          ///< its number and name: "2 a2sf alpha=0.2"
    int look = 0;               ///< see lane_look(): it keeps it while others come and go
    bool old_settings = false;  ///< the lane has other settings by now
    /// In a few words, what its records are if not those of its present settings: "old settings", "run
    /// before", "lane 1 until its next step", "its state before until its next step"; empty: they are.
    std::string mark;
    /// The same as a sentence; of a lane without records, why there is nothing to show.
    std::string note;
};

struct RunOnShow {
    std::uint64_t run = 0;  ///< RunInfo::id of the records; 0: none
    int row = 0;            ///< the shown step
    RunState::Records records = RunState::Records::current;
    std::vector<LaneOnShow> lanes;  ///< as they are listed

    /// Returns a lane; one without records, if an action has just taken it out of the list.
    const LaneOnShow& at(int lane) const;
};

/// row: of a run with records, one of its steps.
RunOnShow run_on_show(const RunState& run, int row);

/// Returns the looks of the listed lanes. A lane without records gets one that the others do not have.
std::vector<int> looks_of_lanes(const RunState& run);

/// Returns why a lane without a record has none yet.
std::string words_before_first_step(const RunState& run);

}  // namespace keyhole
