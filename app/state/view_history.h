/// Implements undo of the view: lane, layer, head, mode, range, zoom, picks and arrangement. The shown step
/// and the run itself are not part of it. Plain values; window thread.
#pragma once

#include "app/view/view_state.h"

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

class ViewHistory {
  public:
    /// Fits a view to the run on show, whose lanes, heads and steps may be others by now.
    using Fit = std::function<void(ViewState&)>;
    explicit ViewHistory(Fit fit = {}) : fit_(std::move(fit)) {}
    /// Records the view as an undoable change if it differs from the last one; returns true then. Call while
    /// no button is held.
    bool remember(const ViewState& view);
    /// Takes a choice or a correction of the window itself into all remembered views that had the choice
    /// before it, so that undo goes on with what the user did.
    void adopt(const ViewState& before, const ViewState& after);
    /// Restores the previous view, fitted to the run; returns false if there is none. Does not change the row
    /// and the fields bound to the run.
    bool undo(ViewState& view) { return restore(view, done_, undone_); }
    bool redo(ViewState& view) { return restore(view, undone_, done_); }
    /// Returns what the undo or redo after `n` others changes, such as "layer and head"; empty if nothing.
    std::string_view next_undo(std::size_t n = 0) const { return change_to(done_, n); }
    std::string_view next_redo(std::size_t n = 0) const { return change_to(undone_, n); }

  private:
    static constexpr std::size_t kMost = 200;
    std::vector<ViewState> done_, undone_;
    ViewState last_;
    bool any_ = false;
    Fit fit_;

    bool restore(ViewState& view, std::vector<ViewState>& from, std::vector<ViewState>& to);
    std::string_view change_to(const std::vector<ViewState>& views, std::size_t n) const;
};

}  // namespace keyhole
