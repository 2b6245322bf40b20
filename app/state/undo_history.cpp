#include "app/state/undo_history.h"

#include <algorithm>
#include <iterator>

namespace keyhole {

void UndoHistory::remember(const ViewState& view, const LaneEditor& lanes) {
    bool changed = false;
    const auto note = [&](Change change) {
        done_.push_back(change);
        undone_.clear();
        changed = true;
    };
    if (views_.remember(view)) note(Change::view);
    for (; seen_lane_changes_ < lanes.n_changes(); ++seen_lane_changes_) note(Change::lane);
    // The newest are gone which the engine refused; all, once the run goes back or starts over.
    for (; seen_lane_changes_ > lanes.n_changes(); --seen_lane_changes_) {
        const auto newest = std::find(done_.rbegin(), done_.rend(), Change::lane);
        if (newest != done_.rend()) done_.erase(std::next(newest).base());
        changed = true;
    }
    if (changed) name_next(lanes);
}

std::string UndoHistory::undo(ViewState& view, LaneEditor& lanes) {
    remember(view, lanes);
    while (!done_.empty()) {
        const Change change = done_.back();
        done_.pop_back();
        const std::string what(change == Change::lane ? lanes.next_undo() : views_.next_undo());
        if (!(change == Change::lane ? lanes.undo() : views_.undo(view))) continue;
        seen_lane_changes_ = lanes.n_changes();
        undone_.push_back(change);
        if (what.empty()) continue;  // the window has made the two views equal since
        name_next(lanes);
        return what;
    }
    name_next(lanes);
    return {};
}

std::string UndoHistory::redo(ViewState& view, LaneEditor& lanes) {
    while (!undone_.empty()) {
        const Change change = undone_.back();
        undone_.pop_back();
        const std::string what(change == Change::lane ? lanes.next_redo() : views_.next_redo());
        if (!(change == Change::lane ? lanes.redo() : views_.redo(view))) continue;
        seen_lane_changes_ = lanes.n_changes();
        done_.push_back(change);
        if (what.empty()) continue;
        name_next(lanes);
        return what;
    }
    name_next(lanes);
    return {};
}

void UndoHistory::name_next(const LaneEditor& lanes) {
    // A change whose own history has ended is skipped, as undo() and redo() do.
    const auto name = [&](const std::vector<Change>& changes, auto view_name, auto lane_name) {
        bool lane_ended = false, view_ended = false;
        for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
            const bool of_lane = *change == Change::lane;
            bool& ended = of_lane ? lane_ended : view_ended;
            if (ended) continue;
            if (const std::string text(of_lane ? lane_name() : std::string(view_name())); !text.empty())
                return text;
            ended = true;
        }
        return std::string();
    };
    next_undo_ = name(
        done_, [&] { return views_.next_undo(); }, [&] { return lanes.next_undo(); });
    next_redo_ = name(
        undone_, [&] { return views_.next_redo(); }, [&] { return lanes.next_redo(); });
}

}  // namespace keyhole
