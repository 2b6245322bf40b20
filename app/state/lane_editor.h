/// Holds the lanes as the user wants them. The user edits cards here, commands go to the engine, and changes
/// in the engine's log are adopted. Supports undo. Window thread; knows no GL and no engine: commands leave
/// through a function.
#pragma once

#include "engine/session/command.h"
#include "engine/session/session.h"

#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace keyhole {

inline constexpr int kWholeLog = std::numeric_limits<int>::max();
/// Returns the lanes of a run after its logged commands, or the lanes that a rewind to `row` would restore.
std::vector<LaneSpec> lanes_after_log(const RunSpec& run, int row = kWholeLog);
bool follows_after_log(const RunSpec& run, int row = kWholeLog);
/// Returns the commands that, after a rewind to `row`, restore the current lanes, follow and sampling; empty
/// if they did not change since. Lanes added since are added anew and read the text up to the row.
std::vector<Command> settings_since(const RunSpec& run, int row, std::span<const LaneSpec> lanes,
                                    bool follow);

class LaneEditor {
  public:
    using Send = std::function<void(Command)>;
    explicit LaneEditor(Send send) : send_(std::move(send)) {}

    const std::vector<LaneSpec>& lanes() const { return lanes_; }
    int n_lanes() const { return static_cast<int>(lanes_.size()); }
    bool follow() const { return follow_; }

    /// Replaces all lanes for a new run. Sends nothing.
    void reset(std::vector<LaneSpec> lanes, bool follow);
    /// Adopts the lanes of the engine's log, unless commands from here are still pending.
    void adopt(const RunSpec& run, int pending_commands);

    void set(int index, const LaneSpec& spec);
    void add(LaneSpec spec);  ///< by value, since it may be one of lanes()
    void remove(int index);   ///< lane 0 cannot be removed
    void set_follow(bool on);
    /// Runs a command that parse_command has made, and checks its lane index. Throws Error(wrong_use).
    void run(const Command& command);

    /// Undoes the last change of a lane's settings. Evicted tokens do not come back: eviction is final.
    bool undo();
    bool redo();
    /// Rewinds to a row; `keeps`: reapplies the current settings, which the log then holds at that row.
    void rewind(const RunSpec& run, int row, bool keeps);
    std::size_t n_changes() const { return done_.size(); }

  private:
    struct Change {
        int index = 0;
        LaneSpec before, after;
    };
    Send send_;
    std::vector<LaneSpec> lanes_;
    bool follow_ = true;
    std::vector<Change> done_, undone_;
};

}  // namespace keyhole
