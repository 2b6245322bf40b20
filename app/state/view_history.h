/// Implements undo of the view: lane, layer, head, mode, range, zoom, picks and arrangement. The shown step
/// and the run itself are not part of it. Plain values; window thread.
#pragma once

#include "app/view/view_state.h"

#include <string_view>
#include <vector>

namespace keyhole {

class ViewHistory {
  public:
    /// Records the view as an undoable change if it differs from the last one; returns true then. Call while
    /// no button is held.
    bool remember(const ViewState& view);
    /// Takes a choice of the window itself (head, watched words and their curves) into all remembered views
    /// that had the choice before it, so that undo goes on with what the user did.
    void adopt(const ViewState& before, const ViewState& after);
    /// Restores the previous view; returns false if there is none. Does not change the row and the fields
    /// bound to the run.
    bool undo(ViewState& view);
    bool redo(ViewState& view);
    /// Returns what the next undo or redo changes, such as "layer and head"; empty if there is nothing.
    std::string_view next_undo() const;
    std::string_view next_redo() const;

  private:
    static constexpr std::size_t kMost = 200;
    std::vector<ViewState> done_, undone_;
    ViewState last_;
    bool any_ = false;
};

}  // namespace keyhole
