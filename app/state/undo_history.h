/// Undoes changes of the view and of lane settings in one order, newest first. Window thread.
#pragma once

#include "app/state/lane_editor.h"
#include "app/state/view_history.h"

#include <vector>

namespace keyhole {

class UndoHistory {
  public:
    /// Records what changed since the last call. Call once a frame, while no button is held.
    void remember(const ViewState& view, const LaneEditor& lanes);
    /// Undoes the last change. Returns false if there is none.
    bool undo(ViewState& view, LaneEditor& lanes);
    bool redo(ViewState& view, LaneEditor& lanes);

  private:
    enum class Change { view, lane };
    ViewHistory views_;
    std::vector<Change> done_, undone_;
    std::size_t seen_lane_changes_ = 0;
};

}  // namespace keyhole
