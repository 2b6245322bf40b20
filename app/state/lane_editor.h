/// Holds the lanes as the user wants them. The user edits cards here, commands go to the engine, and changes
/// in the engine's log are adopted. Supports undo. Window thread; knows no GL and no engine: commands leave
/// through a function.
#pragma once

#include "engine/base/index.h"
#include "engine/run/command.h"
#include "engine/run/run_spec.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Names the record of a listed lane, whatever place the lane has in the list.
struct LaneKey {
    std::uint64_t run = 0;  ///< RunInfo::id; 0: none
    int id = -1;            ///< LaneInfo::id in that run; -1: not known yet
    int copy_of = -1;       ///< id of the lane whose state it begins with; -1: none
    int place = -1;         ///< in the list of the start that is under way; -1: none
    bool operator==(const LaneKey&) const = default;
};

class LaneEditor {
  public:
    using Send = std::function<void(Command)>;
    explicit LaneEditor(Send send) : send_(std::move(send)) {}

    const std::vector<LaneSpec>& lanes() const { return lanes_; }
    int n_lanes() const { return static_cast<int>(lanes_.size()); }
    bool follow() const { return follow_; }
    /// Returns the lane's name as lane_names() makes it: "h2o", "a2sf alpha=0.2".
    const std::string& name(int index) const;
    /// Returns its number and name: "2 a2sf alpha=0.2".
    std::string title(int index) const;

    const LaneKey& key(int index) const { return keys_.at(to_index(index)); }
    /// Changes with the lanes and their keys.
    std::uint64_t version() const { return version_; }

    /// Replaces all lanes for a new run, which has no records of them. Sends nothing.
    void reset(std::vector<LaneSpec> lanes, bool follow);
    /// Makes the lanes those of a start. While it is under way, they keep the records of the run before.
    /// Changes can be undone as before.
    void start();
    /// Gives the lanes of the start their records. ids: LaneInfo::id in the order of the start.
    void started(std::uint64_t run, std::span<const int> ids);
    /// Adopts the lanes of the engine's log and their ids. Call once the log holds every command from here.
    /// run_id: 0: the run has no records. Returns whether lanes or `follow` were others: the engine refused a
    /// change, or the run turned back.
    bool adopt(const RunSpec& run, std::uint64_t run_id = 0, std::span<const int> ids = {});

    void set(int index, const LaneSpec& spec);
    void add(LaneSpec spec);  ///< by value, since it may be one of lanes()
    void remove(int index);   ///< lane 0 cannot be removed
    void set_follow(bool on);
    /// Runs a command that parse_command has made, and checks its lane index. Throws Error(wrong_use).
    void run(const Command& command);

    /// Undoes the last change: settings of a lane, an added or a removed lane. Evicted tokens do not come
    /// back: eviction is final. A removed lane comes back to its place with its steps; it reads lane 0's
    /// tokens for those that it missed. Returns false if there is nothing to undo.
    bool undo();
    bool redo();
    /// Returns what they would change, such as "lane 1, budget 64 → 48"; empty: nothing.
    std::string next_undo() const;
    std::string next_redo() const;
    /// Rewinds to a row; `keeps`: reapplies the current settings, which the log then holds at that row.
    void rewind(const RunSpec& run, int row, bool keeps);
    std::size_t n_changes() const { return done_.size(); }

  private:
    enum class Kind { settings, added, forked, removed };
    struct Change {
        Kind kind = Kind::settings;
        int index = 0;
        LaneSpec before, after;  // settings; of an added or a removed lane both are its spec
        LaneKey key{};           // of a removed lane, which comes back with its records
    };
    static std::string words_of(const Change& change);
    void take_back(const Change& change);
    void take_out(int index);
    void put_back(int index, const LaneSpec& spec, const LaneKey& key = {});
    void append(const LaneSpec& spec, const LaneKey& key);
    void put_settings(int index, const LaneSpec& spec);
    void note(Change change);
    Send send_;
    std::vector<LaneSpec> lanes_;
    std::vector<LaneKey> keys_;  // one a lane
    std::uint64_t version_ = 1;
    mutable std::vector<LaneSpec> named_;  // the lanes that names_ belongs to
    mutable std::vector<std::string> names_;
    bool follow_ = false;
    std::vector<Change> done_, undone_;
};

}  // namespace keyhole
