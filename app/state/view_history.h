/// Undo of the view: which lane, layer, head, mode, range, zoom, picks and arrangement were on show. Time and the run itself are not part
/// of it. Plain values; window thread.
#pragma once

#include "app/view/view_state.h"

#include <vector>

namespace keyhole {

class ViewHistory {
  public:
    /// Call when nothing is under way (no button held): a view other than the last one becomes a step that can be undone. True then.
    bool remember(const ViewState& view);
    /// The view before, or false. Row and run-bound things of `view` stay.
    bool undo(ViewState& view);
    bool redo(ViewState& view);

  private:
    static constexpr std::size_t kMost = 200;
    std::vector<ViewState> done_, undone_;
    ViewState last_;
    bool any_ = false;
};

}  // namespace keyhole
