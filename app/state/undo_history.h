/// Undoes changes of the view and of lane settings in one order, newest first. Window thread.
#pragma once

#include "app/state/lane_editor.h"
#include "app/state/view_history.h"

#include <string>
#include <utility>
#include <vector>

namespace keyhole {

class UndoHistory {
  public:
    explicit UndoHistory(ViewHistory::Fit fit = {}) : views_(std::move(fit)) {}
    /// Records what changed since the last call. Call once a frame, while no button is held.
    void remember(const ViewState& view, const LaneEditor& lanes);
    /// The window changed the view by itself, between remember(before) and now: see ViewHistory::adopt().
    void adopt(const ViewState& before, const ViewState& after) { views_.adopt(before, after); }
    /// Undoes the last change. Returns what it was, such as "lane 1, budget 64 → 48"; empty: nothing to undo.
    std::string undo(ViewState& view, LaneEditor& lanes);
    std::string redo(ViewState& view, LaneEditor& lanes);
    /// Return what undo() and redo() would return after remember().
    std::string next_undo(const LaneEditor& lanes) const;
    std::string next_redo(const LaneEditor& lanes) const;

  private:
    enum class Change { view, lane };
    ViewHistory views_;
    std::vector<Change> done_, undone_;
    std::size_t seen_lane_changes_ = 0;

    template <class ViewWords>
    static std::string first_words(const std::vector<Change>& changes, ViewWords view_words,
                                   const std::string& lane_words);
};

}  // namespace keyhole
