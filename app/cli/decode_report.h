/// What `keyhole decode` prints of a run: its head, the text while it is made, the lanes and their measures
/// at the end. Main thread; runs nothing.
#pragma once

#include "app/cli/options.h"
#include "app/cli/text_stream.h"
#include "engine/trace/run_history.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace keyhole {

/// Returns whether a lane ranks by a formula of the user's: its scores may be NaN or tie, and the report says
/// so where they are recorded.
bool has_own_formula(const LaneSpec& lane);
void print_decode_head(const LoadedModel& loaded, int n_prompt);
/// Prints the lanes after the run. first_is_out: the text of lane 0 was printed while it was made.
void print_run(const RunHistory& history, bool first_is_out);
/// Adds "lanes": the lanes that the last step has.
void add_lanes_json(nlohmann::json& json, const RunHistory& history);
nlohmann::json decode_json(const LoadedModel& loaded, const RunHistory& history);

/// Ends what is said of a part of an export that is left out.
inline constexpr const char* kRestIsWritten = "; everything else is written";
/// Prints what failed beside the results, and ends the command with the last line of it; returns if there is
/// none.
void end_with(std::span<const std::string> failures);

/// Shows a run while it goes on: a bar, and the text of lane 0 where nothing can take it back. Throws
/// Error(cancelled) if a signal has asked the process to end.
class LiveRun {
  public:
    LiveRun(int n_prompt, int n_steps, bool streams);
    /// Ends the line of a text that was not ended, for the message that follows.
    ~LiveRun();
    LiveRun(const LiveRun&) = delete;
    LiveRun& operator=(const LiveRun&) = delete;
    /// done: share of the prompt.
    void read_prompt(double done);
    void add(const StepTrace& step);
    void end();

  private:
    double prompt_share() const;
    void begin(const LaneRecord& lane);

    int n_prompt_, n_steps_;
    bool streams_, ended_ = false, is_open_ = false;
    std::optional<Progress> progress_;
    TextStream text_;
};

}  // namespace keyhole
