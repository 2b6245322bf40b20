/// The lanes as the user wants them: cards are edited here, commands go to the engine, and what the engine's
/// log says is adopted. With undo. Window thread; knows no GL and no engine: commands leave through a
/// function.
#pragma once

#include "engine/session/command.h"
#include "engine/session/session.h"

#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace keyhole {

inline constexpr int kWholeLog = std::numeric_limits<int>::max();
/// The lanes of a run after its logged commands, or as going back to `row` leaves them.
std::vector<LaneSpec> lanes_after_log(const RunSpec& run, int row = kWholeLog);
bool follows_after_log(const RunSpec& run, int row = kWholeLog);
/// What, after going back to `row`, makes lanes, follow and sampling what they are now; empty: nothing was changed since. Lanes that came
/// since are added anew and read the text up to the row.
std::vector<Command> settings_since(const RunSpec& run, int row, std::span<const LaneSpec> lanes,
                                    bool follow);

class LaneEditor {
  public:
    using Send = std::function<void(Command)>;
    explicit LaneEditor(Send send) : send_(std::move(send)) {}

    const std::vector<LaneSpec>& lanes() const { return lanes_; }
    int n_lanes() const { return static_cast<int>(lanes_.size()); }
    bool follow() const { return follow_; }

    /// All lanes anew, for a new run; sends nothing.
    void reset(std::vector<LaneSpec> lanes, bool follow);
    /// The engine's word: adopted when no command of ours is under way.
    void adopt(const RunSpec& run, int pending_commands);

    void set(int index, const LaneSpec& spec);
    void add(LaneSpec spec);  ///< by value: it may be one of lanes()
    void remove(int index);   ///< lane 0 stays
    void set_follow(bool on);
    /// A command in the engine's text form; parse_command has checked the words, this checks the index.
    /// Throws Error(wrong_use).
    void run(const Command& command);

    /// Takes back the last change of a lane's settings. What was evicted stays gone: eviction is final.
    bool undo();
    bool redo();
    /// Goes back to a row of the run; `keeps`: with the settings of now, which the log then has at that row.
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
