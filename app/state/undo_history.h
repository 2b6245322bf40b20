/// Undoes changes of the view and of lane settings in one order, newest first. Window thread.
#pragma once

#include "app/state/lane_editor.h"
#include "app/state/view_history.h"

#include <string>
#include <vector>

namespace keyhole {

class UndoHistory {
  public:
    /// Records what changed since the last call. Call once a frame, while no button is held.
    void remember(const ViewState& view, const LaneEditor& lanes);
    /// The window chose head and words by itself, between remember(before) and now: see ViewHistory::adopt().
    void adopt(const ViewState& before, const ViewState& after) { views_.adopt(before, after); }
    /// Undoes the last change. Returns what it was, such as "lane 1, budget 64 → 48"; empty: nothing to undo.
    std::string undo(ViewState& view, LaneEditor& lanes);
    std::string redo(ViewState& view, LaneEditor& lanes);
    /// Returns what undo() and redo() would return, as of the last remember(), undo() or redo().
    const std::string& next_undo() const { return next_undo_; }
    const std::string& next_redo() const { return next_redo_; }

  private:
    enum class Change { view, lane };
    ViewHistory views_;
    std::vector<Change> done_, undone_;
    std::size_t seen_lane_changes_ = 0;
    std::string next_undo_, next_redo_;

    void name_next(const LaneEditor& lanes);
};

}  // namespace keyhole
