#include "app/state/undo_history.h"

#include <algorithm>
#include <iterator>

namespace keyhole {

void UndoHistory::remember(const ViewState& view, const LaneEditor& lanes) {
    const auto note = [&](Change change) {
        done_.push_back(change);
        undone_.clear();
    };
    if (views_.remember(view)) note(Change::view);
    for (; seen_lane_changes_ < lanes.n_changes(); ++seen_lane_changes_) note(Change::lane);
    // The newest are gone which the engine refused; all, once the run goes back or starts over.
    for (; seen_lane_changes_ > lanes.n_changes(); --seen_lane_changes_) {
        const auto newest = std::find(done_.rbegin(), done_.rend(), Change::lane);
        if (newest != done_.rend()) done_.erase(std::next(newest).base());
    }
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
        if (what.empty()) continue;  // the window or the run has made the two views equal since
        return what;
    }
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
        return what;
    }
    return {};
}

/// Returns the words of the newest change that changes something, as undo() and redo() skip the others.
template <class ViewWords>
std::string UndoHistory::first_words(const std::vector<Change>& changes, ViewWords view_words,
                                     const std::string& lane_words) {
    std::size_t n_views = 0;
    for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
        std::string words = *change == Change::lane ? lane_words : std::string(view_words(n_views++));
        if (!words.empty()) return words;
    }
    return {};
}

std::string UndoHistory::next_undo(const LaneEditor& lanes) const {
    return first_words(
        done_, [&](std::size_t n) { return views_.next_undo(n); }, lanes.next_undo());
}

std::string UndoHistory::next_redo(const LaneEditor& lanes) const {
    return first_words(
        undone_, [&](std::size_t n) { return views_.next_redo(n); }, lanes.next_redo());
}

}  // namespace keyhole
