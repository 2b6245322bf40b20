#include "app/state/undo_history.h"

namespace keyhole {

void UndoHistory::remember(const ViewState& view, const LaneEditor& lanes) {
    const auto note = [&](Change change) {
        done_.push_back(change);
        undone_.clear();
    };
    if (views_.remember(view)) note(Change::view);
    for (; seen_lane_changes_ < lanes.n_changes(); ++seen_lane_changes_) note(Change::lane);
    if (lanes.n_changes() < seen_lane_changes_) {
        // Lanes were removed or the run started over, so their changes are gone.
        seen_lane_changes_ = lanes.n_changes();
        std::erase(done_, Change::lane);
    }
}

bool UndoHistory::undo(ViewState& view, LaneEditor& lanes) {
    remember(view, lanes);
    while (!done_.empty()) {
        const Change change = done_.back();
        done_.pop_back();
        if (!(change == Change::lane ? lanes.undo() : views_.undo(view))) continue;
        seen_lane_changes_ = lanes.n_changes();
        undone_.push_back(change);
        return true;
    }
    return false;
}

bool UndoHistory::redo(ViewState& view, LaneEditor& lanes) {
    while (!undone_.empty()) {
        const Change change = undone_.back();
        undone_.pop_back();
        if (!(change == Change::lane ? lanes.redo() : views_.redo(view))) continue;
        seen_lane_changes_ = lanes.n_changes();
        done_.push_back(change);
        return true;
    }
    return false;
}

}  // namespace keyhole
